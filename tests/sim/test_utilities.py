"""Utilities for any workload: what is drawn, what is earned, what the command shows."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.core.jobs import JobRecord, JobSpec, JobState
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.errors import JobFileError
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.runner import Task, measure
from hpcslaq.sim.scaling import ScalingModel
from hpcslaq.sim.utilities import UtilityMix, earned, possible, with_utilities
from hpcslaq.sim.workload_file import Workload, parse_workload

SMALL = """
[workload]
workers = 8
round = "10s"
[arrivals]
kind = "bursts"
mean_gap = "20s"
burst = 4
[jobs]
number = 12
curves = ["synthetic"]
iterations = [20, 40]
load = 1.5
chunks = 8
"""
SWF = """; a header
1 0 0 600 2 -1 -1 2 -1 -1 1 1 1 1 1 1 -1 -1
2 60 0 900 4 -1 -1 4 -1 -1 1 1 1 1 1 1 -1 -1
3 90 0 300 1 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1
"""


def some_jobs(number: int) -> list[SimJob]:
    model = ScalingModel(8, chunk_s=1.0)
    return [SimJob(JobSpec(f"j{i}", "m", "d", 8, 10), np.ones(10), model) for i in range(number)]


def test_utilities_have_the_shares_and_ranges_that_were_asked_for() -> None:
    drawn = with_utilities(np.random.default_rng(1), some_jobs(600), UtilityMix(), 10.0, 4)
    curves = [job.spec.utility for job in drawn]
    assert all(curve is not None for curve in curves)
    constant = [c for c in curves if c is not None and c.kind is UtilityKind.CONSTANT]
    sigmoid = [c for c in curves if c is not None and c.kind is UtilityKind.SIGMOID]
    critical = [c for c in sigmoid if c.steepness is not None and c.steepness >= 0.4]
    assert 0.05 < len(constant) / 600 < 0.15 and 0.30 < len(critical) / 600 < 0.40
    # By itself, on four workers, a job takes 10 iterations of 2 s.
    deadlines = {j.spec.deadline_s for j in drawn if j.spec.deadline_s is not None}
    assert deadlines == {c.target_s for c in critical}
    assert all(20.0 <= (c.target_s or 0.0) <= 300.0 for c in sigmoid)
    assert all(1.0 <= c.peak <= 100.0 for c in sigmoid)


def test_a_job_that_says_what_it_is_worth_keeps_it_and_shifts_no_other() -> None:
    own = UtilityCurve(UtilityKind.CONSTANT, 7.0)
    first, *rest = some_jobs(3)
    spec = JobSpec("j0", "m", "d", 8, 10, utility=own)
    told = with_utilities(
        np.random.default_rng(2), [SimJob(spec, first.losses, first.step_time), *rest],
        UtilityMix(), 10.0, 4,
    )  # fmt: skip
    plain = with_utilities(np.random.default_rng(2), [first, *rest], UtilityMix(), 10.0, 4)
    assert told[0].spec.utility == own
    assert [j.spec.utility for j in told[1:]] == [j.spec.utility for j in plain[1:]]


def test_what_is_earned_counts_whole_rounds_and_done_jobs_only() -> None:
    spec = JobSpec("a", "m", "d", 8, 1, utility=UtilityCurve(UtilityKind.LINEAR, 10.0, 100.0))
    done = JobRecord(spec, JobState.DONE, submitted_at=5.0, finished_at=39.9)
    assert earned([done], 10.0) == 7.0
    assert earned([JobRecord(spec, JobState.DONE, submitted_at=5.0, finished_at=40.0)], 10.0) == 7
    assert earned([JobRecord(spec, JobState.REJECTED, 5.0, finished_at=5.0)], 10.0) == 0.0


def test_the_jobs_of_a_workload_are_the_same_with_and_without_utilities() -> None:
    plain = parse_workload(SMALL, "/x.toml").jobs(3)
    worth = parse_workload(SMALL + "[utility]\npeak = [5, 6]\n", "/x.toml").jobs(3)
    assert [job.spec.arrival_s for job in plain] == [job.spec.arrival_s for job in worth]
    assert 12 * 2.5 <= possible(worth) <= 12 * 6 and possible(plain) == 0.0


@pytest.mark.parametrize("policy", ["oasis", "oasis-elastic", "oasis+oracle", "srtf"])
def test_utility_is_among_the_figures(policy: str) -> None:
    workload = parse_workload(SMALL + "[utility]\n", "/x.toml")
    figures = measure(workload, Task(policy, 0))["figures"]
    assert 0.0 < figures["utility_share"] <= 1.0
    assert "utility" not in measure(parse_workload(SMALL, "/x.toml"), Task("fair", 0))["figures"]


def test_a_trace_becomes_a_workload_of_oasis(tmp_path) -> None:
    (tmp_path / "some.swf").write_text(SWF)
    text = '[workload]\nworkers = 8\nround = "60s"\n[trace]\nfile = "some.swf"\n[utility]\n'
    workload: Workload = parse_workload(text, str(tmp_path / "w.toml"))
    figures = measure(workload, Task("oasis+oracle", 0))["figures"]
    assert figures["num_jobs"] == 3 and figures["utility"] > 0.0


@pytest.mark.parametrize(
    "line, message",
    [
        ("shares = [0.5, 0.5]", "utility.shares: must be three shares"),
        ("shares = [0.5, 0.5, 0.5]", "do not add up to 1"),
        ("peak = [5, 2]", "utility.peak: "),
        ("peek = 3", "did you mean 'peak'"),
    ],
)
def test_impossible_utilities_are_named(line: str, message: str) -> None:
    with pytest.raises(JobFileError, match=message.replace(".", r"\.")):
        parse_workload(SMALL + f"[utility]\n{line}\n", "/x.toml")
