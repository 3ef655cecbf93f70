"""libsvm text: good files arrive as they are, bad ones are refused by line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.data.libsvm import read_libsvm
from hpcslaq.data.source import DataSource
from hpcslaq.errors import DataError

GOOD = {
    "one-based": ("1 1:5 3:7\n-1 2:6\n", {}),
    "zero-based": ("1 0:5 2:7\n-1 1:6\n", {}),
    "zero-based as told": ("1 0:5 2:7\n-1 1:6\n", {"zero_based": True}),
    "comments": ("# all\n1 1:5 3:7 # a:b c\n\n-1 2:6#x\n", {}),
    "query ids": ("1 qid:3 1:5 3:7\n-1 qid:4 2:6\n", {}),
    "unsorted": ("1 3:7 1:5\n-1 2:6\n", {}),
    "tabs and blanks": ("  1\t1:5   3:7 \r\n-1 2:6", {}),
    "number forms": ("+1 1:5e0 3:.7e1\n-1.0 2:6.\n", {}),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_arrives_as_it_is(name: str, tmp_path: Path, load) -> None:
    text, options = GOOD[name]
    path = tmp_path / "t.svm"
    path.write_text(text)
    data = load(path, **options)
    batch = data.rows(0, 2)
    np.testing.assert_array_equal(batch.X.toarray(), [[5, 0, 7], [0, 6, 0]])
    np.testing.assert_array_equal(batch.y, [1, 0])
    assert data.class_labels == (-1, 1)


BAD = {
    "empty": ("", {}, "no rows"),
    "comments only": ("# a\n#b\n", {}, "no rows"),
    "no label": ("1 1:5\n2:6\n", {}, "line 2: the label '2:6' is not a number"),
    "text label": ("1 1:5\ncat 2:6\n", {}, "line 2: the label 'cat' is not a number"),
    "two labels": ("1 1:5\n1,2 2:6\n", {}, "line 2: the label '1,2' is not a number"),
    "no colon": ("1 1:5\n\n0 2:6 7\n", {}, "line 3: '7' is not index:value"),
    "two colons": ("1 1:5\n0 2:6:7\n", {}, "line 2: '2:6:7' is not index:value"),
    "no index": ("1 1:5\n0 :6\n", {}, "line 2: ':6' is not index:value"),
    "no value": ("1 1:5\n0 2:\n", {}, "line 2: '2:' is not index:value"),
    "blank after a colon": ("1 1:5\n0 2: 6\n", {}, "line 2: '2:' is not index:value"),
    "errors that cancel": ("1 1:5-2\n0 2: 3:4\n", {}, "line 1: '1:5-2' is not index:value"),
    "two dots": ("1 1:5.2.3\n0 2:4\n", {}, "line 1: '1:5.2.3' is not index:value"),
    "text value": ("1 1:x\n", {}, "line 1: '1:x' is not index:value"),
    "hexadecimal": ("1 1:0x1f\n", {}, "line 1: '1:0x1f' is not index:value"),
    "NaN": ("1 1:5\n0 2:nan\n", {}, "line 2: feature .*the value is nan"),
    "infinity": ("1 1:5\n0 2:-inf\n", {}, "line 2: feature .*the value is -inf"),
    "NaN label": ("1 1:5\nnan 2:1\n", {}, "line 2: the label is nan"),
    "NaN index": ("1 1:5\n0 nan:1\n", {}, "line 2: the index nan is not a whole number"),
    "fractional index": ("1 1:5\n0 1.5:1\n", {}, "line 2: the index 1.5 is not a whole number"),
    "negative index": ("1 1:5\n0 -1:1\n", {}, "line 2: the index -1 is not a whole number"),
    "huge index": ("1 1:5\n0 99999999999999999999:1\n", {}, "line 2: the index .*set num_features"),
    "large index": ("1 1:5\n0 2000000000:1\n", {}, "line 2: the index 2000000000 .*num_features"),
    "beyond num_features": ("1 1:5\n0 4:1\n", {"num_features": 3}, "line 2: the index 4"),
    "beyond, found late": ("1 1:5 3:1\n0 0:1\n", {"num_features": 3}, "line 1: the index 3"),
    "zero in one-based": ("1 1:5\n0 0:1\n", {"zero_based": False}, "line 2: the index 0"),
    "twice": ("1 1:5\n0 2:1 3:1 2:4\n", {}, "line 2: the index 2 occurs twice"),
    "one class": ("1 1:5\n1 2:6\n", {"task": "classification"}, "all labels are 1"),
    "fractional class": ("1 1:5\n.5 2:6\n", {"task": "classification"}, "line 2: .*0.5 is not"),
    "binary": ("1 1:5\n\0\1\2\n", {}, "line 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_the_line(name: str, tmp_path: Path, load) -> None:
    text, options, message = BAD[name]
    path = tmp_path / "t.libsvm"
    path.write_text(text)
    with pytest.raises(DataError, match=f"t.libsvm: .*{message}"):
        load(path, **options)


def test_num_features_widens_the_matrix(tmp_path: Path, load) -> None:
    path = tmp_path / "t.svm.gz"
    path.write_bytes(gzip.compress(b"1 1:5\n0 2:6\n"))
    data = load(path, num_features=9)
    assert data.num_features == 9 and data.is_sparse


def test_rows_without_features_are_rows_too(tmp_path: Path, load) -> None:
    path = tmp_path / "t.svm"
    path.write_text("1\n0 2:6\n1\n")
    batch = load(path).rows(0, 3)
    np.testing.assert_array_equal(batch.X.toarray(), [[0, 0], [0, 6], [0, 0]])


def test_blocks_and_scikit_learn_agree(tmp_path: Path, load) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20_000, 30)) * (rng.random((20_000, 30)) < 0.5)
    y = rng.normal(size=20_000)
    path = tmp_path / "t.svm"
    datasets.dump_svmlight_file(X, y, str(path), zero_based=False)
    assert path.stat().st_size > 5 << 20
    batch = load(path).rows(0, 20_000)
    wanted, target = datasets.load_svmlight_file(str(path))
    np.testing.assert_array_equal(batch.X.toarray(), wanted.toarray())
    np.testing.assert_array_equal(batch.y, target)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0159:.-+e \n#x", max_size=40))
def test_any_text_is_either_parsed_as_python_would_or_refused(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.mktemp("f") / "t.svm"
    path.write_text(text, newline="")
    options = DataSource(str(path)).resolved()
    wanted = _reference(text)
    try:
        table = read_libsvm(path, options, lambda stage, fraction: None)
        got = [
            (float(label), dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)))
            for block in table.blocks
            for label, row in zip(block.y, _rows(block.X), strict=True)
        ]
    except DataError:
        got = None
    assert got == wanted


def _rows(X):
    for i in range(X.shape[0]):
        yield X[[i], :]


def _reference(text: str):
    rows = []
    for line in text.split("\n"):
        fields = line.split("#")[0].split()
        if not fields:
            continue
        try:
            label, row = float(fields[0]), {}
            for field in fields[1:]:
                index, value = field.split(":")
                number = float(index)
                if number != int(number) or not 0 <= number < 2**27 or int(number) in row:
                    return None
                row[int(number)] = float(value)
        except (ValueError, OverflowError):
            return None
        rows.append((label, row))
    return rows
