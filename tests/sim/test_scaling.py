"""The ground truth of times."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.sim.scaling import Delays, ScalingModel, TableStepTime, noise_factors


@pytest.mark.parametrize(
    ("workers", "seconds"),
    [
        (1, 2.0 + 8 * 0.5),
        (2, 2.0 + 4 * 0.5 + 0.1 + 0.2),  # one step of latency, the whole buffer once each way
        (3, 2.0 + 3 * 0.5 + 2 * 0.1 + 0.2 * 4 / 3),
        (5, 2.0 + 2 * 0.5 + 3 * 0.1 + 0.2 * 8 / 5),
        (7, 2.0 + 2 * 0.5 + 3 * 0.1 + 0.2 * 12 / 7),  # no faster than 5: the same two waves
        (8, 2.0 + 1 * 0.5 + 3 * 0.1 + 0.2 * 14 / 8),
    ],
)
def test_an_iteration_is_serial_part_waves_of_chunks_and_all_reduce(workers, seconds) -> None:
    model = ScalingModel(8, serial_s=2.0, chunk_s=0.5, latency_s=0.1, transfer_s=0.2)
    assert model.seconds(workers) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_chunks": 0}, "num_chunks: 0 < 1"),
        ({"num_chunks": 1, "serial_s": -1.0}, "serial_s: -1.0"),
        ({"num_chunks": 1, "latency_s": float("nan")}, "latency_s: nan"),
        ({"num_chunks": 1, "chunk_s": 0.0}, "an iteration takes some time"),
    ],
)
def test_impossible_models_are_refused(fields, text) -> None:
    with pytest.raises(ValueError, match=text):
        ScalingModel(**fields)


def test_delays_add_up_and_are_not_negative() -> None:
    delays = Delays(message_s=1.0, form_s=2.0, form_per_member_s=0.5, load_s=10.0)
    assert delays.regroup_s(4) == 4.0
    assert delays.start_s(4) == 15.0
    with pytest.raises(ValueError, match="load_s: -1"):
        Delays(load_s=-1.0)


def test_noise_has_mean_1_and_depends_on_seed_and_job_only() -> None:
    factors = noise_factors(3, "a", 20_000, 0.3)
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert np.log(factors).std() == pytest.approx(0.3, abs=0.01)
    assert np.array_equal(factors[:50], noise_factors(3, "a", 50, 0.3))
    assert not np.array_equal(factors, noise_factors(4, "a", 20_000, 0.3))
    assert not np.array_equal(factors, noise_factors(3, "b", 20_000, 0.3))


@pytest.mark.parametrize(
    ("workers", "seconds"), [(1, 8.0), (2, 8.0), (3, 6.0), (4, 4.0), (6, 3.5), (8, 3.0), (99, 3.0)]
)
def test_a_table_is_linear_between_its_counts_and_constant_beyond(workers, seconds) -> None:
    table = TableStepTime((2, 4, 8), (8.0, 4.0, 3.0))
    assert table.seconds(workers) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("counts", "times"),
    [((), ()), ((1, 2), (1.0,)), ((2, 2), (1.0, 1.0)), ((0, 1), (1.0, 1.0)), ((1,), (0.0,))],
)
def test_an_impossible_table_is_refused(counts, times) -> None:
    with pytest.raises(ValueError, match=r"table|counts|times"):
        TableStepTime(counts, times)
