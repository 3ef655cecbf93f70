"""The rivals: each does what its paper says, on a case worked by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcslaq.core.policy import ClusterView
from hpcslaq.errors import PolicyError
from hpcslaq.policies.oracle import OracleQualityPolicy, OracleSlaqPolicy
from hpcslaq.policies.queues import EdfPolicy, LasPolicy, SrtfPolicy
from hpcslaq.policies.registry import make_policy
from hpcslaq.policies.speed import MaxminPolicy, OptimusPolicy

View = Callable[..., ClusterView]
FALLING = [1.0 / k for k in range(1, 11)]


def test_las_serves_the_lower_queue_first_then_arrival(view_of: View, job_type: Any) -> None:
    policy = LasPolicy(quantum_s=100.0)
    jobs = [
        job_type(max_workers=2, served=500.0, changed_at=999.0),
        job_type(max_workers=2, served=90.0, changed_at=999.0),
        job_type(max_workers=2, served=10.0, changed_at=999.0),
    ]
    assert policy.allocate(view_of(policy, 4, jobs)) == {"j1": 2, "j2": 2}


def test_srtf_serves_the_shortest_remaining_time_first(view_of: View, job_type: Any) -> None:
    policy = SrtfPolicy()
    jobs = [
        job_type(FALLING, epochs=10, max_epochs=100, max_workers=3),
        job_type(FALLING, epochs=10, max_epochs=20, max_workers=3),
        job_type(FALLING, epochs=10, max_epochs=12, max_workers=3, work=9.0),
    ]
    assert policy.allocate(view_of(policy, 4, jobs)) == {"j1": 3, "j2": 1}


def test_srtf_counts_the_iterations_to_a_target_loss(view_of: View, job_type: Any) -> None:
    policy = SrtfPolicy()
    jobs = [
        job_type(FALLING, epochs=10, max_epochs=20, max_workers=3),
        job_type(FALLING, epochs=10, max_epochs=90, max_workers=3, target_loss=0.095),
    ]
    assert policy.allocate(view_of(policy, 3, jobs)) == {"j1": 3}


def test_edf_serves_the_earliest_deadline_first(view_of: View, job_type: Any) -> None:
    policy = EdfPolicy()
    jobs = [
        job_type(max_workers=3),
        job_type(max_workers=3, deadline_s=500.0, arrival_s=100.0),
        job_type(max_workers=3, deadline_s=550.0),
    ]
    assert policy.allocate(view_of(policy, 7, jobs)) == {"j0": 1, "j1": 3, "j2": 3}


def test_optimus_shortens_the_longest_remaining_time(view_of: View, job_type: Any) -> None:
    policy = OptimusPolicy()
    jobs = [
        job_type(FALLING, epochs=10, max_epochs=1000),
        job_type(FALLING, epochs=10, max_epochs=12),
    ]
    allocation = policy.allocate(view_of(policy, 9, jobs))
    assert allocation["j0"] >= 7


def test_maxmin_gives_equal_jobs_equal_speed_and_weights_more(view_of: View, job_type: Any) -> None:
    policy = MaxminPolicy()
    jobs = [job_type(FALLING, chunks=64) for _ in range(3)]
    assert policy.allocate(view_of(policy, 12, jobs)) == {"j0": 4, "j1": 4, "j2": 4}
    jobs[0] = job_type(FALLING, chunks=64, weight=4.0)
    allocation = policy.allocate(view_of(policy, 12, jobs))
    assert allocation["j0"] >= 7


def test_maxmin_leaves_no_job_below_a_level_that_fits(view_of: View, job_type: Any) -> None:
    policy = MaxminPolicy()
    jobs = [job_type(FALLING, chunks=2), job_type(FALLING, chunks=64), job_type(FALLING, chunks=64)]
    allocation = policy.allocate(view_of(policy, 14, jobs))
    assert allocation["j0"] == 2
    assert allocation["j1"] == allocation["j2"] == 6


@pytest.mark.parametrize("policy", [OracleSlaqPolicy(), OracleQualityPolicy()])
def test_the_oracles_foresee_a_late_fall(policy: Any, view_of: View, job_type: Any) -> None:
    flat_then_falling = np.concatenate([np.linspace(1.0, 0.99, 20), np.linspace(0.9, 0.1, 40)])
    falling_then_flat = np.concatenate([np.linspace(1.0, 0.1, 20), np.full(40, 0.0999)])
    curves = [flat_then_falling, falling_then_flat]
    jobs = [job_type(curve[:20].tolist(), work=2.0) for curve in curves]
    view = view_of(policy, 12, jobs)
    for name, curve in zip(("j0", "j1"), curves, strict=True):
        view.forecaster.reveal(name, curve, (0.0, 2.0 / 16, 0.0))  # type: ignore[attr-defined]
    allocation = policy.allocate(view)
    assert allocation["j0"] > allocation["j1"] >= 1


@pytest.mark.parametrize("name", ["slaq", "quality", "srtf", "optimus", "maxmin", "oracle-slaq"])
def test_a_foreign_forecaster_is_refused(name: str, view_of: View, job_type: Any) -> None:
    view = view_of(make_policy("fair"), 4, [job_type()])
    with pytest.raises(PolicyError, match="forecaster"):
        make_policy(name).allocate(view)
