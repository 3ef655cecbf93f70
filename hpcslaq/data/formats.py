"""File formats: which one a file has, and its reader.

A new format is a function (path, options, progress) -> Table and a row in each table here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hpcslaq.data.blocks import Progress, Table
from hpcslaq.errors import NotFoundError

Reader = Callable[[Path, Mapping[str, object], Progress], Table]

FORMATS = ("npy", "npz", "csv", "libsvm", "hdf5", "parquet")

_SUFFIXES = {
    ".npy": "npy",
    ".npz": "npz",
    ".csv": "csv",
    ".tsv": "csv",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
    ".svm": "libsvm",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def format_of(location: str) -> str | None:
    """Format by the name of a file, None if it does not tell. `.gz` and the like are ignored."""
    for suffix in reversed(Path(location).suffixes[-2:]):
        if suffix.lower() in _SUFFIXES:
            return _SUFFIXES[suffix.lower()]
    return None


def read_file(
    path: Path, file_format: str, options: Mapping[str, object], progress: Progress
) -> Table:
    """Open a file with the reader of its format.

    Raises NotFoundError if there is no such file, DataError if it cannot be used,
    LaunchError if the reader's package is missing.
    """
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file")
    return _reader(file_format)(path, options, progress)


def _reader(file_format: str) -> Reader:
    """Imported on use: most runs start from a cache and read no file."""
    if file_format in ("npy", "npz"):
        from hpcslaq.data.arrays import read_npy, read_npz

        return read_npy if file_format == "npy" else read_npz
    if file_format == "csv":
        from hpcslaq.data.csvfile import read_csv

        return read_csv
    if file_format == "libsvm":
        from hpcslaq.data.libsvm import read_libsvm

        return read_libsvm
    if file_format == "hdf5":
        from hpcslaq.data.hdf5 import read_hdf5

        return read_hdf5
    from hpcslaq.data.parquet import read_parquet

    return read_parquet
