from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.errors import PolicyError
from hpcslaq.policies.oasis.algorithm import Oasis, check_schedule
from hpcslaq.policies.oasis.instances import draw_instance, small_ranges
from hpcslaq.policies.oasis.model import (
    Cluster,
    Constant,
    Instance,
    Job,
    JobKind,
    Schedule,
    Sigmoid,
    SlotPlan,
)
from hpcslaq.policies.oasis.offline import solve_offline
from hpcslaq.policies.oasis.prices import PriceBounds, density_bounds, paper_bounds


def _run(instance: Instance) -> Oasis:
    bounds = paper_bounds(instance.jobs, instance.cluster, instance.horizon)
    run = Oasis(instance.cluster, instance.horizon, bounds)
    for job in instance.jobs:
        run.offer(job)
    return run


def _small(seed: int, share: float) -> Instance:
    ranges = dataclasses.replace(small_ranges(), allreduce_share=share)
    return draw_instance(
        np.random.default_rng(seed),
        num_jobs=5,
        horizon=6,
        num_workers=4,
        num_servers=2,
        ranges=ranges,
    )


def _crowded(seed: int, hosts: int = 1) -> Instance:
    """Hosts for some sixteen workers each, as theorem 4 assumes, and twice the work they can do."""
    rng = np.random.default_rng(seed)
    cluster = Cluster(rng.uniform(16, 24, size=(hosts, 2)), rng.uniform(8, 12, size=(1, 2)))
    jobs = []
    for number, slot in enumerate(np.sort(rng.integers(0, 4, size=7 * hosts))):
        is_ps = rng.random() < 0.6
        most = int(rng.integers(3, 10))
        jobs.append(
            Job(
                f"job{number}",
                int(slot),
                JobKind.PS if is_ps else JobKind.ALLREDUCE,
                int(rng.integers(5, 30)),
                np.arange(most + 1) if is_ps else np.floor(1.9 * np.arange(most + 1) ** 0.8),
                rng.uniform(0.5, 2.0, size=2),
                rng.uniform(0.3, 1.0, size=2) if is_ps else np.zeros(2),
                Sigmoid(rng.uniform(1, 100), rng.choice([0.0, 0.3, 5.0]), rng.uniform(1, 4)),
                None,
                float(rng.uniform(0.1, 0.6)) if is_ps else 0.0,
            )
        )
    return Instance(cluster, 6, tuple(jobs))


def _assert_never_above_twice_alpha(instance: Instance) -> None:
    run = _run(instance)
    offline = solve_offline(instance, time_limit_s=20.0, gap=1e-2)
    promised = 2 * run.ledger.bounds.alpha
    assert 0 < offline.value <= promised * run.utility + 1e-6
    assert run.utility <= offline.bound * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_the_ratio_to_the_offline_optimum_never_exceeds_twice_alpha(seed):
    _assert_never_above_twice_alpha(_crowded(seed))


@settings(deadline=None, max_examples=6, derandomize=True)
@given(st.integers(100, 10**6))
def test_twice_alpha_holds_for_any_seed(seed):
    _assert_never_above_twice_alpha(_crowded(seed))


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_twice_alpha_holds_on_many_instances(block):
    for seed in range(10):
        _assert_never_above_twice_alpha(_crowded(1000 + 10 * block + seed, hosts=1 + block % 2))


def test_twice_alpha_needs_workers_smaller_than_hosts():
    # A host for one worker: a job worth next to nothing takes it for L and locks it at U.
    cluster = Cluster(np.array([[1.0]]), np.array([[1.0]]))
    worthless, valuable = _job("a", work=1, value=1e-6), _job("b", work=1, value=100.0)
    instance = Instance(cluster, 1, (worthless, valuable))
    run = _run(instance)
    assert run.utility == 1e-6
    assert solve_offline(instance).value == 100.0
    assert 2 * run.ledger.bounds.alpha * run.utility < 100.0


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([paper_bounds, density_bounds]))
def test_prices_never_fall_and_hosts_never_overflow(seed, rule):
    instance = draw_instance(
        np.random.default_rng(seed),
        num_jobs=25,
        horizon=20,
        num_workers=4,
        num_servers=2,
        ranges=dataclasses.replace(small_ranges(), allreduce_share=0.4),
    )
    run = Oasis(instance.cluster, 20, rule(instance.jobs, instance.cluster, 20))
    for job in instance.jobs:
        before = run.ledger.worker_price.copy(), run.ledger.server_price.copy()
        decision = run.offer(job)
        assert decision.payoff >= 0
        assert np.all(run.ledger.worker_price >= before[0])
        assert np.all(run.ledger.server_price >= before[1])
        assert np.all(run.ledger.worker_used <= instance.cluster.worker_capacity + 1e-6)
        assert np.all(run.ledger.server_used <= instance.cluster.server_capacity + 1e-6)
    assert run.utility == pytest.approx(sum(d.utility for d in run.decisions))


