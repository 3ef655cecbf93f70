"""Step times: recovery, extrapolation, outliers, stairs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.predict.steptime import StepTime, step_seconds, useful_counts


def true_seconds(
    n: int, fixed: float = 0.2, per_chunk: float = 0.5, per_hop: float = 0.05
) -> float:
    return fixed + per_chunk * math.ceil(16 / n) + per_hop * math.log2(n)


def test_times_seen_at_several_counts_are_reproduced_and_extended() -> None:
    step = StepTime(16)
    rng = np.random.default_rng(0)
    for _ in range(30):
        for n in (1, 2, 4, 8):
            step.observe(5 * true_seconds(n) * (1.0 + 0.05 * rng.standard_normal()), 5, n)
    for n in (1, 2, 3, 4, 8):
        assert step.seconds(n) == pytest.approx(true_seconds(n), rel=0.1)
    assert step.seconds(16) == pytest.approx(true_seconds(16), rel=0.25)


def test_one_count_alone_is_extended_as_work_that_divides() -> None:
    step = StepTime(16)
    step.observe(8.0, 1, 2)
    assert step.seconds(2) == pytest.approx(8.0)
    assert 1.0 < step.seconds(16) < 4.0
    assert step.seconds(1) > 12.0


def test_many_reports_at_one_count_leave_the_rest_believable() -> None:
    step = StepTime(16)
    for _ in range(2000):
        step.observe(3.0, 1, 4)
    assert step.seconds(4) == pytest.approx(3.0, rel=0.02)
    assert all(math.isfinite(step.seconds(n)) for n in (1, 2, 8, 16))
    assert step.seconds(16) < 3.0 < step.seconds(1)


def test_a_single_outlier_moves_little() -> None:
    step = StepTime(16)
    for n in (1, 2, 4, 8) * 5:
        step.observe(true_seconds(n), 1, n)
    before = step.seconds(4)
    step.observe(1000.0 * true_seconds(4), 1, 4)
    assert step.seconds(4) == pytest.approx(before, rel=0.3)


def test_a_lasting_change_is_followed() -> None:
    step = StepTime(16)
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
    step = StepTime(16)
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
    got = step_seconds(*(np.array([x]) for x in (0.2, 0.5, 0.05, 16.0)), np.array([3.0]))
    assert got[0] == pytest.approx(true_seconds(3))
