"""Atomic writing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpcslaq.record import files
from hpcslaq.record.files import (
    fsync_directory,
    remove_temp_files,
    temp_path,
    write_atomic,
)


def test_a_file_is_replaced_whole_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_failure_leaves_the_old_file_and_no_temp_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"one")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, call, full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"two")
    monkeypatch.undo()
    assert path.read_bytes() == b"one"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "f").symlink_to(target)
    write_atomic(tmp_path / "f", b"new")
    assert target.read_text() == "precious"
    assert not (tmp_path / "f").is_symlink()


def test_directories_that_cannot_be_synced_are_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> object:
        def fsync(fd: int) -> None:
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(files.os, "fsync", fail(errno.EINVAL))
    fsync_directory(tmp_path)
    monkeypatch.setattr(files.os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError):
        fsync_directory(tmp_path)


def test_left_over_temp_files_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "keep").write_text("x")
    temp = temp_path(tmp_path / "keep")
    temp.write_text("half")
    assert temp != temp_path(tmp_path / "keep")
    (tmp_path / ".tmp-directory").mkdir()
    assert remove_temp_files(tmp_path) == [temp.name]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".tmp-directory", "keep"]
    assert remove_temp_files(tmp_path / "missing") == []
