"""The offline optimum by integer programming, and bounds by column generation.

`solve_offline` is the whole problem with hindsight (small instances), or one job at given
prices: the independent check of the dynamic programme. `column_bound` relaxes the choice
among whole schedules, with Algorithm 2 at given prices generating them; its bound holds at
every step, so it may stop early.

Source: OASiS, sections III (program (1)-(13)) and IV-A (program (14)); completion
variables u_it in place of constraint (8) are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from hpcslaq.policies.oasis.model import FloatArray, Instance, Job, JobKind, Schedule, room
from hpcslaq.policies.oasis.prices import Ledger, PriceBounds
from hpcslaq.policies.oasis.schedule import best_schedule, payoff_bound


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """What hindsight earns: `value` was reached, nothing earns more than `bound`."""

    value: float
    bound: float
    #: Slot in which each job ends, by name; without the jobs that are left out.
    completions: dict[str, int]

    @property
    def is_optimal(self) -> bool:
        """Whether value and bound meet (0.1 %)."""
        return self.bound - self.value <= 1e-3 * max(1.0, abs(self.bound))


def solve_offline(
    instance: Instance,
    *,
    ledger: Ledger | None = None,
    time_limit_s: float = 60.0,
    gap: float = 1e-6,
) -> OfflineResult:
    """The best set of schedules in hindsight.

    ledger : charge its prices for all resources and leave its reservations alone; without
    it resources are free and the hosts empty
    time_limit_s : after that the result brackets the optimum (`value`, `bound`)
    """
    model = _Program(instance, ledger)
    for job in instance.jobs:
        model.add(job)
    if not model.cost:
        return OfflineResult(0.0, 0.0, {})
    matrix, low, high = model.constraints()
    result = milp(
        np.array(model.cost),
        integrality=np.ones(len(model.cost)),
        bounds=Bounds(0, np.array(model.upper)),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap},
    )
    bound = -float(result.mip_dual_bound) if result.mip_dual_bound is not None else np.inf
    if result.x is None:
        return OfflineResult(0.0, bound, {})
    ends = {name: slot for (name, slot), v in model.ends.items() if result.x[v] > 0.5}
    return OfflineResult(-float(result.fun), bound, ends)


@dataclass(slots=True)
class _Program:
    """The integer programme under construction: columns, and rows as triplets."""

    instance: Instance
    ledger: Ledger | None
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    #: Variable of "job ends in slot".
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    _entries: list[tuple[int, int, float]] = field(default_factory=list)
    _limits: list[float] = field(default_factory=list)
    #: Row of the capacity of (side, slot, host, resource).
    _rows: dict[tuple[str, int, int, int], int] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        """Variables and constraints of one job. All rows read "sum <= limit"."""
        slots = range(job.arrival, self.instance.horizon)
        ends = {}
        for slot in slots:
            if (slot - job.arrival + 1) * job.top_rate >= job.work:
                ends[slot] = self._column(-job.utility_at(slot), 1)
                self.ends[job.name, slot] = ends[slot]
        if not ends:
            return
        self._row([(v, 1.0) for v in ends.values()], 1.0)
        work = [(v, float(job.work)) for v in ends.values()]
        for slot in slots:
            until = [(v, -1.0) for end, v in ends.items() if end >= slot]
            work += [(v, -rate) for v, rate in self._slot(job, slot, until)]
        self._row(work, 0.0)

    def constraints(self) -> tuple[sparse.csr_array, FloatArray, FloatArray]:
        """Matrix, lower and upper limits of all rows."""
        rows, columns, values = zip(*self._entries, strict=True)
        shape = (len(self._limits), len(self.cost))
        matrix = sparse.coo_array((values, (rows, columns)), shape=shape).tocsr()
        return matrix, np.full(shape[0], -np.inf), np.array(self._limits)

    def _slot(self, job: Job, slot: int, until: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """Variables of one job in one slot; returns (variable, units of work it does).

        until : (u, -1) of the deadlines at or after the slot
        """
        spread = self._hosts(job, slot, "worker", job.max_workers)
        workers = [(v, 1.0) for v in spread]
        if job.kind is JobKind.PS:
            self._row([*workers, *((u, job.max_workers * s) for u, s in until)], 0.0)
            shards = [(v, -1.0) for v in self._hosts(job, slot, "server", job.max_workers)]
            self._row([(v, job.bandwidth_ratio) for v, _ in workers] + shards, 1e-7)
            self._row([(v, -1.0) for v, _ in workers] + [(v, 1.0) for v, _ in shards], 0.0)
            return [(v, 1.0) for v in spread]
        modes, chosen, counts = [], [], [(v, 1.0) for v in spread]
        for n in range(1, job.max_workers + 1):
            mode = self._column(0.0, 1)
            modes.append((mode, float(job.rates[n])))
            counts.append((mode, -float(n)))
            chosen.append((mode, 1.0))
            if job.packed_rates is not None:
                for v in self._hosts(job, slot, "worker", 1, n):
                    modes.append((v, float(job.packed_rates[n])))
                    chosen.append((v, 1.0))
        self._row(counts, 0.0)
        self._row([(v, -c) for v, c in counts], 0.0)
        self._row(chosen + until, 0.0)
        return modes

    def _hosts(self, job: Job, slot: int, side: str, most: int, group: int = 1) -> list[int]:
        """One variable per host: how many groups of `group` workers or servers it takes."""
        cluster, ledger = self.instance.cluster, self.ledger
        is_worker = side == "worker"
        capacity = cluster.worker_capacity if is_worker else cluster.server_capacity
        demand = job.worker_demand if is_worker else job.server_demand
        free = capacity
        price = np.zeros(len(capacity))
        if ledger is not None:
            used = ledger.worker_used if is_worker else ledger.server_used
            prices = ledger.worker_price if is_worker else ledger.server_price
            free = capacity - used[slot]
            price = prices[slot] @ demand
        fits = room(free, capacity, demand) // group
        variables = []
        for host in range(len(capacity)):
            v = self._column(group * float(price[host]), min(most, int(fits[host])))
            variables.append(v)
            for r in np.flatnonzero(demand > 0):
                key = (side, slot, host, int(r))
                if key not in self._rows:
                    self._rows[key] = len(self._limits)
                    self._limits.append(float(free[host, r] + 1e-9 * capacity[host, r]))
                self._entries.append((self._rows[key], v, group * float(demand[r])))
        return variables

    def _column(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def _row(self, terms: list[tuple[int, float]], limit: float) -> None:
        row = len(self._limits)
        self._limits.append(limit)
        self._entries.extend((row, v, value) for v, value in terms)


def column_bound(
    instance: Instance, *, max_rounds: int = 60, gap: float = 0.01, smoothing: float = 0.5
) -> OfflineResult:
    """Bracket of the LP relaxation over whole schedules, by column generation.

    `bound` is the smallest Lagrangian bound met: an upper bound on the offline optimum at
    every round. `value` is the LP over the columns so far (fractional, so not what a
    schedule earns). Stops when they are within `gap`. smoothing : weight of the best prices
    so far against the LP's own, which keeps them from jumping.
    """
    jobs, cluster = instance.jobs, instance.cluster
    unit = PriceBounds(
        1.0, np.full(cluster.num_resources, 3.0), 1.0, np.full(cluster.num_resources, 3.0)
    )
    empty = Ledger(cluster, instance.horizon, unit)
    master = _Master(instance)
    prices = np.zeros(master.num_capacity_rows)
    best, best_prices, value = np.inf, prices, 0.0
    for _ in range(max_rounds):
        master.set_prices(empty, prices)
        lagrangian = float(prices @ master.capacity)
        for i, job in enumerate(jobs):
            lagrangian += payoff_bound(job, empty)
            schedule = best_schedule(job, empty)
            if schedule is not None:
                master.add(i, job, schedule)
        if lagrangian < best:
            best, best_prices = lagrangian, prices
        value, duals = master.solve()
        if best - value <= gap * best:
            break
        prices = smoothing * best_prices + (1 - smoothing) * duals
        if np.allclose(prices, best_prices, rtol=1e-9, atol=1e-12):
            prices = duals
    return OfflineResult(value, best, {})


class _Master:
    """The restricted LP: one column per schedule, capacity rows, one convexity row per job."""

    def __init__(self, instance: Instance) -> None:
        cluster, self.horizon = instance.cluster, instance.horizon
        self._shapes = (cluster.worker_capacity.shape, cluster.server_capacity.shape)
        self.capacity = np.concatenate(
            [
                np.tile(cluster.worker_capacity.ravel(), self.horizon),
                np.tile(cluster.server_capacity.ravel(), self.horizon),
            ]
        )
        self.num_capacity_rows = len(self.capacity)
        self._num_jobs = len(instance.jobs)
        self._gain: list[float] = []
        self._columns: list[tuple[FloatArray, FloatArray]] = []
        self._seen: set[tuple[int, tuple[object, ...]]] = set()

    def set_prices(self, ledger: Ledger, prices: FloatArray) -> None:
        """Write the row prices into an empty ledger."""
        cut = self.horizon * self._shapes[0][0] * self._shapes[0][1]
        ledger.worker_price[:] = prices[:cut].reshape(self.horizon, *self._shapes[0])
        ledger.server_price[:] = prices[cut:].reshape(self.horizon, *self._shapes[1])

    def add(self, number: int, job: Job, schedule: Schedule) -> None:
        """Add a schedule of job `number`, unless it is there already."""
        key = (number, tuple(schedule.slots))
        if key in self._seen:
            return
        self._seen.add(key)
        (hosts, resources), (shards, _) = self._shapes
        cut = self.horizon * hosts * resources
        span = np.arange(resources)
        index, values = [], []
        for plan in schedule.slots:
            for host, count in plan.workers:
                index.append((plan.slot * hosts + host) * resources + span)
                values.append(count * job.worker_demand)
            for host, count in plan.servers:
                index.append(cut + (plan.slot * shards + host) * resources + span)
                values.append(count * job.server_demand)
        index.append(np.array([self.num_capacity_rows + number]))
        values.append(np.ones(1))
        self._gain.append(schedule.utility)
        self._columns.append((np.concatenate(index), np.concatenate(values)))

    def solve(self) -> tuple[float, FloatArray]:
        """Value of the LP over the columns, and the prices of the capacity rows (>= 0)."""
        if not self._columns:
            return 0.0, np.zeros(self.num_capacity_rows)
        sizes = [len(index) for index, _ in self._columns]
        rows = np.concatenate([index for index, _ in self._columns]).astype(np.int64)
        values = np.concatenate([value for _, value in self._columns])
        # Rows that no column touches only slow the solver down; their price is 0.
        touched, local = np.unique(rows, return_inverse=True)
        limits = np.concatenate([self.capacity, np.ones(self._num_jobs)])[touched]
        matrix = sparse.coo_array(
            (values, (local, np.repeat(np.arange(len(sizes)), sizes))),
            shape=(len(touched), len(sizes)),
        )
        result = linprog(-np.array(self._gain), A_ub=matrix.tocsr(), b_ub=limits, method="highs")
        duals = np.zeros(self.num_capacity_rows + self._num_jobs)
        duals[touched] = np.maximum(0.0, -result.ineqlin.marginals)
        return -float(result.fun), duals[: self.num_capacity_rows]
