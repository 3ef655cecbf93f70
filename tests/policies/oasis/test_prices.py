from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.policies.oasis.instances import draw_instance, small_ranges
from hpcslaq.policies.oasis.model import Cluster, Job, JobKind, Sigmoid, SlotPlan, Step
from hpcslaq.policies.oasis.prices import (
    Ledger,
    PriceBounds,
    density_bounds,
    fixed_ratio_bounds,
    paper_bounds,
    window_bounds,
)


def test_prices_are_low_when_empty_and_high_when_full():
    cluster = Cluster(np.array([[4.0, 2.0]]), np.array([[3.0, 1.0]]))
    bounds = PriceBounds(0.5, np.array([8.0, 6.0]), 0.25, np.array([4.0, 3.0]))
    ledger = Ledger(cluster, 2, bounds)
    assert np.all(ledger.worker_price == 0.5) and np.all(ledger.server_price == 0.25)
    ledger.reserve(_job([2.0, 1.0], [3.0, 1.0]), [SlotPlan(1, ((0, 2),), ((0, 1),), 1)])
    assert ledger.worker_price[1, 0].tolist() == pytest.approx([8.0, 6.0])
    assert ledger.server_price[1, 0].tolist() == pytest.approx([4.0, 3.0])
    assert np.all(ledger.worker_price[0] == 0.5)


def test_a_half_used_host_costs_the_geometric_mean():
    cluster = Cluster(np.array([[4.0]]), np.array([[1.0]]))
    ledger = Ledger(cluster, 1, PriceBounds(0.5, np.array([8.0]), 1.0, np.array([3.0])))
    ledger.reserve(_job([2.0], [0.0]), [SlotPlan(0, ((0, 1),), (), 1)])
    assert ledger.worker_price[0, 0, 0] == pytest.approx(2.0)


def test_a_resource_that_a_host_lacks_costs_u():
    cluster = Cluster(np.array([[0.0, 4.0]]), np.array([[1.0, 1.0]]))
    ledger = Ledger(cluster, 1, PriceBounds(0.5, np.array([8.0, 9.0]), 1.0, np.full(2, 3.0)))
    assert ledger.worker_price[0, 0].tolist() == pytest.approx([8.0, 0.5])
    assert ledger.worker_room(_job([1.0, 1.0], [0.0, 0.0]), 0, 1).tolist() == [[0]]
    assert ledger.worker_room(_job([0.0, 1.0], [0.0, 0.0]), 0, 1).tolist() == [[4]]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=12))
def test_prices_never_fall_as_reservations_come_and_are_back_when_they_go(places):
    cluster = Cluster(np.full((2, 1), 1.3), np.ones((1, 1)))
    ledger = Ledger(cluster, 3, PriceBounds(0.1, np.array([9.0]), 0.1, np.array([9.0])))
    job = _job([0.1], [0.1])
    plans = [SlotPlan(slot, ((host, 1),), ((0, 1),), 1) for slot, host in places]
    for plan in plans:
        before = ledger.worker_price.copy(), ledger.server_price.copy()
        ledger.reserve(job, [plan])
        assert np.all(ledger.worker_price >= before[0])
        assert np.all(ledger.server_price >= before[1])
    for plan in plans:
        ledger.release(job, [plan])
    assert np.all(ledger.worker_price == 0.1) and np.all(ledger.worker_used == 0.0)
    assert np.all(ledger.server_price == 0.1)


def test_the_ledger_prices_plans_as_count_times_demand_times_price():
    cluster = Cluster(np.array([[4.0]]), np.array([[4.0]]))
    ledger = Ledger(cluster, 1, PriceBounds(0.5, np.array([8.0]), 0.25, np.array([4.0])))
    plans = [SlotPlan(0, ((0, 2),), ((0, 1),), 2)]
    assert ledger.cost(_job([1.0], [2.0]), plans) == pytest.approx(2 * 0.5 + 2 * 0.25)


def test_the_value_of_all_capacity_is_the_price_part_of_the_dual():
    cluster = Cluster(np.array([[4.0], [2.0]]), np.array([[3.0]]))
    ledger = Ledger(cluster, 5, PriceBounds(0.5, np.array([8.0]), 0.25, np.array([4.0])))
    assert ledger.resource_value == pytest.approx(5 * (6 * 0.5 + 3 * 0.25))


