"""Promises: who is admitted, and that the word is kept."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.policies.elasticflow import _Claim, _plan, _rising
from hpcslaq.policies.registry import make_policy

LINEAR = np.arange(5.0)


def claim(name: str, time_s: float, iterations: float, speed=LINEAR) -> _Claim:
    return _Claim(name, time_s, iterations, speed)


def planned(*claims: _Claim, ranks: int = 4) -> dict[str, tuple[int, bool]]:
    plan = _plan(claims, ranks, 1.0, 0.0)
    return {one.name: (share, is_kept) for one, share, is_kept in plan}


def test_a_job_gets_its_least_power_of_two() -> None:
    assert planned(claim("a", 10.0, 10.0)) == {"a": (1, True)}
    assert planned(claim("a", 10.0, 11.0)) == {"a": (2, True)}
    assert planned(claim("a", 10.0, 21.0)) == {"a": (4, True)}
    assert planned(claim("a", 10.0, 41.0)) == {"a": (4, False)}


def test_earlier_deadlines_come_first_and_the_others_fill_the_gaps() -> None:
    # a needs all four for 5 s; b then needs four from 5 s to 10 s.
    plan = planned(claim("b", 10.0, 20.0), claim("a", 5.0, 20.0))
    assert plan == {"a": (4, True), "b": (0, True)}
    late = planned(claim("b", 10.0, 21.0), claim("a", 5.0, 20.0))
    assert late == {"a": (4, True), "b": (0, False)}


def test_a_deadline_within_a_slot_counts_only_what_lies_before_it() -> None:
    assert planned(claim("a", 2.5, 10.0)) == {"a": (4, True)}
    assert planned(claim("a", 2.4, 10.0)) == {"a": (4, False)}


def test_far_deadlines_are_planned_in_long_slots() -> None:
    plan = planned(claim("a", 1e6, 3.9e6), claim("b", 1e5, 1.0))
    assert plan["a"][1] is True
    assert plan["b"] == (1, True)


def test_workers_that_slow_a_job_down_are_not_counted() -> None:
    assert _rising(np.array([0.0, 1.0, 3.0, 2.0])).tolist() == [0.0, 1.0, 3.0, 3.0]


@pytest.mark.parametrize("deadline_s", [None, 5.0])
def test_a_job_of_which_nothing_is_known_is_taken(view_of, deadline_s) -> None:
    policy = make_policy("elasticflow")
    spec = JobSpec("a", "m", "d", num_chunks=4, max_epochs=10, deadline_s=deadline_s)
    assert policy.admit(spec, view_of(policy, 4, [])).is_accepted


@pytest.mark.parametrize("fields", [{"margin": -0.1}, {"reserve_s": float("nan")}])
def test_impossible_parameters_are_refused(fields) -> None:
    with pytest.raises(ValueError, match=r"margin|reserve_s"):
        make_policy("elasticflow", **fields)
