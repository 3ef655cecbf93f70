"""The newest valid checkpoint of a job wins, and nothing valid is ever thrown away."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.errors import CheckpointError
from hpcslaq.record import store as store_module
from hpcslaq.record.checkpoint import Scalar, write_checkpoint
from hpcslaq.record.files import temp_path
from hpcslaq.record.journal import read_journal
from hpcslaq.record.store import CheckpointStore

IDENTITY: dict[str, Scalar] = {"job": "a", "seed": 3}


def store(tmp_path: Path, keep: int = 3, **change: Scalar) -> CheckpointStore:
    return CheckpointStore(tmp_path / "a", {**IDENTITY, **change}, keep)


def save(tmp_path: Path, *iterations: int, keep: int = 3) -> None:
    for iteration in iterations:
        arrays = {"w": np.full(50, float(iteration))}
        store(tmp_path, keep).save(iteration, arrays, {"epoch": iteration // 10})


def file(tmp_path: Path, iteration: int) -> Path:
    return tmp_path / "a" / f"iteration-{iteration:010d}.h5"


def names(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "a"))


def test_the_newest_checkpoint_is_loaded_with_its_values(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    loaded = store(tmp_path).load_newest()
    assert loaded is not None
    assert (loaded.iteration, loaded.path) == (20, file(tmp_path, 20))
    assert loaded.meta == {"epoch": 2}
    assert (loaded.arrays["w"] == 20).all()
    assert loaded.refused == ()


def test_a_job_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert store(tmp_path).load_newest() is None
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "README").write_text("x")
    assert store(tmp_path).load_newest() is None


def test_only_the_last_k_are_kept_and_other_files_are_let_be(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "a" / "notes.txt").write_text("x")
    save(tmp_path, *range(2, 12), keep=2)
    assert names(tmp_path) == [file(tmp_path, 10).name, file(tmp_path, 11).name, "notes.txt"]


def test_many_iterations_are_ordered_by_number(tmp_path: Path) -> None:
    save(tmp_path, 9_999_999_999, 10_000_000_000)
    loaded = store(tmp_path).load_newest()
    assert loaded is not None and loaded.iteration == 10_000_000_000


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "directory", "unreadable"])
def test_a_damaged_newest_file_falls_back_to_the_one_before_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    save(tmp_path, 10, 20, 30)
    path = file(tmp_path, 30)
    whole = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(whole[:-100])
    elif damage == "flip":
        position = whole.index(np.full(50, 30.0).tobytes()) + 5
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "directory":
        path.unlink()
        path.mkdir()
    else:
        path.unlink()
        path.symlink_to(path)
    loaded = store(tmp_path).load_newest()
    assert loaded is not None and loaded.iteration == 20
    assert (loaded.arrays["w"] == 20).all()
    (refused,) = loaded.refused
    assert refused.path == path
    assert str(path) in refused.reason
    assert f"checkpoint refused: {path}" in caplog.text


def test_forty_random_truncations_always_fall_back(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    whole = file(tmp_path, 20).read_bytes()
    rng = random.Random(1)
    for _ in range(40):
        file(tmp_path, 20).write_bytes(whole[: rng.randrange(len(whole))])
        loaded = store(tmp_path).load_newest()
        assert loaded is not None and loaded.iteration == 10


def test_all_bad_is_an_error_that_names_every_file_and_never_a_fresh_start(
    tmp_path: Path,
) -> None:
    save(tmp_path, 10, 20)
    for iteration in (10, 20):
        file(tmp_path, iteration).write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="found 2 files and none of them is") as caught:
        store(tmp_path).load_newest()
    assert str(file(tmp_path, 10)) in str(caught.value)
    assert str(file(tmp_path, 20)) in str(caught.value)


def test_a_checkpoint_that_was_written_and_is_gone_is_an_error_and_no_fresh_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        CheckpointError,
        match="expected the checkpoint of iteration 20, which was written, found none",
    ):
        store(tmp_path).load_newest(20)
    save(tmp_path, 10, 20)
    loaded = store(tmp_path).load_newest(20)
    assert loaded is not None and loaded.iteration == 20
    assert not caplog.text
    file(tmp_path, 20).unlink()
    loaded = store(tmp_path).load_newest(20)
    assert loaded is not None and loaded.iteration == 10
    assert "iteration 10 is the newest usable checkpoint, 20 was written" in caplog.text
    file(tmp_path, 10).unlink()
    with pytest.raises(CheckpointError, match="found none"):
        store(tmp_path).load_newest(20)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("job", "b", "expected job 'b', found 'a'"),
        ("seed", 4, "expected seed 4, found 3"),
        ("seed", 3.0, r"expected seed 3\.0, found 3"),
        ("data", "x", "expected data 'x', found None"),
    ],
)
def test_a_checkpoint_of_another_job_is_refused(
    tmp_path: Path, key: str, value: Scalar, message: str
) -> None:
    save(tmp_path, 10)
    with pytest.raises(CheckpointError, match=message):
        store(tmp_path, **{key: value}).load_newest()


def test_a_file_under_another_iterations_name_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 10)
    file(tmp_path, 10).rename(file(tmp_path, 99))
    with pytest.raises(CheckpointError, match="expected iteration 99, found 10"):
        store(tmp_path).load_newest()


def test_a_plain_container_without_an_identity_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 10)
    write_checkpoint(file(tmp_path, 20), {}, {})
    loaded = store(tmp_path).load_newest()
    assert loaded is not None and loaded.iteration == 10


def test_refused_files_do_not_displace_valid_ones(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30, keep=2)
    file(tmp_path, 30).write_bytes(b"junk")
    resumed = store(tmp_path, keep=2)
    loaded = resumed.load_newest()
    assert loaded is not None and loaded.iteration == 20
    assert names(tmp_path) == [file(tmp_path, 20).name, file(tmp_path, 30).name]
    resumed.save(25, {"w": np.zeros(1)}, {})
    assert names(tmp_path) == [file(tmp_path, 20).name, file(tmp_path, 25).name]
    resumed.save(30, {"w": np.zeros(1)}, {})
    assert names(tmp_path) == [file(tmp_path, 25).name, file(tmp_path, 30).name]


def test_the_file_just_written_is_never_pruned(tmp_path: Path) -> None:
    save(tmp_path, 100, 200)
    save(tmp_path, 50, keep=1)
    assert file(tmp_path, 50).name in names(tmp_path)


def test_a_failed_save_keeps_all_earlier_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 10, 20, keep=2)

    def full(*args: object) -> int:
        raise CheckpointError("No space left on device")

    monkeypatch.setattr(store_module, "write_checkpoint", full)
    with pytest.raises(CheckpointError, match="No space"):
        save(tmp_path, 30, keep=2)
    assert names(tmp_path) == [file(tmp_path, 10).name, file(tmp_path, 20).name]


def test_a_place_that_cannot_be_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(CheckpointError, match="cannot be made: File exists"):
        save(tmp_path, 10)
    with pytest.raises(CheckpointError, match="cannot be read: Not a directory"):
        store(tmp_path).load_newest()


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="found a link"):
        save(tmp_path, 10)
    with pytest.raises(CheckpointError, match="found a link"):
        store(tmp_path).load_newest()
    assert os.listdir(tmp_path / "elsewhere") == []


def test_half_written_files_are_removed_at_the_next_load(tmp_path: Path) -> None:
    save(tmp_path, 10)
    temp_path(file(tmp_path, 20)).write_bytes(b"half")
    assert len(names(tmp_path)) == 2
    store(tmp_path).load_newest()
    assert names(tmp_path) == [file(tmp_path, 10).name]


WRITER = """
import sys
from pathlib import Path
import numpy as np
from hpcslaq.record.journal import JournalWriter
from hpcslaq.core.events import CheckpointWritten
from hpcslaq.record.journal import read_journal
from hpcslaq.record.store import CheckpointStore
root = Path(sys.argv[1])
store = CheckpointStore(root / "a", {"job": "a", "seed": 3}, keep=2)
loaded = store.load_newest()
iteration = loaded.iteration if loaded else 0
with JournalWriter(root / "journal.jsonl", on_torn=lambda *args: None) as journal:
    print("ready", flush=True)
    while True:
        iteration += 1
        size = store.save(iteration, {"w": np.full(200_000, float(iteration))}, {})
        journal.append(0.0, CheckpointWritten("a", iteration, 0, size, 0.0))
        journal.flush()
