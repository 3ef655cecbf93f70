"""Preparing a source: once, atomically, safe for two at once, repaired when damaged."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.data import DataSource, default_cache_root, open_dataset, prepare
from hpcslaq.data.store import META, check_directory
from hpcslaq.errors import DataError, NotFoundError


@pytest.fixture
def source(tmp_path: Path) -> DataSource:
    """A file that has not changed for an hour."""
    path = tmp_path / "t.npz"
    rng = np.random.default_rng(0)
    np.savez(path, X=rng.normal(size=(100, 4)), y=rng.normal(size=100))
    age(path)
    return DataSource(str(path))


def age(path: Path, seconds: float = 3600.0) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Calling one of these functions of the cache module fails the test."""

    def unexpected(*args: object) -> None:
        pytest.fail("called although the cache had it all")

    for name in names:
        monkeypatch.setattr(f"hpcslaq.data.cache.{name}", unexpected)


def test_a_second_call_reads_neither_the_file_nor_the_arrays(
    source: DataSource, tmp_path: Path, monkeypatch
) -> None:
    first = prepare(source, tmp_path / "cache")
    forbid(monkeypatch, "read_file", "_convert")
    monkeypatch.setattr("hpcslaq.data.cache._HASH_BLOCK_BYTES", None)  # Reading would raise.
    assert prepare(source, tmp_path / "cache") == first
    assert prepare(DataSource(source.location, {"seed": 0}), tmp_path / "cache") == first


def test_a_copy_of_the_file_elsewhere_finds_the_same_cache(
    source: DataSource, tmp_path: Path, monkeypatch
) -> None:
    first = prepare(source, tmp_path / "cache")
    other = tmp_path / "elsewhere" / "t.npz"
    other.parent.mkdir()
    other.write_bytes(Path(source.location).read_bytes())
    forbid(monkeypatch, "_convert")
    assert prepare(DataSource(str(other)), tmp_path / "cache") == first


