"""HDF5 files: round trips, and files that point elsewhere or declare what they do not hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcslaq.errors import DataError


def test_datasets_of_usual_names_arrive(tmp_path: Path, load, table) -> None:
    X, y = table
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(7, 2), compression="gzip")
        file["y"] = y
    batch = load(tmp_path / "t.h5").rows(0, 40)
    np.testing.assert_array_equal(batch.X, X)
    np.testing.assert_array_equal(batch.y, (y > 0).astype(float))


def test_datasets_in_groups_are_named_by_path(tmp_path: Path, load, table) -> None:
    X, y = table
    with h5py.File(tmp_path / "t.hdf5", "w") as file:
        file["train/points"] = X.astype("f4")
        file["train/kind"] = np.where(y > 0, "up", "down").astype(h5py.string_dtype())
        file["test/points"] = X[:3]
    data = load(tmp_path / "t.hdf5", dataset="/train/points", label="train/kind")
    np.testing.assert_array_equal(data.rows(0, 40).X, X.astype("f4"))
    assert data.class_labels == ("down", "up")


def test_a_column_can_be_the_label(tmp_path: Path, load, table) -> None:
    X, y = table
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["both"] = np.column_stack([X, y])
    np.testing.assert_array_equal(load(tmp_path / "t.h5", label=-1).rows(0, 40).X, X)


def external_link(file: h5py.File) -> None:
    file["X"] = h5py.ExternalLink("other.h5", "/X")


def soft_link(file: h5py.File) -> None:
    file["X"] = h5py.SoftLink("/elsewhere")


def group_behind_a_link(file: h5py.File) -> None:
    file["a"] = h5py.ExternalLink("other.h5", "/")


def external_storage(file: h5py.File) -> None:
    file.create_dataset("X", (10, 2), "f8", external=[("/etc/passwd", 0, 160)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((10, 2), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "X", (10, 2))
    file.create_virtual_dataset("X", layout)


def never_written(file: h5py.File) -> None:
    file.create_dataset("X", (10**9, 10**6), "f8", chunks=(1000, 1000))


def hardly_written(file: h5py.File) -> None:
    file.create_dataset("X", (10**9, 10**6), "f8", chunks=(100, 100))[0, 0] = 1.0


def huge_chunks(file: h5py.File) -> None:
    # What one storage chunk unpacks to is allocated at once.
    file.create_dataset("X", (2**14, 2**13 + 1), "f8", chunks=(2**14, 2**13 + 1))
    file["X"].id.write_direct_chunk((0, 0), b"\0" * (2 << 20))


def not_a_number(file: h5py.File) -> None:
    file["X"] = np.array([[1.0, 2.0], [3.0, np.nan]])


def no_shape(file: h5py.File) -> None:
    file["X"] = h5py.Empty("f8")


BAD: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "external link": (external_link, "links are not followed"),
    "soft link": (soft_link, "links are not followed"),
    "linked group": (group_behind_a_link, "links are not followed"),
    "external storage": (external_storage, "its values lie in other files"),
    "virtual dataset": (virtual, "its values lie in other files"),
    "never written": (never_written, "but holds no values"),
    "hardly written": (hardly_written, "most of its values were never written"),
    "huge chunks": (huge_chunks, "larger than 1 GB"),
    "NaN": (not_a_number, "row 1 .*feature 1"),
    "no shape": (no_shape, "is not .rows, columns"),
    "one dimension": (lambda file: file.update(X=np.ones(5)), "is not .rows, columns"),
    "compound": (lambda file: file.update(X=np.zeros((2, 2), [("a", "f8")])), "not a real number"),
    "few labels": (lambda file: file.update(X=np.ones((5, 2)), y=[1.0]), "5 rows, but 1 labels"),
    "empty": (lambda file: None, "holds no datasets"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(name: str, tmp_path: Path, load) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["X"] = np.ones((10, 2))
    build, message = BAD[name]
    with h5py.File(tmp_path / "t.h5", "w") as file:
        build(file)
    with pytest.raises(DataError, match=rf"t\.h5: .*{message}"):
        load(tmp_path / "t.h5")


def test_a_group_that_contains_itself_is_walked_once(tmp_path: Path, load) -> None:
    with h5py.File(tmp_path / "t.h5", "w") as file:
        group = file.create_group("a")
        group["X"] = np.ones((4, 2))
        group["again"] = group
        group["root"] = file["/"]
    assert load(tmp_path / "t.h5").num_rows == 4


def test_damaged_files_are_refused(tmp_path: Path, load) -> None:
    path = tmp_path / "t.h5"
    with h5py.File(path, "w") as file:
        X = np.random.default_rng(0).normal(size=(500, 20))
        file.create_dataset("X", data=X, chunks=(50, 20), compression="gzip", fletcher32=True)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a usable HDF5 file"):
        load(path)
    path.write_bytes(b"no HDF5 at all")
    with pytest.raises(DataError, match="not a usable HDF5 file"):
        load(path)
    flipped = bytearray(whole)
    flipped[-1000] ^= 0xFF
    path.write_bytes(bytes(flipped))
    with pytest.raises(DataError, match="damaged"):
        load(path)
