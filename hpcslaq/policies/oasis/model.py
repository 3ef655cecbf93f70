"""What OASiS schedules: a cluster of worker and server hosts, jobs, utilities, slot plans.

Slots count from 0; a job that finishes in its arrival slot has delay 0. Both kinds of
job are reduced to one form, a table of work units per slot for each number of workers,
so prices (`prices`) and schedules (`schedule`) do not ask for the kind.
How training becomes such a table is in `training`.

Source: Bao, Peng, Wu, Li: Online Job Scheduling in Distributed Machine Learning Clusters
(INFOCOM 2018), section III.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Slack with which a demand may exceed what is free, relative to the capacity (rounding).
FIT_TOLERANCE = 1e-9


class JobKind(Enum):
    """How the workers of a job exchange gradients."""

    PS = "ps"  # parameter servers, asynchronous
    ALLREDUCE = "allreduce"  # ring all-reduce, synchronous


class Utility(Protocol):
    """Value of a job as a non-increasing function of its delay in slots."""

    @property
    def target(self) -> float | None:
        """Delay in slots by which the user hopes for the end; None: no such wish."""

    def values(self, delays: FloatArray) -> FloatArray:
        """Utility at each delay (slots after the arrival slot, >= 0), same shape, >= 0."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value whenever the job ends."""

    value: float

    def __post_init__(self) -> None:
        check_non_negative("value", self.value)

    @property
    def target(self) -> float | None:
        """None: any end is as good."""
        return None

    def values(self, delays: FloatArray) -> FloatArray:
        """`value` everywhere."""
        return np.full(np.shape(delays), self.value)


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """peak / (1 + exp(steepness (d - target))). Source: OASiS, section V (gamma 1, 2, 3)."""

    peak: float
    steepness: float
    target_delay: float

    def __post_init__(self) -> None:
        check_non_negative("peak", self.peak)
        check_non_negative("steepness", self.steepness)
        check_non_negative("target_delay", self.target_delay)

    @property
    def target(self) -> float | None:
        """The delay at which half of the peak is left; None where time does not matter."""
        return self.target_delay if self.steepness > 0 else None

    def values(self, delays: FloatArray) -> FloatArray:
        """The sigmoid; exponents are capped at 700, below the overflow of float64."""
        exponent = np.minimum(self.steepness * (np.asarray(delays) - self.target_delay), 700.0)
        return np.asarray(self.peak / (1.0 + np.exp(exponent)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class LinearToDeadline:
    """`peak` at delay 0, falling in a straight line to 0 at `deadline` slots and after."""

    peak: float
    deadline: float

    def __post_init__(self) -> None:
        check_non_negative("peak", self.peak)
        if not self.deadline > 0:
            raise ValueError(f"deadline: {self.deadline} is not > 0")

    @property
    def target(self) -> float | None:
        """The deadline."""
        return self.deadline

    def values(self, delays: FloatArray) -> FloatArray:
        """The line, never below 0."""
        return self.peak * np.maximum(0.0, 1.0 - np.asarray(delays, float) / self.deadline)


@dataclass(frozen=True, slots=True)
class Step:
    """`value` up to and including a delay of `deadline` slots, then 0."""

    value: float
    deadline: float

    def __post_init__(self) -> None:
        check_non_negative("value", self.value)
        check_non_negative("deadline", self.deadline)

    @property
    def target(self) -> float | None:
        """The deadline."""
        return self.deadline

    def values(self, delays: FloatArray) -> FloatArray:
        """`value` or 0."""
        return np.where(np.asarray(delays) <= self.deadline, self.value, 0.0)


@dataclass(frozen=True, slots=True)
class Table:
    """Values by whole delay 0, 1, 2, ..., non-increasing; the last one holds for ever."""

    table: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.table:
            raise ValueError("table: empty")
        for value in self.table:
            check_non_negative("table", value)
        if any(b > a for a, b in zip(self.table, self.table[1:], strict=False)):
            raise ValueError(f"table: {self.table} increases")

    @property
    def target(self) -> float | None:
        """The last delay before the first drop; None for a constant table."""
        drops = [d for d, value in enumerate(self.table) if value < self.table[0]]
        return float(drops[0] - 1) if drops else None

    def values(self, delays: FloatArray) -> FloatArray:
        """The table's entry for each delay, rounded up to whole slots."""
        index = np.minimum(np.ceil(np.asarray(delays)).astype(np.int64), len(self.table) - 1)
        return np.asarray(self.table, dtype=np.float64)[index]


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Capacities of the hosts, per slot; a physical box may be one host of each side.

    worker_capacity : (H, R) float64, what host h offers to workers
    server_capacity : (K, R) float64, what host k offers to parameter servers (K may be 0)

    Units are free, but the price bounds add up different resources, so every resource
    should be divided by a reference capacity first (`normalised`). Raises ValueError.
    """

    worker_capacity: FloatArray
    server_capacity: FloatArray

    def __post_init__(self) -> None:
        for key in ("worker_capacity", "server_capacity"):
            array = _frozen(getattr(self, key), np.float64)
            if array.ndim != 2 or not np.all(np.isfinite(array)) or np.any(array < 0):
                raise ValueError(f"{key}: not a finite, non-negative (hosts, resources) array")
            object.__setattr__(self, key, array)
        if len(self.worker_capacity) == 0:
            raise ValueError("worker_capacity: no host")
        if self.worker_capacity.shape[1] != self.server_capacity.shape[1]:
            raise ValueError(
                f"worker and server hosts differ in resources: {self.worker_capacity.shape[1]}"
                f" and {self.server_capacity.shape[1]}"
            )

    @property
    def num_resources(self) -> int:
        """R."""
        return int(self.worker_capacity.shape[1])

    @property
    def reference(self) -> FloatArray:
        """(R,) mean capacity of a host over both sides; 1 for a resource that no host has."""
        mean = np.concatenate([self.worker_capacity, self.server_capacity]).mean(axis=0)
        return np.where(mean > 0, mean, 1.0)

    @property
    def pooled(self) -> tuple[FloatArray, FloatArray]:
        """(R,) capacity of all worker hosts and of all server hosts together."""
        return self.worker_capacity.sum(axis=0), self.server_capacity.sum(axis=0)

    def normalised(self) -> Cluster:
        """The same cluster in units of `reference`; demands must be divided by it too."""
        unit = self.reference
        return Cluster(self.worker_capacity / unit, self.server_capacity / unit)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One job in the common form. Raises ValueError, naming the field.

    A slot with n workers does `rates[n]` units of work (`packed_rates[n]` with all of them
    on one host) and holds `servers[n]` parameter servers. The job ends in the first slot
    by which `work` units are done. Two jobs are equal only if they are the same object.
    """

    name: str
    #: Slot of arrival, >= 0.
    arrival: int
    kind: JobKind
    #: Units of work, >= 1. For `ps` jobs a unit is one worker for one slot (W of the notes).
    work: int
    #: (N + 1,) units per slot by number of workers; rates[0] = 0.
    rates: IntArray = field(repr=False)
    #: (R,) what one worker holds.
    worker_demand: FloatArray = field(repr=False)
    #: (R,) what one parameter server holds; zeros for all-reduce.
    server_demand: FloatArray = field(repr=False)
    utility: Utility
    #: (N + 1,) as `rates` with all workers on one host; None: no faster than spread.
    packed_rates: IntArray | None = field(default=None, repr=False)
    #: Reserved bandwidth of a worker over that of a server, b / B in (0, 1]; 0: no servers.
    bandwidth_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.arrival < 0:
            raise ValueError(f"{self.name}: arrival: {self.arrival} < 0")
        if self.work < 1:
            raise ValueError(f"{self.name}: work: {self.work} < 1")
        if not 0.0 <= self.bandwidth_ratio <= 1.0:
            raise ValueError(
                f"{self.name}: bandwidth_ratio: {self.bandwidth_ratio} is not in [0, 1];"
                " with b > B no number of servers meets constraints (6) and (7)"
            )
        if (self.kind is JobKind.PS) != (self.bandwidth_ratio > 0):
            raise ValueError(f"{self.name}: only a ps job has a bandwidth_ratio > 0")
        object.__setattr__(self, "rates", _rates(self.name, self.rates))
        if self.packed_rates is not None:
            packed = _rates(self.name, self.packed_rates)
            if packed.shape != self.rates.shape:
                raise ValueError(f"{self.name}: rates and packed_rates differ in length")
            object.__setattr__(self, "packed_rates", packed)
        if self.top_rate < 1:
            raise ValueError(f"{self.name}: rates: no number of workers does any work")
        for key in ("worker_demand", "server_demand"):
            demand = _frozen(getattr(self, key), np.float64)
            if demand.ndim != 1 or not np.all(np.isfinite(demand)) or np.any(demand < 0):
                raise ValueError(f"{self.name}: {key}: not a finite, non-negative vector")
            object.__setattr__(self, key, demand)
        if self.worker_demand.shape != self.server_demand.shape:
            raise ValueError(f"{self.name}: worker and server demands differ in length")
        if not np.any(self.worker_demand > 0):
            raise ValueError(f"{self.name}: worker_demand: a worker needs some resource")

    @property
    def max_workers(self) -> int:
        """N, the number of chunks: most workers at a time."""
        return len(self.rates) - 1

    @property
    def top_rate(self) -> int:
        """Most units of work in one slot."""
        top = int(self.rates.max())
        return top if self.packed_rates is None else max(top, int(self.packed_rates.max()))

    @property
    def min_slots(self) -> int:
        """Slots of the shortest schedule on an unlimited cluster."""
        return -(-self.work // self.top_rate)

    @property
    def servers(self) -> IntArray:
        """(N + 1,) parameter servers by number of workers: ceil(n b / B), 0 for all-reduce."""
        counts = np.arange(len(self.rates)) * self.bandwidth_ratio
        return np.asarray(np.ceil(counts - 1e-9), dtype=np.int64)

    @property
    def worker_slot_range(self) -> tuple[int, int]:
        """Fewest and most worker-slots that the work can cost (equal where speed is linear)."""
        counts = np.arange(1, len(self.rates))
        speeds = [self.rates[1:]]
        if self.packed_rates is not None:
            speeds.append(self.packed_rates[1:])
        per_unit = np.concatenate([counts[s > 0] / s[s > 0] for s in speeds])
        low, high = self.work * per_unit.min(), self.work * per_unit.max()
        return math.ceil(low - 1e-9), math.ceil(high - 1e-9)

    @property
    def is_convex(self) -> bool:
        """Whether slot costs are convex in the work: linear speed, no servers, no packing."""
        linear = np.array_equal(self.rates, np.arange(len(self.rates)) * self.rates[1])
        return linear and self.bandwidth_ratio == 0 and self.packed_rates is None

    def utility_at(self, slot: int) -> float:
        """Utility if the job ends in `slot` >= arrival."""
        return float(self.utility.values(np.array([slot - self.arrival], dtype=np.float64))[0])


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What a job holds in one slot: (host, count) pairs with counts >= 1."""

    slot: int
    workers: tuple[tuple[int, int], ...]
    servers: tuple[tuple[int, int], ...]
    #: Units of work done in the slot.
    rate: int

    @property
    def num_workers(self) -> int:
        """Workers over all hosts."""
        return sum(count for _, count in self.workers)

    @property
    def num_servers(self) -> int:
        """Parameter servers over all hosts."""
        return sum(count for _, count in self.servers)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The slots of one job, in their order, and what they are worth at the prices then."""

    job: str
    slots: tuple[SlotPlan, ...]
    #: Utility at the last slot.
    utility: float
    #: Price of all resources held.
    cost: float

    @property
    def completion(self) -> int:
        """Slot in which the job ends."""
        return self.slots[-1].slot

    @property
    def payoff(self) -> float:
        """Utility minus cost (mu of the dual where it is the largest of all schedules)."""
        return self.utility - self.cost


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A cluster, a horizon of T slots, and jobs in the order of their arrival."""

    cluster: Cluster
    horizon: int
    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ValueError(f"horizon: {self.horizon} < 1")
        names = {job.name for job in self.jobs}
        if len(names) < len(self.jobs):
            raise ValueError("jobs: two have the same name")
        last = 0
        for job in self.jobs:
            if not last <= job.arrival < self.horizon:
                raise ValueError(f"{job.name}: arrival {job.arrival} is out of order or range")
            if len(job.worker_demand) != self.cluster.num_resources:
                raise ValueError(f"{job.name}: demands do not match the cluster's resources")
            last = job.arrival


def rate_of(job: Job, num_workers: int, is_packed: bool) -> int:
    """Units of work per slot for a placement (`is_packed`: all workers on one host)."""
    rate = int(job.rates[num_workers])
    if is_packed and job.packed_rates is not None:
        return max(rate, int(job.packed_rates[num_workers]))
    return rate


def room(free: FloatArray, capacity: FloatArray, demand: FloatArray) -> IntArray:
    """How many units of `demand` (R,) fit into `free` (..., hosts, R) on each host.

    capacity : (hosts, R) scales the tolerance for rounding.
    """
    used = np.flatnonzero(demand > 0)
    if not len(used):
        return np.full(free.shape[:-1], np.iinfo(np.int32).max, dtype=np.int64)
    counts: FloatArray | None = None
    for r in used:
        part = (free[..., r] + FIT_TOLERANCE * capacity[:, r]) / demand[r]
        counts = part if counts is None else np.minimum(counts, part, out=counts)
    assert counts is not None
    whole: IntArray = np.maximum(counts, 0.0, out=counts).astype(np.int64)
    return whole


def _frozen(values: object, dtype: npt.DTypeLike) -> npt.NDArray[np.float64]:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def _rates(name: str, values: object) -> IntArray:
    rates = np.array(values, dtype=np.int64)
    if rates.ndim != 1 or len(rates) < 2 or rates[0] != 0 or np.any(rates < 0):
        raise ValueError(f"{name}: rates: not a (N + 1,) table of counts starting with 0")
    rates.setflags(write=False)
    return rates


def check_non_negative(key: str, value: float) -> None:
    """Raise ValueError, naming the field, unless the value is finite and >= 0."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{key}: {value} is not a finite number >= 0")