def test_an_empty_cluster_admits_any_job_at_the_papers_prices():
    for seed in range(15):
        instance = _small(seed, 0.5)
        for job in instance.jobs:
            if job.utility_at(instance.horizon - 1) > 1e-2 * job.utility_at(job.arrival):
                alone = Oasis(instance.cluster, 8, paper_bounds(instance.jobs, instance.cluster, 6))
                assert alone.offer(job).schedule is not None


def test_a_full_cluster_rejects_every_job():
    cluster = Cluster(np.array([[2.0]]), np.array([[2.0]]))
    bounds = PriceBounds(0.01, np.array([5.0]), 0.01, np.array([5.0]))
    run = Oasis(cluster, 2, bounds)
    first = _job("a", work=4, value=5.0)
    assert run.offer(first).schedule is not None
    assert np.all(run.ledger.worker_price == pytest.approx(5.0))
    assert run.offer(_job("b", work=1, value=5.0)).schedule is None
    assert run.utility == 5.0


def test_the_running_dual_is_payoffs_plus_the_value_of_capacity():
    cluster = Cluster(np.array([[2.0]]), np.array([[2.0]]))
    run = Oasis(cluster, 1, PriceBounds(0.1, np.array([10.0]), 0.1, np.array([10.0])))
    run.offer(_job("a", work=1, value=5.0))
    # One worker and one server at 0.1 each; both hosts are then half full: price 1.
    assert run.dual_bound == pytest.approx((5.0 - 0.2) + 2 * 1.0 + 2 * 1.0)


def test_with_small_demands_the_dual_rises_by_at_most_alpha_times_the_utility():
    # The proof's step, dD <= alpha dP, assumes workers far smaller than hosts.
    rng = np.random.default_rng(8)
    cluster = Cluster(np.full((2, 1), 2000.0), np.full((1, 1), 2000.0))
    jobs = [
        dataclasses.replace(
            _job(f"job{i}", work=int(rng.integers(500, 3000)), value=float(rng.uniform(5, 50))),
            rates=np.arange(401),
        )
        for i in range(60)
    ]
    run = Oasis(cluster, 6, paper_bounds(jobs, cluster, 6))
    alpha = run.ledger.bounds.alpha
    for job in jobs:
        dual, utility = run.dual_bound, run.utility
        run.offer(job)
        # A schedule takes up to a fifth of a host: the price steps by that much at once.
        assert run.dual_bound - dual <= alpha * np.exp(alpha / 5) * (run.utility - utility) + 1e-9
    assert sum(decision.schedule is None for decision in run.decisions) > 10


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ([SlotPlan(0, ((0, 1),), ((0, 1),), 1)], r"\(2\)"),
        ([SlotPlan(0, ((0, 3),), ((0, 2),), 3)], r"\(3\)"),
        ([SlotPlan(0, ((1, 2),), ((0, 1),), 2)], r"\(4\)"),
        ([SlotPlan(0, ((0, 2),), ((1, 1),), 2)], r"\(5\)"),
        ([SlotPlan(0, ((0, 2),), (), 2)], r"\(6\)"),
        ([SlotPlan(0, ((0, 1),), ((0, 2),), 1)], r"\(7\)"),
        ([SlotPlan(5, ((0, 2),), ((0, 1),), 2)], r"\(9\)"),
        ([SlotPlan(0, ((0, 0),), ((0, 1),), 2)], r"\(11\)"),
        ([SlotPlan(0, ((0, 2),), ((0, 1),), 3)], "cannot do"),
    ],
)
def test_every_constraint_is_checked_and_named(plans, message):
    cluster = Cluster(np.array([[4.0], [0.5]]), np.array([[4.0], [0.5]]))
    run = Oasis(cluster, 3, PriceBounds(0.01, np.array([5.0]), 0.01, np.array([5.0])))
    job = _job("a", work=2, value=5.0)
    inside = [plan for plan in plans if plan.slot < 3]
    run.ledger.reserve(job, inside)
    with pytest.raises(PolicyError, match=message):
        check_schedule(job, Schedule("a", tuple(plans), 5.0, 0.0), run.ledger)


def test_rejections_earn_nothing():
    cluster = Cluster(np.array([[2.0]]), np.array([[2.0]]))
    run = Oasis(cluster, 1, PriceBounds(3.0, np.array([50.0]), 3.0, np.array([50.0])))
    decision = run.offer(_job("a", work=1, value=5.0))
    assert decision.schedule is None and decision.payoff == 0.0 and run.utility == 0.0
    assert math.isclose(run.dual_bound, 12.0)


def _job(name: str, work: int, value: float) -> Job:
    return Job(
        name, 0, JobKind.PS, work, np.arange(3), np.ones(1), np.ones(1), Constant(value), None, 0.5
    )
