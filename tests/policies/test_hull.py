"""Sharing along hulls against the exact optimum of small cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.policies.exact import best_allocation
from hpcslaq.policies.hull import share_by_price


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    num_jobs, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    counts = np.zeros((num_jobs, width), dtype=np.int64)
    gains = np.zeros((num_jobs, width))
    for j in range(num_jobs):
        steps = draw(st.lists(st.integers(0, 4), min_size=width, max_size=width))
        rises = draw(st.lists(st.integers(0, 9), min_size=width, max_size=width))
        counts[j] = draw(st.integers(0, 2)) + np.cumsum([0, *steps[1:]])
        gains[j] = np.cumsum([rises[0], *(np.array(rises[1:]) * (np.array(steps[1:]) > 0))])
    return counts, gains, int(counts[:, 0].sum()) + draw(st.integers(0, 30))


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_hull_sharing_fits_and_is_optimal_up_to_its_last_jump(
    case: tuple[np.ndarray, np.ndarray, int],
) -> None:
    counts, gains, budget = case
    choice, price = share_by_price(counts, gains, budget)
    rows = np.arange(len(counts))
    spent = int(counts[rows, choice].sum())
    assert spent <= budget
    total = float(gains[rows, choice].sum())
    best, _ = best_allocation(
        [
            dict(zip(c.tolist(), g.tolist(), strict=True))
            for c, g in zip(counts, gains, strict=True)
        ],
        budget,
    )
    # Weak duality: no allocation beats the dual value of any price, and the priced one, which
    # is at least as good as what is given without its last jump, is short of it by one jump.
    extra = counts - counts[:, :1]
    dual = float((gains - price * extra).max(axis=1).sum()) + price * (
        budget - int(counts[:, 0].sum())
    )
    tolerance = 1e-6 * (1.0 + abs(best))
    assert total <= best + tolerance
    assert best <= dual + tolerance
    assert total >= dual - price * float(extra.max()) - tolerance


def test_a_jump_over_a_plateau_is_taken_where_single_steps_gain_nothing() -> None:
    counts = np.array([[1, 2, 4], [1, 2, 3]])
    gains = np.array([[0.0, 0.0, 9.0], [0.0, 1.0, 2.0]])
    choice, price = share_by_price(counts, gains, 5)
    assert choice.tolist() == [2, 0]
    assert 1.0 <= price <= 3.0


def test_what_the_last_jump_leaves_goes_to_the_best_that_fits() -> None:
    counts = np.array([[0, 5, 5], [0, 4, 4], [0, 1, 2]])
    gains = np.array([[0.0, 10.0, 10.0], [0.0, 7.0, 7.0], [0.0, 0.5, 0.8]])
    choice, _ = share_by_price(counts, gains, 7)
    assert counts[np.arange(3), choice].tolist() == [5, 0, 2]


def test_the_exact_allocator_solves_a_case_by_hand() -> None:
    total, counts = best_allocation([{1: 0.0, 3: 5.0}, {1: 1.0, 2: 3.0}, {0: 0.0, 2: 4.0}], 5)
    assert (total, counts) == (8.0, [3, 2, 0])
    with pytest.raises(ValueError, match="budget"):
        best_allocation([{2: 1.0}], 1)
