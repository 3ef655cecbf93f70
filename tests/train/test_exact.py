"""Exact sums: invariance under any grouping, precision, and when a grid does not fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.errors import TrainingError
from hpcslaq.train.exact import (
    HEADROOM,
    MAX_SEGMENTS,
    SLACK,
    ExactSum,
    Layout,
    exponent,
    misfits,
    next_bounds,
    not_finite,
    tight_bounds,
)

FINITE = st.floats(-1e6, 1e6, allow_nan=False, width=64)


def summed(chunks, groups, bounds, num_chunks=None):
    """The packed sum of chunks that are dealt to groups of indices, added group by group."""
    totals = []
    for group in groups:
        member = ExactSum(num_chunks or len(chunks))
        member.begin(bounds)
        for i in group:
            member.add(chunks[i])
        totals.append(member.total)
    return np.sum(totals, axis=0) if len(totals) == 1 else _in_order(totals)


def _in_order(totals):
    result = totals[0].copy()
    for total in totals[1:]:
        result += total
    return result


def bounds_of(chunks, headroom=0):
    layout = Layout.of(chunks[0])
    maxima = [max(np.max(np.abs(c[name])) for c in chunks) for name in layout.names]
    tight = tight_bounds(layout, maxima)
    return {name: bound + headroom for name, bound in tight.items()}


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=40),
    seed=st.integers(0, 10**6),
    num_members=st.integers(1, 9),
    scale=st.integers(-300, 300),
)
def test_any_partition_order_and_number_of_members_gives_the_same_bits(
    values, seed, num_members, scale
):
    chunks = [{"v": np.array(v) * 2.0**scale, "s": float(v[0])} for v in values]
    bounds = bounds_of(chunks, HEADROOM)
    reference = summed(chunks, [range(len(chunks))], bounds)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(chunks))
    cuts = np.sort(rng.integers(0, len(chunks) + 1, num_members - 1))
    groups = [g for g in np.split(order, cuts) if g.size]
    assert summed(chunks, groups, bounds).tobytes() == reference.tobytes()


def test_plain_sums_would_differ():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(16)
    chunks = [{"s": float(v)} for v in values]
    bounds = bounds_of(chunks)
    orders = [rng.permutation(16) for _ in range(50)]
    assert len({sum(values[o].tolist()) for o in orders}) > 1
    assert len({float(summed(chunks, [o], bounds)[0]) for o in orders}) == 1


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 16, 100])
def test_the_error_is_a_few_parts_in_1e14_of_the_largest_element(num_chunks):
    rng = np.random.default_rng(num_chunks)
    chunks = [{"v": rng.standard_normal(2000)} for _ in range(num_chunks)]
    largest = max(np.abs(c["v"]).max() for c in chunks)
    total = summed(chunks, [range(num_chunks)], bounds_of(chunks, HEADROOM))
    exact = [math.fsum(c["v"][i] for c in chunks) for i in range(2000)]
    errors = np.abs(total - exact) / largest
    # u = 2^(B + L - 53) with 2^B <= 2^(1 + HEADROOM) largest; each chunk is off by u/2 at most.
    levels = max(math.ceil(math.log2(num_chunks)), 2)
    unit = 2.0 ** (1 + HEADROOM + levels - 53)
    assert errors.max() <= num_chunks * unit / 2
    if num_chunks == 16:
        assert math.sqrt(np.mean(errors**2)) < 2e-14
        assert errors.max() < 5e-14


def test_sums_are_exact_when_every_chunk_is_at_the_bound():
    value = np.nextafter(8.0, 0)
    for num_chunks in (1, 2, 4, 16, 31, 64):
        chunks = [{"s": float(value)}] * num_chunks
        total = summed(chunks, [range(num_chunks)], {"s": 3})
        assert total[0] == pytest.approx(num_chunks * value, rel=1e-13)
        split = [range(num_chunks)[i::3] for i in range(3) if i < num_chunks]
        assert summed(chunks, split, {"s": 3})[0] == total[0]


def test_small_integers_are_added_without_any_error():
    chunks = [{"n": float(n)} for n in (3, 5, 1000, 12)]
    assert summed(chunks, [range(4)], bounds_of(chunks, HEADROOM))[0] == 1020


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e-290, 1e300])
def test_tiny_and_huge_values_keep_the_grid_usable(value):
    chunks = [{"v": np.array([value, -value / 2])}, {"v": np.array([value, 0.0])}]
    total = summed(chunks, [range(2)], bounds_of(chunks, HEADROOM))
    if value >= 1e-290:
        np.testing.assert_allclose(total, [2 * value, -value / 2], rtol=1e-4)
    assert np.all(np.abs(total) <= 2 * value * (1 + 1e-12))


@given(st.floats(1e-200, 1e200))
def test_exponent_is_the_least_power_of_two_above(value):
    bound = exponent(value)
    assert 2.0 ** (bound - 1) <= value < 2.0**bound


def test_a_segment_misfits_when_unknown_too_large_or_far_too_small():
    layout = Layout.of({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "zero": 1.0})
    bounds = {"b": 0, "c": 30, "d": SLACK + HEADROOM + 1}
    assert misfits(layout, [1.0, 1.0, 1.0, 1.0, 0.0], bounds) == ["a", "b", "c"]
    assert misfits(layout, [1.0] * 5, tight_bounds(layout, [1.0] * 5)) == []


def test_the_next_bounds_have_headroom_and_forget_no_segment():
    layout = Layout.of({"a": 1.0, "zero": 1.0})
    bounds = next_bounds(layout, [3.0, 0.0], {"zero": 7, "other pass": 5})
    assert bounds == {"a": 2 + HEADROOM, "zero": 7, "other pass": 5}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e305])
def test_a_value_that_is_not_finite_shows_as_an_infinite_maximum(bad):
    member = ExactSum(2)
    member.begin({"good": 3, "bad": 3})
    member.add({"good": 1.0, "bad": np.array([1.0, bad])})
    member.add({"good": 2.0, "bad": np.array([1.0, 2.0])})
    assert member.maxima == [2.0, math.inf]
    assert not_finite(member.layout, member.maxima) == ["bad"]


def test_totals_come_back_by_name_and_shape():
    member = ExactSum(2)
    member.begin({"m": 4, "n": 4})
    for _ in range(2):
        member.add({"m": np.arange(6.0).reshape(2, 3), "n": 2})
    totals = member.layout.unpack(member.total)
    np.testing.assert_array_equal(totals["m"], 2 * np.arange(6.0).reshape(2, 3))
    assert totals["n"] == 4.0
    assert isinstance(totals["n"], float)


def test_chunks_with_other_names_or_shapes_are_refused():
    member = ExactSum(2)
    member.begin({})
    member.add({"v": np.zeros(3)})
    with pytest.raises(TrainingError, match=r"'v' has shape \(4,\), another chunk's \(3,\)"):
        member.add({"v": np.zeros(4)})
    with pytest.raises(TrainingError, match=r"names \['w'\] differ"):
        member.add({"w": np.zeros(3)})


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        ({}, "0 named values"),
        ({str(i): 1.0 for i in range(MAX_SEGMENTS + 1)}, "join arrays"),
        ({"v": np.zeros((3, 0))}, "no elements"),
        ({"v": np.zeros(2, dtype=complex)}, "complex128"),
        ({"v": np.array(["x"])}, "not float64"),
    ],
)
def test_unusable_statistics_are_refused(statistics, message):
    member = ExactSum(1)
    member.begin({})
    with pytest.raises(TrainingError, match=message):
        member.add(statistics)
