"""Prices of resources: the bounds U and L, and the ledger that turns use into prices.

A price grows from L (host empty) to U (host full) exponentially in the used fraction.
Which schedule is best at these prices is the business of `schedule`.

Source: OASiS, section IV-B, equations (21)-(26).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcslaq.policies.oasis.model import (
    Cluster,
    FloatArray,
    IntArray,
    Job,
    JobKind,
    SlotPlan,
    room,
)


@dataclass(frozen=True, slots=True, eq=False)
class PriceBounds:
    """L and U of worker and server hosts. Raises ValueError unless 0 < L < U.

    worker_high, server_high : (R,) prices of a full host per unit of each resource
    """

    worker_low: float
    worker_high: FloatArray
    server_low: float
    server_high: FloatArray

    def __post_init__(self) -> None:
        for side in ("worker", "server"):
            low, high = getattr(self, f"{side}_low"), getattr(self, f"{side}_high")
            if not (low > 0 and math.isfinite(low)):
                raise ValueError(f"{side}_low: {low} is not a finite number > 0")
            if not np.all(np.isfinite(high)) or np.any(high <= low):
                raise ValueError(f"{side}_high: {high} is not finite and above L = {low}")

    @property
    def alpha(self) -> float:
        """max(1, ln U/L); OASiS is 2 alpha-competitive. Source: OASiS, theorem 4."""
        worker = float(np.log(self.worker_high / self.worker_low).max())
        server = float(np.log(self.server_high / self.server_low).max())
        return max(1.0, worker, server)

    def scaled(self, factor: float) -> PriceBounds:
        """The bounds with U / L mis-set to `factor` times its value, at least e (figure 6)."""

        def high(values: FloatArray, low: float) -> FloatArray:
            return np.maximum(values * factor, math.e * low)

        return PriceBounds(
            self.worker_low,
            high(self.worker_high, self.worker_low),
            self.server_low,
            high(self.server_high, self.server_low),
        )


def paper_bounds(
    jobs: Sequence[Job], cluster: Cluster, horizon: int, clip: float = 1e-3
) -> PriceBounds:
    """The paper's U and L, for which theorem 4 holds.

    Deviations, each needed for a true bound or for numbers that float64 can hold:
    the earliest delay is ceil(duration) - 1, as delays count from 0; resources that a job
    does not use are left out of its U; utilities below `clip` times the job's best are
    raised to it in L (a time-critical sigmoid underflows; only jobs worth less than the
    clip can be lost by that); all-reduce jobs, whose worker-slots depend on the speed-up,
    use the fewest in 1/eta and the most in L, and do not count for the servers' bounds.
    Raises ValueError without jobs.
    """
    return _bounds(jobs, cluster, _Rule(horizon, clip))


def fixed_ratio_bounds(
    jobs: Sequence[Job], cluster: Cluster, horizon: int, log_ratio: float = 6.0
) -> PriceBounds:
    """The paper's U, and L = min over r of U^r, times exp(-log_ratio).

    The paper's L depends on the least valuable job that ever comes; a fixed ratio does not.
    It suits jobs of some ten worker-slots; jobs of hundreds cost more than they are worth
    even at L then (see `density_bounds`). Theorem 4 does not hold.
    """
    return _bounds(jobs, cluster, _Rule(horizon, log_ratio=log_ratio))


def density_bounds(
    jobs: Sequence[Job],
    cluster: Cluster,
    horizon: int,
    *,
    log_ratio: float = 2.5,
    quantile: float = 0.9,
) -> PriceBounds:
    """U from the value density of whole jobs, L = min over r of U^r, times exp(-log_ratio).

    The paper's U is what one worker in one slot may cost at most if it is to be worth the
    whole job; a job of W worker-slots is priced out W times earlier. Here U^r is a quantile
    over the jobs of f / (W w^r): at U, resource r alone costs such a job its utility. Full
    hosts still take nobody, as the schedules respect the room, but theorem 4 does not hold;
    `certificate` bounds what was lost.
    """
    rule = _Rule(horizon, log_ratio=log_ratio, quantile=quantile, is_density=True)
    return _bounds(jobs, cluster, rule)


def window_bounds(
    recent: Sequence[Job],
    cluster: Cluster,
    horizon: int,
    *,
    log_ratio: float = 2.5,
    quantile: float = 0.8,
) -> PriceBounds:
    """`density_bounds` of the jobs that came last, biased low by a smaller quantile.

    Under-estimation is the safer side where resources are scarce (OASiS, figure 6).
    """
    return density_bounds(recent, cluster, horizon, log_ratio=log_ratio, quantile=quantile)


@dataclass(frozen=True, slots=True)
class _Rule:
    """How U and L are set; `log_ratio` None: the paper's L."""

    horizon: int
    clip: float = 1e-3
    quantile: float = 1.0
    log_ratio: float | None = None
    is_density: bool = False

    def __post_init__(self) -> None:
        if self.log_ratio is not None and self.log_ratio < 1:
            raise ValueError(f"log_ratio: {self.log_ratio} < 1")


