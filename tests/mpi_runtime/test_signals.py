"""Signals to `hpcslaq run`: the first checkpoints and ends, the second ends at once; no remains."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcslaq.core import events as ev
from hpcslaq.record.journal import read_journal

pytestmark = pytest.mark.launch


def shared_files() -> set[str]:
    """Shared-memory files that no living process has mapped."""
    found = {str(path) for path in Path("/dev/shm").iterdir() if path.is_file()}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue
        found = {name for name in found if name not in text}
    return found


@pytest.fixture
def remains(place: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """`remains()`: what the run in this place has left: processes, temporary and shared files."""
    temporary = place.path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = shared_files()

    def look() -> list[str]:
        until = time.monotonic() + 10
        while True:
            left = [*place.processes().values(), *map(str, temporary.rglob("*"))]
            left += sorted(shared_files() - before)
            left += map(str, place.out.rglob("*.tmp*"))
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.1)

    return look


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_checkpoints_all_jobs_and_leaves_nothing(mpi, place, remains, number):
    process = place.start(mpi, place.job_file({"sleep_s": 0.05}, {"sleep_s": 0.05}, epochs=300))
    for job in ("job0", "job1"):
        place.wait_for(f'"ProgressReported","job":"{job}"')
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    report = json.loads(out)
    assert {job["state"] for job in report["jobs"]} == {"waiting"}
    paused = {
        e.item.job
        for e in read_journal(place.out / "journal.jsonl")
        if isinstance(e.item, ev.JobPaused)
    }
    assert paused == {"job0", "job1"}
    assert {path.parent.name for path in place.out.glob("checkpoints/*/*.h5")} == paused
    assert remains() == []


def test_the_second_signal_ends_at_once_and_leaves_nothing(mpi, place, remains):
    # In user code that returns after a minute: nobody waits for it.
    process = place.start(mpi, place.job_file({"sleep_s": 60.0}, {"sleep_s": 60.0}))
    place.wait_for("GroupFormed")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 130, out + err
    assert "the same command goes on" in err
    assert remains() == []


def test_a_run_that_ends_by_itself_leaves_nothing(mpi, place, remains):
    process = place.start(mpi, place.job_file({}, {}))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert remains() == []


def test_signals_to_the_ranks_themselves_do_not_kill_workers(mpi, place):
    # As `scancel --signal=USR1` does it: every process gets the signal.
    process = place.start(mpi, place.job_file({"sleep_s": 0.05}, {"sleep_s": 0.05}, epochs=300))
    place.wait_for("ProgressReported")
    for pid, line in place.processes().items():
        if "hpcslaq.mpi" in line and "mpirun" not in line and "mpiexec" not in line:
            os.kill(pid, signal.SIGUSR1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert {job["state"] for job in json.loads(out)["jobs"]} == {"waiting"}
