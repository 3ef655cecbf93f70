from __future__ import annotations

import math

import numpy as np
import pytest

from hpcslaq.policies.oasis.model import (
    Cluster,
    Constant,
    Instance,
    Job,
    JobKind,
    LinearToDeadline,
    Sigmoid,
    Step,
    Table,
    rate_of,
    room,
)
from hpcslaq.policies.oasis.training import RingModel, Training, allreduce_job, ps_job


@pytest.mark.parametrize(
    "utility",
    [
        Constant(4.0),
        Sigmoid(10.0, 5.0, 3.0),
        Sigmoid(10.0, 0.0, 3.0),
        LinearToDeadline(8.0, 5.0),
        Step(7.0, 2.0),
        Table((5.0, 5.0, 2.0, 0.0)),
    ],
)
def test_every_utility_is_non_negative_and_never_rises(utility):
    values = utility.values(np.arange(0.0, 400.0))
    assert values.shape == (400,)
    assert np.all(values >= 0) and np.all(np.diff(values) <= 0)


def test_the_sigmoid_is_half_its_peak_at_the_target():
    assert Sigmoid(10.0, 5.0, 3.0).values(np.array([3.0]))[0] == 5.0
    assert Sigmoid(10.0, 0.0, 3.0).values(np.array([0.0, 99.0])).tolist() == [5.0, 5.0]


def test_a_steep_sigmoid_does_not_overflow():
    assert Sigmoid(100.0, 6.0, 1.0).values(np.array([1e6]))[0] == pytest.approx(0.0, abs=1e-200)


def test_targets_are_where_the_value_falls():
    assert Sigmoid(1.0, 0.5, 4.0).target == 4.0
    assert Sigmoid(1.0, 0.0, 4.0).target is None
    assert Constant(1.0).target is None
    assert LinearToDeadline(1.0, 6.0).target == 6.0
    assert Step(1.0, 2.0).target == 2.0
    assert Table((3.0, 3.0, 1.0)).target == 1.0


def test_tables_round_delays_up_and_hold_their_last_value():
    table = Table((5.0, 3.0, 1.0))
    assert table.values(np.array([0.0, 0.5, 1.0, 7.0])).tolist() == [5.0, 3.0, 3.0, 1.0]
    with pytest.raises(ValueError, match="increases"):
        Table((1.0, 2.0))


def test_a_ps_job_needs_work_as_in_the_paper():
    # rho = M (tau + 2 e / b): 10 * (0.01 + 2 * 100e6 / 100e6 / 1000) = 0.12 slots per chunk.
    training = Training(5, 7, 10, 0.01, 100e6)
    job = ps_job(
        "a",
        3,
        training,
        worker_demand=[1.0],
        server_demand=[1.0],
        worker_bytes_per_s=100e6,
        server_bytes_per_s=250e6,
        slot_s=1000.0,
        utility=Constant(1.0),
    )
    assert job.work == math.ceil(5 * 7 * 0.12)
    assert job.rates.tolist() == list(range(8))
    assert job.servers.tolist() == [0, 1, 1, 2, 2, 2, 3, 3]
    assert job.min_slots == 1
    assert job.worker_slot_range == (5, 5)
    assert not job.is_convex


def test_servers_stay_within_constraints_6_and_7():
    for ratio in np.linspace(0.01, 1.0, 34):
        job = _job(kind=JobKind.PS, bandwidth_ratio=float(ratio), rates=np.arange(60))
        counts = np.arange(60)
        assert np.all(job.servers <= counts)
        assert np.all(job.servers >= ratio * counts - 1e-6)


