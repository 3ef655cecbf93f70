"""What all policies share: the view's jobs as columns, who may run, and even sharing.

A policy that has no use for a prediction needs nothing else. The marginal-gain
allocation is in `greedy`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import JobRecord, JobSpec, JobState, Sync
from hpcslaq.core.policy import Admission, Allocation, ClusterView

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Rounds that a job waits at most while others run, where a policy promises such a bound.
PATIENCE_ROUNDS = 20.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Jobs of a view that can use workers, in order of arrival; all arrays are (n,)."""

    names: tuple[str, ...]
    jobs: tuple[JobRecord, ...]
    specs: tuple[JobSpec, ...]
    #: Fewest and most ranks of a running job.
    least: Counts
    limit: Counts
    weight: Floats
    #: Workers that the policy gave last.
    held: Counts
    #: Seconds since a job without workers arrived or lost its last one; 0 for the others.
    waited_s: Floats
    #: Measured seconds that a change of the group costs; 0 where there was none.
    regroup_s: Floats

    @classmethod
    def of(cls, view: ClusterView) -> Demand:
        """Columns of the view's jobs; jobs that are about to be cancelled want nothing."""
        stopping = JobState.STOPPING
        jobs = [job for job in view.jobs if not (job.is_cancel_pending or job.state is stopping)]
        specs = [job.spec for job in jobs]
        held = np.array([job.target for job in jobs], dtype=np.int64)
        chunks = np.array([spec.num_chunks for spec in specs], dtype=np.int64)
        # None becomes NaN: as many as it has chunks.
        most = np.array([spec.max_workers for spec in specs], dtype=np.float64)
        least = np.array([spec.min_workers for spec in specs], dtype=np.int64)
        limit = np.fmin(most, chunks).astype(np.int64)
        serving = [i for i, spec in enumerate(specs) if spec.sync is Sync.PS]
        for index in serving:
            least[index], limit[index] = specs[index].min_ranks, specs[index].rank_limit
        submitted = np.array([job.submitted_at for job in jobs], dtype=np.float64)
        changed = np.array([job.changed_at for job in jobs], dtype=np.float64)
        waited_s = np.maximum(view.now - np.maximum(submitted, changed), 0.0)
        waited_s[held != 0] = 0.0
        return cls(
            names=tuple([spec.name for spec in specs]),
            jobs=tuple(jobs),
            specs=tuple(specs),
            least=least,
            limit=limit,
            weight=np.array([spec.weight for spec in specs], dtype=np.float64),
            held=held,
            waited_s=waited_s,
            regroup_s=np.array([job.regroup_s for job in jobs], dtype=np.float64),
        )

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
        return {
            name: count for name, count in zip(self.names, counts.tolist(), strict=True) if count
        }

    def impatience(self, patience_s: float) -> Floats:
        """Seconds that each job waited, (n,), where that is `patience_s` or more; else 0."""
        return np.where(self.waited_s >= patience_s, self.waited_s, 0.0)


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
    order = np.lexsort((np.arange(len(demand)), -urgency, -demand.impatience(patience_s)))
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
