"""Our policy: gains, plateaus, costs, deadlines, targets, and its agreement with the exact one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcslaq.core.policy import ClusterView, check_allocation
from hpcslaq.policies.bench import synthetic_view
from hpcslaq.policies.exact import best_allocation
from hpcslaq.policies.quality import QualityPolicy

View = Callable[..., ClusterView]


def hyperbola(num: int, scale: float = 1.0) -> list[float]:
    return [scale * (1.0 / (0.1 * k + 1.0) + 0.3) for k in range(1, num + 1)]


def test_workers_go_to_the_job_that_still_learns(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy()
    jobs = [job_type(hyperbola(200), work=10.0), job_type(hyperbola(8), work=10.0)]
    allocation = policy.allocate(view_of(policy, 12, jobs))
    assert allocation["j1"] >= 8
    assert allocation["j0"] >= 1


def test_the_scale_of_a_loss_does_not_matter(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy()
    jobs = [job_type(hyperbola(20, scale)) for scale in (1e-6, 1.0, 1e6)]
    assert policy.allocate(view_of(policy, 12, jobs)) == {"j0": 4, "j1": 4, "j2": 4}


def test_a_weight_draws_workers(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy()
    jobs = [job_type(hyperbola(20), work=20.0), job_type(hyperbola(20), work=20.0, weight=5.0)]
    allocation = policy.allocate(view_of(policy, 12, jobs))
    assert allocation == {"j0": 4, "j1": 8}


def test_no_count_is_given_that_makes_no_step_faster(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy()
    jobs = [job_type(hyperbola(20), chunks=4), job_type(hyperbola(20), chunks=4)]
    allocation = policy.allocate(view_of(policy, 7, jobs))
    # Three workers hold 2 + 1 + 1 chunks and are as slow as two.
    assert sorted(allocation.values()) == [2, 4]


def test_a_job_near_its_target_gives_way(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy()
    near = job_type(hyperbola(20), work=20.0, target_loss=hyperbola(20)[-1] - 1e-6)
    allocation = policy.allocate(view_of(policy, 12, [near, job_type(hyperbola(20), work=20.0)]))
    assert allocation["j1"] > allocation["j0"]


def test_a_deadline_that_can_be_met_raises_the_minimum(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy()
    flat = [1.0 + 1e-9 / k for k in range(1, 21)]

    def jobs(deadline_s: float | None) -> list[Any]:
        hurried = job_type(flat, work=16.0, epochs=20, max_epochs=40, deadline_s=deadline_s)
        return [hurried, *[job_type(hyperbola(8), work=20.0)] * 3]

    # 20 epochs of 16 worker-seconds: about 80 s on 4 workers.
    without = policy.allocate(view_of(policy, 12, jobs(None)))
    hurried = policy.allocate(view_of(policy, 12, jobs(1100.0)))
    hopeless = policy.allocate(view_of(policy, 12, jobs(1001.0)))
    assert hurried["j0"] >= 4 > without["j0"]
    assert hopeless == without


def test_a_small_advantage_moves_nobody(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy(regroup_s=2.0)
    losses = hyperbola(20)
    moved = [job_type(losses, held=4, work=20.0), job_type(losses, held=8, work=20.0)]
    assert policy.allocate(view_of(policy, 12, moved)) == {"j0": 4, "j1": 8}


def test_a_job_without_losses_gets_several_fair_shares(view_of: View, job_type: Any) -> None:
    jobs = [job_type(chunks=32), *[job_type(hyperbola(8))] * 7]
    for first_share, expected in ((1.0, 4), (2.0, 8), (4.0, 16)):
        policy = QualityPolicy(first_share=first_share)
        plan = policy.plan(view_of(policy, 32, jobs))
        assert plan.floor[0] == expected
        assert plan.counts.min() >= 1


def test_where_all_jobs_are_new_they_share_evenly(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy()
    allocation = policy.allocate(view_of(policy, 12, [job_type()] * 4))
    assert allocation == dict.fromkeys(("j0", "j1", "j2", "j3"), 3)


def test_a_completion_that_counts_draws_workers_to_the_job_that_ends_soon(
    view_of: View, job_type: Any
) -> None:
    jobs = [
        job_type(hyperbola(20), epochs=20, max_epochs=400, work=20.0),
        job_type(hyperbola(200), epochs=200, max_epochs=210, work=20.0),
    ]
    with_end, without = QualityPolicy(completion=1.0), QualityPolicy(completion=0.0)
    for policy, sooner_has_more in ((with_end, True), (without, False)):
        counts = policy.plan(view_of(policy, 12, jobs)).counts
        assert (counts[1] > counts[0]) == sooner_has_more


def test_jobs_that_cannot_change_and_all_fit_are_given_what_the_whole_plan_gives(
    view_of: View, job_type: Any
) -> None:
    policy = QualityPolicy()
    jobs = [
        job_type(hyperbola(n), chunks=8, min_workers=w, max_workers=w)
        for n, w in ((0, 1), (3, 4), (40, 2))
    ]
    for ranks in (6, 7, 20):
        view = view_of(policy, ranks, jobs)
        assert policy.allocate(view) == policy.plan(view).allocation


def test_a_job_whose_predictions_fail_gets_the_fair_share(view_of: View, job_type: Any) -> None:
    rng = np.random.default_rng(0)
    wild = np.abs(50.0 + np.cumsum(rng.standard_normal(60))).tolist()
    policy = QualityPolicy()
    plan = policy.plan(view_of(policy, 12, [job_type(wild), *[job_type(hyperbola(8))] * 2]))
    assert plan.is_explored.tolist() == [True, False, False]
    assert plan.counts[0] >= 4


def test_where_minima_do_not_fit_holders_stay_unless_clearly_worse(
    view_of: View, job_type: Any
) -> None:
    policy = QualityPolicy()
    similar = [
        job_type(hyperbola(20), min_workers=3),
        job_type(hyperbola(20), held=3, min_workers=3),
    ]
    assert set(policy.allocate(view_of(policy, 4, similar, now=100.0))) == {"j1"}
    young = [job_type(hyperbola(4), min_workers=3), job_type(hyperbola(300), held=3, min_workers=3)]
    assert set(policy.allocate(view_of(policy, 4, young, now=100.0))) == {"j0"}


@pytest.mark.parametrize("seed", range(6))
def test_the_plan_is_as_good_as_the_exact_one_up_to_one_jump(
    seed: int, view_of: View, job_type: Any
) -> None:
    rng = np.random.default_rng(seed)
    policy = QualityPolicy(optimism=0.0, horizon_rounds=1.0, regroup_s=0.0)
    jobs = [
        job_type(hyperbola(int(rng.integers(4, 40))), work=float(rng.uniform(1, 30)), chunks=8)
        for _ in range(4)
    ]
    view = view_of(policy, 14, jobs)
    plan = policy.plan(view)
    outlook = view.forecaster.predict(plan.demand.names)  # type: ignore[attr-defined]
    gains = []
    for j in range(4):
        index = np.array([j])
        rows = {}
        for n in range(1, 9):
            steps = view.round_s / outlook.seconds(index, np.array([float(n)]))
            whole = outlook.first_loss[j] - outlook.last_loss[j]
            whole += outlook.drop_after(index, np.array([math.inf]))[0]
            rows[n] = float(outlook.drop_after(index, steps)[0] / whole)
        gains.append(rows)
    best, _ = best_allocation(gains, 14)
    got = sum(gains[j][int(plan.counts[j])] for j in range(4))
    assert best - 4 * plan.price <= got <= best + 1e-9


def test_a_made_up_state_of_any_size_is_allocated_within_the_bounds() -> None:
    for num_jobs, num_workers in ((1, 1), (30, 7), (400, 1600)):
        policy = QualityPolicy()
        view = synthetic_view(policy, num_jobs, num_workers)
        check_allocation(policy.allocate(view), view)
        assert sum(policy.allocate(view).values()) == min(num_workers, 64 * num_jobs)


@pytest.mark.parametrize(
    "key", ["optimism", "regroup_s", "horizon_rounds", "hysteresis", "completion", "first_share"]
)
def test_impossible_parameters_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        QualityPolicy(**{key: -1.0})


def test_a_group_whose_changes_cost_much_is_left_as_it_is(view_of: View, job_type: Any) -> None:
    policy = QualityPolicy()
    jobs = [job_type(hyperbola(40), held=4, work=5.0), job_type(hyperbola(9), held=4, work=5.0)]
    view = view_of(policy, 8, jobs)
    assert policy.allocate(view) != {"j0": 4, "j1": 4}
    costly = tuple(replace(record, regroups=2, regroup_s=40.0) for record in view.jobs)
    assert policy.allocate(replace(view, jobs=costly)) == {"j0": 4, "j1": 4}
