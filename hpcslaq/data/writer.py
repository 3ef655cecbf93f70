"""Writes the arrays of a prepared data set: split, order, scaling, layout.

Takes the rows as `spool` keeps them and never holds more than a block of them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hpcslaq.data.blocks import Progress, row_ranges
from hpcslaq.data.spool import Rows

_SMALL_INDEX = 2**31


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An NPY file in a prepared directory, as meta.json describes it."""

    file: str
    shape: tuple[int, ...]
    dtype: str
    #: Size of the file, header included.
    num_bytes: int
    #: CRC-32 of the values without the header.
    crc32: int


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """x -> (x - center) / scale, column by column. center, scale : (d,) float64."""

    center: NDArray[np.float64]
    scale: NDArray[np.float64]

    def apply(self, X: NDArray[np.float64] | csr_array) -> None:
        """Scale rows in place; in a CSR array the stored entries only."""
        if isinstance(X, np.ndarray):
            X -= self.center
            X /= self.scale
        else:
            X.data -= self.center[X.indices]
            X.data /= self.scale[X.indices]


class ArrayFile:
    """Writes an NPY file piece by piece and syncs it; use it in a `with`, then read `info`."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str) -> None:
        self._path, self._shape, self._dtype = path, shape, np.dtype(dtype)
        self._crc = 0
        self.info = ArrayInfo(path.name, shape, dtype, 0, 0)

    def __enter__(self) -> ArrayFile:
        self._stream = self._path.open("wb")
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._stream, header)
        return self

    def write(self, values: NDArray[np.generic]) -> None:
        """Append values; they are converted to the file's type."""
        view = np.ascontiguousarray(values, dtype=self._dtype).reshape(-1).view(np.uint8).data
        self._crc = zlib.crc32(view, self._crc)
        self._stream.write(view)

    def __exit__(self, *exc: object) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        size = self._stream.tell()
        self._stream.close()
        self.info = ArrayInfo(self._path.name, self._shape, self._dtype.str, size, self._crc)


def find_scaling(
    rows: Rows, is_training: NDArray[np.bool_], columns: NDArray[np.bool_], *, is_sparse: bool
) -> Scaling:
    """Mean and standard deviation of the training rows in the chosen columns (d,).

    Columns that were not chosen, and constant ones, have scale 1. What would not stay
    sparse is not centred, but divided by its root mean square: a column with implicit zeros, and
    every column of a dense input that is to be stored sparse (`is_sparse`).
    """
    num = int(is_training.sum())
    total = _column_sums(rows, is_training, lambda values, _: values)
    if rows.is_sparse:
        stored = _column_sums(rows, is_training, lambda values, _: np.ones_like(values))
        is_centred = columns & (stored == num)
    else:
        is_centred = columns & (not is_sparse)
    center = np.where(is_centred, total / num, 0.0)
    squares = _column_sums(
        rows, is_training, lambda values, column: np.square(values - center[column])
    )
    scale = np.sqrt(squares / num)
    # A constant column leaves rounding errors of its mean, not an exact zero.
    is_constant = scale <= 1e-12 * np.abs(center)
    return Scaling(center, np.where(columns & ~is_constant & (scale > 0), scale, 1.0))


def _column_sums(
    rows: Rows,
    chosen: NDArray[np.bool_],
    of: Callable[[NDArray[np.float64], NDArray[np.intp] | slice], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """(d,) sums over the stored entries of the chosen rows of a function of (value, column)."""
    sums = np.zeros(rows.num_features)
    for start, stop in _ranges(rows, rows.is_sparse):
        X = rows.take(start + np.flatnonzero(chosen[start:stop]))
        if isinstance(X, np.ndarray):
            sums += of(X, slice(None)).sum(axis=0)
        else:
            sums += np.bincount(X.indices, of(X.data, X.indices), minlength=len(sums))
    return sums


def _ranges(rows: Rows, is_sparse: bool) -> Iterator[tuple[int, int]]:
    """Blocks of rows for a result that is dense or sparse."""
    width = rows.num_features
    if is_sparse and not isinstance(rows.X, np.ndarray):
        width = min(width, 1 + 2 * rows.X.nnz // rows.num_rows)
    return row_ranges(rows.num_rows, width)


def write_part(
    directory: Path,
    prefix: str,
    rows: Rows,
    order: NDArray[np.int64],
    y: NDArray[np.float64] | None,
    *,
    scaling: Scaling | None,
    is_sparse: bool,
    progress: Progress,
) -> dict[str, ArrayInfo]:
    """Write the rows `order` (n,) of the input, and their labels, as `prefix`*.npy.

    Dense: X. Sparse: data, indices, indptr, 32-bit where there are fewer than 2^31 entries.
    With labels: y. Returns the description of each array by its name.
    """
    blocks = _gathered(rows, order, scaling, is_sparse, progress)
    if is_sparse:
        arrays = _write_csr(directory, prefix, rows, order, blocks)
    else:
        arrays = _write_dense(directory, prefix, rows, len(order), blocks)
    if y is not None:
        with ArrayFile(directory / f"{prefix}y.npy", (len(order),), "<f8") as file:
            file.write(y[order])
        arrays["y"] = file.info
    return arrays


def _gathered(
    rows: Rows,
    order: NDArray[np.int64],
    scaling: Scaling | None,
    is_sparse: bool,
    progress: Progress,
) -> Iterator[NDArray[np.float64] | csr_array]:
    for start, stop in _ranges(rows, is_sparse):
        wanted = order[start:stop]
        if not len(wanted):
            return
        X = rows.take(wanted)
        if scaling is not None:
            scaling.apply(X)
        yield X
        progress("write", min(stop, len(order)) / len(order))


def _write_dense(
    directory: Path,
    prefix: str,
    rows: Rows,
    num_rows: int,
    blocks: Iterator[NDArray[np.float64] | csr_array],
) -> dict[str, ArrayInfo]:
    with ArrayFile(directory / f"{prefix}X.npy", (num_rows, rows.num_features), "<f8") as file:
        for X in blocks:
            file.write(X if isinstance(X, np.ndarray) else X.toarray())
    return {"X": file.info}


def _write_csr(
    directory: Path,
    prefix: str,
    rows: Rows,
    order: NDArray[np.int64],
    blocks: Iterator[NDArray[np.float64] | csr_array],
) -> dict[str, ArrayInfo]:
    lengths = _row_lengths(rows)[order]
    indptr = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    nnz = int(indptr[-1])
    small = "<i4" if nnz < _SMALL_INDEX else "<i8"
    with ArrayFile(directory / f"{prefix}data.npy", (nnz,), "<f8") as data:
        with ArrayFile(directory / f"{prefix}indices.npy", (nnz,), small) as indices:
            for X in blocks:
                sparse = csr_array(X) if isinstance(X, np.ndarray) else X
                data.write(sparse.data)
                indices.write(sparse.indices)
    with ArrayFile(directory / f"{prefix}indptr.npy", indptr.shape, small) as pointers:
        pointers.write(indptr)
    return {"data": data.info, "indices": indices.info, "indptr": pointers.info}


def _row_lengths(rows: Rows) -> NDArray[np.int64]:
    if not isinstance(rows.X, np.ndarray):
        return np.asarray(np.diff(rows.X.indptr), dtype=np.int64)
    return np.concatenate(
        [np.count_nonzero(rows.X[start:stop], axis=1) for start, stop in _ranges(rows, False)]
    ).astype(np.int64)
