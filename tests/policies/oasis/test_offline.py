from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from hpcslaq.policies.oasis.algorithm import Oasis
from hpcslaq.policies.oasis.certificate import PooledDual, certify, dual_value, hindsight_bound
from hpcslaq.policies.oasis.instances import draw_instance, small_ranges
from hpcslaq.policies.oasis.model import Cluster, Constant, Instance, Job, JobKind, Step, Utility
from hpcslaq.policies.oasis.offline import column_bound, solve_offline
from hpcslaq.policies.oasis.prices import PriceBounds, density_bounds, paper_bounds


def _small(seed: int) -> Instance:
    return draw_instance(
        np.random.default_rng(seed),
        num_jobs=5,
        horizon=6,
        num_workers=3,
        num_servers=1,
        ranges=small_ranges(),
    )


def _job(name: str, work: int, utility: Utility, arrival: int = 0) -> Job:
    return Job(
        name, arrival, JobKind.PS, work, np.arange(3), np.ones(1), np.ones(1), utility, None, 1.0
    )


def test_the_programme_finds_the_best_subset_of_a_worked_example():
    # Two worker-slots per slot, two slots: the two jobs of 2 units in time, not the one of 4.
    cluster = Cluster(np.array([[2.0]]), np.array([[2.0]]))
    jobs = (
        _job("a", 4, Constant(9.0)),
        _job("b", 2, Step(5.0, 0.0)),
        _job("c", 2, Step(6.0, 1.0)),
    )
    result = solve_offline(Instance(cluster, 2, jobs))
    assert result.value == pytest.approx(11.0)
    assert result.completions == {"b": 0, "c": 1}
    assert result.is_optimal


def test_servers_can_be_what_is_scarce():
    cluster = Cluster(np.array([[4.0]]), np.array([[1.0]]))
    result = solve_offline(Instance(cluster, 2, (_job("a", 3, Constant(9.0)),)))
    assert result.value == 0.0  # one server carries one worker: two units in two slots


def test_a_time_limit_brackets_the_optimum():
    instance = draw_instance(
        np.random.default_rng(0),
        num_jobs=12,
        horizon=10,
        num_workers=6,
        num_servers=3,
        ranges=small_ranges(),
    )
    quick = solve_offline(instance, time_limit_s=0.3, gap=1e-9)
    assert quick.value <= quick.bound + 1e-6
    assert sum(j.utility_at(j.arrival) for j in instance.jobs) >= quick.value


@pytest.mark.parametrize("seed", range(4))
def test_all_bounds_are_above_the_optimum_and_column_generation_is_the_tightest(seed):
    instance = _small(seed)
    optimum = solve_offline(instance).value
    columns = column_bound(instance, gap=1e-3)
    pooled = hindsight_bound(instance, 300)
    assert columns.bound >= optimum - 1e-6
    assert pooled >= columns.bound * 0.98
    assert columns.value <= columns.bound + 1e-6


@pytest.mark.parametrize("rule", [paper_bounds, density_bounds])
def test_every_part_of_a_certificate_bounds_the_optimum(rule):
    for seed in range(6):
        instance = _small(seed)
        run = Oasis(instance.cluster, 6, rule(instance.jobs, instance.cluster, 6))
        for job in instance.jobs:
            run.offer(job)
        optimum = solve_offline(instance).value
        certificate = certify(run.ledger, instance.jobs, run.utility, 100)
        for part in ("running_bound", "scaled_bound", "hindsight_bound", "bound"):
            assert getattr(certificate, part) >= optimum - 1e-6, part
        assert certificate.ratio >= 1.0
        assert certificate.hindsight_bound <= certificate.scaled_bound
        assert certificate.promised_ratio == 2 * run.ledger.bounds.alpha


def test_any_prices_bound_what_the_brute_force_earns():
    cluster = Cluster(np.array([[2.0]]), np.array([[2.0]]))
    jobs = [
        _job("a", 2, Step(5.0, 0.0)),
        _job("b", 2, Step(6.0, 0.0)),
        _job("c", 2, Step(4.0, 1.0)),
    ]
    best = 0.0
    for order in itertools.permutations(jobs):
        for count in range(4):  # one job per slot at full speed, in this order
            earned = sum(j.utility_at(s) for s, j in enumerate(order[:count]) if s < 2)
            best = max(best, earned)
    assert best == 10.0
    pool = PooledDual(cluster, 2, jobs)
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert pool.value(rng.uniform(0, 10, size=(2, 2)))[0] >= best
    assert pool.minimise(np.zeros((2, 2)), 300)[0] == pytest.approx(best, rel=0.02)


def test_with_small_workers_the_payoffs_met_on_arrival_keep_the_dual_feasible():
    # Taking every payoff afresh at the last prices can only lower it: prices rose.
    cluster = Cluster(np.full((1, 1), 500.0), np.full((1, 1), 500.0))
    jobs = [
        dataclasses.replace(_job(f"job{i}", 300, Constant(5.0 + i)), rates=np.arange(101))
        for i in range(12)
    ]
    run = Oasis(cluster, 5, paper_bounds(jobs, cluster, 5))
    for job in jobs:
        run.offer(job)
    assert any(decision.schedule is None for decision in run.decisions)
    assert dual_value(run.ledger, jobs) <= run.dual_bound * (1 + 1e-9)


def test_with_large_workers_they_do_not():
    # The host has no room for "b", yet costs less than it is worth: its payoff counts as 0.
    cluster = Cluster(np.array([[3.0]]), np.array([[3.0]]))
    low, high = np.array([1.0]), np.array([40.0])
    run = Oasis(cluster, 1, PriceBounds(float(low[0]), high, float(low[0]), high))
    jobs = [
        dataclasses.replace(_job(name, 1, Constant(90.0)), worker_demand=np.array([2.0]))
        for name in "ab"
    ]
    for job in jobs:
        run.offer(job)
    assert run.decisions[1].schedule is None
    assert dual_value(run.ledger, jobs) > run.dual_bound


def test_nothing_to_earn_is_certified_as_ratio_one():
    cluster = Cluster(np.array([[2.0]]), np.array([[2.0]]))
    jobs = (_job("a", 9, Constant(5.0)),)
    bounds = density_bounds(jobs, cluster, 2)
    run = Oasis(cluster, 2, bounds)
    run.offer(jobs[0])
    certificate = certify(run.ledger, jobs, run.utility, 10)
    assert certificate.hindsight_bound == 0.0 and certificate.ratio == 1.0
