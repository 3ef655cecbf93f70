"""Files that appear whole or not at all: temp file, fsync, rename, fsync of the directory."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

#: Start of the names of files that are being written; left over only by a killed process.
TEMP_PREFIX = ".tmp-"


def temp_path(path: Path) -> Path:
    """A name beside `path` that no other thread or process takes."""
    return path.with_name(f"{TEMP_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by a file with this content; raises OSError and leaves the old one."""
    temp = temp_path(path)
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(fd, "wb") as file:
            file.write(data)
        publish(temp, path)
    finally:
        # Renamed by now, unless something went wrong.
        temp.unlink(missing_ok=True)


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
