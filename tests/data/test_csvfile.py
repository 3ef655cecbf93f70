"""CSV files: good ones arrive as they are, bad ones are refused by line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.data import DataSource, prepare
from hpcslaq.data.csvfile import read_csv
from hpcslaq.errors import DataError

GOOD = {
    "plain": ("1,2,0\n3,4,1\n5,6,0\n", {}),
    "no newline at the end": ("1,2,0\n3,4,1\n5,6,0", {}),
    "windows line ends": ("1,2,0\r\n3,4,1\r\n5,6,0\r\n", {}),
    "byte order mark": ("\ufeff1,2,0\n3,4,1\n5,6,0\n", {}),
    "header": ("a,b,c\n1,2,0\n3,4,1\n5,6,0\n", {}),
    "header of numbers": ("7,8,9\n1,2,0\n3,4,1\n5,6,0\n", {"header": True}),
    "blank lines": ("\n1,2,0\n\n   \n3,4,1\n5,6,0\n\n", {}),
    "semicolons": ("1;2;0\n3;4;1\n5;6;0\n", {}),
    "tabs": ("1\t2\t0\n3\t4\t1\n5\t6\t0\n", {}),
    "blanks": ("1 2   0\n 3 4 1\n5 6 0\n", {}),
    "blanks after commas": ("1, 2, 0\n3, 4, 1\n5, 6, 0\n", {}),
    "quotes": ('"1","2","0"\n"3","4","1"\n5,6,0\n', {}),
    "scientific": ("1e0,2.0,0\n+3,40e-1,1\n5,.6e1,0\n", {}),
    "text label": ("1,2,cat\n3,4,dog\n5,6,cat\n", {}),
    "label first by number": ("0,1,2\n1,3,4\n0,5,6\n", {"label": 0}),
    "label from the end": ("1,0,2\n3,1,4\n5,0,6\n", {"label": -2}),
    "label by name": ("z,a,b\n0,1,2\n1,3,4\n0,5,6\n", {"label": "z"}),
    "label by usual name": ("Target,a,b\nx,1,2\ny,3,4\nx,5,6\n", {}),
    "dropped columns": ("id,a,b,c\nu1,1,2,0\nu2,3,4,1\nu3,5,6,0\n", {"drop": ["id"]}),
    "dropped by number": ("1,u1,2,0\n3,u2,4,1\n5,u3,6,0\n", {"drop": [1]}),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_arrives_as_it_is(name: str, tmp_path: Path, load) -> None:
    text, options = GOOD[name]
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8", newline="")
    batch = load(path, **options).rows(0, 3)
    np.testing.assert_array_equal(batch.X, [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(batch.y, [0, 1, 0])


BAD = {
    "empty": ("", {}, "no rows"),
    "blank": ("\n\n \n", {}, "no rows"),
    "header only": ("a,b,y\n", {}, "no rows"),
    "short row": ("1,2,0\n3,1\n5,6,0\n", {}, "line 2: 2 fields, the first line has 3"),
    "long row": ("1,2,0\n\n3,4,1,9\n", {}, "line 3: 4 fields"),
    "row longer than all": ("1,2,0,7\n3,4,1\n", {}, "line 2: 3 fields, the first line has 4"),
    "text": ("a,b,y\n1,2,0\n3,x,1\n", {}, "line 3: column 'b': 'x' is not a number"),
    "text in the first row": ("1,x,0\n3,4,1\n", {}, "line 1: column 1 .counted from 0.: 'x'"),
    "empty field": ("a,b,y\n1,2,0\n3,,1\n", {}, "line 3: column 'b': is empty"),
    "NaN": ("a,b,y\n1,2,0\n3,nan,1\n", {}, "line 3: column 'b': the value is nan"),
    "infinity": (
        "1,2,0\n\n3,-inf,1\n",
        {},
        "line 3: feature 1 .counted from 0.: the value is -inf",
    ),
    "overflow": ("1,2,0\n3,1e999,1\n", {}, "line 2: .*the value is inf"),
    "NaN label": ("1,2,0\n3,4,nan\n", {}, "line 2: the label is nan"),
    "empty text label": ("1,2,cat\n3,4,\n", {}, "line 2: the label is empty"),
    "late text label": ("1,2,0\n3,4,cat\n", {}, 'line 2: column 2 .*set task = "classification"'),
    "hexadecimal": ("1,2,0\n0x1f,2,1\n", {}, "line 2: .*'0x1f' is not a number"),
    "underscore": ("1,2,0\n1_0,2,1\n", {}, "line"),
    "open quote": ('1,2,0\n3,"4,1\n5,6,0\n', {}, "line 2: quotes"),
    "line break in quotes": ('1,2,"a\nb"\n3,4,c\n', {"label": -1}, "line 1"),
    "one class": ("1,2,0\n3,4,0\n", {"task": "classification"}, "all labels are 0"),
    "fractional class": (
        "1,2,0\n3,4,.5\n",
        {"task": "classification"},
        "line 2: .*0.5 is not a whole",
    ),
    "text target": ("1,2,a\n3,4,b\n", {"task": "regression", "header": False}, "line 1: .*'a'"),
    "no such label": ("a,b\n1,2\n", {"label": "c"}, "0 columns are named 'c' .there are: a, b."),
    "no such column": ("1,2\n3,4\n", {"label": 2}, "no column 2, there are 2"),
    "name without header": ("1,2\n3,4\n", {"label": "a"}, "the columns have no names"),
    "only a label": ("1\n0\n", {}, 'no feature columns .set label = "none"'),
    "NUL": ("1,2,0\n3,\0,1\n", {}, "line 2: a NUL byte"),
    "negative counts": ("1,2\n3,-4\n", {"task": "counts"}, "line 2: -4 is not a count"),
    "fractional counts": ("1,2\n\n3,.5\n", {"task": "counts"}, "line 3: 0.5 is not a count"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_the_place(name: str, tmp_path: Path, load) -> None:
    text, options, message = BAD[name]
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(DataError, match=f"t.csv: .*{message}"):
        load(path, **options)
    assert not list((tmp_path / "cache").glob("*t*")), "nothing is left of a failed conversion"


def test_a_gzip_file_is_read_and_a_truncated_one_refused(tmp_path: Path, load) -> None:
    rng = np.random.default_rng(0)
    lines = "".join(f"{a:.6f},{b:.6f},{i % 3}\n" for i, (a, b) in enumerate(rng.random((999, 2))))
    packed = gzip.compress(lines.encode())
    path = tmp_path / "t.csv.gz"
    path.write_bytes(packed)
    assert load(path).num_classes == 3
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="damaged gzip file"):
        load(path)


def test_bytes_that_are_no_utf8_are_refused_by_line(tmp_path: Path, load) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"1,2,a\n3,4,b\n5,6,\xff\xfe\n")
    with pytest.raises(DataError, match="line 3: not UTF-8"):
        load(path)


def test_an_endless_line_is_refused_before_it_is_all_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(17):
            stream.write(b"1," * (4 << 20))
    with pytest.raises(DataError, match="line 1: longer than 64 MB"):
        prepare(DataSource(str(path)), tmp_path / "cache")


def test_lines_are_numbered_right_across_blocks(tmp_path: Path, load) -> None:
    path = tmp_path / "t.csv"
    row = "0.123456789," * 60 + "1\n"
    good = (6 << 20) // len(row)
    path.write_text(row * good + "\n\n" + row.replace("0.1", "x", 1) + row)
    with pytest.raises(DataError, match=f"line {good + 3}: .*'x23456789' is not a number"):
        load(path, task="regression")


def test_many_blocks_give_the_same_rows_as_one_array(tmp_path: Path, load) -> None:
    X = np.random.default_rng(3).normal(size=(30_000, 12))
    path = tmp_path / "t.csv"
    np.savetxt(path, X, delimiter=",", fmt="%.17g")
    assert path.stat().st_size > 6 << 20
    data = load(path, task="unlabelled")
    np.testing.assert_array_equal(data.rows(0, data.num_rows).X, X)


def test_text_labels_map_to_classes_in_alphabetical_order(tmp_path: Path, load) -> None:
    path = tmp_path / "t.csv"
    path.write_text("1,b\n2,c\n3,a\n4,b\n")
    data = load(path)
    assert data.class_labels == ("a", "b", "c")
    np.testing.assert_array_equal(data.rows(0, 4).y, [1, 2, 0, 1])


def test_names_of_the_feature_columns_are_kept(tmp_path: Path, load) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,width,kind,height\nx,1,0,2\ny,3,1,4\n")
    assert load(path, label="kind", drop=["id"]).feature_names == ("width", "height")


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("1,2\n3,x\n")
    options = DataSource(str(path)).resolved()
    read_csv(path, options, lambda stage, fraction: None)  # the bad line is met in a later block
