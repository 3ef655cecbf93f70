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

_HALVINGS = 60
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
    steepest = np.where(extra > 0, gain / np.maximum(extra, 1.0), 0.0).max()
    low, high = 0.0, float(steepest)
    open_jobs, at_low, at_high = np.arange(num_jobs), free, choice
    fixed = 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if not low < middle < high or len(open_jobs) == 0:
            break
        tried = _best_at(extra[open_jobs], gain[open_jobs], middle)
        spent = fixed + _spent(extra[open_jobs], tried)
        if spent <= left:
            high, at_high[open_jobs] = middle, tried
        else:
            low, at_low[open_jobs] = middle, tried
        is_settled = at_low[open_jobs] == at_high[open_jobs]
        fixed += _spent(extra[open_jobs[is_settled]], at_high[open_jobs[is_settled]])
        open_jobs = open_jobs[~is_settled]
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
