"""Sources and their options: what is valid, and messages that name the key."""

from __future__ import annotations

import pytest

from hpcslaq.data import BUILTINS, DataSource, valid_options
from hpcslaq.data.formats import FORMATS, format_of


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("a/b.npy", "npy"),
        ("b.npz", "npz"),
        ("b.CSV", "csv"),
        ("b.csv.gz", "csv"),
        ("b.v1.tsv", "csv"),
        ("b.svm", "libsvm"),
        ("b.libsvm.gz", "libsvm"),
        ("b.h5", "hdf5"),
        ("b.parquet.brotli", "parquet"),
        ("b.txt", None),
        ("census2", None),
    ],
)
def test_the_name_tells_the_format(location: str, expected: str | None) -> None:
    assert format_of(location) == expected


@pytest.mark.parametrize(
    ("location", "options", "message"),
    [
        ("a.csv", {"lable": "y"}, "^lable: unknown option .valid: format, label, task"),
        ("a.csv", {"zero_based": True}, "^zero_based: unknown option"),
        ("a.svm", {"delimiter": ","}, "^delimiter: unknown option"),
        ("a.csv", {"holdout": 1.0}, "^holdout: 1.0 is not below 1.0"),
        ("a.csv", {"holdout": -0.1}, "^holdout: -0.1 < 0.0"),
        ("a.csv", {"holdout": float("nan")}, "^holdout: nan"),
        ("a.csv", {"holdout": True}, "^holdout: True is not a number"),
        ("a.csv", {"seed": 1.5}, "^seed: 1.5 is not a integer"),
        ("a.csv", {"shuffle": 1}, "^shuffle: 1 is not a true/false"),
        ("a.csv", {"header": 1}, "^header: 1 is not a string or true/false"),
        ("a.csv", {"header": "yes"}, "^header: 'yes' is not one of auto, true, false"),
        ("a.csv", {"task": "guess"}, "^task: 'guess' is not one of auto, class"),
        ("a.csv", {"drop": "a"}, "^drop: 'a' is not a list"),
        ("a.csv", {"drop": [1.5]}, "^drop: .* more than strings and integers"),
        ("a.csv", {"format": "xls"}, "^format: 'xls' is not one of"),
        ("a.xls", {}, "^format: cannot be told from the name 'a.xls' .valid: npy"),
        ("a.csv", {"task": "unlabelled", "label": "y"}, "^label: 'y' goes with no task"),
        ("a.csv", {"task": "regression", "label": "none"}, "^label: none goes with no task"),
        ("a.npy", {"label": 1, "label_file": "y.npy"}, "^label_file: give it or label"),
        ("census", {"step": 2}, "^step: unknown option .valid: holdout, shuffle"),
        ("patches", {"step": 0}, "^step: 0 < 1"),
    ],
)
def test_a_wrong_option_is_named(location: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataSource(location, options)


def test_every_default_is_valid_and_documented() -> None:
    for location in [*BUILTINS, "a.unknown", *(f"a.{name}" for name in ("csv", "npz", "svm"))]:
        options = valid_options(location)
        assert len({option.name for option in options}) == len(options)
        for option in options:
            assert option.check(option.default) == option.default
            assert option.doc and option.type_name


def test_a_given_format_beats_the_name() -> None:
    source = DataSource("a.txt", {"format": "libsvm", "num_features": 7})
    assert source.file_format == "libsvm" and source.resolved()["num_features"] == 7
    assert source.resolved()["delimiter"] == "auto"


def test_formats_of_options_exist() -> None:
    for option in valid_options("a.unknown"):
        assert set(option.formats) <= set(FORMATS)


def test_names_are_fit_for_directories() -> None:
    assert DataSource("/x/my data (1).csv.gz").name == "my-data-1-"
    assert DataSource("/x/.csv", {"format": "csv"}).name == "data"
    assert DataSource("census").name == "census"