def _bounds(jobs: Sequence[Job], cluster: Cluster, rule: _Rule) -> PriceBounds:
    if not jobs:
        raise ValueError("price bounds need at least one job")
    with_servers = [job for job in jobs if job.kind is JobKind.PS]
    share = 0.25 if with_servers else 0.5
    sides = []
    for members, capacity, attribute in (
        (list(jobs), cluster.worker_capacity, "worker_demand"),
        (with_servers, cluster.server_capacity, "server_demand"),
    ):
        if members:
            demands = np.array([getattr(job, attribute) for job in members])
            high = _high(members, demands, rule)
            low = (
                _low(members, demands, capacity, rule, share)
                if rule.log_ratio is None
                else float(high[high > 0].min(initial=math.inf)) * math.exp(-rule.log_ratio)
            )
        else:
            high, low = np.zeros(cluster.num_resources), 1e-9
        if not 0 < low < math.inf:
            low = 1e-9
        sides.append((low, np.maximum(high, math.e * low)))
    (worker_low, worker_high), (server_low, server_high) = sides
    return PriceBounds(worker_low, worker_high, server_low, server_high)


def _high(jobs: Sequence[Job], demands: FloatArray, rule: _Rule) -> FloatArray:
    """(R,) largest (or quantile of) best utility per unit of each resource; 0 if unused."""
    best = np.array([job.utility_at(job.arrival + job.min_slots - 1) for job in jobs])
    if rule.is_density:
        best = best / np.array([job.worker_slot_range[0] for job in jobs])
    high = np.zeros(demands.shape[1])
    for r in range(len(high)):
        users = demands[:, r] > 0
        if users.any():
            high[r] = np.quantile(best[users] / demands[users, r], rule.quantile)
    return high


def _low(
    jobs: Sequence[Job],
    demands: FloatArray,
    capacity: FloatArray,
    rule: _Rule,
    share: float,
) -> float:
    """L = share / eta * min f / (W sum w), with f(T - a) raised to `clip` of the best."""
    total = demands.sum(axis=1)
    used = total > 0
    if not used.any() or capacity.sum() == 0:
        return 0.0
    fewest, most = np.array([job.worker_slot_range for job in jobs], dtype=np.float64).T
    worst = np.array(
        [max(job.utility_at(rule.horizon), rule.clip * job.utility_at(job.arrival)) for job in jobs]
    )
    inverse_eta = (fewest * total)[used].min() / (rule.horizon * capacity.sum())
    positive = used & (worst > 0)
    if not positive.any():
        return 0.0
    per_unit = worst[positive] / (most * total)[positive]
    return float(share * inverse_eta * per_unit.min())


