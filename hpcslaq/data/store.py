"""The layout of a prepared directory: meta.json beside NPY files, and how it is opened.

meta.json is written last: a directory without it was never finished.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcslaq.data.blocks import one_line
from hpcslaq.data.dataset import Dataset, DensePart, SparsePart
from hpcslaq.data.npy import NPY_ERRORS, read_npy_header
from hpcslaq.data.writer import ArrayInfo
from hpcslaq.errors import DataError, NotFoundError

#: Part of every content hash: a new format never meets old files.
FORMAT_VERSION = 1
META = "meta.json"
HOLDOUT = "holdout_"
_TYPES: dict[str, type | tuple[type, ...]] = {
    "format": int,
    "name": str,
    "num_rows": int,
    "num_holdout_rows": int,
    "num_features": int,
    "is_sparse": bool,
    "task": str,
    "class_labels": list,
    "content_hash": str,
    "feature_names": (list, type(None)),
    "train": dict,
    "holdout": (dict, type(None)),
    "scaling": (dict, type(None)),
}


def write_meta(directory: Path, meta: Mapping[str, Any]) -> None:
    """Write and sync meta.json, as the last file of a directory."""
    with (directory / META).open("w", encoding="utf-8") as stream:
        json.dump(meta, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())


def describe(arrays: Mapping[str, ArrayInfo]) -> dict[str, dict[str, Any]]:
    """Arrays as meta.json lists them."""
    return {name: asdict(info) for name, info in arrays.items()}


def check_directory(path: Path) -> dict[str, Any]:
    """The checked meta.json of a prepared directory whose files all have the right size.

    Raises NotFoundError if there is no such directory, DataError naming the bad file.
    """
    if not path.is_dir():
        raise NotFoundError(f"{path}: no such prepared data set")
    meta = _read_meta(path / META)
    for _, info in _arrays(meta, path):
        file = path / info.file
        try:
            size = file.stat().st_size
        except OSError as error:
            raise DataError(f"{file}: missing from the prepared data set") from error
        if size != info.num_bytes:
            raise DataError(f"{file}: {size} bytes, {META} says {info.num_bytes}")
    return meta


def open_dataset(path: Path, *, verify: bool = False) -> Dataset:
    """Open a prepared directory; the arrays are mapped, nothing is read.

    verify : compare every array with its CRC-32 too, which reads all of it.
    Raises NotFoundError if there is none, DataError naming the file that is not as it was written.
    """
    meta = check_directory(path)
    loaded = {}
    for key, info in _arrays(meta, path):
        loaded[key] = _map_array(path / info.file, info)
        if verify and zlib.crc32(loaded[key].reshape(-1).view(np.uint8).data) != info.crc32:
            raise DataError(f"{path / info.file}: its checksum is not the one in {META}")
    names = meta["feature_names"]
    return Dataset(
        name=meta["name"],
        path=path,
        num_rows=meta["num_rows"],
        num_features=meta["num_features"],
        is_sparse=meta["is_sparse"],
        task=meta["task"],
        num_classes=len(meta["class_labels"]),
        class_labels=tuple(meta["class_labels"]),
        content_hash=meta["content_hash"],
        train=_part(path, meta, loaded, "train", meta["num_rows"]),
        held_out=(
            _part(path, meta, loaded, "holdout", meta["num_holdout_rows"])
            if meta["holdout"]
            else None
        ),
        num_holdout_rows=meta["num_holdout_rows"],
        center=loaded.get("scaling.center"),
        scale=loaded.get("scaling.scale"),
        feature_names=None if names is None else tuple(names),
    )


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged: {one_line(error)}") from error
    if not isinstance(meta, dict):
        raise DataError(f"{path}: damaged: not a table")
    if meta.get("format") != FORMAT_VERSION:
        raise DataError(
            f"{path}: cache format {meta.get('format')!r}, this version reads {FORMAT_VERSION}"
        )
    for key, kind in _TYPES.items():
        if key not in meta or not isinstance(meta[key], kind):
            raise DataError(f"{path}: damaged: {key!r} is missing or of the wrong type")
    return meta


def _arrays(meta: dict[str, Any], path: Path) -> list[tuple[str, ArrayInfo]]:
    """("train.X", description) of every array."""
    found = []
    for section in ("train", "holdout", "scaling"):
        for name, fields in (meta[section] or {}).items():
            try:
                info = ArrayInfo(**fields)
                shape = tuple(int(size) for size in info.shape)
                is_plain = info.file == Path(info.file).name
            except (TypeError, ValueError) as error:
                raise DataError(f"{path / META}: damaged: {section}.{name}") from error
            if not is_plain:
                raise DataError(f"{path / META}: damaged: {section}.{name}: {info.file!r}")
            checked = ArrayInfo(info.file, shape, info.dtype, info.num_bytes, info.crc32)
            found.append((f"{section}.{name}", checked))
    return found


def _map_array(path: Path, info: ArrayInfo) -> NDArray[Any]:
    try:
        with path.open("rb") as stream:
            read_npy_header(stream)
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except NPY_ERRORS as error:
        raise DataError(f"{path}: damaged: {one_line(error)}") from error
    if mapped.shape != info.shape or mapped.dtype.str != info.dtype:
        raise DataError(
            f"{path}: holds {mapped.dtype.str} {mapped.shape}, "
            f"{META} says {info.dtype} {info.shape}"
        )
    # A plain array over the same mapping: slicing a memmap object costs ten times as much.
    return np.asarray(mapped).view(np.ndarray)


def _part(
    path: Path, meta: dict[str, Any], loaded: dict[str, NDArray[Any]], section: str, num_rows: int
) -> DensePart | SparsePart:
    num_features = meta["num_features"]
    y = loaded.get(f"{section}.y")
    try:
        if not meta["is_sparse"]:
            X = loaded[f"{section}.X"]
            part: DensePart | SparsePart = DensePart(X, y)
            is_right = X.shape == (num_rows, num_features)
        else:
            data, indices, indptr = (
                loaded[f"{section}.{key}"] for key in ("data", "indices", "indptr")
            )
            part = SparsePart(data, indices, indptr, num_features, y)
            is_right = (
                indptr.shape == (num_rows + 1,)
                and indptr[0] == 0
                and data.shape == indices.shape == (int(indptr[-1]),)
            )
    except KeyError as error:
        raise DataError(f"{path / META}: damaged: the array {error} is missing") from error
    if not is_right or (y is not None and y.shape != (num_rows,)):
        raise DataError(f"{path / META}: damaged: the arrays of {section!r} do not fit together")
    return part
