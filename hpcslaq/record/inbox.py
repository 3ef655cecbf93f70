"""The inbox of a run: small files by which commands on another machine reach rank 0.

A request is one JSON file that appears whole; its name begins with the time, so that names
sort in the order in which they were sent. Rank 0 reads it, then moves it to `done/`, or to
`refused/` beside a file that says why. Who may write is decided by the owner of the file.
What a request does to a run is the business of `hpcslaq.mpi.requests`.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import HpcslaqError
from hpcslaq.record.codec import JOB_CLASSES, Codec
from hpcslaq.record.files import write_atomic

#: Largest request that is read: a job's options are small.
MAX_BYTES = 2**20
#: Requests handed out by one look.
_MAX_AT_ONCE = 64
_NAME = re.compile(r"\d{20}-[0-9a-f]{8}\.json")
_DONE, _REFUSED = "done", "refused"
_MAX_REASON = 500


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

    def poll(self) -> list[tuple[str, Request]]:
        """The requests that wait, oldest first; files that are none are refused at once."""
        names = sorted(os.listdir(self._path))
        found = []
        for name in [name for name in names if _is_candidate(name)][:_MAX_AT_ONCE]:
            try:
                if not _NAME.fullmatch(name):
                    raise RequestError(f"{name}: is not the name of a request")
                found.append((name, _read(self._path / name)))
            except FileNotFoundError:
                continue
            except (OSError, HpcslaqError) as error:
                self.refuse(name, str(error))
        return found

    def done(self, name: str) -> None:
        """A request was carried out."""
        self._move(name, _DONE)

    def refuse(self, name: str, reason: str) -> None:
        """A request is not carried out, for this reason."""
        self._path.joinpath(_REFUSED).mkdir(mode=0o700, exist_ok=True)
        write_atomic(self._reason_file(name), reason[:_MAX_REASON].encode())
        self._move(name, _REFUSED)

    def accepted(self) -> Iterator[Request]:
        """The requests that were carried out, by this start of the run or earlier ones."""
        done = self._path / _DONE
        if done.is_dir():
            for name in sorted(os.listdir(done)):
                if _NAME.fullmatch(name):
                    try:
                        yield _read(done / name)
                    except (OSError, HpcslaqError) as error:
                        raise RequestError(f"{done / name}: is damaged: {error}") from None

    def _reason_file(self, name: str) -> Path:
        return self._path / _REFUSED / f"{name}.reason"

    def _move(self, name: str, folder: str) -> None:
        self._path.joinpath(folder).mkdir(mode=0o700, exist_ok=True)
        (self._path / name).replace(self._path / folder / name)


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
