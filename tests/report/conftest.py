"""A small run written by hand: two jobs, one regroup, one failure, times that add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.record.journal import JournalWriter
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

ALPHA = JobSpec("alpha", "logistic", "digits", 4, 4, options={"l2": 0.5}, deadline_s=10.0)
BETA = JobSpec("beta", "logistic", "digits", 4, 9, arrival_s=2.0)
LATE = JobSpec("late", "logistic", "digits", 4, 9, arrival_s=50.0)

#: (now, item). Alpha holds 2 workers for 2 s and 1 for 3 s; beta holds 1 for 0.5 s.
STORY: tuple[tuple[float, ev.Event | cmd.Command], ...] = (
    (0.0, ev.RunStarted({1: "n0", 2: "n0"})),
    (0.0, ev.JobSubmitted(ALPHA)),
    (0.0, cmd.Start("alpha", 1, (1, 2))),
    (1.0, ev.GroupFormed("alpha", 1, (1, 2), 0, 0.25)),
    (2.0, ev.ProgressReported("alpha", 1, 1, (1.0, 0.5), 2, 1.0, 2)),
    (2.0, ev.JobSubmitted(BETA)),
    (2.0, cmd.Regroup("alpha", 2, (1,), (), (2,))),
    (3.0, ev.GroupFormed("alpha", 2, (1,), 2, 0.5)),
    (3.0, ev.RankReleased(2, "alpha", 1, {"compute": 2.0, "reduce": 0.5, "regroup": 0.5})),
    (3.0, cmd.Start("beta", 3, (2,))),
    (3.5, ev.GroupFormed("beta", 3, (2,), 0, 0.1)),
    (4.0, ev.GroupDissolved("beta", 3)),
    (4.0, ev.JobFailed("beta", 3, 2, "loss is <nan>", "Traceback\n<script>alert(1)</script>")),
    (4.0, ev.RankReleased(2, "beta", 3, {"compute": 0.5, "load": 0.5})),
    (5.0, ev.ProgressReported("alpha", 2, 3, (0.25, 0.125), 4, 2.0, 1)),
    (6.0, ev.CheckpointWritten("alpha", 4, 4, 100, 0.01)),
    (6.0, ev.GroupDissolved("alpha", 2)),
    (
        6.0,
        ev.JobFinished(
            "alpha", 2, 4, 4, 0.125, "ab" * 32, "cd" * 32, "epochs", {"auc": 0.75, "nan": 1.5}
        ),
    ),
    (
        6.0,
        ev.RankReleased(
            1, "alpha", 2, {"compute": 4.0, "regroup": 0.75, "checkpoint": 0.5, "control": 0.25}
        ),
    ),
    (6.0, ev.ArrivalsClosed()),
    (6.0, cmd.Shutdown(1)),
)

RESULT = {
    "exit_code": 1,
    "wall_s": 6.5,
    "num_ranks": 3,
    "mpi": "Some MPI 1.0",
    "versions": {"numpy": "9.9"},
    "tick_p50_s": 0.0001,
    "tick_p99_s": 0.002,
    "num_ticks": 40,
    "communicators_made": 5,
    "communicators_peak": 1,
    "communicators_alive": 0,
    "cpu_s": {"1": {"user_s": 1.0}},
}


def write_run(
    path: Path,
    *,
    until: float = 100.0,
    jobs: tuple[JobSpec, ...] = (ALPHA, BETA),
    result: dict[str, object] | None = None,
) -> RunDirectory:
    """A run directory with the story up to a time; ended only if there is a result."""
    run = RunDirectory.create(path)
    RunPlan("slaq", jobs, {"digits": "/data/digits"}, job_file="jobs/two.toml").write(run)
    with JournalWriter(run.journal) as journal:
        for now, item in STORY:
            if now <= until:
                journal.append(now, item)
    if result is not None:
        run.write_result(result)
    return run


@pytest.fixture
def ended_run(tmp_path: Path) -> RunDirectory:
    """The whole story, with its result."""
    return write_run(tmp_path / "ended", result=dict(RESULT))


@pytest.fixture
def open_run(tmp_path: Path) -> RunDirectory:
    """The story up to 3 s, and a job that is still to come."""
    return write_run(tmp_path / "open", until=3.0, jobs=(ALPHA, BETA, LATE))
