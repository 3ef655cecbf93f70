"""Files that appear whole or not at all: temp file, fsync, rename, fsync of the directory."""

from __future__ import annotations

import errno
import logging
import os
import secrets
from io import TextIOWrapper
from pathlib import Path

#: Start of the names of files that are being written; left over only by a killed process.
TEMP_PREFIX = ".tmp-"


def temp_path(path: Path) -> Path:
    """A name beside `path` that no other thread or process takes."""
    return path.with_name(f"{TEMP_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def write_atomic(path: Path, data: bytes, *, is_program: bool = False) -> None:
    """Replace `path` by a file with this content; raises OSError and leaves the old one.

    Others may read it where its directory lets them in; `is_program` : its owner may execute it.
    """
    temp = temp_path(path)
    try:
        with open(create_private(temp, is_program=is_program), "wb") as file:
            file.write(data)
        publish(temp, path)
    finally:
        # Renamed by now, unless something went wrong.
        temp.unlink(missing_ok=True)


def create_private(path: Path, *, is_program: bool = False) -> int:
    """The descriptor of a new file, for writing; raises OSError where there is one or a link.

    It is its owner's from the first byte on, and for those whom the directory's mode lets in.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    set_mode(fd, file_mode(path.parent) | (0o100 if is_program else 0))
    return fd


def set_mode(fd: int, mode: int) -> None:
    """Give a file of ours these permissions; the few file systems without any are not asked."""
    if os.fstat(fd).st_mode & 0o777 != mode:
        os.fchmod(fd, mode)


def open_log(path: Path) -> int:
    """The descriptor of a file to append to, never through a link; raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, file_mode(path.parent))


class LogHandler(logging.FileHandler):
    """A log file of a run directory, made when there is something to say, never through a link."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        return open(open_log(Path(self.baseFilename)), "a", encoding="utf-8")


def file_mode(directory: Path) -> int:
    """Permissions of files in a directory: as the directory's, 0600 for 0700, 0640 for 0750."""
    return 0o600 | (directory.stat().st_mode & 0o066)


def make_directory(path: Path) -> None:
    """Make a directory, unless it is there, with the permissions of the one that it is in."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    # mkdir's mode is subject to the umask, the user's choice is not.
    mode = 0o700 | (path.parent.stat().st_mode & 0o077)
    if mode != 0o700:
        path.chmod(mode)


def publish(temp: Path, path: Path) -> None:
    """Make a closed temp file durable under its final name; raises OSError."""
    fd = os.open(temp, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    temp.replace(path)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk, where the file system can."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network and FUSE file systems have no fsync for directories.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def remove_temp_files(directory: Path) -> list[str]:
    """Delete what killed processes left half-written in a directory; returns the names."""
    removed: list[str] = []
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except FileNotFoundError:
        return removed
    for entry in entries:
        if entry.name.startswith(TEMP_PREFIX) and not entry.is_dir(follow_symlinks=False):
            Path(entry.path).unlink(missing_ok=True)
            removed.append(entry.name)
    return removed
