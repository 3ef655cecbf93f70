"""Floods: thousands of jobs by requests, many failing. Figures are in docs/faults-input.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_CROWD = """
import json, sys
from dataclasses import replace
import mpi4py
mpi4py.rc.initialize = False
from hpcslaq.core.jobs import JobSpec
from hpcslaq.mpi.rank0 import _arrivals
spec = JobSpec("a", "m", "d", 1, 1)
specs = [replace(spec, name=f"{n}", arrival_s=float(n % 5 == 0)) for n in range(100)]
print(json.dumps([[s.arrival_s, f] for s, f in _arrivals(specs, 0.0)]))
print(json.dumps([f for _, f in _arrivals(specs, 7.0)]))
"""


def python(*arguments: str) -> str:
    """What a program prints that uses the package and starts no MPI."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_a_crowd_that_arrives_together_is_decided_about_once() -> None:
    by_time, overdue = map(json.loads, python("-c", _CROWD).splitlines())
    # 80 jobs at 0 s are a crowd, the 20 at 1 s are not.
    assert by_time == [[0.0, True]] * 79 + [[0.0, False]] + [[1.0, False]] * 20
    assert overdue == [True] * 99 + [False]


@pytest.mark.parametrize("num_jobs", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_a_flood_of_jobs_adds_up_and_takes_bounded_memory(num_jobs: int) -> None:
    program = [str(ROOT / "scripts" / "bench_inbox.py"), "--pretend", "--json"]
    found = json.loads(python(*program, "--jobs", str(num_jobs)))
    assert found["exit_code"] == 1
    assert found["jobs"] == {"done": num_jobs // 2, "failed": num_jobs // 2}
    assert found["waiting_requests"] == found["ignored_entries"] == 0
    assert found["journal_bytes_per_job"] < 3000
    # No tick takes all: other things would wait for it.
    assert found["num_ticks"] > num_jobs / 100
    if num_jobs >= 1000:  # the memory of a few jobs is lost in that of the process
        assert found["state_bytes_per_job"] < 20_000
