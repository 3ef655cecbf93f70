"""Numbers of workers worth considering, as a matrix, and what is left of each job.

Shared by the policies that look at predicted step times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.policies.demand import Demand
from hpcslaq.predict.outlook import Outlook
from hpcslaq.predict.steptime import useful_counts

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]


def candidate_counts(demand: Demand, outlook: Outlook, floor: Counts) -> Counts:
    """(n, p) numbers of workers: `floor : (n,)`, the useful ones above it, the held number.

    The last column is the held number. Rows are padded with the floor; a job whose floor is
    0 does not run and has only zeros.
    """
    shapes = outlook.timing[:, 3:]
    keys = np.stack([shapes[:, 0], demand.least, demand.limit, shapes[:, 1], shapes[:, 2]])
    # Sort by all of them, and number the different ones.
    order = np.lexsort(keys)
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (np.diff(keys[:, order]) != 0).any(axis=0)
    index = np.empty(len(order), dtype=np.int64)
    index[order] = np.cumsum(is_new) - 1
    lists = [
        useful_counts(int(chunks), int(least), int(limit), servers, share)
        for chunks, least, limit, servers, share in keys[:, order[is_new]].T.tolist()
    ]
    table = np.zeros((len(lists), max(map(len, lists)) + 1), dtype=np.int64)
    for row, some in enumerate(lists):
        table[row, : len(some)] = some
    counts: Counts = np.maximum(table[index], floor[:, None])
    counts[:, -1] = np.clip(demand.held, floor, np.maximum(demand.limit, floor))
    counts[floor == 0] = 0
    return counts


def spread_rest(
    options: Counts, seconds: Floats, counts: Counts, weight: Floats, budget: int
) -> Counts:
    """Counts (n,) raised to faster options, evenly by weight, until none fits any more.

    options, seconds : (n, p); counts, weight : (n,). Only a number of workers at which a step
    takes less time is worth anything.
    """
    left = budget - int(counts.sum())
    if left <= 0:
        return counts
    counts = counts.copy()
    rows = np.arange(len(counts))
    now = np.where(options == counts[:, None], seconds, np.inf).min(axis=1)
    huge = np.iinfo(np.int64).max
    while left > 0:
        is_faster = (seconds < now[:, None] * (1.0 - 1e-9)) & (options > counts[:, None])
        is_faster &= options - counts[:, None] <= left
        following = np.where(is_faster, options, huge)
        column = following.argmin(axis=1)
        target = following[rows, column]
        able = np.flatnonzero(target < huge)
        if len(able) == 0:
            break
        able = able[np.lexsort((able, target[able] / weight[able]))]
        spent = np.cumsum(target[able] - counts[able])
        chosen = able[: max(1, int((spent <= left).sum()))]
        left -= int((target[chosen] - counts[chosen]).sum())
        counts[chosen], now[chosen] = target[chosen], seconds[chosen, column[chosen]]
    return counts


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of each job of a demand; all arrays are (n,)."""

    #: Iterations to the last epoch or to the target loss, whichever is sooner; inf if unknown.
    iterations: Floats

    @classmethod
    def of(cls, demand: Demand, outlook: Outlook) -> Remaining:
        """Read it off the records and the predictions."""
        specs = demand.specs
        epochs = np.array([job.epochs for job in demand.jobs], dtype=np.float64)
        left = np.maximum(np.array([spec.max_epochs for spec in specs]) - epochs, 1.0)
        per_epoch = np.maximum(outlook.iterations, 1.0) / np.maximum(epochs, 1.0)
        iterations = np.where(epochs > 0, left * per_epoch, np.inf)
        # None becomes NaN.
        target = np.array([spec.target_loss for spec in specs], dtype=np.float64)
        aims = np.flatnonzero(np.isfinite(target) & outlook.is_known)
        if len(aims):
            until = outlook.iterations_until(aims, outlook.last_loss[aims] - target[aims])
            iterations[aims] = np.minimum(iterations[aims], np.maximum(until, 1.0))
        return cls(outlook.remaining(iterations))
