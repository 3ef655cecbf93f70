"""Give workers one by one to the best marginal gain, without doing it one by one.

For concave gains the greedy choice is the set of the largest marginal gains, so it is
found by a threshold on whole arrays. Source: SLAQ, section 3.3 (the heap that this equals).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcslaq.predict.table import Rows

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: marginal(which, count): gain of the jobs `which : (m,)` from one more than `count : (m,)`.
Marginal = Callable[[Rows, Counts], Floats]


def take_best(marginal: Marginal, lower: Counts, upper: Counts, budget: int) -> Counts:
    """Counts (n,) between lower and upper that spend `budget` more on the best gains.

    `marginal` must not rise with the count; only positive gains are taken. Equal gains go
    first to the smaller count, then to the earlier job.

    The marginal gains of a block of counts are computed for all jobs; a job whose last one is
    not below the threshold gets a block twice as long, until none is.
    """
    counts = lower.copy()
    if budget <= 0 or len(lower) == 0:
        return counts
    block = max(4, 2 * budget // len(lower))
    edge = lower.copy()
    growing = np.flatnonzero(upper > lower)
    jobs, levels, gains = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
    threshold = 0.0
    while len(growing):
        start = edge[growing]
        end = np.minimum(start + block, upper[growing])
        which, level = _expand(growing, start, end)
        gain = marginal(which, level)
        is_useful = (gain >= threshold) & (gain > 0.0)
        jobs.append(which[is_useful])
        levels.append(level[is_useful])
        gains.append(gain[is_useful])
        edge[growing] = end
        threshold = _threshold(np.concatenate(gains), budget)
        last = gain[np.cumsum(end - start) - 1]
        # As good as the threshold is good enough: equal gains are sorted out at the end.
        is_open = (last >= threshold) & (last > 0.0) & (end < upper[growing])
        growing = growing[is_open]
        block *= 2
    job, level, gain = np.concatenate(jobs), np.concatenate(levels), np.concatenate(gains)
    counts += np.bincount(job[gain > threshold], minlength=len(lower))
    left = budget - int((counts - lower).sum())
    ties = np.flatnonzero(gain == threshold)
    if left > 0 and len(ties):
        ties = ties[np.lexsort((job[ties], level[ties]))][:left]
        counts += np.bincount(job[ties], minlength=len(lower))
    return counts


def _threshold(gains: Floats, budget: int) -> float:
    """The `budget`-th largest gain, 0 where there are fewer."""
    if len(gains) < budget:
        return 0.0
    return float(np.partition(gains, len(gains) - budget)[len(gains) - budget])


def _expand(jobs: Rows, start: Counts, end: Counts) -> tuple[Rows, Counts]:
    """Every (job, count) with start <= count < end, in the order of the jobs."""
    lengths = end - start
    which = np.repeat(jobs, lengths)
    offsets = np.cumsum(lengths) - lengths
    return which, np.arange(len(which)) - np.repeat(offsets - start, lengths)
