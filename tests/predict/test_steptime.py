"""Step times: recovery, extrapolation, outliers, stairs."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core.jobs import JobSpec, Sync
from hpcslaq.predict.steptime import StepTime, shape_of, step_seconds, useful_counts


def job(num_chunks: int, **sync) -> JobSpec:
    kind = Sync.PS if sync else Sync.ALLREDUCE
    return JobSpec("job", "m", "d", num_chunks=num_chunks, max_epochs=9, sync=kind, **sync)


def true_seconds(
    n: int, fixed: float = 0.2, per_chunk: float = 0.5, per_hop: float = 0.05
) -> float:
    return fixed + per_chunk * math.ceil(16 / n) + per_hop * math.log2(n)


def test_times_seen_at_several_counts_are_reproduced_and_extended() -> None:
    step = StepTime(job(16))
    rng = np.random.default_rng(0)
    for _ in range(30):
        for n in (1, 2, 4, 8):
            step.observe(5 * true_seconds(n) * (1.0 + 0.05 * rng.standard_normal()), 5, n)
    for n in (1, 2, 3, 4, 8):
        assert step.seconds(n) == pytest.approx(true_seconds(n), rel=0.1)
    assert step.seconds(16) == pytest.approx(true_seconds(16), rel=0.25)


def test_one_count_alone_is_extended_as_work_that_divides() -> None:
    step = StepTime(job(16))
    step.observe(8.0, 1, 2)
    assert step.seconds(2) == pytest.approx(8.0)
    assert 1.0 < step.seconds(16) < 4.0
    assert step.seconds(1) > 12.0


def test_many_reports_at_one_count_leave_the_rest_believable() -> None:
    step = StepTime(job(16))
    for _ in range(2000):
        step.observe(3.0, 1, 4)
    assert step.seconds(4) == pytest.approx(3.0, rel=0.02)
    assert all(math.isfinite(step.seconds(n)) for n in (1, 2, 8, 16))
    assert step.seconds(16) < 3.0 < step.seconds(1)


def test_a_single_outlier_moves_little() -> None:
    step = StepTime(job(16))
    for n in (1, 2, 4, 8) * 5:
        step.observe(true_seconds(n), 1, n)
    before = step.seconds(4)
    step.observe(1000.0 * true_seconds(4), 1, 4)
    assert step.seconds(4) == pytest.approx(before, rel=0.3)


def test_a_lasting_change_is_followed() -> None:
    step = StepTime(job(16))
    for n in (1, 2, 4, 8) * 5:
        step.observe(true_seconds(n), 1, n)
    for n in (2, 4) * 40:
        step.observe(3.0 * true_seconds(n), 1, n)
    assert step.seconds(4) == pytest.approx(3.0 * true_seconds(4), rel=0.1)


@settings(max_examples=80, deadline=None)
@given(
    reports=st.lists(
        st.tuples(st.floats(0.0, 1e9), st.integers(0, 50), st.integers(1, 40)), max_size=40
    )
)
def test_no_reports_whatever_give_a_negative_or_undefined_time(
    reports: list[tuple[float, int, int]],
) -> None:
    step = StepTime(job(16))
    for seconds, num, workers in reports:
        step.observe(seconds, num, workers)
    for n in (1, 3, 16):
        assert math.isfinite(step.seconds(n)) and step.seconds(n) >= 0.0
    assert all(value >= 0.0 for value in step.params)


@settings(max_examples=100, deadline=None)
@given(chunks=st.integers(1, 200), least=st.integers(1, 20), span=st.integers(0, 200))
def test_no_count_between_the_useful_ones_is_faster(chunks: int, least: int, span: int) -> None:
    least = min(least, chunks)
    limit = min(least + span, chunks)
    counts = useful_counts(chunks, least, limit)
    assert counts[0] == least
    assert counts == sorted(set(counts)) and counts[-1] <= limit
    if len(counts) < 32:
        for n in range(least, limit + 1):
            best = max(count for count in counts if count <= n)
            assert math.ceil(chunks / n) == math.ceil(chunks / best)


def test_the_columns_say_what_the_formula_says() -> None:
    got = step_seconds(np.array([[0.2, 0.5, 0.05, 16.0, 0.0, 1.0]]), np.array([3.0]))
    assert got[0] == pytest.approx(true_seconds(3))


@pytest.mark.parametrize("sync", [{"num_servers": 3}, {"workers_per_server": 2.5}])
def test_ranks_that_serve_compute_no_chunks(sync) -> None:
    spec = job(16, **sync)
    step = StepTime(spec)
    ranks = range(spec.min_ranks, spec.rank_limit + 1)
    for _ in range(30):
        for n in ranks:
            seconds = 0.2 + 0.5 * math.ceil(16 / spec.workers_among(n)) + 0.05 * math.log2(n)
            step.observe(seconds, 1, n)
    counts = np.array(ranks, dtype=np.float64)
    columns = np.array([[*step.params, *shape_of(spec)]])
    for n, by_columns in zip(ranks, step_seconds(columns, counts).tolist(), strict=True):
        seconds = 0.2 + 0.5 * math.ceil(16 / spec.workers_among(n)) + 0.05 * math.log2(n)
        assert step.seconds(n) == pytest.approx(seconds, rel=0.1)
        assert by_columns == pytest.approx(step.seconds(n))


@given(
    chunks=st.integers(1, 80),
    least=st.integers(1, 12),
    span=st.integers(0, 60),
    servers=st.integers(0, 4),
    ratio=st.sampled_from([None, 1.0, 1.5, 4.0]),
)
def test_useful_numbers_of_ranks_are_those_at_which_a_worker_holds_less(
    chunks, least, span, servers, ratio
) -> None:
    sync = {"num_servers": servers} if ratio is None else {"workers_per_server": ratio}
    if ratio is None and servers == 0:
        sync = {}
    least = min(least, chunks)
    spec = dataclasses.replace(job(chunks, **sync), min_workers=least, max_workers=least + span)
    low, high = spec.min_ranks, spec.rank_limit
    _, fixed, share = shape_of(spec)
    counts = useful_counts(chunks, low, high, fixed, share)
    assert counts[0] == low
    assert counts == sorted(set(counts)) and counts[-1] <= high

    def waves(ranks: int) -> int:
        return math.ceil(chunks / spec.workers_among(ranks))

    if len(counts) < 32:
        for n in range(low, high + 1):
            assert waves(n) == waves(max(count for count in counts if count <= n))
