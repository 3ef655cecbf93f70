"""Schedulers to compare with: FIFO, DRF, RRH, Dorm, shortest remaining time, EDF.

All but RRH admit every job. They decide again whenever a job arrives or ends and keep
their allocation in between. What the OASiS paper leaves open is a parameter here.

Source: OASiS, section V (which baselines, fixed numbers in [1, 30], round-robin); the
filling of DRF and FIFO follows the authors' later simulator (DL2); RRH is FirstReward of
Irwin, Grit, Chase (HPDC 2004); Dorm is Sun et al. (2017), see `dorm`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from hpcslaq.policies.oasis.board import Board, dominant_share
from hpcslaq.policies.oasis.dorm import DormProblem, dorm_counts
from hpcslaq.policies.oasis.model import Cluster, Job, SlotPlan

Plans = dict[str, SlotPlan]


@dataclass(slots=True)
class LiveJob:
    """An admitted, unfinished job."""

    job: Job
    #: Units still to do, as of the slot that is being planned.
    left: int
    #: Numbers drawn on arrival for the schedulers that never change them.
    workers: int
    servers: int
    #: What it holds now; None: waits.
    plan: SlotPlan | None = None

    def remaining_slots(self, workers: int) -> int:
        """Slots to the end with this many workers."""
        return math.ceil(self.left / max(1, int(self.job.rates[workers])))


class Rule(Protocol):
    """The decision of a baseline, at every arrival and completion."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def admits(self, job: LiveJob, live: list[LiveJob], board: Board) -> bool:
        """Whether an arriving job is taken; `board` shows what is free now."""

    def allocate(self, slot: int, live: list[LiveJob], cluster: Cluster) -> Plans:
        """What each job holds from `slot` on."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A scheduler made of a rule."""

    rule: Rule
    #: Range of the fixed numbers of workers and servers, inclusive.
    fixed_range: tuple[int, int] = (1, 30)

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    def begin(self, cluster: Cluster, horizon: int, rng: np.random.Generator) -> BaselineSession:
        """A session on an empty cluster."""
        return BaselineSession(self, cluster, rng)


@dataclass(slots=True)
class BaselineSession:
    """Keeps the live jobs and asks the rule again after every event."""

    baseline: Baseline
    cluster: Cluster
    rng: np.random.Generator
    live: dict[str, LiveJob] = field(default_factory=dict)
    _is_stale: bool = True

    def arrive(self, job: Job) -> bool:
        """Admit or not."""
        low, high = self.baseline.fixed_range
        workers, servers = self.rng.integers(low, high + 1, size=2)
        count = min(int(workers), job.max_workers)
        # The drawn number of servers, moved into what (6) and (7) allow.
        least = int(job.servers[count])
        shards = min(max(int(servers), least), count) if least else 0
        entry = LiveJob(job, job.work, count, shards)
        board = Board(self.cluster)
        for other in self.live.values():
            if other.plan is not None:
                board.take(other.job, other.plan)
        if not self.baseline.rule.admits(entry, list(self.live.values()), board):
            return False
        self.live[job.name] = entry
        self._is_stale = True
        return True

    def plan(self, slot: int, left: Mapping[str, int]) -> Plans:
        """The rule's allocation, or the last one while nothing happened."""
        for name, entry in self.live.items():
            entry.left = left[name]
        if self._is_stale:
            plans = self.baseline.rule.allocate(slot, list(self.live.values()), self.cluster)
            for name, entry in self.live.items():
                entry.plan = plans.get(name)
            self._is_stale = False
        return {
            name: replace(entry.plan, slot=slot)
            for name, entry in self.live.items()
            if entry.plan is not None
        }

    def finish(self, job: Job, slot: int) -> None:
        """Forget the job."""
        del self.live[job.name]
        self._is_stale = True


class _AdmitsAll:
    __slots__ = ()

    def admits(self, job: LiveJob, live: list[LiveJob], board: Board) -> bool:
        """Always."""
        return True


@dataclass(frozen=True, slots=True)
class Fifo(_AdmitsAll):
    """Arrival order, fixed numbers, never preempted.

    is_strict : a job that does not fit holds up all behind it (DL2's variant)
    """

    is_strict: bool = False
    name: str = "fifo"

    def allocate(self, slot: int, live: list[LiveJob], cluster: Cluster) -> Plans:
        """Keep who runs; start who fits, in the order of arrival."""
        board = Board(cluster)
        plans: Plans = {}
        for entry in live:
            if entry.plan is not None:
                board.take(entry.job, entry.plan)
                plans[entry.job.name] = entry.plan
        for entry in live:
            if entry.plan is None:
                plan = board.place(entry.job, slot, entry.workers, entry.servers)
                if plan is not None:
                    plans[entry.job.name] = plan
                elif self.is_strict:
                    break
        return plans