"""


@pytest.mark.parametrize("num_kills", [4, pytest.param(50, marks=pytest.mark.long)])
def test_a_writer_killed_at_any_moment_loses_no_checkpoint_that_was_reported(
    tmp_path: Path, num_kills: int
) -> None:
    rng = random.Random(3)
    newest = 0
    for _ in range(num_kills):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.25))
            process.kill()
        entries = list(read_journal(tmp_path / "journal.jsonl", on_torn=lambda *args: None))
        reported = max((entry.item.iterations for entry in entries), default=0)  # type: ignore
        loaded = store(tmp_path).load_newest()
        found = loaded.iteration if loaded else 0
        # One write may be durable without its report; in the attempt before, too.
        least = max(reported, newest)
        assert least <= found <= least + 1
        newest = found
        assert loaded is None or ((loaded.arrays["w"] == found).all() and not loaded.refused)
        assert not [name for name in names(tmp_path) if name.startswith(".tmp-")]
    assert newest > 0


def test_old_files_that_cannot_be_deleted_cost_a_warning_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file(tmp_path, 1)).mkdir(parents=True)
    save(tmp_path, 10, keep=1)
    assert "old checkpoints stay" in caplog.text
    assert file(tmp_path, 10).exists()


def test_impossible_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep: 0 < 1"):
        store(tmp_path, keep=0)
    with pytest.raises(ValueError, match=r"'store\.job'"):
        store(tmp_path).save(1, {}, {"store.job": "b"})
