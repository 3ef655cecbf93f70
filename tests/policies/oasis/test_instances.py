from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpcslaq.policies.oasis.calibrate import CalibratedBounds, calibrate
from hpcslaq.policies.oasis.instances import (
    JobRanges,
    bursty_arrivals,
    draw_cluster,
    draw_instance,
    is_feasible,
    poisson_arrivals,
    small_ranges,
)
from hpcslaq.policies.oasis.model import Constant, JobKind, Sigmoid
from hpcslaq.policies.oasis.workload import AdmissionLoad, admission_workload


def test_the_same_seed_gives_the_same_instance():
    one, two = (draw_instance(np.random.default_rng(7), num_jobs=30, horizon=50) for _ in "ab")
    assert np.array_equal(one.cluster.worker_capacity, two.cluster.worker_capacity)
    assert [(j.arrival, j.work, j.utility) for j in one.jobs] == [
        (j.arrival, j.work, j.utility) for j in two.jobs
    ]


def test_instances_stay_in_the_papers_ranges():
    instance = draw_instance(np.random.default_rng(1), num_jobs=300, horizon=300)
    ranges = JobRanges()
    for job in instance.jobs:
        assert 5 <= job.max_workers <= 100
        assert job.kind is JobKind.PS and 0 < job.bandwidth_ratio <= 1
        assert job.work <= 100 * ranges.duration_slots[1] + 1
        assert is_feasible(job, instance.cluster, 300)
    steepness = [j.utility.steepness for j in instance.jobs if isinstance(j.utility, Sigmoid)]
    critical = sum(value >= 4 for value in steepness) / 300
    constant = sum(isinstance(j.utility, Constant) for j in instance.jobs) / 300
    assert critical == pytest.approx(0.35, abs=0.08) and constant == pytest.approx(0.1, abs=0.06)


def test_both_kinds_are_drawn_when_asked_for():
    ranges = dataclasses.replace(small_ranges(), allreduce_share=0.5)
    instance = draw_instance(
        np.random.default_rng(2), num_jobs=40, horizon=20, num_workers=8, ranges=ranges
    )
    kinds = [job.kind for job in instance.jobs]
    assert 8 <= kinds.count(JobKind.ALLREDUCE) <= 32


def test_bursty_arrivals_have_one_early_burst_and_poisson_ones_do_not():
    rng = np.random.default_rng(3)
    bursty, even = bursty_arrivals(rng, 4000, 300), poisson_arrivals(rng, 4000, 300)
    for arrivals in (bursty, even):
        assert np.all(np.diff(arrivals) >= 0) and 0 <= arrivals[0] and arrivals[-1] < 270
    assert np.bincount(bursty)[2] > 10 * 4000 / 270
    assert np.bincount(even).max() < 3 * 4000 / 270


def test_clusters_have_gpus_on_the_workers_side_only():
    cluster = draw_cluster(np.random.default_rng(4), 20, 10)
    assert cluster.worker_capacity.shape == (20, 4) and cluster.server_capacity.shape == (10, 4)
    assert np.all(cluster.worker_capacity[:, 0] >= 1) and np.all(cluster.server_capacity[:, 0] == 0)
    assert np.all((cluster.worker_capacity[:, 3] >= 20) & (cluster.worker_capacity[:, 3] <= 50))


def test_an_impossible_shape_is_refused():
    ranges = dataclasses.replace(small_ranges(), duration_slots=(9.0, 10.0))
    with pytest.raises(ValueError, match="can end by slot"):
        draw_instance(np.random.default_rng(0), num_jobs=1, horizon=2, ranges=ranges)


def test_calibration_takes_the_ratio_that_earned_most():
    past = [
        draw_instance(np.random.default_rng(s), num_jobs=40, horizon=60, num_workers=8)
        for s in range(2)
    ]
    best = calibrate(past)
    assert calibrate(past, log_ratios=[best.log_ratio]) == best
    assert calibrate(past, log_ratios=[2.0]) == CalibratedBounds(2.0)
    lenient = best(past[0].jobs, past[0].cluster, 60)
    assert np.log(lenient.worker_high.min() / lenient.worker_low) == pytest.approx(best.log_ratio)


def test_the_admission_workload_has_a_partly_reserved_ledger():
    small = AdmissionLoad(20, 20, horizon=60, worker_hosts=8, server_hosts=6)
    oasis, jobs = admission_workload(np.random.default_rng(3), small)
    assert len(jobs) == 20
    assert 0 < oasis.ledger.worker_used.sum() < oasis.ledger.cluster.worker_capacity.sum() * 60
    hard_load = dataclasses.replace(small, is_hard=True, most_worker_slots=600)
    _, hard = admission_workload(np.random.default_rng(3), hard_load)
    assert all(job.arrival == 0 and 300 <= job.work <= 600 for job in hard)


@pytest.mark.parametrize("num_resources", [1, 3, 6])
def test_the_admission_workload_has_as_many_resources_as_asked_for(num_resources: int):
    load = AdmissionLoad(10, 5, 40, 6, 5, num_resources)
    oasis, jobs = admission_workload(np.random.default_rng(1), load)
    assert oasis.ledger.cluster.num_resources == num_resources
    assert any(oasis.offer(job).schedule is not None for job in jobs)


@pytest.mark.parametrize(
    "field, value",
    [("num_jobs", 0), ("most_worker_slots", 23), ("num_reserved", -1), ("allreduce_share", 1.5)],
)
def test_an_impossible_admission_load_names_the_field(field: str, value: float):
    with pytest.raises(ValueError, match=field):
        AdmissionLoad(**{field: value})
