"""NPY, NPZ and sparse NPZ: round trips and hostile files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.errors import DataError


def npy_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def lying_npy(shape: tuple[int, ...], num_bytes: int, descr: str = "<f8") -> bytes:
    stream = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + bytes(num_bytes)


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<i2", "u1", "<i8", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_npy_file_of_any_real_type_and_order_arrives(
    dtype: str, order: str, tmp_path: Path, load
) -> None:
    X = np.asarray(np.arange(30).reshape(10, 3) % 7, dtype=dtype, order=order)
    np.save(tmp_path / "t.npy", X)
    np.savez(tmp_path / "u.npz", X=X)
    for name in ("t.npy", "u.npz"):
        data = load(tmp_path / name)
        assert data.task == "unlabelled" and data.holdout() is None
        got = data.rows(0, 10).X
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, X.astype(float))


def test_labels_come_from_a_column_or_a_file_or_an_array(tmp_path: Path, load, table) -> None:
    X, y = table
    np.save(tmp_path / "a.npy", np.column_stack([X, y]))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", y)
    np.savez_compressed(tmp_path / "b.npz", X=X, y=y)
    np.savez(tmp_path / "c.npz", points=X, kinds=np.where(y > 0, "up", "down"))
    cases = [
        ("a.npy", {"label": 3}),
        ("a.npy", {"label": -1}),
        ("x.npy", {"label_file": str(tmp_path / "y.npy")}),
        ("b.npz", {}),
        ("b.npz", {"label": "y", "dataset": "X"}),
        ("c.npz", {"label": "kinds", "dataset": "points"}),
    ]
    for name, options in cases:
        data = load(tmp_path / name, **options)
        batch = data.rows(0, 40)
        np.testing.assert_array_equal(batch.X, X)
        np.testing.assert_array_equal(batch.y, (y > 0).astype(float))
        assert data.class_labels == (("down", "up") if name == "c.npz" else (-1, 1))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_a_sparse_matrix_arrives_as_csr(kind: str, tmp_path: Path, load, table) -> None:
    X, y = table
    sparse.save_npz(tmp_path / "t.npz", sparse.csr_array(X).asformat(kind))
    np.save(tmp_path / "y.npy", y)
    data = load(tmp_path / "t.npz", label_file=str(tmp_path / "y.npy"))
    assert data.is_sparse
    np.testing.assert_array_equal(data.rows(0, 40).X.toarray(), X)


def test_duplicates_in_a_sparse_matrix_are_added(tmp_path: Path, load) -> None:
    X = sparse.coo_array(([1.0, 2.0, 4.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    sparse.save_npz(tmp_path / "t.npz", X)
    np.testing.assert_array_equal(load(tmp_path / "t.npz").rows(0, 2).X.toarray(), [[0, 3], [4, 0]])


class Trap:
    """Unpickling this would run code; the test fails if anything tries."""

    def __reduce__(self):
        return (pytest.fail, ("a file was unpickled",))


BAD_NPY = {
    "no bytes": (b"", "not a usable NPY file"),
    "other magic": (b"PK hello world, this is no array at all", "not a usable NPY file"),
    "objects": (npy_bytes(np.array([[1, Trap()]], dtype=object)), "never loaded"),
    "one dimension": (npy_bytes(np.zeros(5)), r"shape \(5,\) is not \(rows, columns\)"),
    "three dimensions": (npy_bytes(np.zeros((2, 2, 2))), "is not .rows, columns"),
    "no rows": (npy_bytes(np.zeros((0, 3))), "no rows or no columns"),
    "no columns": (npy_bytes(np.zeros((3, 0))), "no rows or no columns"),
    "complex": (npy_bytes(np.zeros((2, 2), complex)), "complex128 is not a real number"),
    "text": (npy_bytes(np.full((2, 2), "a")), "not a real number"),
    "dates": (npy_bytes(np.zeros((2, 2), "M8[s]")), "not a real number"),
    "records": (npy_bytes(np.zeros((2, 2), [("a", "f8")])), "not a real number"),
    "NaN": (npy_bytes(np.array([[1, 2], [3, np.nan]])), "row 1 .counted from 0.: feature 1"),
    "huge shape": (lying_npy((10**12, 10**6), 64), "not a usable NPY file"),
    "truncated": (npy_bytes(np.ones((9, 9)))[:-8], "not a usable NPY file"),
    "surplus": (npy_bytes(np.ones((9, 9))) + b"12345678", "8 bytes more than the header"),
    "negative shape": (lying_npy((-2, 3), 64), "NPY file"),
    "open bracket": (
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'shape': (10L,".ljust(117) + b"\n",
        "not a usable NPY file",
    ),
    "header of code": (
        b"\x93NUMPY\x01\x00v\x00" + b"__import__('os').system('true')".ljust(117) + b"\n",
        "not a usable NPY file",
    ),
}


@pytest.mark.parametrize("name", BAD_NPY)
def test_a_bad_npy_file_is_refused(name: str, tmp_path: Path, load) -> None:
    content, message = BAD_NPY[name]
    (tmp_path / "t.npy").write_bytes(content)
    with pytest.raises(DataError, match=f"t.npy: .*{message}"):
        load(tmp_path / "t.npy")


def sparse_members(**changes: np.ndarray) -> dict[str, bytes]:
    arrays = {
        "format": np.array(b"csr"),
        "shape": np.array([2, 3]),
        "data": np.array([1.0, 2.0]),
        "indices": np.array([0, 2], dtype=np.int32),
        "indptr": np.array([0, 1, 2], dtype=np.int32),
        **changes,
    }
    return {name: npy_bytes(array) for name, array in arrays.items() if array is not None}


BAD_NPZ = {
    "objects": ({"X": npy_bytes(np.array([[Trap()]], dtype=object))}, "never loaded"),
    "huge shape": ({"X": lying_npy((10**12, 100), 800)}, "the archive declares 800"),
    "short shape": ({"X": lying_npy((2, 2), 800)}, "the archive declares 800"),
    "garbage": ({"X": b"what is this?"}, "not a usable NPY file"),
    "version": ({"X": b"\x93NUMPY\x09\x00" + bytes(100)}, "version"),
    "NaN": ({"X": npy_bytes(np.array([[1.0], [np.nan]]))}, "row 1 "),
    "no arrays": ({}, "holds no arrays"),
    "which array": (
        {"a": npy_bytes(np.ones((2, 2))), "b": npy_bytes(np.ones((2, 2)))},
        "one of: a, b",
    ),
    "few labels": (
        {"X": npy_bytes(np.ones((3, 2))), "y": npy_bytes(np.ones(2))},
        "3 rows, but 2 labels",
    ),
    "wide labels": (
        {"X": npy_bytes(np.ones((3, 2))), "y": npy_bytes(np.ones((3, 2)))},
        "labels of shape",
    ),
    "object labels": (
        {"X": npy_bytes(np.ones((1, 2))), "y": npy_bytes(np.array([Trap()]))},
        "never loaded",
    ),
    "sparse index": (sparse_members(indices=np.array([0, 3])), "entry 1 of 'indices' is 3"),
    "sparse negative": (sparse_members(indices=np.array([-1, 2])), "entry 0 of 'indices' is -1"),
    "sparse pointers": (sparse_members(indptr=np.array([0, 3, 2])), "does not ascend"),
    "sparse start": (sparse_members(indptr=np.array([1, 1, 2])), "does not ascend"),
    "sparse rows": (sparse_members(indptr=np.array([0, 2])), "'indptr' has 2 entries, expected 3"),
    "sparse lengths": (sparse_members(indices=np.array([0])), "2 values, but 1 entries"),
    "sparse float index": (sparse_members(indices=np.array([0.0, 2.0])), "list of integers"),
    "sparse no indptr": (sparse_members(indptr=None), "'indptr' is missing"),
    "sparse format": (sparse_members(format=np.array(b"dia")), "sparse format 'dia'"),
    "sparse huge": (sparse_members(shape=np.array([2**60, 3])), "too large for the memory"),
    "sparse negative shape": (sparse_members(shape=np.array([-2, 3])), "no rows or no columns"),
    "sparse NaN": (sparse_members(data=np.array([1.0, np.nan])), "row 1 .*feature 2"),
    "sparse complex": (sparse_members(data=np.array([1.0, 2j])), "not a list of real numbers"),
    "sparse objects": (sparse_members(data=np.array([1.0, Trap()])), "never loaded"),
}


@pytest.mark.parametrize("name", BAD_NPZ)
def test_a_bad_npz_file_is_refused(name: str, tmp_path: Path, load) -> None:
    members, message = BAD_NPZ[name]
    write_zip(tmp_path / "t.npz", members)
    with pytest.raises(DataError, match=f"t.npz: .*{message}"):
        load(tmp_path / "t.npz")


def test_a_truncated_or_flipped_archive_is_refused(tmp_path: Path, load) -> None:
    path = tmp_path / "t.npz"
    np.savez_compressed(path, X=np.random.default_rng(0).normal(size=(200, 20)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match="not a usable NPZ file"):
        load(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path.write_bytes(bytes(flipped))
    with pytest.raises(DataError, match="damaged"):
        load(path)


def test_an_archive_larger_than_the_disk_is_refused_before_it_is_unpacked(
    tmp_path: Path, load, monkeypatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, X=np.zeros((200_000, 10)))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 20}))
    with pytest.raises(DataError, match=r"needs 32,000,000 bytes .*1,048,576 are free"):
        load(path)


def test_a_fortran_array_larger_than_the_memory_is_refused(
    tmp_path: Path, load, monkeypatch
) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, X=np.ones((100, 10), order="F"))
    monkeypatch.setattr("hpcslaq.data.arrays.physical_memory_bytes", lambda: 8_000)
    with pytest.raises(DataError, match="declares 8,000 bytes, too large for the memory"):
        load(path)


def test_a_label_file_that_does_not_fit_is_refused(tmp_path: Path, load, table) -> None:
    X, y = table
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", y[:-1])
    with pytest.raises(DataError, match="40 rows, but 39 labels"):
        load(tmp_path / "x.npy", label_file=str(tmp_path / "y.npy"))
    np.save(tmp_path / "y.npy", np.column_stack([y, y]))
    with pytest.raises(DataError, match=r"y\.npy: labels of shape"):
        load(tmp_path / "x.npy", label_file=str(tmp_path / "y.npy"))
