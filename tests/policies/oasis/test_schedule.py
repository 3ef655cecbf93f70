from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.policies.oasis.algorithm import check_schedule
from hpcslaq.policies.oasis.menu import Menu, cheapest_first, cheapest_host, slot_menu
from hpcslaq.policies.oasis.model import Cluster, Constant, Instance, Job, JobKind, Sigmoid, Step
from hpcslaq.policies.oasis.offline import solve_offline
from hpcslaq.policies.oasis.prices import Ledger, PriceBounds
from hpcslaq.policies.oasis.schedule import best_schedule, greedy_schedule, payoff_bound, solve


def _plain_programme(menu: Menu, utilities: np.ndarray, work: int) -> tuple[float, int]:
    """Algorithm 2 as it is written down: best payoff and its earliest slot; 0, -1 for none."""
    table = np.full(work + 1, np.inf)
    table[0] = 0.0
    best, end = 0.0, -1
    for s in range(len(utilities)):
        before = table
        table = before.copy()
        for w in range(work + 1):
            for a in range(1, len(menu.rates)):
                cost = before[max(0, w - menu.rates[a])] + menu.costs[s, a]
                table[w] = min(table[w], cost)
        if utilities[s] - table[work] > best + 1e-9:
            best, end = utilities[s] - table[work], s
    return best, end


def _serial_menu(rng: np.random.Generator, slots: int, choices: int, convex: bool) -> Menu:
    steps = rng.uniform(0.1, 2.0, size=(slots, choices))
    if convex:
        steps.sort(axis=1)
    costs = np.concatenate([np.zeros((slots, 1)), np.cumsum(steps, axis=1)], axis=1)
    costs[:, 1:] += rng.choice([0.0, 0.7, np.inf], size=(slots, choices), p=[0.6, 0.3, 0.1])
    rates = np.concatenate([[0], np.cumsum(rng.integers(1, 4, size=choices))])
    return Menu(0, costs, rates, np.arange(choices + 1), np.zeros(choices + 1, dtype=bool))


@pytest.mark.parametrize("kind", list(JobKind))
@pytest.mark.parametrize("block", range(10))
def test_the_programme_equals_an_integer_programme_on_single_jobs(small_case, kind, block):
    num_accepted = 0
    for seed in range(25 * block, 25 * block + 25):
        job, ledger = small_case(seed, kind)
        schedule = best_schedule(job, ledger)
        single = Instance(ledger.cluster, ledger.horizon, (job,))
        exact = solve_offline(single, ledger=ledger)
        payoff = 0.0 if schedule is None else schedule.payoff
        assert payoff == pytest.approx(max(0.0, exact.value), abs=1e-5), seed
        num_accepted += schedule is not None
    assert num_accepted >= 5  # else the comparison would say little


@pytest.mark.parametrize("kind", list(JobKind))
def test_cost_and_utility_of_a_schedule_are_those_of_its_plans(small_case, kind):
    for seed in range(60):
        job, ledger = small_case(seed, kind)
        schedule = best_schedule(job, ledger)
        if schedule is not None:
            assert schedule.cost == pytest.approx(ledger.cost(job, schedule.slots))
            assert schedule.utility == job.utility_at(schedule.completion)
            ledger.reserve(job, schedule.slots)
            check_schedule(job, schedule, ledger)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.booleans())
def test_pruning_changes_neither_the_payoff_nor_the_deadline(seed, convex):
    rng = np.random.default_rng(seed)
    menu = _serial_menu(rng, int(rng.integers(1, 9)), int(rng.integers(1, 6)), convex)
    work = int(rng.integers(1, 25))
    falls = rng.choice([0.0, 0.3, 2.0]) * np.arange(len(menu.costs))
    utilities = np.maximum(0.0, rng.uniform(1, 25) - falls)
    payoff, end = _plain_programme(menu, utilities, work)
    found = solve(menu, utilities, work)
    if end < 0:
        assert found is None
    else:
        assert found is not None
        assert found.payoff == pytest.approx(payoff, abs=1e-7)
        assert len(found.choices) - 1 == end
        assert int(menu.rates[found.choices].sum()) >= work
        cost = menu.costs[np.arange(end + 1), found.choices].sum()
        assert utilities[end] - cost == pytest.approx(payoff, abs=1e-7)


def test_the_greedy_equals_the_programme_for_linear_speed_without_servers(small_case):
    num_accepted = 0
    for seed in range(200):
        job, ledger = small_case(seed, JobKind.ALLREDUCE)
        linear = dataclasses.replace(job, rates=3 * np.arange(len(job.rates)), packed_rates=None)
        by_programme, by_greedy = best_schedule(linear, ledger), greedy_schedule(linear, ledger)
        assert (by_programme is None) == (by_greedy is None)
        if by_programme is not None and by_greedy is not None:
            num_accepted += 1
            assert by_greedy.payoff == pytest.approx(by_programme.payoff, abs=1e-9)
            assert by_greedy.completion == by_programme.completion
    assert num_accepted > 50


