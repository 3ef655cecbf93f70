"""The append-only journal of a run: one line per event and per command, the truth.

A line counts once its line end is on the file. A last line without one is torn (the
writer died in the middle): readers report it and leave it out, the next writer cuts it
off. The form of a line is in `codec`; what the lines add up to is in `summary`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from hpcslaq.core.commands import Command
from hpcslaq.core.events import Event
from hpcslaq.errors import HpcslaqError, NotFoundError
from hpcslaq.record.codec import CodecError, Entry, LineCodec
from hpcslaq.record.files import file_mode, set_mode

_log = logging.getLogger("hpcslaq.record")

#: Longest line that is written or read: bounds the memory that a hostile file can take.
MAX_LINE_BYTES = 64 * 2**20

_BLOCK_BYTES = 2**16


class JournalError(HpcslaqError):
    """A journal that cannot be used; `line` counts from 1, 0 where it is the whole file."""

    exit_code = 2

    def __init__(self, path: Path, line: int, problem: str) -> None:
        self.path, self.line, self.problem = path, line, problem
        where = f"{path}:{line}" if line else str(path)
        super().__init__(f"{where}: {problem}")


class JournalBusyError(JournalError):
    """Another process writes the journal: its run is still on."""

    exit_code = 1


#: Told about a torn last line: path, its line number and its first bytes.
OnTorn = Callable[[Path, int, bytes], None]


def log_torn(path: Path, line: int, text: bytes) -> None:
    """Warn that the last line of a journal is left out."""
    _log.warning("%s:%d: the last line is torn and left out: %r", path, line, text[:80])


class JournalWriter:
    """Appends to a journal; a context manager. Only one process may write at a time.

    Lines wait in memory until `flush`, which hands them to the operating system in one
    write; with `fsync=True` it also waits for the disk. Opening cuts off a torn last line.
    """

    def __init__(self, path: Path, *, fsync: bool = False, on_torn: OnTorn = log_torn) -> None:
        self._path = path
        self._fsync = fsync
        self._lines = LineCodec()
        #: Encoded lines that are not yet with the operating system.
        self._waiting: list[bytes] = []
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._fd = os.open(path, flags, file_mode(path.parent))
        with ExitStack() as undo:
            undo.callback(os.close, self._fd)
            _lock(self._fd, path)
            if os.fstat(self._fd).st_size == 0:
                set_mode(self._fd, file_mode(path.parent))
            _cut_torn_line(self._fd, path, on_torn)
            undo.pop_all()

    def append(self, now: float, *items: Event | Command) -> None:
        """Add one line per item, all at `now` (s since run start)."""
        lines = []
        for item in items:
            line = self._lines.to_line(now, item).encode() + b"\n"
            if len(line) > MAX_LINE_BYTES:
                raise CodecError(
                    f"{type(item).__name__}: {len(line)} bytes in one line > {MAX_LINE_BYTES}"
                )
            lines.append(line)
        self._waiting += lines

    def flush(self) -> None:
        """Hand all waiting lines to the operating system; raises OSError (disk full)."""
        if self._waiting:
            self._write_all(b"".join(self._waiting))
            self._waiting.clear()
        if self._fsync:
            os.fsync(self._fd)

    def _write_all(self, data: bytes) -> None:
        end = os.fstat(self._fd).st_size
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, memoryview(data)[done:])
        except OSError:
            # The lines stay in memory: take back their first part, so that the next try
            # does not follow half a line.
            os.ftruncate(self._fd, end)
            raise

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if self._fd >= 0:
            try:
                self.flush()
            finally:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_journal(path: Path, *, on_torn: OnTorn = log_torn) -> Iterator[Entry]:
    """Iterate over the entries of a journal, in order.

    Raises NotFoundError where there is none, and JournalError, naming the line, on a line
    that is not an entry. A torn last line is handed to `on_torn` and left out.
    """
    lines = LineCodec()
    file = _open(path)
    if file is None:
        raise NotFoundError(f"{path}: there is no journal")
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) > MAX_LINE_BYTES:
                    raise JournalError(path, number, f"more than {MAX_LINE_BYTES} bytes")
                on_torn(path, number, line)
                return
            yield _entry(lines, path, number, line)


class JournalTail:
    """Follows a journal that is still growing, or that does not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = LineCodec()
        #: Bytes and lines of the file that were handed out.
        self._offset = 0
        self._number = 0

    def poll(self, limit: int | None = None) -> list[Entry]:
        """The entries that were completed since the last call, at most `limit` of them.

        Raises JournalError as `read_journal` does, and where the file became shorter than
        what was read of it.
        """
        entries: list[Entry] = []
        file = _open(self._path)
        if file is None:
            return entries
        with file:
            if os.fstat(file.fileno()).st_size < self._offset:
                raise JournalError(self._path, 0, "is shorter than what was already read")
            file.seek(self._offset)
            while limit is None or len(entries) < limit:
                line = file.readline(MAX_LINE_BYTES + 1)
                if not line.endswith(b"\n"):
                    if len(line) > MAX_LINE_BYTES:
                        problem = f"more than {MAX_LINE_BYTES} bytes"
                        raise JournalError(self._path, self._number + 1, problem)
                    break
                entries.append(_entry(self._lines, self._path, self._number + 1, line))
                self._offset += len(line)
                self._number += 1
        return entries


def _open(path: Path) -> BinaryIO | None:
    """The journal for reading, None where there is none; raises JournalError.

    Whatever stands in its place in a run of somebody else: a pipe is not waited for.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(path, 0, f"cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise JournalError(path, 0, "is not a regular file")
    return open(fd, "rb")


def _entry(lines: LineCodec, path: Path, number: int, line: bytes) -> Entry:
    try:
        return lines.from_line(line)
    except CodecError as error:
        raise JournalError(path, number, str(error)) from None


def _lock(fd: int, path: Path) -> None:
    """Take the writer's lock where the file system has locks; raises JournalError if taken."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalBusyError(path, 0, "another run is writing it; stop that one first") from None
    except OSError as error:
        # Lustre without -o flock, some NFS servers: go on without.
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _cut_torn_line(fd: int, path: Path, on_torn: OnTorn) -> None:
    """Truncate the file after its last line end."""
    size = end = os.fstat(fd).st_size
    torn = b""
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        block = os.pread(fd, end - start, start)
        cut = block.rfind(b"\n")
        torn = block[cut + 1 :][:80]
        if cut >= 0:
            end = start + cut + 1
            break
        end = start
    if end < size:
        on_torn(path, _count_lines(fd, end) + 1, torn)
        os.ftruncate(fd, end)


def _count_lines(fd: int, size: int) -> int:
    count = position = 0
    while position < size:
        block = os.pread(fd, min(_BLOCK_BYTES, size - position), position)
        if not block:
            break
        count += block.count(b"\n")
        position += len(block)
    return count
