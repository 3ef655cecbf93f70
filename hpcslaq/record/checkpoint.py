"""Arrays and small values in one HDF5 file that is either whole or refused.

A file holds `/arrays/NAME` (one contiguous data set each), `/manifest` (JSON: format,
version, small values, type, shape and CRC32 of every array) and `/complete` (CRC32 of the
manifest), written in this order: data first, counter last. Which file of a job is the
newest is in `store`, finished models are in `modelfile`. The only module of this package
that imports h5py.

A flipped bit in contiguous data passes HDF5 unnoticed, hence the CRCs of our own; its
metadata carry checksums only from file format 1.8 on, hence `libver`.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h5py
import numpy as np
import numpy.typing as npt

from hpcslaq.errors import CheckpointError
from hpcslaq.record.codec import CodecError, dump_json, load_json
from hpcslaq.record.files import create_private, publish, temp_path

#: A small value beside the arrays.
Scalar = str | int | float | bool

#: What `kind` says in a checkpoint of a training job.
CHECKPOINT = "hpcslaq checkpoint"

#: Version of the layout described above; files of another one are refused.
VERSION = 1

_LIBVER = ("v108", "v108")
#: First bytes of an HDF5 file with a checksummed superblock (version 2).
_MAGIC = b"\x89HDF\r\n\x1a\n\x02"
#: Element types that are stored (booleans as bytes), little-endian.
_DTYPES = frozenset(
    {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"}
)
_COMPLETE = np.dtype("<u4")
_MAX_DIMENSIONS = 32
#: What h5py raises on damaged files.
_H5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)


def write_checkpoint(
    path: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    meta: Mapping[str, Scalar],
    *,
    kind: str = CHECKPOINT,
) -> int:
    """Write arrays (any shape; numbers or booleans) and values; returns the file's bytes.

    The file appears under `path` whole and durable, or not at all, whatever happens; then
    CheckpointError says why. May be called from several threads at once.
    """
    temp = temp_path(path)
    try:
        # Built in memory and written by us: HDF5 (2.0) ends the process with a segmentation fault
        # when it closes a file that it could not write (disk full, quota).
        with h5py.File(
            temp.name, "w", driver="core", backing_store=False, libver=_LIBVER
        ) as content:
            _write_content(content, arrays, meta, kind)
            content.flush()
            image = content.id.get_file_image()
        with open(create_private(temp), "wb") as file:
            file.write(image)
        num_bytes = temp.stat().st_size
        publish(temp, path)
    except _H5_ERRORS as error:
        raise CheckpointError(f"{path}: cannot be written: {_reason(error)}") from error
    finally:
        _discard(temp)
    return num_bytes


def read_checkpoint(
    path: Path, *, kind: str = CHECKPOINT
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Scalar]]:
    """The arrays and values that `write_checkpoint` wrote, bit for bit.

    Raises CheckpointError (path, expected, found) on a file that is missing, damaged in any
    way, of another kind or version, or not of the shape that we write. Nothing outside the
    file is opened, and no more memory is asked for than the file has bytes.
    """
    try:
        with path.open("rb") as raw:
            magic = raw.read(len(_MAGIC))
            num_bytes = os.fstat(raw.fileno()).st_size
        if magic != _MAGIC:
            raise _refusal(path, "an HDF5 file with checksums", _short(magic))
        with h5py.File(path, "r", locking=False) as file:
            return _read_content(file, path, kind, num_bytes)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: expected a file, found none") from None
    except _H5_ERRORS as error:
        raise CheckpointError(f"{path}: cannot be read: {_reason(error)}") from error


def _write_content(
    file: h5py.File,
    arrays: Mapping[str, npt.NDArray[Any]],
    meta: Mapping[str, Scalar],
    kind: str,
) -> None:
    group = file.create_group("arrays")
    entries: dict[str, list[object]] = {}
    for name, array in arrays.items():
        stored = np.asarray(array, order="C")
        stored = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
        if stored.dtype.str not in _DTYPES:
            raise TypeError(f"array {name!r} has elements of type {stored.dtype}")
        if stored.ndim > _MAX_DIMENSIONS:
            raise ValueError(f"array {name!r} has {stored.ndim} dimensions > {_MAX_DIMENSIONS}")
        as_bytes = stored.view(np.uint8) if stored.dtype == np.bool_ else stored
        group.create_dataset(_link_name(name), data=as_bytes, track_times=False)
        entries[name] = [stored.dtype.str, list(stored.shape), _crc32(stored)]
    manifest = dump_json(
        {
            "format": kind,
            "version": VERSION,
            "meta": {key: _encode_scalar(key, value) for key, value in meta.items()},
            "arrays": entries,
        }
    ).encode()
    file.create_dataset("manifest", data=np.frombuffer(manifest, dtype=np.uint8), track_times=False)
    file.create_dataset(
        "complete", data=np.array(zlib.crc32(manifest), dtype=_COMPLETE), track_times=False
    )


def _read_content(
    file: h5py.File, path: Path, kind: str, num_bytes: int
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Scalar]]:
    root = file.id
    _check_links(root, {b"arrays", b"manifest", b"complete"}, path)
    complete = int(_read_dataset(root, b"complete", _COMPLETE, (), num_bytes, path))
    shape = _open_dataset(root, b"manifest", path).shape
    text = _read_dataset(root, b"manifest", np.dtype("|u1"), shape, num_bytes, path).tobytes()
    if zlib.crc32(text) != complete:
        raise _refusal(path, f"manifest with CRC {complete:#010x}", f"{zlib.crc32(text):#010x}")
    meta, entries = _parse_manifest(text, path, kind)
    total = sum(dtype.itemsize * math.prod(shape) for dtype, shape, _ in entries.values())
    if total > num_bytes:
        raise _refusal(path, f"at most {num_bytes} bytes (its size)", f"{total} bytes of arrays")
    group = _open(root, b"arrays", h5py.h5g.GroupID, path)
    _check_links(group, {_link_name(name).encode() for name in entries}, path)
    arrays = {}
    for name, (dtype, shape, crc) in entries.items():
        stored = np.dtype("|u1") if dtype == np.bool_ else dtype
        link = _link_name(name).encode()
        array = _read_dataset(group, link, stored, shape, num_bytes, path)
        if _crc32(array) != crc:
            raise _refusal(path, f"array {name!r} with CRC {crc:#010x}", f"{_crc32(array):#010x}")
        arrays[name] = array.view(dtype)
    return arrays, meta


def _check_links(group: h5py.h5g.GroupID, expected: set[bytes], path: Path) -> None:
    """Refuse a group that holds anything but hard links with the expected names."""
    if group.get_num_objs() != len(expected):
        raise _refusal(path, f"{len(expected)} objects", f"{group.get_num_objs()}")
    for name in sorted(expected):
        if name not in group:
            raise _refusal(path, f"object {name.decode()!r}", "none")
        # A soft or external link would lead out of the group or out of the file.
        if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            raise _refusal(path, f"{name.decode()!r} in the file itself", "a link")


def _open(group: h5py.h5g.GroupID, name: bytes, kind: type, path: Path) -> Any:
    """The object behind a hard link that `_check_links` has seen."""
    found = h5py.h5o.open(group, name)
    if not isinstance(found, kind):
        wanted = "data set" if kind is h5py.h5d.DatasetID else "group"
        raise _refusal(path, f"a {wanted} {name.decode()!r}", type(found).__name__)
    return found


def _open_dataset(group: h5py.h5g.GroupID, name: bytes, path: Path) -> h5py.h5d.DatasetID:
    """A data set whose elements lie in the file itself, in one piece."""
    dataset = _open(group, name, h5py.h5d.DatasetID, path)
    label = repr(name.decode())
    # Before anything else: to ask a virtual data set for its shape may open other files.
    creation = dataset.get_create_plist()
    if (
        creation.get_layout() != h5py.h5d.CONTIGUOUS
        or creation.get_nfilters()
        or creation.get_external_count()
    ):
        raise _refusal(path, f"{label} stored plainly", "another layout, a filter or another file")
    if dataset.get_type().get_class() not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        raise _refusal(path, f"numbers in {label}", "another type")
    if dataset.get_space().get_simple_extent_type() not in (h5py.h5s.SCALAR, h5py.h5s.SIMPLE):
        raise _refusal(path, f"values in {label}", "an empty data space")
    return dataset


def _read_dataset(
    group: h5py.h5g.GroupID,
    name: bytes,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    num_bytes: int,
    path: Path,
) -> npt.NDArray[Any]:
    """Read one data set of exactly this type and shape; refuses before it allocates."""
    dataset = _open_dataset(group, name, path)
    label = repr(name.decode())
    if (dataset.dtype.str, dataset.shape) != (dtype.str, shape):
        found = f"{dataset.dtype.str} {dataset.shape}"
        raise _refusal(path, f"{label} of type and shape {dtype.str} {shape}", found)
    size = dtype.itemsize * math.prod(shape)
    if size > num_bytes or (size and dataset.get_storage_size() != size):
        raise _refusal(path, f"{label} of {size} bytes", f"{dataset.get_storage_size()} bytes")
    array = np.empty(shape, dtype)
    if size:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


def _parse_manifest(
    text: bytes, path: Path, kind: str
) -> tuple[dict[str, Scalar], dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]]:
    try:
        manifest = load_json(text)
    except CodecError as error:
        raise _refusal(path, "a manifest", str(error)) from None
    if not isinstance(manifest, dict):
        raise _refusal(path, "a manifest", _short(manifest))
    for key, expected in (("format", kind), ("version", VERSION)):
        if manifest.get(key) != expected or type(manifest.get(key)) is not type(expected):
            raise _refusal(path, f"{key} {expected!r}", _short(manifest.get(key)))
    meta, arrays = manifest.get("meta"), manifest.get("arrays")
    if not isinstance(meta, dict) or not isinstance(arrays, dict):
        raise _refusal(path, "meta and arrays in the manifest", _short(manifest))
    return (
        {key: _decode_scalar(value, path) for key, value in meta.items()},
        {name: _decode_entry(entry, path) for name, entry in arrays.items()},
    )


def _decode_entry(entry: object, path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    match entry:
        case [str(dtype), list(shape), int(crc)] if (
            dtype in _DTYPES
            and len(shape) <= _MAX_DIMENSIONS
            and all(type(length) is int and 0 <= length < 2**62 for length in shape)
        ):
            return np.dtype(dtype), tuple(shape), crc
    raise _refusal(path, "type, shape and CRC of an array", _short(entry))


def _encode_scalar(key: str, value: Scalar) -> object:
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        # Strict JSON has no NaN or infinity; a list cannot be mistaken for a text.
        return number if math.isfinite(number) else [str(number)]
    raise TypeError(f"value {key!r} is a {type(value).__name__}")


def _decode_scalar(value: object, path: Path) -> Scalar:
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, list) and value in (["nan"], ["inf"], ["-inf"]):
        return float(value[0])
    raise _refusal(path, "a text or a number in the manifest", _short(value))


def _link_name(name: str) -> str:
    """A name for HDF5, where "/" separates and "." is the group itself."""
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise ValueError(f"array name {name!r} is not a text of 1-200 characters")
    return quote(name, safe="").replace(".", "%2E")


def _crc32(array: npt.NDArray[Any]) -> int:
    as_bytes: Any = array.reshape(-1).view(np.uint8)
    return zlib.crc32(as_bytes)


def _refusal(path: Path, expected: str, found: str) -> CheckpointError:
    return CheckpointError(f"{path}: expected {expected}, found {found}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _reason(error: Exception) -> str:
    """One line; for an error of the system its plain text, HDF5's own are long."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split()) or type(error).__name__


def _discard(temp: Path) -> None:
    """Remove a temp file that was not renamed."""
    try:
        temp.unlink(missing_ok=True)
    except OSError:
        pass  # The directory itself is gone or read-only; there is nothing to clean.
