"""NPY and NPZ files, and sparse matrices as scipy saves them.

Headers are read and checked before anything of the declared size is allocated, and
nothing is ever unpickled. Dense arrays are streamed in blocks of rows.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hpcslaq.data.blocks import Block, Progress, Table, one_line, row_number, row_ranges
from hpcslaq.data.columns import LABEL_NAMES, check_label_column, split_label_column
from hpcslaq.data.npy import NPY_ERRORS, read_npy_header
from hpcslaq.errors import DataError

_FEATURE_NAMES = ("X", "x", "data", "features", "X_train", "x_train", "arr_0")
_SPARSE_MEMBERS = {"format", "shape", "data"}
#: What numpy and zipfile raise on damaged files.
_DAMAGE = (*NPY_ERRORS, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_npy(path: Path, options: Mapping[str, object], progress: Progress) -> Table:
    """The rows of an (n, d) array; labels from a column (`label`) or another file."""
    X = map_npy(path)
    check_matrix(f"{path}", X.shape, X.dtype)
    label = options["label"]
    if isinstance(label, str) and label not in ("auto", "none"):
        raise DataError(f"{path}: label: {label!r}: the columns of an NPY file have numbers only")
    y = read_label_file(options)
    num_features = check_label_column(path, label, X.shape[1])
    check_num_labels(path, y, len(X))
    return Table(
        blocks=array_blocks(path, X, label, y, progress),
        is_sparse=False,
        where=row_number,
        num_rows=len(X),
        num_features=num_features,
    )


def map_npy(path: Path) -> NDArray[np.generic]:
    """The array of an NPY file, mapped. Raises DataError if the file is not exactly one."""
    try:
        with path.open("rb") as stream:
            read_npy_header(stream)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _DAMAGE as error:
        raise DataError(f"{path}: {_npy_complaint(error)}") from error
    surplus = path.stat().st_size - array.offset - array.nbytes
    if surplus:
        raise DataError(f"{path}: {surplus} bytes more than the header declares")
    return np.asarray(array)


def _npy_complaint(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "python object" in text.lower() or "allow_pickle" in text:
        return "holds Python objects, which are never loaded; save a plain numeric array"
    return f"not a usable NPY file: {text[:200]}"


def read_label_file(options: Mapping[str, object]) -> NDArray[np.generic] | None:
    """The (n,) labels of `label_file`, None if there is none."""
    if not options["label_file"]:
        return None
    path = Path(str(options["label_file"]))
    y = map_npy(path)
    check_labels(f"{path}", y.shape, y.dtype)
    return y.reshape(-1)


def check_matrix(what: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Raise DataError unless this is a non-empty (n, d) array of real numbers."""
    if dtype.kind not in "fiub":
        raise DataError(f"{what}: dtype {dtype} is not a real number type")
    if len(shape) != 2:
        raise DataError(f"{what}: shape {shape} is not (rows, columns)")
    if not (shape[0] > 0 and shape[1] > 0):
        raise DataError(f"{what}: shape {shape} has no rows or no columns")


