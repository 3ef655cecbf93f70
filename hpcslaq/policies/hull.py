"""Share workers among jobs whose gains have plateaus: along the concave hull of each.

With whole chunks the gain of a job jumps at few numbers of workers and is flat between them,
so giving one worker after the other stalls. A price per worker does not: at price p each job
takes the count with the largest gain - p * count, which is a vertex of its hull, and the
price is raised until the workers suffice (Lagrangian relaxation; Everett, 1963). What the
last jump leaves over goes to the best jumps that still fit. `exact` is the oracle for small cases.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_HALVINGS = 90
#: The price is known well enough: jumps that are nearer to one another are left to the rest.
_CLOSE = 1e-9
_PASSES = 64


def share_by_price(counts: Counts, gains: Floats, budget: int) -> tuple[Counts, float]:
    """Column of each job's choice, (n,), and the price per worker.

    counts, gains : (n, p). Column 0 is what a job has in any case; a count that repeats an
    earlier column is padding. Gains are finite. Needs sum(counts[:, 0]) <= budget.
    """
    num_jobs = len(counts)
    choice = np.zeros(num_jobs, dtype=np.int64)
    if num_jobs == 0:
        return choice, 0.0
    extra = (counts - counts[:, :1]).astype(np.float64)
    gain = np.where(extra > 0, gains - gains[:, :1], 0.0)
    left = budget - int(counts[:, 0].sum())
    free = _best_at(extra, gain, 0.0)
    if _spent(extra, free) <= left:
        return free, 0.0
    low, high = 0.0, float((gain / np.maximum(extra, 1.0)).max())
    at_low, at_high = free, choice
    #: Jobs whose choice still depends on the price, with their rows; `fixed` is what the rest take.
    some, some_extra, some_gain, fixed = np.arange(num_jobs), extra, gain, 0.0
    for _ in range(_HALVINGS):
        # Gains span many orders of magnitude, so halve the logarithm while low is above 0.
        middle = (low * high) ** 0.5 if low > 0.0 else high / 16.0
        if not low < middle < high or high - low <= _CLOSE * high or len(some) == 0:
            break
        tried = _best_at(some_extra, some_gain, middle)
        if fixed + _spent(some_extra, tried) <= left:
            high, at_high[some] = middle, tried
        else:
            low, at_low[some] = middle, tried
        is_open = at_low[some] != at_high[some]
        if 2 * int(is_open.sum()) < len(some):
            fixed += _spent(some_extra[~is_open], at_high[some[~is_open]])
            some, some_extra, some_gain = some[is_open], some_extra[is_open], some_gain[is_open]
    _spend_rest(extra, gain, at_high, left)
    return at_high, high


def _best_at(extra: Floats, gain: Floats, price: float) -> Counts:
    """Columns of the largest gain - price * extra, the first (fewest workers) where equal."""
    return np.asarray((gain - price * extra).argmax(axis=1), dtype=np.int64)


def _spent(extra: Floats, choice: Counts) -> float:
    return float(extra[np.arange(len(choice)), choice].sum())


def _spend_rest(extra: Floats, gain: Floats, choice: Counts, left: int) -> None:
    """Raise choices by the steepest step that still fits, as long as one gains."""
    rows = np.arange(len(choice))
    rest = left - _spent(extra, choice)
    more = extra - extra[rows, choice][:, None]
    rate = np.where(
        (more > 0) & (more <= rest), (gain - gain[rows, choice][:, None]) / np.maximum(more, 1), 0.0
    )
    for _ in range(_PASSES):
        if rest < 1:
            return
        row, column = divmod(int(rate.argmax()), rate.shape[1])
        if not rate[row, column] > 0.0:
            return
        rest -= more[row, column]
        choice[row] = column
        more[row] = extra[row] - extra[row, column]
        step = (gain[row] - gain[row, column]) / np.maximum(more[row], 1)
        rate[row] = np.where(more[row] > 0, step, 0.0)
        rate[more > rest] = 0.0
