"""SLAQ: hand-worked cases and the cases that the paper leaves open."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from hpcslaq.core.policy import ClusterView
from hpcslaq.policies.slaq import SlaqPolicy

View = Callable[..., ClusterView]


def test_slaq_gives_the_workers_to_the_steepest_curve(view_of: View, job_type: Any) -> None:
    policy = SlaqPolicy()
    young = job_type([1.0 / k for k in range(1, 11)], work=10.0)
    old = job_type([1.0 / k for k in range(1, 101)], work=10.0)
    allocation = policy.allocate(view_of(policy, 10, [old, young]))
    assert allocation == {"j0": 1, "j1": 9}


def test_two_geometric_jobs_are_shared_as_worked_by_hand(view_of: View, job_type: Any) -> None:
    # Ratio rule, one iteration per worker and round, D = 1/2 of the first loss for both:
    # marginal gains are L (1 - r) r^a / D with L = r: 0.5^(a+1) * 1 and, for the second job,
    # which weighs 4, 4 * 0.5^(a+1). The order from (1, 1) on is j1 (1), j1 (1/2), j0 = j1 (1/4).
    policy = SlaqPolicy(predictor="ratio")
    jobs = [job_type([2.0, 1.0], work=10.0), job_type([2.0, 1.0], work=10.0, weight=4.0)]
    assert policy.allocate(view_of(policy, 4, jobs)) == {"j0": 1, "j1": 3}
    assert policy.allocate(view_of(policy, 6, jobs)) == {"j0": 2, "j1": 4}


def test_a_job_without_prediction_gets_the_fair_share(view_of: View, job_type: Any) -> None:
    policy = SlaqPolicy()
    steep = [1.0 / k for k in range(1, 6)]
    jobs = [job_type(), job_type([1.0]), job_type(steep), job_type(steep)]
    allocation = policy.allocate(view_of(policy, 12, jobs))
    assert allocation["j0"] == allocation["j1"] == 3
    assert sum(allocation.values()) == 12


def test_minima_that_do_not_fit_together_go_to_the_highest_gains(
    view_of: View, job_type: Any
) -> None:
    policy = SlaqPolicy()
    old, young = [[1.0 / k for k in range(1, num)] for num in (90, 8)]
    jobs = [job_type(old, held=3, min_workers=3), job_type(young, held=3, min_workers=3)]
    assert policy.allocate(view_of(policy, 5, jobs)) == {"j1": 5}


def test_workers_that_gain_nothing_are_shared_evenly(view_of: View, job_type: Any) -> None:
    policy = SlaqPolicy()
    jobs = [job_type([1.0] * 10), job_type([2.0] * 10, weight=3.0), job_type([1.0] * 10)]
    assert policy.allocate(view_of(policy, 10, jobs)) == {"j0": 2, "j1": 6, "j2": 2}
    jobs = [job_type([1.0] * 10, max_workers=2), job_type([2.0] * 10), job_type([1.0] * 10)]
    assert policy.allocate(view_of(policy, 12, jobs)) == {"j0": 2, "j1": 5, "j2": 5}


def test_an_upward_outlier_does_not_starve_a_job(view_of: View, job_type: Any) -> None:
    policy = SlaqPolicy()
    plain = [1.0 / k for k in range(1, 9)]
    spiked = [*plain[:2], 1000.0, *plain[3:]]
    allocation = policy.allocate(view_of(policy, 16, [job_type(plain), job_type(spiked)]))
    assert allocation["j1"] >= 4


@pytest.mark.parametrize("bad", [{"patience_rounds": 0}, {"predictor": "magic"}])
def test_impossible_parameters_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SlaqPolicy(**bad)


def test_a_cancelled_job_gets_nothing(view_of: View, job_type: Any) -> None:
    from hpcslaq.core.jobs import JobState

    policy = SlaqPolicy()
    jobs = [job_type([2.0, 1.0], held=2, state=JobState.STOPPING), job_type([2.0, 1.0], held=2)]
    assert policy.allocate(view_of(policy, 4, jobs)) == {"j1": 4}


def test_a_huge_weight_does_not_make_a_gain_infinite(view_of: View, job_type: Any) -> None:
    policy = SlaqPolicy()
    jobs = [job_type([1e300, 1e299, 1e298], weight=1e300), job_type([2.0, 1.0])]
    allocation = policy.allocate(view_of(policy, 6, jobs))
    assert sum(allocation.values()) == 6 and all(math.isfinite(v) for v in allocation.values())
