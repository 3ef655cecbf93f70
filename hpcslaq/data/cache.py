"""Converts a source once into a memory-mappable directory and finds it again.

The directory is named by what went in, written under a temporary name and renamed: of
two processes that convert the same source at once, the second to finish discards its copy.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hpcslaq
from hpcslaq.data.blocks import Progress, Table, no_progress
from hpcslaq.data.builtin import BUILTINS, builtin_versions, read_builtin
from hpcslaq.data.formats import read_file
from hpcslaq.data.labels import LabelCollector, Labels
from hpcslaq.data.source import DataSource
from hpcslaq.data.split import random_order, split_rows
from hpcslaq.data.spool import Rows, check_space, spool
from hpcslaq.data.store import FORMAT_VERSION, HOLDOUT, check_directory, describe, write_meta
from hpcslaq.data.writer import ArrayFile, ArrayInfo, Scaling, find_scaling, write_part
from hpcslaq.errors import DataError, NotFoundError

_TEMPORARY = ".tmp-"
_STALE_AFTER_S = 24 * 3600.0
#: A file that changed so shortly before it was hashed may change again within one tick of its
#: time stamp; its hash is not remembered.
_SETTLED_AFTER_S = 2.0
_HASH_BLOCK_BYTES = 8 << 20
_PIECE = 1 << 20


def default_cache_root() -> Path:
    """$HPCSLAQ_CACHE, else $XDG_CACHE_HOME/hpcslaq, else ~/.cache/hpcslaq."""
    if own := os.environ.get("HPCSLAQ_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hpcslaq"
    return Path.home() / ".cache" / "hpcslaq"


def prepare(source: DataSource, cache_root: Path, progress: Progress | None = None) -> Path:
    """The directory of the prepared source; converts it if this was not done before.

    A second call reads meta.json and the sizes of the files only. Raises NotFoundError if
    the file does not exist, DataError, with line or row, if it cannot be used, LaunchError
    if a package is missing.
    """
    show = progress or no_progress
    cache_root.mkdir(parents=True, exist_ok=True)
    content_hash = _content_hash(source, cache_root, show)
    final = cache_root / f"{source.name}-{content_hash[:16]}"
    if _is_usable(final):
        return final
    _remove_stale(cache_root)
    scratch = _new_directory(cache_root)
    try:
        before = _stamps(source)
        _convert(source, content_hash, scratch, show)
        if _stamps(source) != before:
            raise DataError(f"{source.location}: changed while it was read; run again")
        _publish(scratch, final)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"{source.location}: no space left in {cache_root} "
                "(set HPCSLAQ_CACHE to a larger place)"
            ) from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def _is_usable(path: Path) -> bool:
    try:
        check_directory(path)
    except (DataError, NotFoundError):
        return False
    return True


def _publish(scratch: Path, final: Path) -> None:
    """Rename the finished directory; an equal one of another process that was faster is kept."""
    for _ in range(3):
        try:
            scratch.rename(final)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if _is_usable(final):
            return
        # Damaged, for example by a full disk or a hand: out of the way, whoever maps it keeps it.
        broken = _new_directory(final.parent)
        try:
            final.rename(broken / "broken")
        except FileNotFoundError:
            continue
        finally:
            shutil.rmtree(broken, ignore_errors=True)
    raise DataError(f"{final}: cannot be replaced; remove it")


def _new_directory(cache_root: Path) -> Path:
    """Unlike one of `tempfile`, readable by the colleagues with whom a cache is shared."""
    path = cache_root / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"
    path.mkdir()
    return path


def _remove_stale(cache_root: Path) -> None:
    """Delete what killed processes left behind long ago."""
    for path in cache_root.glob(f"{_TEMPORARY}*"):
        try:
            newest = max(item.stat().st_mtime for item in (path, *path.iterdir()))
        except OSError:
            continue
        if time.time() - newest > _STALE_AFTER_S:
            shutil.rmtree(path, ignore_errors=True)


# What went in


def _content_hash(source: DataSource, cache_root: Path, progress: Progress) -> str:
    """SHA-256 over the format's version, the options and the input's bytes or package versions."""
    options = source.resolved()
    inputs: dict[str, object] = {"format_version": FORMAT_VERSION, "name": source.name}
    if source.is_builtin:
        inputs["builtin"] = BUILTINS[source.location].revision
        inputs["packages"] = builtin_versions(source.location)
    else:
        inputs["files"] = [
            _file_hash(path, cache_root, progress) for path in _input_files(source, options)
        ]
        options["label_file"] = bool(options["label_file"])
    inputs["options"] = options
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _input_files(source: DataSource, options: Mapping[str, object]) -> list[Path]:
    if source.is_builtin:
        return []
    paths = [Path(source.location)]
    if options["label_file"]:
        paths.append(Path(str(options["label_file"])))
    for path in paths:
        if not path.is_file():
            raise NotFoundError(f"{path}: no such file (nor a built-in set of this name)")
    return paths


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What changes when a file changes, without reading it."""

    path: str
    num_bytes: int
    modified_ns: int


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return _Stamp(str(path.resolve()), status.st_size, status.st_mtime_ns)


def _stamps(source: DataSource) -> list[_Stamp]:
    return [_stamp(path) for path in _input_files(source, source.resolved())]