def check_labels(what: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Raise DataError unless this is an (n,) or (n, 1) array of numbers or strings."""
    if dtype.kind not in "fiubUS":
        raise DataError(f"{what}: dtype {dtype} is neither a real number nor text")
    if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
        raise DataError(f"{what}: labels of shape {shape}, expected (rows,)")


def check_num_labels(path: Path, y: NDArray[np.generic] | None, num_rows: int) -> None:
    """Raise DataError unless there are as many labels as rows."""
    if y is not None and len(y) != num_rows:
        raise DataError(f"{path}: {num_rows} rows, but {len(y)} labels")


def as_text(y: NDArray[np.generic]) -> NDArray[np.generic]:
    """Labels with byte strings decoded."""
    return np.char.decode(y.astype("S"), "utf-8", "replace") if y.dtype.kind == "S" else y


def array_blocks(
    path: Path,
    X: NDArray[np.generic],
    label: object,
    y: NDArray[np.generic] | None,
    progress: Progress,
) -> Iterator[Block]:
    """Blocks of an (n, d) array in memory or mapped."""
    for start, stop in row_ranges(*X.shape):
        rows, inner = split_label_column(path, label, X[start:stop])
        yield Block(rows, inner if y is None else as_text(y[start:stop]))
        progress("read", stop / len(X))


def read_npz(path: Path, options: Mapping[str, object], progress: Progress) -> Table:
    """The rows of an array in an NPZ archive, or of a sparse matrix saved by scipy."""
    archive = _Archive(path)
    if set(archive.names) >= _SPARSE_MEMBERS:
        return _read_sparse(archive, options, progress)
    name = pick_name(path, str(options["dataset"]), archive.names, _FEATURE_NAMES)
    shape, dtype, is_fortran = archive.header(name)
    what = f"{path}: array {name!r}"
    check_matrix(what, shape, dtype)
    y = _archive_labels(archive, name, options)
    label = options["label"] if isinstance(options["label"], int) else "none"
    check_num_labels(path, y, shape[0])
    num_features = check_label_column(path, label, shape[1])
    if is_fortran:
        blocks = array_blocks(path, archive.load(name), label, y, progress)
    else:
        blocks = _streamed_blocks(archive, name, label, y, progress)
    return Table(blocks, False, row_number, num_rows=shape[0], num_features=num_features)


def pick_name(path: Path, asked: str, names: list[str], usual: tuple[str, ...]) -> str:
    """Name of the array that holds the features. Raises DataError if it cannot be told."""
    shown = ", ".join(names[:20])
    if asked:
        if asked not in names:
            raise DataError(f"{path}: dataset: no array {asked!r} (there are: {shown})")
        return asked
    hits = [name for name in usual if name in names] or (names if len(names) == 1 else [])
    if not hits:
        raise DataError(f"{path}: cannot tell which array to use; set dataset to one of: {shown}")
    return hits[0]


def pick_label_name(path: Path, label: object, names: list[str], features: str) -> str | None:
    """Name of the array that holds the labels, None if there is none or `label` is a column."""
    if isinstance(label, int) or label == "none":
        return None
    others = [name for name in names if name != features]
    if label != "auto":
        return pick_name(path, str(label), others, ())
    hits = [name for name in others if name.casefold() in LABEL_NAMES or name == "y_train"]
    return hits[0] if len(hits) == 1 else None


class _Archive:
    """An NPZ file, i.e. a zip of NPY members, read with all declarations checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise DataError(f"{path}: not a usable NPZ file: {one_line(error)}") from error
        self.names = [
            name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")
        ]
        if not self.names:
            raise DataError(f"{path}: holds no arrays")

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[np.generic], bool]:
        """(shape, dtype, is Fortran order) of a member; the declared sizes agree."""
        with self.open(name) as (header, _):
            return header

    def open(self, name: str) -> _Member:
        """A member, positioned behind its header. Use it in a `with`."""
        return _Member(self.path, self._zip, name)

    def load(self, name: str, *, max_dims: int = 2) -> NDArray[np.generic]:
        """A whole member in memory. Raises DataError before it would not fit."""
        with self.open(name) as ((shape, dtype, is_fortran), stream):
            what = f"{self.path}: array {name!r}"
            num_bytes = math.prod(shape) * dtype.itemsize
            if len(shape) > max_dims:
                raise DataError(f"{what}: shape {shape} has more than {max_dims} dimensions")
            if num_bytes > physical_memory_bytes() // 2:
                raise DataError(f"{what}: declares {num_bytes:,} bytes, too large for the memory")
            flat = np.frombuffer(_read_exactly(stream, num_bytes, what), dtype=dtype)
            return flat.reshape(shape, order="F" if is_fortran else "C")