def test_an_allreduce_job_is_faster_packed_and_rounds_its_speed_down():
    ring = RingModel(1e8, 1e9)
    training = Training(2, 4, 500, 0.001, 50e6)
    job = allreduce_job(
        "a", 0, training, worker_demand=[1.0], ring=ring, slot_s=1000.0, utility=Constant(1.0)
    )
    assert job.kind is JobKind.ALLREDUCE and job.work == 2000  # grains of two mini-batches
    # Two workers spread: 50e6 / 1e8 = 0.5 s per all-reduce, 1 s of computation.
    assert job.rates[1] == 500 and job.rates[2] == int(2 * 1000 / 1.5 / 2)
    assert job.packed_rates is not None
    assert job.packed_rates[2] == int(2 * 1000 / 1.05 / 2)
    assert rate_of(job, 2, is_packed=True) > rate_of(job, 2, is_packed=False)
    assert not job.servers.any()


def test_the_ring_costs_nothing_alone_and_tends_to_twice_the_volume():
    ring = RingModel(1e8, 1e9)
    seconds = ring.seconds(1e8, np.array([1, 2, 10**6]), False)
    assert seconds[0] == 0.0
    assert seconds[1] == pytest.approx(1.0)
    assert seconds[2] == pytest.approx(2.0, rel=1e-5)


def test_worker_slots_range_over_the_speeds_of_a_non_linear_job():
    job = _job(rates=np.array([0, 10, 16]), work=80)
    assert job.worker_slot_range == (8, 10)
    assert job.min_slots == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival": -1}, "arrival"),
        ({"work": 0}, "work"),
        ({"bandwidth_ratio": 1.5, "kind": JobKind.PS}, "bandwidth_ratio"),
        ({"bandwidth_ratio": 0.5}, "only a ps job"),
        ({"kind": JobKind.PS}, "only a ps job"),
        ({"rates": np.array([1, 2])}, "rates"),
        ({"rates": np.array([0, 0])}, "rates"),
        ({"packed_rates": np.array([0, 1, 2, 3])}, "differ in length"),
        ({"worker_demand": np.array([0.0])}, "worker_demand"),
        ({"worker_demand": np.array([-1.0])}, "worker_demand"),
        ({"server_demand": np.array([1.0, 2.0])}, "differ in length"),
    ],
)
def test_a_job_with_impossible_values_names_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        _job(**changes)


def test_an_instance_wants_jobs_in_order_with_matching_resources():
    cluster = Cluster(np.ones((1, 1)), np.ones((1, 1)))
    with pytest.raises(ValueError, match="out of order"):
        Instance(cluster, 5, (_job(name="a", arrival=2), _job(name="b", arrival=1)))
    with pytest.raises(ValueError, match="same name"):
        Instance(cluster, 5, (_job(), _job()))
    with pytest.raises(ValueError, match="resources"):
        Instance(Cluster(np.ones((1, 2)), np.ones((1, 2))), 5, (_job(),))


def test_a_cluster_is_checked_and_normalised_by_its_mean_host():
    cluster = Cluster(np.array([[2.0, 0.0]]), np.array([[4.0, 0.0]]))
    assert cluster.reference.tolist() == [3.0, 1.0]
    assert cluster.normalised().worker_capacity[0, 0] == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="worker_capacity"):
        Cluster(np.array([[-1.0]]), np.ones((1, 1)))


def test_room_ignores_resources_that_are_not_needed_and_forgives_rounding():
    free = np.array([[0.3, 0.0], [0.29, 5.0]])
    demand = np.array([0.1, 0.0])
    assert room(free - 1e-12, np.ones((2, 2)), demand).tolist() == [3, 2]
    assert room(np.array([[-1.0, 1.0]]), np.ones((1, 2)), demand).tolist() == [0]


def _job(**changes: object) -> Job:
    values: dict[str, object] = {
        "name": "job",
        "arrival": 0,
        "kind": JobKind.ALLREDUCE,
        "work": 5,
        "rates": np.array([0, 1, 2]),
        "worker_demand": np.ones(1),
        "server_demand": np.ones(1),
        "utility": Constant(1.0),
    }
    values.update(changes)
    return Job(**values)  # type: ignore[arg-type]