def test_the_papers_bounds_on_a_worked_example():
    # One job: W = 6 worker-slots, N = 3, so it can end with delay 1 at the earliest.
    job = _job([2.0, 0.0], [1.0, 0.0], work=6, most=3, utility=Sigmoid(10.0, 1.0, 2.0))
    cluster = Cluster(np.array([[8.0, 4.0]]), np.array([[4.0, 4.0]]))
    bounds = paper_bounds([job], cluster, 10)
    best = 10 / (1 + math.exp(-1.0))
    assert bounds.worker_high[0] == pytest.approx(best / 2)
    assert bounds.server_high[0] == pytest.approx(best / 1)
    worst = max(10 / (1 + math.exp(8.0)), 1e-3 * 10 / (1 + math.exp(-2.0)))
    assert bounds.worker_low == pytest.approx(0.25 * (6 * 2 / (10 * 12)) * worst / (6 * 2))
    assert bounds.server_low == pytest.approx(0.25 * (6 * 1 / (10 * 8)) * worst / (6 * 1))
    # Nobody uses the second resource; its U is only kept above L.
    assert bounds.worker_high[1] == pytest.approx(math.e * bounds.worker_low)
    assert bounds.alpha == pytest.approx(
        max(math.log(best / 2 / bounds.worker_low), math.log(best / bounds.server_low))
    )


def test_a_steep_sigmoid_does_not_push_l_to_zero():
    jobs = [_job([1.0], [1.0], utility=Sigmoid(10.0, 6.0, 1.0))]
    cluster = Cluster(np.array([[8.0]]), np.array([[8.0]]))
    assert paper_bounds(jobs, cluster, 300).alpha < 30
    assert paper_bounds(jobs, cluster, 300, clip=1e-12).alpha > 30


def test_without_ps_jobs_the_workers_bear_the_whole_share():
    job = _job([1.0], [1.0], utility=Step(5.0, 3.0))
    other = Job(
        "ar", 0, JobKind.ALLREDUCE, 4, np.arange(4), np.ones(1), np.zeros(1), Step(5.0, 3.0)
    )
    cluster = Cluster(np.array([[8.0]]), np.array([[8.0]]))
    assert paper_bounds([other], cluster, 9).worker_low == pytest.approx(
        2 * paper_bounds([job, other], cluster, 9).worker_low
    )


def test_a_fixed_ratio_is_that_of_the_cheapest_resource():
    instance = draw_instance(np.random.default_rng(3), num_jobs=20, horizon=40)
    bounds = fixed_ratio_bounds(instance.jobs, instance.cluster, 40, 6.0)
    assert math.log(bounds.worker_high.min() / bounds.worker_low) == pytest.approx(6.0)
    with pytest.raises(ValueError, match="log_ratio"):
        fixed_ratio_bounds(instance.jobs, instance.cluster, 40, 0.5)


def test_window_estimates_are_biased_low():
    instance = draw_instance(np.random.default_rng(4), num_jobs=40, horizon=40)
    jobs, cluster = instance.jobs, instance.cluster
    window = window_bounds(jobs, cluster, 40)
    highest = density_bounds(jobs, cluster, 40, quantile=1.0)
    assert np.all(window.worker_high <= highest.worker_high)
    assert np.all(window.server_high <= highest.server_high)


def test_misestimates_scale_u_over_l():
    instance = draw_instance(
        np.random.default_rng(5), num_jobs=5, horizon=40, ranges=small_ranges()
    )
    bounds = paper_bounds(instance.jobs, instance.cluster, 40)
    ratio = bounds.worker_high / bounds.worker_low
    twice = bounds.scaled(2.0)
    assert np.allclose(twice.worker_high / twice.worker_low, 2 * ratio)
    assert np.all(bounds.scaled(1e-30).worker_high == math.e * bounds.worker_low)


def test_bounds_are_checked():
    with pytest.raises(ValueError, match="worker_low"):
        PriceBounds(0.0, np.ones(1), 0.1, np.ones(1))
    with pytest.raises(ValueError, match="server_high"):
        PriceBounds(0.1, np.ones(1), 2.0, np.ones(1))
    with pytest.raises(ValueError, match="at least one job"):
        paper_bounds([], Cluster(np.ones((1, 1)), np.ones((1, 1))), 5)


def _job(worker, server, work=4, most=4, utility=None) -> Job:
    return Job(
        "job",
        0,
        JobKind.PS,
        work,
        np.arange(most + 1),
        np.array(worker),
        np.array(server),
        Step(5.0, 9.0) if utility is None else utility,
        None,
        0.5,
    )
