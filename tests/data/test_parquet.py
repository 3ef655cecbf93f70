"""Parquet files: round trips and refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.errors import DataError, LaunchError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_numbers_booleans_and_text_labels_arrive(tmp_path: Path, load) -> None:
    columns = {
        "a": pa.array([1.5, 2.5, 3.5], pa.float32()),
        "b": pa.array([1, 2, 3], pa.int16()),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "c": pa.array([True, False, True]),
        "name": ["u", "v", "w"],
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    data = load(tmp_path / "t.parquet", label="kind", drop=["name"])
    batch = data.rows(0, 3)
    np.testing.assert_array_equal(batch.X, [[1.5, 1, 1], [2.5, 2, 0], [3.5, 3, 1]])
    np.testing.assert_array_equal(batch.y, [0, 1, 0])
    assert data.class_labels == ("x", "y") and data.feature_names == ("a", "b", "c")


def test_row_groups_are_put_together(tmp_path: Path, load) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 3))
    arrays = {name: X[:, i] for i, name in enumerate(("a", "b", "target"))}
    pq.write_table(pa.table(arrays), tmp_path / "t.pq", row_group_size=77)
    batch = load(tmp_path / "t.pq").rows(0, 1000)
    np.testing.assert_array_equal(batch.X, X[:, :2])
    np.testing.assert_array_equal(batch.y, X[:, 2])


BAD = {
    "null": ({"a": [1.0, None], "y": [0, 1]}, {}, "row 1 .*column 'a' is missing"),
    "null label": ({"a": [1.0, 2.0], "y": [0, None]}, {}, "row 1 .*column 'y' is missing"),
    "NaN": ({"a": [1.0, float("nan")], "y": [0, 1]}, {}, "row 1 .*column 'a': the value is nan"),
    "text": ({"a": ["u", "v"], "y": [0, 1]}, {}, "column 'a': type .*leave it out with drop"),
    "lists": ({"a": [[1.0], [2.0]], "y": [0, 1]}, {}, "column 'a': type list"),
    "no rows": ({"a": pa.array([], pa.float64())}, {}, "no rows or no columns"),
    "no such label": ({"a": [1.0], "b": [2.0]}, {"label": "c"}, "columns are named 'c'"),
    "label of lists": ({"a": [1.0], "y": [[2.0]]}, {}, "label column 'y': type list"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(name: str, tmp_path: Path, load) -> None:
    columns, options, message = BAD[name]
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=rf"t\.parquet: .*{message}"):
        load(tmp_path / "t.parquet", **options)


def test_two_columns_of_one_name_are_refused(tmp_path: Path, load) -> None:
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "t.parquet")
    with pytest.raises(DataError, match="two columns have the same name"):
        load(tmp_path / "t.parquet")


def test_damaged_files_are_refused(tmp_path: Path, load) -> None:
    path = tmp_path / "t.parquet"
    X = np.random.default_rng(0).normal(size=(5000, 2))
    pq.write_table(pa.table({"a": X[:, 0], "y": X[:, 1]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a usable Parquet file"):
        load(path)
    path.write_bytes(whole[:4] + bytes(20_000) + whole[20_004:])
    with pytest.raises(DataError, match=r"damaged|usable"):
        load(path)


def test_without_pyarrow_the_message_says_what_to_install(
    tmp_path: Path, load, monkeypatch
) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LaunchError, match=r'needs the extra "data": pip install "hpcslaq\[data\]"'):
        load(tmp_path / "t.parquet")


def test_labels_that_are_no_utf8_text_are_refused(tmp_path: Path, load) -> None:
    offsets = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32).tobytes())
    labels = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"\xf7u"))
    pq.write_table(pa.table({"a": [1.0, 2.0], "y": labels}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet: row 0 or later: damaged: .*utf-8"):
        load(tmp_path / "t.parquet")
