"""HDF5 files: one dataset of shape (n, d), labels in another one or in a column.

Only data that lie in the file itself are read: links, external storage and virtual
datasets, all of which can point anywhere, are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcslaq.data.arrays import (
    check_labels,
    check_matrix,
    check_num_labels,
    pick_label_name,
    pick_name,
    read_label_file,
)
from hpcslaq.data.blocks import Block, Progress, Table, one_line, row_number, row_ranges
from hpcslaq.data.columns import check_label_column, split_label_column
from hpcslaq.errors import DataError

_FEATURE_NAMES = ("X", "x", "data", "features", "X_train", "x_train")
#: A filter unpacks a whole storage chunk at once.
_MAX_CHUNK_BYTES = 1 << 30
#: Deflate cannot do better than this.
_MAX_RATIO = 1032
_SMALL_BYTES = 64 << 20


def read_hdf5(path: Path, options: Mapping[str, object], progress: Progress) -> Table:
    """The rows of a dataset in an HDF5 file."""
    file = _open(path)
    with _damage_refused(f"{path}"):
        names = _dataset_names(file)
        if not names:
            raise DataError(f"{path}: holds no datasets (links are not followed)")
        name = pick_name(path, str(options["dataset"]).strip("/"), names, _FEATURE_NAMES)
        X = file[name]
        what = f"{path}: dataset {name!r}"
        check_matrix(what, X.shape or (), X.dtype)
        _check_storage(what, X)
        label = options["label"]
        y = read_label_file(options)
        if y is None:
            label_name = pick_label_name(path, _plain(label), names, name)
            y = None if label_name is None else _read_labels(path, file, label_name)
    check_num_labels(path, y, X.shape[0])
    column = label if isinstance(label, int) else "none"
    return Table(
        blocks=_blocks(path, file, X, column, y, progress),
        is_sparse=False,
        where=row_number,
        num_rows=X.shape[0],
        num_features=check_label_column(path, column, X.shape[1]),
    )


@contextmanager
def _damage_refused(what: str) -> Iterator[None]:
    """Turns what h5py raises on damaged files into a DataError."""
    try:
        yield
    except (OSError, KeyError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise DataError(f"{what}: damaged HDF5 file: {one_line(error)}") from error


def _plain(label: object) -> object:
    return label.strip("/") if isinstance(label, str) else label


def _open(path: Path) -> h5py.File:
    try:
        # A read-only input needs no lock, and many cluster file systems offer none.
        return h5py.File(path, "r", locking=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a usable HDF5 file: {one_line(error)}") from error


def _dataset_names(file: h5py.File) -> list[str]:
    """Paths of all datasets that are reached by hard links only."""
    names: list[str] = []
    waiting: list[tuple[str, h5py.Group]] = [("", file)]
    seen = {h5py.h5o.get_info(file.id).addr}
    while waiting:
        prefix, group = waiting.pop()
        for key in group:
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                continue
            node = group[key]
            address = h5py.h5o.get_info(node.id).addr
            if isinstance(node, h5py.Dataset):
                names.append(prefix + key)
            elif isinstance(node, h5py.Group) and address not in seen:
                seen.add(address)
                waiting.append((f"{prefix}{key}/", node))
    return sorted(names)


def _check_storage(what: str, dataset: h5py.Dataset) -> None:
    if dataset.is_virtual or dataset.external:
        raise DataError(f"{what}: its values lie in other files")
    declared = math.prod(dataset.shape) * dataset.dtype.itemsize
    stored = dataset.id.get_storage_size()
    if declared and not stored:
        raise DataError(f"{what}: declares shape {dataset.shape}, but holds no values")
    if declared > max(_SMALL_BYTES, _MAX_RATIO * stored):
        raise DataError(
            f"{what}: declares {declared:,} bytes, but only {stored:,} are stored: "
            "most of its values were never written"
        )
    if dataset.chunks and math.prod(dataset.chunks) * dataset.dtype.itemsize > _MAX_CHUNK_BYTES:
        raise DataError(f"{what}: storage chunks of shape {dataset.chunks} are larger than 1 GB")


def _read_labels(path: Path, file: h5py.File, name: str) -> NDArray[np.generic]:
    dataset = file[name]
    what = f"{path}: dataset {name!r}"
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    check_labels(what, dataset.shape or (), np.dtype("U1") if is_text else dataset.dtype)
    _check_storage(what, dataset)
    if is_text:
        return np.array(dataset.asstr("utf-8", "replace")[...].reshape(-1).tolist())
    return np.asarray(dataset[...]).reshape(-1)


def _blocks(
    path: Path,
    file: h5py.File,
    X: h5py.Dataset,
    label: object,
    y: NDArray[np.generic] | None,
    progress: Progress,
) -> Iterator[Block]:
    with file:
        for start, stop in row_ranges(*X.shape):
            with _damage_refused(f"{path}: {X.name}: row {start} or later"):
                values = np.asarray(X[start:stop])
            rows, inner = split_label_column(path, label, values)
            yield Block(rows, inner if y is None else y[start:stop])
            progress("read", stop / X.shape[0])
