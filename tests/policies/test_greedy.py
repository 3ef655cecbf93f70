"""The threshold equals the heap."""

import heapq

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcslaq.policies.greedy import Counts, take_best


def heap_greedy(gains: list[list[float]], lower: list[int], budget: int) -> list[int]:
    """SLAQ's own loop; gains[j][i] is the gain from lower[j] + i to one more."""
    counts = list(lower)
    heap = [(-row[0], counts[j], j) for j, row in enumerate(gains) if row and row[0] > 0]
    heapq.heapify(heap)
    while budget and heap:
        _, _, j = heapq.heappop(heap)
        counts[j] += 1
        budget -= 1
        done = counts[j] - lower[j]
        if done < len(gains[j]) and gains[j][done] > 0:
            heapq.heappush(heap, (-gains[j][done], counts[j], j))
    return counts


@settings(max_examples=300, deadline=None)
@example(  # equal gains beyond the first block of one job
    rows=[[], [], [], [1] * 5, [1] * 5, [1] * 6, [1] * 4], lower=[0] * 6 + [2, 0], budget=19
)
@given(
    rows=st.lists(st.lists(st.integers(0, 6), max_size=40), min_size=1, max_size=8),
    lower=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    budget=st.integers(0, 120),
)
def test_the_threshold_gives_what_the_heap_gives(
    rows: list[list[int]], lower: list[int], budget: int
) -> None:
    gains = [[float(g) for g in sorted(row, reverse=True)] for row in rows]
    low = np.array(lower[: len(rows)], dtype=np.int64)
    upper = low + np.array([len(row) for row in rows])

    def marginal(which: Counts, count: Counts) -> np.ndarray:
        pairs = zip(which.tolist(), count.tolist(), strict=True)
        return np.array([gains[j][c - lower[j]] for j, c in pairs])

    got = take_best(marginal, low, upper, budget)
    assert got.tolist() == heap_greedy(gains, low.tolist(), budget)
