"""The inbox of a run: small files by which commands on another machine reach rank 0.

A request is one JSON file that appears whole; its name begins with the time, so that names
sort in the order in which they were sent. Rank 0 reads it, then moves it to `done/`, or to
`refused/` beside a file that says why. Who may write is decided by the owner of the file: only a
regular file of the run's owner, under a single name, is read.
What a request does to a run is the business of `hpcslaq.mpi.requests`.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import HpcslaqError
from hpcslaq.record.codec import JOB_CLASSES, Codec
from hpcslaq.record.files import make_directory, write_atomic

_log = logging.getLogger("hpcslaq.record")

#: Largest request that is read: a job's options are small.
MAX_BYTES = 2**20
#: Requests handed out by one look.
_MAX_AT_ONCE = 64
_NAME = re.compile(r"\d{20}-[0-9a-f]{8}\.json")
_DONE, _REFUSED = "done", "refused"
_MAX_REASON = 500
#: Longest part of a strange file's name under which it is put aside.
_MAX_KEPT_NAME = 80


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """Train this job too; its data are prepared."""

    spec: JobSpec
    #: Directory of the prepared data set.
    data_path: str


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End this job without a result."""

    job: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WeightRequest:
    """Give this job another importance."""

    job: str
    weight: float


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """No more jobs will be submitted."""


Request = SubmitRequest | CancelRequest | WeightRequest | CloseRequest
_CODEC = Codec((*JOB_CLASSES, SubmitRequest, CancelRequest, WeightRequest, CloseRequest))


class RequestError(HpcslaqError):
    """A request is refused: says which and why."""

    exit_code = 2


class Inbox:
    """The requests of one run, seen from either side."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Names of the last look that were not handed out yet, newest first: a flood is listed
        #: once, not once for each portion.
        self._backlog: list[str] = []
        #: Names that could not be moved: they are not looked at again.
        self._stuck: set[str] = set()

    def send(self, request: Request) -> str:
        """Put a request into the inbox; its name. Raises OSError, RequestError."""
        data = _CODEC.encode(request)
        if len(data) > MAX_BYTES:
            raise RequestError(f"the request has {len(data)} bytes, more than {MAX_BYTES}")
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
        write_atomic(self._path / name, data)
        return name

    def answer(self, name: str) -> str | None:
        """What became of a request: "" when it was done, else why it was refused; None: waits."""
        if (self._path / name).exists():
            return None
        if (self._path / _DONE / name).exists():
            return ""
        try:
            return self._reason_file(name).read_text(errors="replace")
        except FileNotFoundError:
            # Between the two names: look again.
            return None

    def poll(
        self, limit: int = _MAX_AT_ONCE, skip: Collection[str] = frozenset()
    ) -> list[tuple[str, Request]]:
        """The next requests that wait, oldest first, at most `limit`; names in `skip` are left out.

        A request is handed out again until it is `done` or refused. Files that are no requests
        are refused at once; one that cannot even be moved is left alone and keeps nobody waiting.
        """
        if not self._backlog:
            names = (name for name in os.listdir(self._path) if _is_candidate(name))
            waiting = [name for name in names if name not in skip and name not in self._stuck]
            self._backlog = sorted(waiting, reverse=True)
        found: list[tuple[str, Request]] = []
        for _ in range(min(limit, len(self._backlog))):
            name = self._backlog.pop()
            try:
                if not _NAME.fullmatch(name):
                    raise RequestError(f"{name!r}: is not the name of a request")
                found.append((name, _read(self._path / name)))
            except FileNotFoundError:
                continue
            except (OSError, HpcslaqError) as error:
                self._put_aside(name, str(error))
        return found

    @property
    def has_more(self) -> bool:
        """Whether the last look found more than `poll` has handed out."""
        return bool(self._backlog)

    def done(self, name: str) -> None:
        """A request was carried out. Raises OSError where its file cannot be moved."""
        self._move(name, _DONE)

    def refuse(self, name: str, reason: str) -> None:
        """A request is not carried out, for this reason. Raises OSError as `done` does."""
        make_directory(self._path / _REFUSED)
        text = reason[:_MAX_REASON].encode(errors="backslashreplace")
        write_atomic(self._reason_file(name), text)
        self._move(name, _REFUSED)

    def _put_aside(self, name: str, reason: str) -> None:
        """Refuse a file that is no request; where even that fails, never look at it again."""
        _log.warning("inbox: %s", reason)
        try:
            self.refuse(name, reason)
        except OSError as error:
            _log.warning("inbox: %r stays where it is: %s", name, error)
            self._stuck.add(name)

    def accepted(self) -> Iterator[Request]:
        """The requests that were carried out, by this start of the run or earlier ones.

        A file that was damaged since is logged and left out.
        """
        done = self._path / _DONE
        if done.is_dir():
            for name in sorted(os.listdir(done)):
                if _NAME.fullmatch(name):
                    try:
                        yield _read(done / name)
                    except (OSError, HpcslaqError) as error:
                        _log.warning("%s: is damaged: %s", done / name, error)

    def _reason_file(self, name: str) -> Path:
        return self._path / _REFUSED / f"{_kept_name(name)}.reason"

    def _move(self, name: str, folder: str) -> None:
        make_directory(self._path / folder)
        (self._path / name).replace(self._path / folder / _kept_name(name))


def _kept_name(name: str) -> str:
    """The name of a request itself; of any other file one that every file system takes.

    The end is drawn from the name, so that two strange files do not displace each other.
    """
    if _NAME.fullmatch(name):
        return name
    raw = os.fsencode(name)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    if plain == name and len(name) <= _MAX_KEPT_NAME:
        return name
    return f"{plain[:_MAX_KEPT_NAME]}-{zlib.crc32(raw):08x}"


def _is_candidate(name: str) -> bool:
    """Whether a file may be a request: not our directories, nor files that are being written."""
    return name not in (_DONE, _REFUSED) and not name.startswith(".")


def _read(path: Path) -> Request:
    """The request in a file. Raises RequestError, FileNotFoundError, OSError, CodecError."""
    # Without waiting for a writer, should it be a pipe, and never through a link.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"{path.name}: is not a regular file")
        if status.st_nlink != 1:
            raise RequestError(f"{path.name}: has {status.st_nlink} names (hard links)")
        if status.st_uid != os.geteuid():
            raise RequestError(f"{path.name}: belongs to user {status.st_uid}, not to the run's")
        if status.st_size > MAX_BYTES:
            raise RequestError(f"{path.name}: has {status.st_size} bytes, more than {MAX_BYTES}")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(fd)
    request = _CODEC.decode(data)
    if not isinstance(request, Request):
        raise RequestError(f"{path.name}: holds a {type(request).__name__}, which is no request")
    return request
