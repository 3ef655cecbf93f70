"""Ranks that outlive their launcher, or whose run was taken over by a later start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.cache import prepare
from hpcslaq.data.source import DataSource
from hpcslaq.mpi.fence import EXIT_ORPHAN
from hpcslaq.mpi.launch import mpi_command, mpi_environment
from hpcslaq.record.journal import read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

PROGRAMS = Path(__file__).parent / "programs"

ORPHAN = """
import time
from hpcslaq.mpi.fence import end_with_launcher
end_with_launcher()
print("up", flush=True)
time.sleep(600)
"""

OVERTAKEN = """
import sys
from pathlib import Path
from hpcslaq.mpi.fence import Fence
from hpcslaq.record.rundir import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
fence = Fence(run)
fence.check()
print("first", flush=True)
run.claim()
ask = fence.around(lambda: "asked")
print(ask(), flush=True)
Fence(run).check()
fence.check()
print("written", flush=True)
"""


def test_a_rank_ends_soon_after_its_launcher():
    launcher = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" & read -r line', sys.executable, ORPHAN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdin is not None and launcher.stdout is not None
    with launcher, launcher.stdin, launcher.stdout:
        assert launcher.stdout.readline() == "up\n"
        launcher.stdin.close()
        launcher.wait(60)
        # The rank holds the pipe open as long as it lives.
        assert launcher.stdout.read() == ""


def test_a_start_that_was_taken_over_writes_no_more(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    run.claim()
    done = subprocess.run(
        [sys.executable, "-c", OVERTAKEN, str(run.path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_ORPHAN, done.stderr
    assert done.stdout.split() == ["first", "asked"]
    assert "another start of the run has taken over" in done.stderr


def test_an_owner_that_cannot_be_read_is_no_other_owner(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    assert run.read_owner() is None
    run.claim()
    first = run.read_owner()
    run.claim()
    assert None is not first != run.read_owner()
    run.owner.write_bytes(b"x" * 1000)
    assert run.read_owner() is None


@pytest.mark.launch
def test_all_ranks_of_a_run_that_was_taken_over_end(any_mpi, tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(7).normal(size=(40, 3)))
    data = prepare(DataSource(str(tmp_path / "rows.npy"), {}), tmp_path / "cache")
    run = RunDirectory.create(tmp_path / "run")
    job = JobSpec("a", f"{PROGRAMS / 'user_models.py'}:Mean", "rows", 4, 10**6)
    jobs = (job,)
    RunPlan("fair", jobs, {"rows": str(data)}, round_s=0.2, checkpoint_every_s=0.1).write(run)
    process = subprocess.Popen(
        mpi_command(any_mpi, 3, ["-m", "hpcslaq.mpi", str(run.path)]),
        env=mpi_environment(any_mpi, os.environ, 3, os.cpu_count() or 1),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        while not list(run.checkpoint_directory("a").glob("*.h5")):
            assert time.monotonic() < until, "no checkpoint"
            time.sleep(0.02)
        run.claim()
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    logs = "".join(file.read_text() for file in run.logs.iterdir())
    assert "another start of the run has taken over" in logs
    assert run.read_result() is None
    items = [entry.item for entry in read_journal(run.journal)]
    assert not [item for item in items if isinstance(item, ev.JobFinished)]