class _Member:
    """Context manager of one array in an archive: ((shape, dtype, is_fortran), stream)."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, name: str) -> None:
        self._what = f"{path}: array {name!r}"
        self._archive, self._member = archive, f"{name}.npy"

    def __enter__(
        self,
    ) -> tuple[tuple[tuple[int, ...], np.dtype[np.generic], bool], IO[bytes]]:
        try:
            self._stream = self._archive.open(self._member)
            header = read_npy_header(self._stream)
        except _DAMAGE as error:
            raise DataError(f"{self._what}: {_npy_complaint(error)}") from error
        shape, dtype, _ = header
        if dtype.hasobject:
            raise DataError(
                f"{self._what}: holds Python objects, which are never loaded; "
                "save a plain numeric array"
            )
        declared = math.prod(shape) * dtype.itemsize
        stored = self._archive.getinfo(self._member).file_size - self._stream.tell()
        if declared != stored:
            self._stream.close()
            raise DataError(
                f"{self._what}: shape {shape} of {dtype} needs {declared:,} bytes, "
                f"the archive declares {stored:,}"
            )
        return header, self._stream

    def __exit__(self, *exc: object) -> None:
        self._stream.close()


def _read_exactly(stream: IO[bytes], num_bytes: int, what: str) -> bytes:
    try:
        data = stream.read(num_bytes)
    except _DAMAGE as error:
        raise DataError(f"{what}: damaged: {one_line(error)}") from error
    if len(data) != num_bytes:
        raise DataError(f"{what}: damaged: ends after {len(data):,} of {num_bytes:,} bytes")
    return data


def physical_memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _archive_labels(
    archive: _Archive, features: str, options: Mapping[str, object]
) -> NDArray[np.generic] | None:
    y = read_label_file(options)
    if y is not None:
        return y
    name = pick_label_name(archive.path, options["label"], archive.names, features)
    if name is None:
        return None
    shape, dtype, _ = archive.header(name)
    check_labels(f"{archive.path}: array {name!r}", shape, dtype)
    return archive.load(name).reshape(-1)


def _streamed_blocks(
    archive: _Archive,
    name: str,
    label: object,
    y: NDArray[np.generic] | None,
    progress: Progress,
) -> Iterator[Block]:
    with archive.open(name) as ((shape, dtype, _), stream):
        for start, stop in row_ranges(*shape):
            what = f"{archive.path}: array {name!r}, row {start} or later"
            data = _read_exactly(stream, (stop - start) * shape[1] * dtype.itemsize, what)
            X = np.frombuffer(data, dtype=dtype).reshape(stop - start, shape[1])
            rows, inner = split_label_column(archive.path, label, X)
            yield Block(rows, inner if y is None else as_text(y[start:stop]))
            progress("read", stop / shape[0])


def _read_sparse(archive: _Archive, options: Mapping[str, object], progress: Progress) -> Table:
    path = archive.path
    label = options["label"]
    if isinstance(label, int):
        raise DataError(f"{path}: label: a column of a sparse matrix cannot be the label")
    X = _load_sparse(archive)
    y = _archive_labels(archive, "data", options)
    check_num_labels(path, y, X.shape[0])
    return Table(
        blocks=_sparse_blocks(X, y, progress),
        is_sparse=True,
        where=row_number,
        num_rows=X.shape[0],
        num_features=X.shape[1],
    )


def _load_sparse(archive: _Archive) -> sparse.csr_array:
    path = archive.path
    fmt = archive.load("format").reshape(-1)
    kind = str(as_text(fmt)[0]) if len(fmt) == 1 else ""
    members = {"csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "coo": ("row", "col")}
    if kind not in members:
        raise DataError(f"{path}: sparse format {kind!r} is not one of {', '.join(members)}")
    missing = [name for name in members[kind] if name not in archive.names]
    if missing:
        raise DataError(f"{path}: the array {missing[0]!r} is missing")
    data = archive.load("data", max_dims=1)
    if data.ndim != 1 or data.dtype.kind not in "fiub":
        raise DataError(f"{path}: array 'data' is not a list of real numbers")
    data = data.astype(np.float64, copy=False)
    first, second = (_integers(archive, name) for name in members[kind])
    shape = tuple(int(size) for size in _integers(archive, "shape"))
    check_matrix(str(path), shape, data.dtype)
    if 8 * sum(shape) > physical_memory_bytes() // 2:
        raise DataError(f"{path}: declares shape {shape}, too large for the memory")
    num_major = shape[1] if kind == "csc" else shape[0]
    if kind == "coo":
        _check_bounds(path, "row", first, len(data), shape[0])
        _check_bounds(path, "col", second, len(data), shape[1])
        X = sparse.coo_array((data, (first, second)), shape=shape).tocsr()
    else:
        _check_bounds(path, "indices", first, len(data), shape[0] + shape[1] - num_major)
        _check_pointers(path, second, num_major, len(data))
        build = sparse.csr_array if kind == "csr" else sparse.csc_array
        X = build((data, first, second), shape=shape).tocsr(copy=True)
    X.sum_duplicates()
    return X


def _integers(archive: _Archive, name: str) -> NDArray[np.int64]:
    array = archive.load(name, max_dims=1)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DataError(f"{archive.path}: array {name!r} is not a list of integers")
    return array.astype(np.int64)


def _check_bounds(
    path: Path, name: str, index: NDArray[np.int64], num_values: int, bound: int
) -> None:
    if len(index) != num_values:
        raise DataError(f"{path}: {num_values} values, but {len(index)} entries in {name!r}")
    bad = np.flatnonzero((index < 0) | (index >= bound))
    if len(bad):
        raise DataError(
            f"{path}: entry {bad[0]} of {name!r} is {index[bad[0]]}, outside 0..{bound - 1}"
        )


def _check_pointers(path: Path, indptr: NDArray[np.int64], num_major: int, nnz: int) -> None:
    if len(indptr) != num_major + 1:
        raise DataError(f"{path}: 'indptr' has {len(indptr)} entries, expected {num_major + 1}")
    if indptr[0] != 0 or indptr[-1] != nnz or (np.diff(indptr) < 0).any():
        raise DataError(f"{path}: 'indptr' does not ascend from 0 to the {nnz} values")


def _sparse_blocks(
    X: sparse.csr_array, y: NDArray[np.generic] | None, progress: Progress
) -> Iterator[Block]:
    mean_entries = -(-X.nnz // X.shape[0])
    for start, stop in row_ranges(X.shape[0], 2 * mean_entries):
        yield Block(X[start:stop], None if y is None else as_text(y[start:stop]))
        progress("read", stop / X.shape[0])
