"""A finished run and an open one for the commands, and the command line in a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hpcslaq.cli.main import cli
from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.record.journal import JournalWriter
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

ROOT = Path(__file__).resolve().parents[2]

JOB_FILE = """
[run]
policy = "fair"
round = "2s"
[data.own]
path = "own.csv"
[[job]]
name = "a"
model = "logistic"
data = "own"
chunks = 4
epochs = 3
[job.sweep]
l2 = [0.1, 1.0]
"""

#: The command line in a process of its own: its exit code, output and errors.
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Call `hpcslaq ARGUMENTS` in this process."""
    return lambda *arguments: CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.fixture
def hpcslaq(tmp_path: Path) -> Cli:
    """Call `hpcslaq ARGUMENTS` as the shell does, with a cache of its own."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "HPCSLAQ_CACHE": str(tmp_path / "cache")}
        line = [sys.executable, "-m", "hpcslaq", *map(str, arguments)]
        return subprocess.run(
            line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    return call


def one_value(text: str) -> Any:
    """The one JSON value that a text is."""
    return json.loads(text)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A job file on a small CSV file of its own."""
    rows = "\n".join(f"{n % 7},{n % 3},{n % 2}" for n in range(40))
    (tmp_path / "own.csv").write_text("x,y,label\n" + rows + "\n")
    path = tmp_path / "jobs.toml"
    path.write_text(JOB_FILE)
    return path


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunDirectory]:
    """Make a run of one job: half-way, or ended with this exit code."""

    def make(exit_code: int | None = None) -> RunDirectory:
        run = RunDirectory.create(tmp_path / "run")
        spec = JobSpec("only", "m", "d", 2, 4)
        RunPlan("slaq", (spec,), {"d": "/d"}).write(run)
        with JournalWriter(run.journal) as journal:
            journal.append(0.0, ev.RunStarted({1: "n0", 2: "n0"}), ev.JobSubmitted(spec))
            journal.append(0.0, cmd.Start("only", 1, (1, 2)))
            journal.append(1.0, ev.GroupFormed("only", 1, (1, 2)))
            journal.append(3.0, ev.ProgressReported("only", 1, 1, (1.0, 0.5), 2, 2.0, 2))
            if exit_code == 0:
                journal.append(
                    4.0,
                    ev.JobFinished("only", 1, 4, 4, 0.25, "aa" * 32, "bb" * 32, "epochs"),
                    cmd.Shutdown(0),
                )
        if exit_code is not None:
            run.write_result({"exit_code": exit_code, "wall_s": 5.0, "num_ranks": 3})
        return run

    return make