class Ledger:
    """Use and prices of every host in every slot; the only mutable state of Algorithm 1.

    Prices are recomputed for the touched hosts only.
    """

    def __init__(self, cluster: Cluster, horizon: int, bounds: PriceBounds) -> None:
        self.cluster = cluster
        self.horizon = horizon
        #: L and U now in force.
        self.bounds = bounds
        num_resources = cluster.num_resources
        #: (T, H, R) and (T, K, R) resources reserved, >= 0 and <= the capacity.
        self.worker_used = np.zeros((horizon, len(cluster.worker_capacity), num_resources))
        self.server_used = np.zeros((horizon, len(cluster.server_capacity), num_resources))
        #: Same shapes: price per unit, L <= p <= U.
        self.worker_price = np.empty_like(self.worker_used)
        self.server_price = np.empty_like(self.server_used)
        self.rebase(bounds)

    def rebase(self, bounds: PriceBounds) -> None:
        """Put other bounds in force and recompute all prices."""
        self.bounds = bounds
        self.worker_price[:] = _prices(
            self.worker_used, self.cluster.worker_capacity, bounds.worker_low, bounds.worker_high
        )
        self.server_price[:] = _prices(
            self.server_used, self.cluster.server_capacity, bounds.server_low, bounds.server_high
        )

    def reserve(self, job: Job, plans: Iterable[SlotPlan]) -> None:
        """Add what the plans hold and raise the prices there."""
        self._add(job, plans, 1)

    def release(self, job: Job, plans: Iterable[SlotPlan]) -> None:
        """Take back what the plans hold; prices fall there (outside the proof)."""
        self._add(job, plans, -1)

    def worker_room(self, job: Job, start: int, stop: int) -> IntArray:
        """(stop - start, H) workers of the job that fit on each host in slots [start, stop)."""
        capacity = self.cluster.worker_capacity
        return room(capacity - self.worker_used[start:stop], capacity, job.worker_demand)

    def server_room(self, job: Job, start: int, stop: int) -> IntArray:
        """(stop - start, K) servers of the job that fit on each host in slots [start, stop)."""
        capacity = self.cluster.server_capacity
        return room(capacity - self.server_used[start:stop], capacity, job.server_demand)

    def cost(self, job: Job, plans: Iterable[SlotPlan]) -> float:
        """Price of what the plans hold, at the prices now."""
        total = 0.0
        for plan in plans:
            for host, count in plan.workers:
                total += count * float(self.worker_price[plan.slot, host] @ job.worker_demand)
            for host, count in plan.servers:
                total += count * float(self.server_price[plan.slot, host] @ job.server_demand)
        return total

    @property
    def resource_value(self) -> float:
        """Sum of price times capacity over all slots and hosts: the prices' part of the dual."""
        worker = np.einsum("thr,hr->", self.worker_price, self.cluster.worker_capacity)
        server = np.einsum("tkr,kr->", self.server_price, self.cluster.server_capacity)
        return float(worker + server)

    def _add(self, job: Job, plans: Iterable[SlotPlan], sign: int) -> None:
        plans = tuple(plans)
        workers = [(p.slot, host, count) for p in plans for host, count in p.workers]
        servers = [(p.slot, host, count) for p in plans for host, count in p.servers]
        bounds = self.bounds
        _touch(
            (self.worker_used, self.worker_price, self.cluster.worker_capacity),
            (workers, sign * job.worker_demand),
            (bounds.worker_low, bounds.worker_high),
        )
        _touch(
            (self.server_used, self.server_price, self.cluster.server_capacity),
            (servers, sign * job.server_demand),
            (bounds.server_low, bounds.server_high),
        )


def _touch(
    arrays: tuple[FloatArray, FloatArray, FloatArray],
    held: tuple[list[tuple[int, int, int]], FloatArray],
    bounds: tuple[float, FloatArray],
) -> None:
    """Add count * demand at each (slot, host, count) and refresh the prices there."""
    used, price, capacity = arrays
    entries, demand = held
    if not entries:
        return
    slot, host, count = np.array(entries, dtype=np.int64).T
    now = used[slot, host] + count[:, None] * demand
    # Releases leave rounding dust; a host that is empty again must cost L exactly.
    now[np.abs(now) <= 1e-9 * np.maximum(capacity[host], 1e-300)] = 0.0
    used[slot, host] = now
    price[slot, host] = _prices(now, capacity[host], *bounds)


def _prices(used: FloatArray, capacity: FloatArray, low: float, high: FloatArray) -> FloatArray:
    """L (U / L)^(used / capacity); a host without the resource counts as full."""
    fraction = np.ones_like(used)
    np.divide(used, capacity, out=fraction, where=np.broadcast_to(capacity > 0, used.shape))
    return np.asarray(low * np.exp(np.minimum(fraction, 1.0) * np.log(high / low)))
