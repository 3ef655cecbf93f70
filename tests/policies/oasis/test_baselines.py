from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.policies.oasis.baselines import (
    Baseline,
    Edf,
    Fifo,
    LiveJob,
    Rrh,
    Srtf,
    drf_counts,
    fewest_for,
    paper_baselines,
)
from hpcslaq.policies.oasis.board import Board, dominant_share
from hpcslaq.policies.oasis.dorm import DormProblem, dorm_counts
from hpcslaq.policies.oasis.evaluate import simulate
from hpcslaq.policies.oasis.instances import draw_instance, small_ranges
from hpcslaq.policies.oasis.model import Cluster, Constant, Instance, Job, JobKind, Step, Utility


def _job(
    name: str,
    work: int = 4,
    most: int = 2,
    arrival: int = 0,
    worker: float = 1.0,
    utility: Utility | None = None,
) -> Job:
    return Job(
        name,
        arrival,
        JobKind.ALLREDUCE,
        work,
        np.arange(most + 1),
        np.array([worker]),
        np.zeros(1),
        Constant(10.0) if utility is None else utility,
    )


def _run(rule, jobs, capacity=4.0, horizon=20, fixed=(2, 2)):
    instance = Instance(Cluster(np.array([[capacity]]), np.ones((1, 1))), horizon, tuple(jobs))
    result = simulate(instance, Baseline(rule, fixed), np.random.default_rng(0))
    return {outcome.job.name: outcome.completion for outcome in result.outcomes}


def test_fifo_starts_in_the_order_of_arrival_with_fixed_numbers():
    jobs = [_job("a"), _job("b"), _job("c")]
    assert _run(Fifo(), jobs) == {"a": 1, "b": 1, "c": 3}


def test_strict_fifo_is_held_up_by_a_job_that_does_not_fit():
    jobs = [_job("a", most=3), _job("big", most=2, worker=2.0), _job("c", most=1, work=1)]
    assert _run(Fifo(), jobs, capacity=4.0)["c"] == 0
    assert _run(Fifo(is_strict=True), jobs, capacity=4.0)["c"] > 0


def test_drf_equalises_dominant_shares():
    # Worked example: 12 units; jobs whose workers take 1 and 2 units get 6 and 3 workers.
    jobs = [_job("a", most=20), _job("b", most=20, worker=2.0)]
    cluster = Cluster(np.array([[12.0]]), np.ones((1, 1)))
    assert drf_counts(jobs, cluster) == [6, 3]


def test_drf_gives_what_a_small_job_cannot_use_to_the_others():
    jobs = [_job("a", most=1), _job("b", most=20)]
    assert drf_counts(jobs, Cluster(np.array([[12.0]]), np.ones((1, 1)))) == [1, 11]


def test_srtf_serves_the_shortest_and_edf_the_most_urgent_first():
    long, short = _job("a", work=12, utility=Step(5.0, 3.0)), _job("b", work=4)
    assert _run(Srtf(), [long, short], capacity=2.0) == {"a": 7, "b": 1}
    assert _run(Edf(), [long, short], capacity=2.0) == {"a": 5, "b": 7}


def test_rrh_refuses_a_job_whose_delay_of_others_costs_more_than_it_brings():
    rule = Rrh()
    board = Board(Cluster(np.array([[2.0]]), np.ones((1, 1))))
    urgent = LiveJob(_job("a", utility=Step(50.0, 1.0)), 4, 2, 0)
    poor = LiveJob(_job("b", utility=Constant(10.0)), 4, 2, 0)
    assert rule.admits(poor, [], board)  # fits at once
    assert not rule.admits(poor, [urgent], board)  # would delay the urgent one
    assert rule.admits(LiveJob(_job("c", utility=Constant(99.0)), 4, 2, 0), [urgent], board)


def test_rrh_pauses_a_running_job_for_a_better_one():
    poor = _job("a", work=8, utility=Constant(1.0))
    rich = _job("b", work=4, arrival=1, utility=Constant(90.0))
    assert _run(Rrh(), [poor, rich], capacity=2.0) == {"a": 5, "b": 2}


def test_dorm_fills_the_cluster_and_respects_the_bound_on_changes():
    cluster = Cluster(np.array([[10.0]]), np.zeros((1, 1)))
    jobs = [_job("a", most=6), _job("b", most=6)]
    fair = drf_counts(jobs, cluster)
    free = dorm_counts(
        DormProblem(jobs, cluster, fair, [0, 0]),
        fairness_loss=2.0,
        adjusted=1.0,
        time_limit_s=5.0,
    )
    assert sum(free) == 10
    held = dorm_counts(
        DormProblem(jobs, cluster, fair, [1, 1]),
        fairness_loss=2.0,
        adjusted=0.5,
        time_limit_s=5.0,
    )
    assert sorted(held) == [1, 6]  # only one of the two may change


def test_dorm_with_no_fairness_loss_gives_the_fair_counts():
    cluster = Cluster(np.array([[12.0]]), np.zeros((1, 1)))
    jobs = [_job("a", most=20), _job("b", most=20, worker=2.0)]
    counts = dorm_counts(
        DormProblem(jobs, cluster, [6, 3], [0, 0]),
        fairness_loss=0.0,
        adjusted=1.0,
        time_limit_s=5.0,
    )
    assert counts == [6, 3]
    assert (
        dorm_counts(
            DormProblem([], cluster, [], []), fairness_loss=0.0, adjusted=1.0, time_limit_s=1.0
        )
        == []
    )


@pytest.mark.parametrize("baseline", paper_baselines(), ids=lambda baseline: baseline.name)
def test_every_baseline_keeps_all_constraints_on_a_random_instance(baseline):
    instance = draw_instance(
        np.random.default_rng(2),
        num_jobs=15,
        horizon=15,
        num_workers=4,
        num_servers=2,
        ranges=small_ranges(),
    )
    result = simulate(instance, baseline, np.random.default_rng(0))  # raises on a breach
    assert 0 < result.utility <= sum(j.utility_at(j.arrival) for j in instance.jobs)
    again = simulate(instance, baseline, np.random.default_rng(0))
    assert again.utility == result.utility


def test_fewest_workers_that_end_a_job_in_one_slot():
    job = _job("a", most=5)
    assert [fewest_for(job, left) for left in (1, 3, 5, 50)] == [1, 3, 5, 5]


def test_the_board_places_round_robin_and_all_or_nothing():
    board = Board(Cluster(np.array([[3.0], [1.0], [3.0]]), np.ones((1, 1))))
    plan = board.place(_job("a", most=9), 0, 5)
    assert plan is not None and sorted(plan.workers) == [(0, 2), (1, 1), (2, 2)]
    assert board.place(_job("b", most=9), 0, 3) is None
    assert board.free_workers.ravel().tolist() == [1.0, 0.0, 1.0]
    assert board.most_workers(_job("b", most=9), 9) == 2
    board.give(_job("a", most=9), plan)
    assert board.most_workers(_job("b", most=9), 9) == 7


def test_the_board_counts_servers_when_it_counts_workers():
    cluster = Cluster(np.array([[9.0]]), np.array([[2.0]]))
    job = Job(
        "a", 0, JobKind.PS, 9, np.arange(10), np.ones(1), np.ones(1), Constant(1.0), None, 0.5
    )
    assert Board(cluster).most_workers(job, 9) == 4
    assert dominant_share(job, cluster.pooled, 4) == 1.0