@dataclass(frozen=True, slots=True)
class Drf(_AdmitsAll):
    """Dominant resource fairness: one worker with its servers at a time to the poorest job."""

    name: str = "drf"

    def allocate(self, slot: int, live: list[LiveJob], cluster: Cluster) -> Plans:
        """Fill until nothing fits."""
        counts = drf_counts([entry.job for entry in live], cluster)
        return place_counts(slot, [entry.job for entry in live], counts, cluster)


@dataclass(frozen=True, slots=True)
class Rrh:
    """Risk-reward heuristic (FirstReward): fixed numbers, admission and preemption by reward.

    A job's reward is its discounted value if it runs at once, less what the others lose
    while they wait for it, per slot that it needs.
    """

    #: Weight of the value against the others' loss.
    weight: float = 0.5
    #: Discount per slot of remaining time.
    discount: float = 0.01
    #: An arriving job must bring more than this, net of the loss that it causes.
    threshold: float = 0.0
    name: str = "rrh"

    def admits(self, job: LiveJob, live: list[LiveJob], board: Board) -> bool:
        """Whether the job's value exceeds what the jobs in the system lose by it."""
        slots = job.remaining_slots(job.workers)
        now = job.job.arrival
        gain = job.job.utility_at(now + slots - 1) / (1 + self.discount * slots)
        if board.place(job.job, now, job.workers, job.servers) is not None:
            return gain > self.threshold
        waiting = [other for other in live if other.plan is None]
        return gain - _loss(waiting, now, slots) > self.threshold

    def allocate(self, slot: int, live: list[LiveJob], cluster: Cluster) -> Plans:
        """Run the jobs of largest reward that fit; pause the others."""
        # What all others lose grows with the wait; tabulate the sum once per distinct wait.
        losses: dict[int, float] = {}

        def reward(entry: LiveJob) -> float:
            slots = entry.remaining_slots(entry.workers)
            value = entry.job.utility_at(slot + slots - 1) / (1 + self.discount * slots)
            if slots not in losses:
                losses[slots] = _loss(live, slot, slots)
            loss = losses[slots] - _loss([entry], slot, slots)
            return (self.weight * value - (1 - self.weight) * loss) / slots

        board = Board(cluster)
        plans: Plans = {}
        for entry in sorted(live, key=reward, reverse=True):
            plan = board.place(entry.job, slot, entry.workers, entry.servers)
            if plan is not None:
                plans[entry.job.name] = plan
        return plans


@dataclass(frozen=True, slots=True)
class Dorm(_AdmitsAll):
    """Dorm: most utilisation, with bounds on the fairness loss and on adjusted jobs.

    The integer programme decides counts on the pooled capacity and the placement is
    round-robin; the original places in the programme, which is out of reach for hundreds
    of jobs on a hundred hosts at every event. Workers that then do not fit are dropped.
    The defaults are the loosest bounds, which earned most in trials (0.2, 0.2: half).
    """

    #: Largest sum of |share - fair share| over the jobs, over the sum of the fair shares.
    fairness_loss: float = 2.0
    #: Largest part of the running jobs whose workers may change at an event.
    adjusted: float = 1.0
    time_limit_s: float = 0.5
    name: str = "dorm"

    def allocate(self, slot: int, live: list[LiveJob], cluster: Cluster) -> Plans:
        """Solve for counts, then place the unchanged jobs where they are and fill up."""
        jobs = [entry.job for entry in live]
        now = [0 if entry.plan is None else entry.plan.num_workers for entry in live]
        counts = dorm_counts(
            DormProblem(jobs, cluster, drf_counts(jobs, cluster), now),
            fairness_loss=self.fairness_loss,
            adjusted=self.adjusted,
            time_limit_s=self.time_limit_s,
        )
        board = Board(cluster)
        plans: Plans = {}
        for entry, count in zip(live, counts, strict=True):
            if entry.plan is not None and entry.plan.num_workers == count:
                board.take(entry.job, entry.plan)
                plans[entry.job.name] = entry.plan
        for entry, count in zip(live, counts, strict=True):
            if count and entry.job.name not in plans:
                _place_most(board, entry.job, slot, count, plans)
        return plans


