"""What any schedule could have earned at most, and the ratio that this certifies.

Every vector of prices >= 0 gives a bound by weak duality: the value of all capacity at
these prices plus, for each job, its largest payoff at them (never below 0). Three vectors
are tried: the prices that OASiS ended with, those prices averaged over hosts and scaled
down, and prices per slot, equal on all hosts, improved in hindsight by a subgradient method.

The last two relax what a job may do (servers by the fraction, hosts pooled), which can only
raise the bound. Source: OASiS, section IV-A (dual) and theorem 4; the tightening is ours.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcslaq.policies.oasis.model import Cluster, FloatArray, Instance, IntArray, Job, room
from hpcslaq.policies.oasis.prices import Ledger
from hpcslaq.policies.oasis.schedule import payoff_bound


@dataclass(frozen=True, slots=True)
class Certificate:
    """Bounds on what any schedule earns, against what one earned."""

    utility: float
    #: Dual objective at the last prices of the run.
    running_bound: float
    #: Smallest bound found at one scaling of the running prices, averaged over hosts.
    scaled_bound: float
    #: Smallest bound found with prices re-optimised in hindsight.
    hindsight_bound: float
    #: 2 alpha of the bounds in force; theorem 4 promises it for the paper's U and L only.
    promised_ratio: float

    @property
    def bound(self) -> float:
        """The smallest of the bounds."""
        return min(self.running_bound, self.scaled_bound, self.hindsight_bound)

    @property
    def ratio(self) -> float:
        """Bound over utility, >= 1: no schedule earns more than this times as much."""
        if self.bound <= 0:
            return 1.0
        return self.bound / self.utility if self.utility > 0 else float("inf")


def certify(
    ledger: Ledger, jobs: Sequence[Job], utility: float, iterations: int = 200
) -> Certificate:
    """The certificate of a finished run: its ledger, all jobs offered and what it earned.

    iterations : steps of the subgradient method, >= 1
    """
    pool = PooledDual(ledger.cluster, ledger.horizon, jobs)
    start = pool.pooled(ledger.worker_price, ledger.server_price)
    scales = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 9)])
    values = [pool.value(scale * start)[0] for scale in scales]
    best = int(np.argmin(values))
    hindsight, _ = pool.minimise(scales[best] * start, iterations)
    return Certificate(
        utility=utility,
        running_bound=dual_value(ledger, jobs),
        scaled_bound=values[best],
        hindsight_bound=min(hindsight, values[best]),
        promised_ratio=2 * ledger.bounds.alpha,
    )


def dual_value(ledger: Ledger, jobs: Sequence[Job]) -> float:
    """The dual objective at the ledger's prices: no schedule of the jobs earns more.

    Every payoff is taken afresh over all schedules that fit an empty cluster, so the bound
    holds for any prices. (The payoffs met on arrival leave out what did not fit then, which
    is sound only while a host without room costs more than any job is worth.)
    """
    empty = Ledger(ledger.cluster, ledger.horizon, ledger.bounds)
    empty.worker_price[:] = ledger.worker_price
    empty.server_price[:] = ledger.server_price
    return ledger.resource_value + sum(payoff_bound(job, empty) for job in jobs)


def hindsight_bound(instance: Instance, iterations: int = 200) -> float:
    """A bound on what any schedule of the instance earns, without a run to start from."""
    pool = PooledDual(instance.cluster, instance.horizon, instance.jobs)
    zero = np.zeros((instance.horizon, 2 * instance.cluster.num_resources))
    return pool.minimise(zero, iterations)[0]


class PooledDual:
    """The dual of the relaxation in which all hosts of a side are one.

    Prices are (T, 2R) *values*: price times the pooled capacity, workers' side first.
    """

    def __init__(self, cluster: Cluster, horizon: int, jobs: Sequence[Job]) -> None:
        self.horizon = horizon
        #: (2R,) pooled capacity, workers' side first.
        self.capacity = np.concatenate(cluster.pooled)
        self._jobs = [
            relaxed
            for relaxed in (_relax(job, cluster, horizon, self.capacity) for job in jobs)
            if relaxed is not None
        ]

    def pooled(self, worker_price: FloatArray, server_price: FloatArray) -> FloatArray:
        """(T, 2R) values from prices by host: their mean over hosts times the capacity."""
        servers = server_price.shape[1]
        mean = [
            worker_price.mean(axis=1),
            server_price.mean(axis=1) if servers else np.zeros_like(worker_price[:, 0]),
        ]
        return np.asarray(np.concatenate(mean, axis=1) * self.capacity)

    def value(self, values: FloatArray) -> tuple[float, FloatArray]:
        """The dual objective at (T, 2R) values, and its subgradient (1 - used fraction)."""
        total = float(values.sum())
        gradient = np.ones_like(values)
        for job in self._jobs:
            payoff, slots, counts = job.best_response(values)
            if payoff > 0:
                total += payoff
                gradient[slots] -= counts[:, None] * job.share
        return total, gradient

    def minimise(self, start: FloatArray, iterations: int) -> tuple[float, FloatArray]:
        """Smallest objective found and its values: projected subgradient, level steps.

        The step aims at a level below the best value found; the aim comes closer whenever
        ten steps bring no progress.
        """
        values, best_values, best = start, start, np.inf
        aim, stalled = 0.2, 0
        direction = np.zeros_like(start)
        for _ in range(iterations):
            value, gradient = self.value(values)
            if value < best * (1 - 1e-4):
                stalled = 0
            else:
                stalled += 1
            if value < best:
                best, best_values = value, values
            if stalled >= 10:
                aim, stalled, values = aim / 2, 0, best_values
                direction = np.zeros_like(start)
                continue
            # Blocked coordinates (at 0 and pushed down) would only shorten the step.
            gradient = np.where((values <= 0) & (gradient > 0), 0.0, gradient)
            direction = gradient + 0.5 * direction
            norm = float(np.sum(direction**2))
            if norm <= 0:
                break
            step = (value - (1 - aim) * best) / norm
            values = np.maximum(values - step * direction, 0.0)
        return float(best), best_values


@dataclass(frozen=True, slots=True, eq=False)
class _RelaxedJob:
    """A job that buys worker-slots, servers by the fraction, anywhere in the cluster."""

    arrival: int
    #: (T - arrival,) utility by slot of completion; 0 before the shortest duration.
    utilities: FloatArray
    #: Worker-slots needed, and most workers in one slot.
    need: float
    limit: float
    #: (2R,) share of the pooled capacity that one worker with its servers takes.
    share: FloatArray

    def best_response(self, values: FloatArray) -> tuple[float, IntArray, FloatArray]:
        """Largest payoff, the slots used and the workers in each; payoff 0: none."""
        unit = values[self.arrival :] @ self.share
        span = self.need / self.limit
        whole = int(span + 1e-9)
        rest = max(0.0, span - whole)
        keep = whole + 1
        cheapest: list[float] = []
        best, end = 0.0, -1
        floor = self.need * float(unit.min())
        for s, price in enumerate(unit.tolist()):
            utility = self.utilities[s]
            if len(cheapest) < keep or price < cheapest[-1]:
                insort(cheapest, price)
                del cheapest[keep:]
            if utility <= 0:
                continue
            if self.utilities[s] - floor <= best:
                break
            last = cheapest[whole] if len(cheapest) > whole else 0.0
            cost = self.limit * (sum(cheapest[:whole]) + rest * last)
            if utility - cost > best:
                best, end = utility - cost, s
        if end < 0:
            return 0.0, np.empty(0, dtype=np.int64), np.empty(0)
        order = np.argsort(unit[: end + 1], kind="stable")[:keep]
        counts = np.full(len(order), self.limit)
        if len(order) == keep:
            counts[-1] = rest * self.limit
        return float(best), self.arrival + order, counts


def _relax(job: Job, cluster: Cluster, horizon: int, capacity: FloatArray) -> _RelaxedJob | None:
    """The relaxed job; None if it can never end in time."""
    fits = int(room(cluster.worker_capacity, cluster.worker_capacity, job.worker_demand).sum())
    limit = min(job.max_workers, fits)
    if limit < 1:
        return None
    counts = np.arange(1, limit + 1)
    rates = job.rates[1 : limit + 1]
    if job.packed_rates is not None:
        rates = np.maximum(rates, job.packed_rates[1 : limit + 1])
    top = int(rates.max())
    # The most work per worker, at any number of workers, bounds the worker-slots from below.
    need = job.work / float((rates / counts).max())
    if top < 1:
        return None
    slots = np.arange(job.arrival, horizon)
    utilities = job.utility.values((slots - job.arrival).astype(np.float64))
    utilities[: -(-job.work // top) - 1] = 0.0
    demand = np.concatenate([job.worker_demand, job.bandwidth_ratio * job.server_demand])
    share = np.divide(demand, capacity, out=np.zeros_like(demand), where=capacity > 0)
    return _RelaxedJob(job.arrival, utilities, need, float(limit), share)
