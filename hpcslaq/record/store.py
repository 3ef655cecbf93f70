"""The checkpoints of one job: save, keep the last K, find the newest valid one.

The form of one file is in `checkpoint`. Who saves when is the trainer's business.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hpcslaq.errors import CheckpointError
from hpcslaq.record.checkpoint import Scalar, read_checkpoint, write_checkpoint
from hpcslaq.record.files import make_directory, remove_temp_files

_log = logging.getLogger("hpcslaq.record")

_FILE = re.compile(r"iteration-(\d{10,18})\.h5")
#: Values that the store adds to those of the caller.
_RESERVED = "store."


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that was passed over, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest valid checkpoint of a job."""

    path: Path
    #: Completed iterations at the time of the checkpoint.
    iteration: int
    arrays: Mapping[str, npt.NDArray[Any]]
    meta: Mapping[str, Scalar]
    #: Newer files that were refused.
    refused: tuple[Refused, ...]


class CheckpointStore:
    """The checkpoints of one job in a directory of their own.

    `identity` names what a checkpoint must match to be used (job, model, data, seed, ...):
    it is stored with each and a file with another value is refused. `save` may be called from
    a background thread; one call runs at a time.
    """

    def __init__(self, directory: Path, identity: Mapping[str, Scalar], keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep: {keep} < 1")
        self._directory = directory
        self._identity = dict(identity)
        self._keep = keep
        self._lock = threading.Lock()
        #: Files that `load_newest` refused; they go once a valid newer one is on disk.
        self._refused: set[str] = set()

    def save(
        self, iteration: int, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Scalar]
    ) -> int:
        """Write the state after `iteration` completed iterations; returns the file's bytes.

        Older files are deleted only after the new one is durable. Raises CheckpointError when
        it cannot be written; the earlier checkpoints are untouched then.
        """
        for key in meta:
            if key.startswith(_RESERVED):
                raise ValueError(f"{key!r}: names that start with {_RESERVED!r} are the store's")
        own = {_RESERVED + key: value for key, value in self._identity.items()}
        with self._lock:
            self._make_directory()
            path = self._directory / f"iteration-{iteration:010d}.h5"
            whole = {**meta, **own, _RESERVED + "iteration": iteration}
            num_bytes = write_checkpoint(path, arrays, whole)
            self._refused.discard(path.name)
            self._prune(path.name)
        return num_bytes

    def load_newest(self, stored: int = 0) -> Loaded | None:
        """The newest valid checkpoint, or None where none was ever written.

        `stored` : iterations of the newest one that is known to have been written, 0: none is.
        Every refused file is logged and listed. Raises CheckpointError, naming all files and
        reasons, where there are files but none is valid, or where there should be one and is
        none: never a silent start from zero.
        """
        refused: list[Refused] = []
        with self._lock:
            self._check_directory()
            self._remove_temp_files()
            for iteration, name in reversed(self._files()):
                path = self._directory / name
                try:
                    arrays, meta = read_checkpoint(path)
                    self._check_identity(path, iteration, meta)
                except CheckpointError as error:
                    _log.warning("checkpoint refused: %s", error)
                    refused.append(Refused(path, str(error)))
                    self._refused.add(name)
                    continue
                if iteration < stored:
                    text = "%s: iteration %d is the newest usable checkpoint, %d was written"
                    _log.warning(text, self._directory, iteration, stored)
                own = {k: v for k, v in meta.items() if not k.startswith(_RESERVED)}
                return Loaded(path, iteration, arrays, own, tuple(refused))
        if refused:
            reasons = "; ".join(item.reason for item in refused)
            raise CheckpointError(
                f"{self._directory}: expected a valid checkpoint, found {len(refused)} files"
                f" and none of them is: {reasons}"
            )
        if stored:
            raise CheckpointError(
                f"{self._directory}: expected the checkpoint of iteration {stored}, which was"
                " written, found none: it was deleted"
            )
        return None

    def _check_identity(self, path: Path, iteration: int, meta: Mapping[str, Scalar]) -> None:
        for key, expected in {**self._identity, "iteration": iteration}.items():
            found = meta.get(_RESERVED + key)
            if found != expected or type(found) is not type(expected):
                raise CheckpointError(f"{path}: expected {key} {expected!r}, found {found!r}")

    def _files(self) -> list[tuple[int, str]]:
        """(iteration, file name), oldest first."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self._directory}: cannot be read: {error.strerror}") from None
        matches = [match for name in names if (match := _FILE.fullmatch(name))]
        return sorted((int(match[1]), match[0]) for match in matches)

    def _make_directory(self) -> None:
        try:
            self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_directory(self._directory)
        except OSError as error:
            raise CheckpointError(f"{self._directory}: cannot be made: {error.strerror}") from None
        self._check_directory()

    def _check_directory(self) -> None:
        """Refuse a link: the checkpoints of a job stay in its run directory."""
        if self._directory.is_symlink():
            raise CheckpointError(f"{self._directory}: expected a directory, found a link")

    def _remove_temp_files(self) -> None:
        try:
            for name in remove_temp_files(self._directory):
                _log.info("%s: removed half-written %s", self._directory, name)
        except OSError as error:
            _log.warning("%s: temp files stay: %s", self._directory, error.strerror)

    def _prune(self, newest: str) -> None:
        """Delete refused files and all but the last `keep`; failures only cost disk space."""
        valid = [name for _, name in self._files() if name not in self._refused]
        surplus = [name for name in valid[: -self._keep] if name != newest]
        try:
            for name in [*sorted(self._refused), *surplus]:
                (self._directory / name).unlink(missing_ok=True)
                self._refused.discard(name)
        except OSError as error:
            _log.warning("%s: old checkpoints stay: %s", self._directory, error.strerror)