@dataclass(frozen=True, slots=True)
class Srtf(_AdmitsAll):
    """Shortest remaining time at full speed first; each gets as many workers as fit."""

    name: str = "srtf"

    def allocate(self, slot: int, live: list[LiveJob], cluster: Cluster) -> Plans:
        """Serve in the order of the remaining time."""
        order = sorted(live, key=lambda entry: (entry.left / entry.job.top_rate, entry.job.name))
        return _serve(slot, order, cluster)


@dataclass(frozen=True, slots=True)
class Edf(_AdmitsAll):
    """Earliest target first (jobs without one last); each gets as many workers as fit."""

    name: str = "edf"

    def allocate(self, slot: int, live: list[LiveJob], cluster: Cluster) -> Plans:
        """Serve in the order of the targets."""

        def due(entry: LiveJob) -> tuple[float, str]:
            target = entry.job.utility.target
            late = math.inf if target is None else entry.job.arrival + target
            return (late, entry.job.name)

        return _serve(slot, sorted(live, key=due), cluster)


def paper_baselines() -> tuple[Baseline, ...]:
    """The baselines of the paper and the two usual ones."""
    rules: tuple[Rule, ...] = (Fifo(), Drf(), Rrh(), Dorm(), Srtf(), Edf())
    return tuple(Baseline(rule) for rule in rules)


def drf_counts(jobs: list[Job], cluster: Cluster) -> list[int]:
    """Workers of each job under dominant resource fairness, by progressive filling on hosts."""
    capacity = cluster.pooled
    board = Board(cluster)
    counts = [0] * len(jobs)
    heap = [(0.0, i) for i in range(len(jobs))]
    while heap:
        _, i = heapq.heappop(heap)
        job = jobs[i]
        if counts[i] >= job.max_workers:
            continue
        extra = int(job.servers[counts[i] + 1] - job.servers[counts[i]])
        if _take_bundle(board, job, extra):
            counts[i] += 1
            heapq.heappush(heap, (dominant_share(job, capacity, counts[i]), i))
    return counts


def place_counts(slot: int, jobs: list[Job], counts: list[int], cluster: Cluster) -> Plans:
    """Place the counts round-robin, fewer where fragmentation leaves no room."""
    board = Board(cluster)
    plans: Plans = {}
    for job, count in zip(jobs, counts, strict=True):
        if count:
            _place_most(board, job, slot, count, plans)
    return plans


def _take_bundle(board: Board, job: Job, servers: int) -> bool:
    """Take one worker and `servers` (0 or 1) servers on the emptiest hosts that fit."""
    worker_room = board.worker_room(job)
    host = int(np.argmax(worker_room))
    if worker_room[host] < 1:
        return False
    shards: tuple[tuple[int, int], ...] = ()
    if servers:
        server_room = board.server_room(job)
        shard = int(np.argmax(server_room))
        if server_room[shard] < 1:
            return False
        shards = ((shard, 1),)
    board.take(job, SlotPlan(0, ((host, 1),), shards, 0))
    return True


def _serve(slot: int, order: list[LiveJob], cluster: Cluster) -> Plans:
    board = Board(cluster)
    plans: Plans = {}
    for entry in order:
        _place_most(board, entry.job, slot, fewest_for(entry.job, entry.left), plans)
    return plans


def fewest_for(job: Job, left: int) -> int:
    """Fewest workers that end the job in one slot, or else as many as are fastest."""
    enough = np.flatnonzero(job.rates >= left)
    return int(enough[0]) if len(enough) else int(np.argmax(job.rates))


def _place_most(board: Board, job: Job, slot: int, limit: int, plans: Plans) -> None:
    count = board.most_workers(job, limit)
    if count:
        plan = board.place(job, slot, count)
        if plan is not None and plan.rate > 0:
            plans[job.name] = plan
        elif plan is not None:
            board.give(job, plan)


def _loss(jobs: list[LiveJob], slot: int, wait: int) -> float:
    """What jobs lose if each starts `wait` slots later than now."""
    total = 0.0
    for entry in jobs:
        end = slot + entry.remaining_slots(entry.workers) - 1
        total += entry.job.utility_at(end) - entry.job.utility_at(end + wait)
    return total
