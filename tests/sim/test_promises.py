"""`elasticflow`, told the step times, keeps every promise in the simulator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpcslaq.core.jobs import JobState
from hpcslaq.policies.registry import make_policy
from hpcslaq.sim.foresight import foretold
from hpcslaq.sim.simulator import Simulator
from tests.sim.pretend import PROMPT, job_of


def with_deadlines(seed: int, num: int = 25):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(6.0, num))
    return [
        dataclasses.replace(
            job_of(
                f"j{i:02d}",
                num_iterations=int(rng.integers(20, 60)),
                chunks=8,
                chunk_s=0.25,
                arrival_s=float(at),
                deadline_s=float(rng.uniform(15.0, 150.0)),
            ),
            is_divisible=True,
        )
        for i, at in enumerate(arrivals)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_every_admitted_job_ends_in_time(seed: int) -> None:
    jobs = with_deadlines(seed)
    policy = foretold(make_policy("elasticflow"), jobs)
    result = Simulator(policy, jobs, 8, 2.0, delays=PROMPT).run()
    admitted = [r for r in result.records.values() if r.state is not JobState.REJECTED]
    assert 0 < len(admitted) < len(jobs)
    for record in admitted:
        assert record.finished_at - record.submitted_at <= record.spec.deadline_s, record.name


def test_a_deadline_that_all_workers_cannot_meet_is_refused_with_the_reason() -> None:
    job = job_of("a", num_iterations=10, chunks=4, deadline_s=9.0)
    policy = foretold(make_policy("elasticflow"), [job])
    result = Simulator(policy, [job], 4, 2.0, delays=PROMPT).run()
    assert result.records["a"].state is JobState.REJECTED
    assert result.records["a"].reason == "cannot end within its deadline of 9 s"


def test_a_job_that_would_break_a_promise_is_refused() -> None:
    first = job_of("a", num_iterations=10, chunks=4, deadline_s=11.0)
    second = job_of("b", num_iterations=5, chunks=4, arrival_s=1.0, deadline_s=6.0)
    policy = foretold(make_policy("elasticflow"), [first, second])
    result = Simulator(policy, [first, second], 4, 2.0, delays=PROMPT).run()
    assert result.records["a"].state is JobState.DONE
    assert result.records["b"].reason == "would break the promise to a"