def _file_hash(path: Path, cache_root: Path, progress: Progress) -> str:
    """SHA-256 of a file's bytes, remembered by path, size and time of change."""
    stamp = _stamp(path)
    key = [stamp.path, stamp.num_bytes, stamp.modified_ns]
    note = cache_root / ".hashes" / hashlib.sha256(stamp.path.encode()).hexdigest()[:32]
    try:
        remembered = json.loads(note.read_text(encoding="utf-8"))
        if remembered["key"] == key and len(remembered["sha256"]) == 64:
            return str(remembered["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as stream:
        while block := stream.read(_HASH_BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            progress("hash", min(1.0, done / max(1, stamp.num_bytes)))
    if time.time_ns() - stamp.modified_ns > _SETTLED_AFTER_S * 1e9 and _stamp(path) == stamp:
        with suppress(OSError):  # A cache that others wrote may be read-only.
            _write_atomically(note, json.dumps({"key": key, "sha256": digest.hexdigest()}))
    return digest.hexdigest()


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as stream:
        stream.write(text)
    Path(stream.name).replace(path)


# Conversion


def _convert(source: DataSource, content_hash: str, directory: Path, progress: Progress) -> None:
    options = source.resolved()
    task, table = _open(source, options, progress)
    collector = LabelCollector(source.location, table.where, task)
    rows, groups, has_labels = spool(table, source.location, directory, collector)
    labels = collector.finish() if has_labels else None
    if labels is None and task in ("classification", "regression"):
        raise DataError(f"{source.location}: task is {task}, but there are no labels")
    if task == "counts":
        _check_counts(source.location, rows, table)
    train, holdout = _split(rows.num_rows, options, labels, groups)
    is_sparse = rows.is_sparse if options["layout"] == "auto" else options["layout"] == "csr"
    meta = {
        "format": FORMAT_VERSION,
        "name": source.name,
        "content_hash": content_hash,
        "num_rows": len(train),
        "num_holdout_rows": len(holdout),
        "num_features": rows.num_features,
        "is_sparse": is_sparse,
        "dtype": "<f8",
        "task": _final_task(task, labels),
        "class_labels": [] if labels is None else list(labels.classes),
        "feature_names": None if table.feature_names is None else list(table.feature_names),
        "source": {"location": source.location, "options": options},
        "written_by": f"hpcslaq {hpcslaq.__version__}",
    }
    if not is_sparse:
        check_space(source.location, directory, 8 * rows.num_rows * rows.num_features)
    scaling = _scaling(rows, train, table, options, is_sparse)
    y = None if labels is None else labels.values
    for section, prefix, order in (("train", "", train), ("holdout", HOLDOUT, holdout)):
        meta[section] = None
        if len(order):
            write = partial(write_part, scaling=scaling, is_sparse=is_sparse)
            meta[section] = describe(write(directory, prefix, rows, order, y, progress=progress))
    meta["scaling"] = None if scaling is None else describe(_write_scaling(directory, scaling))
    del rows  # Unmaps the spool before its files go.
    for file in directory.glob("spool.*"):
        file.unlink()
    write_meta(directory, meta)


def _final_task(asked: str, labels: Labels | None) -> str:
    if labels is not None:
        return labels.task
    return "counts" if asked == "counts" else "unlabelled"


def _open(
    source: DataSource, options: Mapping[str, object], progress: Progress
) -> tuple[str, Table]:
    """The task as asked for, or as the built-in set knows it, and the rows."""
    if source.is_builtin:
        return BUILTINS[source.location].task, read_builtin(source.location, options, progress)
    table = read_file(Path(source.location), source.file_format, options, progress)
    return str(options["task"]), table


def _check_counts(file: str, rows: Rows, table: Table) -> None:
    values = rows.X if isinstance(rows.X, np.ndarray) else rows.X.data
    flat = values.reshape(-1)
    # In pieces: the comparison makes copies.
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE]
        bad = np.flatnonzero((piece < 0) | (piece != np.floor(piece)))
        if len(bad):
            entry = start + int(bad[0])
            place = table.where(rows.row_of(entry))
            raise DataError(f"{file}: {place}: {flat[entry]:g} is not a count (0, 1, 2, ...)")


def _split(
    num_rows: int,
    options: Mapping[str, object],
    labels: Labels | None,
    groups: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the training rows and of the held-out ones, in the order of storage."""
    seed, fraction = int(str(options["seed"])), float(str(options["holdout"]))
    classes = None
    if labels is not None and labels.task == "classification":
        classes = labels.values.astype(np.int64)
    is_out = split_rows(num_rows, fraction, seed, classes=classes, groups=groups)
    order = random_order(num_rows, seed) if options["shuffle"] else np.arange(num_rows)
    train, holdout = order[~is_out[order]], order[is_out[order]]
    max_rows = int(str(options["max_rows"]))
    return (train[:max_rows] if max_rows else train), holdout


def _scaling(
    rows: Rows,
    train: NDArray[np.int64],
    table: Table,
    options: Mapping[str, object],
    is_sparse: bool,
) -> Scaling | None:
    columns = table.standardise
    if columns is None:
        if not options.get("standardise"):
            return None
        columns = np.ones(rows.num_features, dtype=bool)
    is_training = np.zeros(rows.num_rows, dtype=bool)
    is_training[train] = True
    return find_scaling(rows, is_training, columns, is_sparse=is_sparse)


def _write_scaling(directory: Path, scaling: Scaling) -> dict[str, ArrayInfo]:
    infos = {}
    for name, values in (("center", scaling.center), ("scale", scaling.scale)):
        with ArrayFile(directory / f"{name}.npy", values.shape, "<f8") as file:
            file.write(values)
        infos[name] = file.info
    return infos
