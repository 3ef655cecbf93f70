"""A temporary copy of the input in its own order, as float64 on disk.

It exists because a stream's number of rows and columns is known only at its end, and
the final order of the rows needs both. Checks what holds for every format: finite values, equal
widths, and enough space.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hpcslaq.data.blocks import Block, Table
from hpcslaq.data.dataset import csr_view, take_rows
from hpcslaq.data.labels import LabelCollector
from hpcslaq.errors import DataError

#: Column numbers are stored in 32 bits.
MAX_FEATURES = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All rows of an input in its own order, mapped."""

    #: (N, d) float64, dense or CSR.
    X: NDArray[np.float64] | csr_array

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.X.shape[0])

    @property
    def num_features(self) -> int:
        """d."""
        return int(self.X.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether X is CSR."""
        return not isinstance(self.X, np.ndarray)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float64] | csr_array:
        """A copy of some rows."""
        if isinstance(self.X, np.ndarray):
            return np.take(self.X, rows, axis=0)
        return take_rows(self.X, rows)

    def row_of(self, entry: int) -> int:
        """The row of a stored value, counted through all rows."""
        if isinstance(self.X, np.ndarray):
            return entry // self.num_features
        return _row_of(self.X, entry)


@dataclass(slots=True)
class _Files:
    """The open files of a spool and what was written so far."""

    directory: Path
    values: BinaryIO
    indices: BinaryIO
    #: Entries of each row of a sparse input, one array per block.
    lengths: list[NDArray[np.int64]] = field(default_factory=list)
    groups: list[NDArray[np.int64]] = field(default_factory=list)
    num_rows: int = 0
    width: int = 0


def spool(
    table: Table, file: str, directory: Path, labels: LabelCollector
) -> tuple[Rows, NDArray[np.int64] | None, bool]:
    """Write a table's blocks into two files of `directory` and give labels to the collector.

    Returns the rows, the groups (N,) or None, and whether there are labels. `file` is the
    input's name in messages. Raises DataError on the first bad row, on an input without
    rows or columns, and when the space does not suffice.
    """
    _check_declared_size(table, file, directory)
    has_labels = False
    with (directory / "spool.values").open("wb") as values:
        with (directory / "spool.indices").open("wb") as indices:
            files = _Files(directory, values, indices, width=table.num_features or 0)
            for block in table.blocks:
                _append(files, block, table, file)
                if block.y is not None:
                    has_labels = True
                    labels.add(block.y)
    if not files.num_rows:
        raise DataError(f"{file}: no rows")
    groups = np.concatenate(files.groups) if files.groups else None
    return _map(files, table, file), groups, has_labels


def check_space(file: str, directory: Path, num_bytes: int) -> None:
    """Raise DataError when `directory` cannot take this many bytes."""
    free = shutil.disk_usage(directory).free
    if num_bytes > free:
        raise DataError(
            f"{file}: needs {num_bytes:,} bytes in {directory.parent}, {free:,} are free "
            "(set HPCSLAQ_CACHE to a larger place)"
        )


def _check_declared_size(table: Table, file: str, directory: Path) -> None:
    if table.num_rows is not None and table.num_features is not None and not table.is_sparse:
        # The spool and the final arrays.
        check_space(file, directory, 2 * 8 * table.num_rows * table.num_features)
    if table.num_features is not None and table.num_features < 1:
        raise DataError(f'{file}: no feature columns (set label = "none" if the column is one)')
    if table.num_features is not None and table.num_features > MAX_FEATURES:
        raise DataError(f"{file}: {table.num_features:,} columns, at most {MAX_FEATURES:,}")


def _append(files: _Files, block: Block, table: Table, file: str) -> None:
    X = block.X
    if isinstance(X, np.ndarray):
        _append_dense(files, X, table, file)
    else:
        _append_sparse(files, X, table, file)
    files.num_rows += X.shape[0]
    if block.groups is not None:
        files.groups.append(block.groups)


def _append_dense(files: _Files, X: NDArray[np.generic], table: Table, file: str) -> None:
    values = np.ascontiguousarray(X, dtype=np.float64)
    if not np.isfinite(values).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        _refuse(files, table, file, row, column, float(values[row, column]))
    files.values.write(values.data)


def _append_sparse(files: _Files, X: csr_array, table: Table, file: str) -> None:
    values = np.ascontiguousarray(X.data, dtype=np.float64)
    if not np.isfinite(values).all():
        entry = int(np.flatnonzero(~np.isfinite(values))[0])
        _refuse(files, table, file, _row_of(X, entry), int(X.indices[entry]), float(values[entry]))
    files.values.write(values.data)
    files.indices.write(np.ascontiguousarray(X.indices, dtype=np.int32).data)
    files.lengths.append(np.diff(X.indptr).astype(np.int64))
    files.width = max(files.width, X.shape[1])


def _refuse(files: _Files, table: Table, file: str, row: int, column: int, value: float) -> None:
    names = table.feature_names
    title = f"feature {column} (counted from 0)" if names is None else f"column {names[column]!r}"
    raise DataError(f"{file}: {table.where(files.num_rows + row)}: {title}: the value is {value}")


def _map(files: _Files, table: Table, file: str) -> Rows:
    path = files.directory / "spool.values"
    if not table.is_sparse:
        return Rows(_mapped(path, np.float64).reshape(files.num_rows, files.width))
    first = table.first_column()
    width = table.num_features or files.width - first
    if files.width - first > width:
        raise DataError(f"{file}: an index beyond num_features = {width}")
    if width < 1:
        raise DataError(f"{file}: no features")
    lengths = np.concatenate(files.lengths)
    indptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    indices = _mapped(files.directory / "spool.indices", np.int32)
    if first:
        indices = indices - np.int32(first)
    return Rows(csr_view(_mapped(path, np.float64), indices, indptr, (files.num_rows, width)))


def _mapped(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    if not path.stat().st_size:
        return np.zeros(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def _row_of(X: csr_array, entry: int) -> int:
    return int(np.searchsorted(X.indptr, entry, side="right")) - 1
