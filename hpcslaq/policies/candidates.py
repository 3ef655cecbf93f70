"""Numbers of workers worth considering, as a matrix, and what is left of each job.

Shared by the policies that look at predicted step times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.policy import ClusterView
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
    chunks = outlook.timing[:, 3].astype(np.int64)
    keys: dict[tuple[int, int, int], int] = {}
    index = [
        keys.setdefault(key, len(keys))
        for key in zip(chunks.tolist(), demand.least.tolist(), demand.limit.tolist(), strict=True)
    ]
    lists = [useful_counts(*key) for key in keys]
    table = np.zeros((len(lists), max(map(len, lists)) + 1), dtype=np.int64)
    for row, some in enumerate(lists):
        table[row, : len(some)] = some
    counts: Counts = np.maximum(table[np.array(index)], floor[:, None])
    counts[:, -1] = np.clip(demand.held, floor, np.maximum(demand.limit, floor))
    counts[floor == 0] = 0
    return counts


def useful_limit(counts: Counts, seconds: Floats) -> Counts:
    """The number of workers with the fastest step, (n,): more would only slow the job down."""
    return np.asarray(counts[np.arange(len(counts)), seconds.argmin(axis=1)])


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of each job of a demand; all arrays are (n,)."""

    #: Iterations to the last epoch or to the target loss, whichever is sooner; inf if unknown.
    iterations: Floats
    #: Instants by which the user wants the job to end; inf for none.
    deadline_at: Floats

    @classmethod
    def of(cls, view: ClusterView, demand: Demand, outlook: Outlook) -> Remaining:
        """Read it off the view's records and the predictions."""
        by_name = {job.spec.name: job for job in view.jobs}
        jobs = [by_name[name] for name in demand.names]
        left = np.array([max(job.spec.max_epochs - job.epochs, 0) for job in jobs], np.float64)
        epochs = np.array([job.epochs for job in jobs], dtype=np.float64)
        per_epoch = np.where(
            epochs > 0, np.maximum(outlook.iterations, 1.0) / np.maximum(epochs, 1.0), np.inf
        )
        iterations = np.where(left > 0, np.maximum(left, 1.0) * per_epoch, 1.0)
        target = np.array(
            [np.nan if job.spec.target_loss is None else job.spec.target_loss for job in jobs]
        )
        aims = np.flatnonzero(np.isfinite(target) & outlook.is_known)
        if len(aims):
            until = outlook.iterations_until(aims, outlook.last_loss[aims] - target[aims])
            iterations[aims] = np.minimum(iterations[aims], np.maximum(until, 1.0))
        deadline_at = [
            np.inf if job.spec.deadline_s is None else job.submitted_at + job.spec.deadline_s
            for job in jobs
        ]
        return cls(iterations, np.array(deadline_at, dtype=np.float64))
