"""What all policies share: the view's jobs as columns, who may run, and even sharing.

A policy that has no use for a prediction needs nothing else. The marginal-gain
allocation is in `greedy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import JobRecord, JobSpec, JobState
from hpcslaq.core.policy import Admission, Allocation, ClusterView

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Rounds that a job waits at most while others run, where a policy promises such a bound.
PATIENCE_ROUNDS = 20.0


# What columns are read by: a third of the time of a comprehension.
_SPEC, _STATE, _TARGET = attrgetter("spec"), attrgetter("state"), attrgetter("target")
_REGROUP_S, _IS_CANCEL_PENDING = attrgetter("regroup_s"), attrgetter("is_cancel_pending")
_NAME, _WEIGHT, _NUM_CHUNKS = attrgetter("name"), attrgetter("weight"), attrgetter("num_chunks")
_MIN_WORKERS, _MAX_WORKERS = attrgetter("min_workers"), attrgetter("max_workers")


class Demand:
    """Jobs of a view that can use workers, in order of arrival; all arrays are (n,).

    A column is made when it is asked for: few policies need all.
    """

    def __init__(self, jobs: Sequence[JobRecord], now: float) -> None:
        self.jobs = tuple(jobs)
        self.specs: tuple[JobSpec, ...] = tuple(map(_SPEC, jobs))
        self.names: tuple[str, ...] = tuple(map(_NAME, self.specs))
        self._now = now

    @classmethod
    def of(cls, view: ClusterView) -> Demand:
        """Columns of the view's jobs; jobs that are about to be cancelled want nothing."""
        jobs: Sequence[JobRecord] = view.jobs
        stopping = JobState.STOPPING
        if any(map(_IS_CANCEL_PENDING, jobs)) or stopping in map(_STATE, jobs):
            jobs = [job for job in jobs if not (job.is_cancel_pending or job.state is stopping)]
        return cls(jobs, view.now)

    @cached_property
    def least(self) -> Counts:
        """Fewest workers of a running job."""
        return np.fromiter(map(_MIN_WORKERS, self.specs), np.int64, len(self.specs))

    @cached_property
    def limit(self) -> Counts:
        """Most workers of a running job."""
        chunks = np.fromiter(map(_NUM_CHUNKS, self.specs), np.int64, len(self.specs))
        # None becomes NaN: as many as it has chunks.
        most = np.array(list(map(_MAX_WORKERS, self.specs)), dtype=np.float64)
        return np.fmin(most, chunks).astype(np.int64)

    @cached_property
    def weight(self) -> Floats:
        """Importance of the jobs."""
        return np.fromiter(map(_WEIGHT, self.specs), np.float64, len(self.specs))

    @cached_property
    def held(self) -> Counts:
        """Workers that the policy gave last."""
        return np.fromiter(map(_TARGET, self.jobs), np.int64, len(self.jobs))

    @cached_property
    def waited_s(self) -> Floats:
        """Seconds since a job without workers arrived or lost its last one; 0 for the others."""
        waited_s, jobs = np.zeros(len(self.jobs)), self.jobs
        for index in np.flatnonzero(self.held == 0).tolist():
            since = max(jobs[index].submitted_at, jobs[index].changed_at)
            waited_s[index] = max(self._now - since, 0.0)
        return waited_s

    @cached_property
    def regroup_s(self) -> Floats:
        """Measured seconds that a change of the group costs; 0 where there was none."""
        return np.fromiter(map(_REGROUP_S, self.jobs), np.float64, len(self.jobs))

    def __len__(self) -> int:
        return len(self.names)

    def attained_s(self, now: float) -> Floats:
        """Rank-seconds that each job held until `now`, (n,)."""
        return np.array([job.attained_rank_seconds(now) for job in self.jobs], dtype=np.float64)

    def deadlines(self) -> Floats:
        """Instants by which the users want the jobs to end, (n,); inf for none."""
        return np.array(
            [
                np.inf if spec.deadline_s is None else job.submitted_at + spec.deadline_s
                for spec, job in zip(self.specs, self.jobs, strict=True)
            ],
            dtype=np.float64,
        )

    def allocation(self, counts: Counts) -> Allocation:
        """Workers by job name, without the jobs that get none."""
        given = np.flatnonzero(counts)
        return dict(
            zip(compress(self.names, (counts != 0).tolist()), counts[given].tolist(), strict=True)
        )


class AcceptsAll:
    """Policies that admit every job; one that is larger than the cluster waits."""

    __slots__ = ()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        """Accept."""
        return Admission(True)


def choose_runners(demand: Demand, num_ranks: int, urgency: Floats, patience_s: float) -> Mask:
    """Which jobs run at all, (n,): everyone where the minima fit together.

    Otherwise jobs are taken while their minimum fits: first those that waited for
    `patience_s` or longer, the longest wait first; then by falling `urgency : (n,)`; equal
    ones by arrival. So as long as one job fits into the cluster, one runs.
    """
    runs = demand.least <= num_ranks
    if int(demand.least[runs].sum()) <= num_ranks:
        return runs
    impatient = np.where(demand.waited_s >= patience_s, demand.waited_s, 0.0)
    order = np.lexsort((np.arange(len(demand)), -urgency, -impatient))
    runs[:] = False
    left = num_ranks
    for index, least in zip(order.tolist(), demand.least[order].tolist(), strict=True):
        if least <= left:
            runs[index] = True
            left -= least
            if left == 0:
                break
    return runs


def share_evenly(lower: Counts, upper: Counts, weight: Floats, budget: int) -> Counts:
    """Weighted max-min fair integers: lower <= count <= upper, sum <= budget, all (n,).

    Needs sum(lower) <= budget. Equal to giving one worker after the other to the job with
    the smallest (count + 1)/weight, the earlier job where equal; nothing is left while a
    job is below its upper bound.
    """
    if len(lower) == 0 or int(upper.sum()) <= budget:
        return upper.copy()

    def counts_at(level: float) -> Counts:
        share = np.floor(np.minimum(level * weight, 2.0**53))
        return np.clip(share.astype(np.int64), lower, np.maximum(lower, upper))

    low, high = 0.0, (float(upper.max()) + 1.0) / float(weight.min())
    for _ in range(100):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if int(counts_at(middle).sum()) <= budget:
            low = middle
        else:
            high = middle
    counts = counts_at(low)
    left = budget - int(counts.sum())
    while left > 0:
        open_jobs = np.flatnonzero(counts < upper)
        order = np.lexsort((open_jobs, (counts[open_jobs] + 1) / weight[open_jobs]))
        chosen = open_jobs[order[:left]]
        counts[chosen] += 1
        left -= len(chosen)
    return counts
