"""The policy `oasis-elastic`: OASiS that does not leave idle what it could lend.

On top of Algorithm 1 (each addition is a parameter and can be switched off):
- running U and L, from a sliding window of the jobs that came last;
- a retry queue: a rejected job is offered again while it is worth something;
- backfill: capacity that nobody reserved in the present slot is lent to accepted jobs,
  whose last reservations are given back for it, and then to waiting jobs;
- re-planning of accepted jobs on their remaining work, taken only if utility less cost
  rises by more than the penalty of the changes it brings.

Prices may fall here, so theorem 4 does not hold; the certificate's hindsight bound does.
Source: our own additions, after the limits of OASiS listed in PD-ORS and GADGET.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from hpcslaq.policies.oasis.algorithm import check_schedule
from hpcslaq.policies.oasis.board import Board, dominant_share
from hpcslaq.policies.oasis.model import Cluster, Job, Schedule, SlotPlan
from hpcslaq.policies.oasis.online import BoundsRule
from hpcslaq.policies.oasis.prices import Ledger, density_bounds
from hpcslaq.policies.oasis.schedule import best_schedule


@dataclass(frozen=True, slots=True)
class ElasticScheduler:
    """Parameters of `oasis-elastic`."""

    #: Jobs of an earlier workload, from which U and L start.
    history: tuple[Job, ...] = field(repr=False)
    bounds_rule: BoundsRule = density_bounds
    #: Jobs in the sliding window of the running U and L; 0: `history` for good. A window
    #: follows workloads that drift; where they do not it costs about one per cent.
    window: int = 0
    #: New bounds are put in force after this many arrivals.
    rebase_every: int = 20
    has_retry: bool = True
    has_backfill: bool = True
    has_lending: bool = True
    has_replanning: bool = True
    #: Utility that one change of a job's workers between two slots must be worth.
    switching_penalty: float = 0.0
    #: A waiting job is given up when less than this share of its peak is left.
    least_share: float = 0.01
    name: str = "oasis-elastic"

    def begin(self, cluster: Cluster, horizon: int, rng: np.random.Generator) -> ElasticSession:
        """A session on an empty cluster; nothing is drawn."""
        bounds = self.bounds_rule(self.history, cluster, horizon)
        recent = list(self.history[-self.window :]) if self.window else []
        return ElasticSession(self, Ledger(cluster, horizon, bounds), recent)


@dataclass(slots=True)
class Reservation:
    """An accepted job and the slots that are still ahead of it, in order."""

    job: Job
    plans: list[SlotPlan]
    #: Units still to do, as of the slot that is being planned.
    left: int

    @property
    def completion(self) -> int:
        """Slot in which the job is to end."""
        return self.plans[-1].slot


@dataclass(slots=True)
class ElasticSession:
    """The ledger, the reservations and the waiting jobs."""

    policy: ElasticScheduler
    ledger: Ledger
    recent: list[Job]
    #: Accepted, unfinished jobs; every future slot of them is in the ledger.
    reserved: dict[str, Reservation] = field(default_factory=dict)
    #: Rejected jobs that are still worth something, and their units to do.
    waiting: dict[str, Job] = field(default_factory=dict)
    waiting_left: dict[str, int] = field(default_factory=dict)
    _arrivals: int = 0
    #: Whether prices fell since plans were last revised.
    _has_slack: bool = False

    def arrive(self, job: Job) -> bool:
        """Algorithm 1 at the running bounds; a rejected job waits."""
        self._observe(job)
        if self._admit(job, job.arrival, job.work):
            return True
        if self.policy.has_retry or self.policy.has_lending:
            self.waiting[job.name] = job
            self.waiting_left[job.name] = job.work
        return False

    def plan(self, slot: int, left: Mapping[str, int]) -> dict[str, SlotPlan]:
        """The reservations of the slot, improved and filled up."""
        for name, entry in self.reserved.items():
            entry.left = left[name]
        for name in self.waiting:
            self.waiting_left[name] = left[name]
        self._give_up(slot)
        if self._has_slack:
            self._has_slack = False
            if self.policy.has_replanning:
                self._replan(slot)
            if self.policy.has_retry:
                self._retry(slot)
        plans = {
            name: entry.plans[0]
            for name, entry in self.reserved.items()
            if entry.plans and entry.plans[0].slot == slot
        }
        board = Board(self.ledger.cluster)
        for name, plan in plans.items():
            board.take(self.reserved[name].job, plan)
        if self.policy.has_backfill:
            self._backfill(slot, board, plans)
        if self.policy.has_lending:
            self._lend(slot, board, plans)
        for name, plan in plans.items():
            if name in self.reserved:
                self._carry_out(self.reserved[name], plan)
        return plans

    def finish(self, job: Job, slot: int) -> None:
        """Give back what is still reserved."""
        entry = self.reserved.pop(job.name, None)
        if entry is not None:
            self._release(entry, entry.plans)
        self.waiting.pop(job.name, None)
        self.waiting_left.pop(job.name, None)

    def _observe(self, job: Job) -> None:
        """Take the job into the window; put new bounds in force now and then."""
        policy, ledger = self.policy, self.ledger
        if not policy.window:
            return
        self.recent = [*self.recent, job][-policy.window :]
        self._arrivals += 1
        if self._arrivals % policy.rebase_every == 0:
            ledger.rebase(policy.bounds_rule(self.recent, ledger.cluster, ledger.horizon))

    def _admit(self, job: Job, slot: int, work: int) -> bool:
        schedule = best_schedule(job, self.ledger, start=slot, work=work)
        if schedule is None:
            return False
        self._reserve(job, schedule, work)
        return True

    def _reserve(self, job: Job, schedule: Schedule, work: int) -> None:
        self.ledger.reserve(job, schedule.slots)
        check_schedule(job, schedule, self.ledger, work)
        self.reserved[job.name] = Reservation(job, list(schedule.slots), work)

    def _release(self, entry: Reservation, plans: list[SlotPlan]) -> None:
        if plans:
            self.ledger.release(entry.job, plans)
            self._has_slack = True

    def _give_up(self, slot: int) -> None:
        """Forget waiting jobs that are worth (next to) nothing even at full speed."""
        for name, job in list(self.waiting.items()):
            end = slot + -(-self.waiting_left[name] // job.top_rate) - 1
            peak = job.utility_at(job.arrival)
            if end >= self.ledger.horizon or job.utility_at(end) < self.policy.least_share * peak:
                del self.waiting[name], self.waiting_left[name]

    def _density(self, job: Job, slot: int, left: int) -> float:
        """Utility of ending as soon as possible per worker-slot and dominant share."""
        end = slot + -(-left // job.top_rate) - 1
        return job.utility_at(end) / (left * dominant_share(job, self.ledger.cluster.pooled, 1))

    def _retry(self, slot: int) -> None:
        order = sorted(
            self.waiting.values(),
            key=lambda job: -self._density(job, slot, self.waiting_left[job.name]),
        )
        for job in order:
            if self._admit(job, slot, self.waiting_left[job.name]):
                del self.waiting[job.name], self.waiting_left[job.name]

    def _replan(self, slot: int) -> None:
        """Offer every accepted job its best schedule for the rest; keep the better one."""
        for entry in self.reserved.values():
            job, old = entry.job, entry.plans
            if not old:
                continue
            self.ledger.release(job, old)
            before = job.utility_at(entry.completion) - self.ledger.cost(job, old)
            new = best_schedule(job, self.ledger, start=slot, work=entry.left)
            extra = 0 if new is None else _changes(list(new.slots)) - _changes(old)
            penalty = self.policy.switching_penalty * max(0, extra)
            if new is not None and new.payoff > before + penalty + 1e-9 * max(1.0, abs(before)):
                self.ledger.reserve(job, new.slots)
                check_schedule(job, new, self.ledger, entry.left)
                entry.plans = list(new.slots)
            else:
                self.ledger.reserve(job, old)

    def _backfill(self, slot: int, board: Board, plans: dict[str, SlotPlan]) -> None:
        """Lend idle capacity to accepted jobs, those that end last first."""
        for name, entry in sorted(
            self.reserved.items(), key=lambda item: (-_gain(item[1], slot), item[0])
        ):
            held = plans.get(name)
            ahead = sum(plan.rate for plan in entry.plans if plan.slot > slot)
            if not ahead:
                continue
            more = _extend(board, entry.job, slot, held, entry.left)
            if more is not None:
                plans[name] = more

    def _lend(self, slot: int, board: Board, plans: dict[str, SlotPlan]) -> None:
        """Lend what is still idle to waiting jobs, the densest first."""
        order = sorted(
            self.waiting.values(),
            key=lambda job: -self._density(job, slot, self.waiting_left[job.name]),
        )
        for job in order:
            plan = _extend(board, job, slot, None, self.waiting_left[job.name])
            if plan is not None:
                plans[job.name] = plan

    def _carry_out(self, entry: Reservation, plan: SlotPlan) -> None:
        """Strike the present slot off the plan, and later slots that are no longer needed."""
        entry.plans = [p for p in entry.plans if p.slot > plan.slot]
        todo = entry.left - plan.rate
        surplus = sum(p.rate for p in entry.plans) - todo
        dropped = []
        while entry.plans and entry.plans[-1].rate <= surplus:
            surplus -= entry.plans[-1].rate
            dropped.append(entry.plans.pop())
        self._release(entry, dropped)


def _extend(board: Board, job: Job, slot: int, held: SlotPlan | None, left: int) -> SlotPlan | None:
    """Give a job as many workers as help it in this slot; None if no more fit.

    What it holds is placed anew if more of it fits elsewhere, which costs nothing between
    two slots.
    """
    now = 0 if held is None else held.num_workers
    if held is not None:
        board.give(job, held)
    enough = np.flatnonzero(job.rates >= left)
    limit = int(enough[0]) if len(enough) else int(np.argmax(job.rates))
    count = board.most_workers(job, limit)
    rate = 0 if held is None else held.rate
    plan = board.place(job, slot, count) if count > now else None
    if plan is not None and plan.rate > rate:
        return plan
    if plan is not None:
        board.give(job, plan)
    if held is not None:
        board.take(job, held)
    return None


def _gain(entry: Reservation, slot: int) -> float:
    """Utility per worker-slot that an accepted job would gain by ending now."""
    if not entry.plans:
        return 0.0
    job = entry.job
    return (job.utility_at(slot) - job.utility_at(entry.completion)) / max(1, entry.left)


def _changes(plans: list[SlotPlan]) -> int:
    """Times that the number of workers changes over a plan, pauses included."""
    changes = 0
    for before, after in pairwise(plans):
        is_pause = after.slot != before.slot + 1
        changes += is_pause or before.num_workers != after.num_workers
    return changes