def test_other_options_or_bytes_give_another_cache(source: DataSource, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    paths = {prepare(source, root)}
    for options in ({"seed": 1}, {"holdout": 0.2}, {"standardise": True}, {"label": "none"}):
        paths.add(prepare(DataSource(source.location, options), root))
    np.savez(source.location, X=np.ones((100, 4)), y=np.arange(100.0))
    paths.add(prepare(source, root))
    assert len(paths) == 6
    assert len({open_dataset(path).content_hash for path in paths}) == 6


def test_a_file_rewritten_at_once_with_the_same_size_is_noticed(tmp_path: Path) -> None:
    path, root = tmp_path / "t.csv", tmp_path / "cache"
    path.write_text("1,2.5\n3,4.5\n")
    first = prepare(DataSource(str(path)), root)
    stamp = path.stat().st_mtime_ns
    path.write_text("1,2.5\n3,7.5\n")
    os.utime(path, ns=(stamp, stamp))
    assert prepare(DataSource(str(path)), root) != first


def test_a_damaged_note_of_a_hash_is_ignored(source: DataSource, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    first = prepare(source, root)
    (note,) = (root / ".hashes").iterdir()
    for text in ("", "[]", "{}", '{"key": 1}', "\udcff", '{"key": [], "sha256": 5}'):
        note.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert prepare(source, root) == first


def test_a_failed_conversion_leaves_nothing(
    source: DataSource, tmp_path: Path, monkeypatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hpcslaq.data.cache.write_part", full)
    with pytest.raises(DataError, match=r"t\.npz: no space left .*set HPCSLAQ_CACHE"):
        prepare(source, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".hashes"]


def test_a_file_that_changes_while_it_is_read_is_refused(
    source: DataSource, tmp_path: Path
) -> None:
    def touch(stage: str, fraction: float) -> None:
        if stage == "read":
            age(Path(source.location), 10.0)

    with pytest.raises(DataError, match="changed while it was read"):
        prepare(source, tmp_path / "cache", touch)
    assert not list((tmp_path / "cache").glob("t-*"))


_PREPARE = """
import sys
from pathlib import Path
from hpcslaq.data import DataSource, open_dataset, prepare
sys.stdin.readline()
path = prepare(DataSource(sys.argv[1]), Path(sys.argv[2]))
sys.stdout.write(f"{path} {open_dataset(path, verify=True).num_rows}")
"""


def test_processes_that_prepare_the_same_source_at_once_agree(
    source: DataSource, tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    command = [sys.executable, "-c", _PREPARE, source.location, str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
    try:
        for process in processes:  # All have started; one line sets each off.
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = {process.communicate(timeout=60)[0] for process in processes}
    finally:
        for process in processes:
            process.kill()
    assert answers == {f"{prepare(source, root)} 90"}
    assert sorted(path.name[:2] for path in root.iterdir()) == [".h", "t-"]


def test_the_second_to_finish_keeps_the_first_one_s_directory(
    source: DataSource, tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    inside = False

    def race(stage: str, fraction: float) -> None:
        nonlocal inside
        if not inside:
            inside = True
            prepare(source, root)

    path = prepare(source, root, race)
    assert open_dataset(path, verify=True).num_rows == 90
    assert len(list(root.glob("*t*"))) == 1 and not list(root.glob(".tmp*"))


def damage_meta(path: Path) -> None:
    (path / META).write_text("{")


def remove_meta(path: Path) -> None:
    (path / META).unlink()


def remove_array(path: Path) -> None:
    (path / "X.npy").unlink()


def truncate_array(path: Path) -> None:
    os.truncate(path / "holdout_y.npy", 100)


@pytest.mark.parametrize("damage", [damage_meta, remove_meta, remove_array, truncate_array])
def test_a_damaged_cache_is_written_again(
    damage: Callable[[Path], None], source: DataSource, tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    path = prepare(source, root)
    mapped = open_dataset(path).rows(0, 5).X
    before = mapped.copy()
    damage(path)
    with pytest.raises(DataError, match=str(path)):
        open_dataset(path)
    assert prepare(source, root) == path
    assert open_dataset(path, verify=True).num_rows == 90
    np.testing.assert_array_equal(mapped, before)
    assert not list(root.glob(".tmp*"))


def edit(path: Path, **changes: object) -> None:
    meta = json.loads((path / META).read_text())
    meta.update(changes)
    (path / META).write_text(json.dumps(meta))


def edit_array(path: Path, name: str, **changes: object) -> None:
    meta = json.loads((path / META).read_text())
    meta["train"][name].update(changes)
    (path / META).write_text(json.dumps(meta))


def overwrite_value(path: Path) -> None:
    with (path / "X.npy").open("r+b") as stream:
        stream.seek(-8, os.SEEK_END)
        stream.write(b"\0" * 8)


def overwrite_header(path: Path) -> None:
    content = (path / "y.npy").read_bytes()
    (path / "y.npy").write_bytes(content.replace(b"'<f8'", b"'<i8'"))


REFUSED = {
    "no table": (lambda path: (path / META).write_text("[1]"), "meta.json: damaged: not a table"),
    "other format": (lambda path: edit(path, format=99), "cache format 99, this version reads 1"),
    "missing key": (lambda path: edit(path, task=None), "damaged: 'task' is missing or of"),
    "rows": (lambda path: edit(path, num_rows=91), "the arrays of 'train' do not fit together"),
    "columns": (lambda path: edit(path, num_features=3), "the arrays of 'train' do not fit"),
    "no X": (lambda path: edit(path, train={}), "the array 'train.X' is missing"),
    "shape": (lambda path: edit_array(path, "X", shape=[90, 5]), "X.npy: holds <f8 .90, 4.,"),
    "escape": (lambda path: edit_array(path, "X", file="../X.npy"), "train.X: '../X.npy'"),
    "fields": (lambda path: edit_array(path, "X", more=1), "damaged: train.X"),
    "value": (overwrite_value, "X.npy: its checksum is not the one in meta.json"),
    "header": (overwrite_header, "y.npy: holds <i8 .90,., meta.json says <f8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_directory_that_is_not_as_it_was_written_is_refused(
    name: str, source: DataSource, tmp_path: Path
) -> None:
    damage, message = REFUSED[name]
    path = prepare(source, tmp_path / "cache")
    damage(path)
    with pytest.raises(DataError, match=message):
        open_dataset(path, verify=True)


def test_what_does_not_exist_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nor a built-in set"):
        prepare(DataSource(str(tmp_path / "t.csv")), tmp_path / "cache")
    with pytest.raises(NotFoundError, match="no such prepared data set"):
        open_dataset(tmp_path / "cache" / "nothing")


def test_left_overs_of_killed_processes_are_removed_after_a_day(
    source: DataSource, tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    for name, days in ((".tmp-old", 2), (".tmp-new", 0)):
        (root / name).mkdir(parents=True)
        (root / name / "spool.values").write_bytes(b"")
        age(root / name / "spool.values", days * 86_400)
        age(root / name, days * 86_400)
    prepare(source, root)
    assert sorted(path.name for path in root.glob(".tmp*")) == [".tmp-new"]


def test_progress_goes_up_within_each_stage(source: DataSource, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    prepare(source, tmp_path / "cache", lambda stage, fraction: seen.append((stage, fraction)))
    stages = list(dict.fromkeys(stage for stage, _ in seen))
    assert stages == ["hash", "read", "write"]
    assert all(0 <= fraction <= 1 for _, fraction in seen)
    for stage in stages:
        assert [fraction for name, fraction in seen if name == stage][-1] == 1.0


def test_a_cache_root_that_cannot_be_written_serves_what_it_has(
    source: DataSource, tmp_path: Path, monkeypatch
) -> None:
    root = tmp_path / "cache"
    path = prepare(source, root)

    def read_only(*args: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("hpcslaq.data.cache._write_atomically", read_only)
    for note in (root / ".hashes").iterdir():
        note.unlink()
    assert prepare(source, root) == path


def test_meta_names_what_went_in(source: DataSource, tmp_path: Path) -> None:
    meta = check_directory(prepare(source, tmp_path / "cache"))
    assert meta["source"]["location"] == source.location
    assert meta["source"]["options"]["format"] == "npz"
    assert meta["num_rows"] == 90 and meta["num_holdout_rows"] == 10


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HPCSLAQ_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/hpcslaq"),
        ({"HOME": "/home/u"}, "/home/u/.cache/hpcslaq"),
    ],
)
def test_the_default_root_follows_the_environment(
    environment: dict[str, str], expected: str, monkeypatch
) -> None:
    for name in ("HPCSLAQ_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_cache_root() == Path(expected)