def test_the_greedy_refuses_jobs_with_servers(small_case):
    job, ledger = small_case(0, JobKind.PS)
    with pytest.raises(ValueError, match="linear speed without servers"):
        greedy_schedule(job, ledger)


def test_the_payoff_bound_is_never_below_the_best_payoff(small_case):
    for kind in JobKind:
        for seed in range(100):
            job, ledger = small_case(seed, kind)
            schedule = best_schedule(job, ledger)
            payoff = 0.0 if schedule is None else schedule.payoff
            assert payoff_bound(job, ledger) >= payoff - 1e-9


def test_of_equal_payoffs_the_earliest_end_wins():
    cluster = Cluster(np.full((2, 1), 4.0), np.full((1, 1), 4.0))
    ledger = Ledger(cluster, 20, PriceBounds(0.1, np.array([2.0]), 0.1, np.array([2.0])))
    job = _ps_job(work=8, most=4, utility=Constant(10.0))
    schedule = best_schedule(job, ledger)
    assert schedule is not None
    assert schedule.completion == 1
    assert [plan.num_workers for plan in schedule.slots] == [4, 4]


def test_a_worked_example_waits_for_the_cheap_slot():
    # One host for 2 workers. Slot 0 is half full, at price sqrt(0.1 * 10) = 1; slot 1 is empty,
    # at 0.1. A server costs 0.1. Two units by slot 1: in slot 1 alone 2 * 0.1 + 0.1 = 0.3.
    cluster = Cluster(np.array([[2.0]]), np.array([[4.0]]))
    ledger = Ledger(cluster, 3, PriceBounds(0.1, np.array([10.0]), 0.1, np.array([10.0])))
    ledger.worker_used[0] = 1.0
    ledger.rebase(ledger.bounds)
    job = _ps_job(work=2, most=2, utility=Step(5.0, 1))
    schedule = best_schedule(job, ledger)
    assert schedule is not None
    assert [(p.slot, p.workers, p.servers) for p in schedule.slots] == [(1, ((0, 2),), ((0, 1),))]
    assert schedule.payoff == pytest.approx(5.0 - 0.3)


def test_a_job_that_cannot_end_in_time_gets_no_schedule():
    cluster = Cluster(np.array([[2.0]]), np.array([[4.0]]))
    ledger = Ledger(cluster, 3, PriceBounds(1e-6, np.array([1.0]), 1e-6, np.array([1.0])))
    assert best_schedule(_ps_job(work=7, most=2, utility=Constant(9.0)), ledger) is None
    assert best_schedule(_ps_job(work=6, most=2, utility=Constant(9.0)), ledger) is not None


def test_a_window_restricts_start_end_and_work():
    cluster = Cluster(np.array([[2.0]]), np.array([[4.0]]))
    ledger = Ledger(cluster, 9, PriceBounds(1e-6, np.array([1.0]), 1e-6, np.array([1.0])))
    job = _ps_job(work=10, most=2, utility=Sigmoid(9.0, 0.2, 6.0))
    schedule = best_schedule(job, ledger, start=4, work=4, stop=6)
    assert schedule is not None
    assert [plan.slot for plan in schedule.slots] == [4, 5]
    assert best_schedule(job, ledger, start=4, work=5, stop=6) is None
    assert best_schedule(job, ledger, start=9, work=1) is None


def test_cheapest_first_fills_the_cheapest_hosts():
    costs = cheapest_first(np.array([[3.0, 1.0, 2.0]]), np.array([[5, 2, 1]]), 6)
    assert costs.tolist() == [[0.0, 1.0, 2.0, 4.0, 7.0, 10.0, 13.0]]
    assert np.isinf(cheapest_first(np.array([[1.0]]), np.array([[2]]), 3)[0, 3])


def test_cheapest_host_needs_room_for_the_whole_group():
    costs = cheapest_host(np.array([[3.0, 1.0]]), np.array([[3, 1]]), 4)
    assert costs[0, :4].tolist() == [0.0, 1.0, 6.0, 9.0]
    assert np.isinf(costs[0, 4])


def test_the_menu_prices_servers_by_the_staircase():
    cluster = Cluster(np.array([[8.0]]), np.array([[8.0]]))
    ledger = Ledger(cluster, 1, PriceBounds(1.0, np.array([3.0]), 2.0, np.array([6.0])))
    job = _ps_job(work=4, most=4, utility=Constant(50.0))  # b / B = 1/2
    assert slot_menu(job, ledger, 0, 1).costs.tolist() == [[0.0, 3.0, 4.0, 7.0, 8.0]]


def _ps_job(work: int, most: int, utility: object) -> Job:
    return Job(
        "job",
        0,
        JobKind.PS,
        work,
        np.arange(most + 1),
        np.ones(1),
        np.ones(1),
        utility,  # type: ignore[arg-type]
        None,
        0.5,
    )
