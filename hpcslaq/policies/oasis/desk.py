"""The decisions of OASiS at one moment of a run: offers, re-plans, retries.

Each decision is made at the prices that the ones before left (`book`). What the policy
promises and who asks is in `live`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hpcslaq.core.jobs import JobRecord, JobSpec, JobState
from hpcslaq.core.policy import Admission, ClusterView
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.policies.oasis.algorithm import check_schedule
from hpcslaq.policies.oasis.book import Book
from hpcslaq.policies.oasis.facts import accepted_facts, plain_facts, refused_facts
from hpcslaq.policies.oasis.model import Job, Schedule, SlotPlan
from hpcslaq.policies.oasis.present import (
    Effort,
    JobPlan,
    Present,
    SlotUtility,
    Standing,
    Tax,
    plan_of,
)
from hpcslaq.policies.oasis.prices import Ledger
from hpcslaq.policies.oasis.schedule import best_schedule

Plans = dict[str, JobPlan]

#: A job in the retry queue is given up when less than this share of its peak is left.
_LEAST_SHARE = 0.01
#: Value with which a late job buys the earliest end that is left, whatever it costs.
_PRICELESS = 1e9
_WHATEVER_IT_COSTS = UtilityCurve(UtilityKind.CONSTANT, _PRICELESS)
#: Why a job is refused.
PRICE_REASON = "it is worth less than the ranks that it needs cost at present"


@dataclass(frozen=True, slots=True)
class Terms:
    """Parameters of the policy that decisions depend on; see `live.OasisPolicy`."""

    horizon: int
    log_ratio: float
    quantile: float
    window: int
    margin: float
    regroup_s: float
    retry: bool
    #: Whether accepted jobs are offered better schedules, and the utility that each further
    #: change of the number of ranks must be worth.
    replans: bool = False
    penalty: float = 0.0


class Desk:
    """Decisions of one moment: each is made at the prices that the ones before left."""

    def __init__(self, terms: Terms, view: ClusterView, present: Present) -> None:
        self._terms, self._present = terms, present
        measured = present.demand.regroup_s
        regroup_s = max(terms.regroup_s, float(measured.max()) if len(measured) else 0.0)
        self._tax = Tax(terms.margin, regroup_s)
        self._records = {record.name: record for record in view.jobs}
        #: Plans of the live jobs as they are after the decisions made so far.
        self._plans: Plans = {
            record.name: plan_of(record, view.round_s) for record in self._records.values()
        }
        offered = [
            _whole(record.plan.job, record.plan.share)
            for record in view.history.values()
            if isinstance(record.plan, JobPlan) and record.plan.job is not None
        ]
        #: Jobs that were offered lately, as they were modelled.
        self._offered = offered[-terms.window :]
        #: Made when the first decision needs it.
        self._book: Book | None = None
        self.changes: dict[str, Admission] = {}

    def revise(self, record: JobRecord) -> None:
        """Look after one live job."""
        plan = self._plans[record.name]
        effort = self._present.efforts.get(record.name)
        match plan.standing:
            case Standing.REFUSED:
                if record.state is JobState.WAITING:
                    self._change(record.name, Admission(False, PRICE_REASON, plan))
            case Standing.ACCEPTED:
                if effort is not None and self._is_due(plan):
                    self._keep_up(record, plan, effort)
            case Standing.OPEN | Standing.WAITING:
                if effort is not None and plan.revised < self._present.slot:
                    self._change(record.name, self.offer(record.spec, plan, effort))

    def offer(self, spec: JobSpec, plan: JobPlan, effort: Effort) -> Admission:
        """Algorithm 1 for one job; its earlier standing is `plan`."""
        present = self._present
        job = present.model(spec, plan.arrival, effort, self._tax)
        if job is None:
            return self._refuse(spec, plan, None, None, "no slot gets it on: rounds are too short")
        plan = replace(plan, share=effort.share)
        # One that waits is among the jobs offered lately already.
        is_new = plan.standing is not Standing.WAITING
        book = self._open_book(_whole(job, effort.share) if is_new else None)
        schedule = best_schedule(job, book.ledger, start=present.first)
        if schedule is None:
            waits = self._terms.retry and self._is_worth_waiting(job)
            return self._refuse(spec, plan, job, book.ledger, PRICE_REASON, waits=waits)
        new = self._reserved(plan, job, schedule, book)
        new = replace(new, promised=new.slots[-1].slot)
        facts = accepted_facts("accepted", present.slot, new, schedule, book.ledger)
        return Admission(True, plan=new, facts=facts)

    def replan(self) -> None:
        """Offer every accepted job a better schedule for the rest of its work."""
        for name, plan in list(self._plans.items()):
            effort = self._present.efforts.get(name)
            if plan.standing is not Standing.ACCEPTED or effort is None:
                continue
            if plan.slots and self._is_due(plan) and not self._records[name].is_cancel_pending:
                self._improve(name, plan, effort)

    def _is_due(self, plan: JobPlan) -> bool:
        """Plans are revised when a slot begins: what is done in it is not known later."""
        return plan.revised < self._present.slot and not self._present.first

    # -- one job -----------------------------------------------------------------------

    def _keep_up(self, record: JobRecord, plan: JobPlan, effort: Effort) -> None:
        """Plan a late job anew; let one that is ahead give back its last slots."""
        present = self._present
        ahead = [slot for slot in plan.slots if slot.slot >= present.slot]
        capacity = effort.capacity(ahead, self._tax.usable_s(present.slot_s))
        total = float(capacity.sum())
        if total < effort.iterations:
            self._catch_up(record, plan, effort)
            return
        surplus = total - effort.iterations * (1.0 + self._tax.margin)
        num_kept = len(ahead)
        while num_kept > 1 and capacity[num_kept - 1] <= surplus:
            surplus -= float(capacity[num_kept - 1])
            num_kept -= 1
        if num_kept < len(ahead):
            shorter = replace(plan, slots=tuple(ahead[:num_kept]), revised=present.slot)
            if self._book is not None and shorter.job is not None:
                self._book.put(record.name, shorter.job, self._book.ahead(shorter))
            facts = plain_facts("shortened", present.slot, shorter)
            self._change(record.name, Admission(True, plan=shorter, facts=facts))

    def _improve(self, name: str, plan: JobPlan, effort: Effort) -> None:
        """A better schedule for the rest of a job's work, if there is one."""
        present = self._present
        job = present.model(self._records[name].spec, plan.arrival, effort, self._tax)
        book = self._open_book(None)
        ahead = book.ahead(plan)
        if job is None or not ahead:
            return
        held = book.take_out(name)
        worth = job.utility_at(ahead[-1].slot)
        before = worth - book.ledger.cost(job, ahead)
        schedule = best_schedule(job, book.ledger, start=present.first)
        if schedule is not None:
            extra = max(0, _num_changes(schedule.slots) - _num_changes(ahead))
            least = before + self._terms.penalty * extra + 1e-6 * max(1.0, abs(before))
            # A cheaper plan that ends later would break a promise for a price nobody pays.
            if schedule.payoff > least and schedule.utility > worth:
                self._adopt(name, plan, job, schedule, "improved")
                return
        if held is not None:
            book.put(name, *held)

    def _catch_up(self, record: JobRecord, plan: JobPlan, effort: Effort) -> None:
        """The cheapest schedule that keeps the promise, or misses it by one slot.

        Where there is none, the best schedule for what is left, and where none pays any more, the
        earliest end.
        """
        present = self._present
        job = present.model(record.spec, plan.arrival, effort, self._tax)
        if job is None:
            return
        book = self._open_book(None)
        held = book.take_out(record.name)
        schedule = None
        if plan.promised is not None:
            paid = replace(job, utility=SlotUtility(_WHATEVER_IT_COSTS, present.slot_s))
            for stop in (plan.promised + 1, plan.promised + 2):
                schedule = schedule or best_schedule(
                    paid, book.ledger, start=present.first, stop=stop - present.slot
                )
        if schedule is None:
            schedule = best_schedule(job, book.ledger, start=present.first)
        if schedule is None:
            horizon_s = present.slot_s * (book.ledger.horizon + 1)
            curve = UtilityCurve(UtilityKind.LINEAR, _PRICELESS, horizon_s)
            hurried = replace(job, utility=SlotUtility(curve, present.slot_s))
            schedule = best_schedule(hurried, book.ledger, start=present.first)
        if schedule is not None:
            self._adopt(record.name, plan, job, schedule, "replanned")
        elif held is not None:
            book.put(record.name, *held)

    def _adopt(self, name: str, plan: JobPlan, job: Job, schedule: Schedule, what: str) -> None:
        """Take over a new schedule of an accepted job."""
        book = self._open_book(None)
        schedule = replace(schedule, utility=job.utility_at(schedule.completion))
        plan = replace(plan, share=self._present.efforts[name].share)
        new = self._reserved(plan, job, schedule, book)
        facts = accepted_facts(what, self._present.slot, new, schedule, book.ledger)
        self._change(name, Admission(True, plan=new, facts=facts))

    def _reserved(self, plan: JobPlan, job: Job, schedule: Schedule, book: Book) -> JobPlan:
        book.put(job.name, job, schedule.slots)
        check_schedule(job, schedule, book.ledger)
        return JobPlan(
            Standing.ACCEPTED,
            plan.arrival,
            job,
            self._present.in_run(schedule.slots),
            plan.promised,
            self._present.slot,
            self._tax.slack(self._present.slot_s),
            plan.share,
        )

    def _refuse(
        self,
        spec: JobSpec,
        plan: JobPlan,
        job: Job | None,
        ledger: Ledger | None,
        reason: str,
        *,
        waits: bool = False,
    ) -> Admission:
        """A refusal: final, or to be tried again; a job that runs is paused first."""
        slot, slack = self._present.slot, self._tax.slack(self._present.slot_s)
        record = self._records.get(spec.name)
        was_waiting = plan.standing is Standing.WAITING
        if waits:
            new = replace(plan, standing=Standing.WAITING, job=job, revised=slot, slack=slack)
            facts = {} if was_waiting else refused_facts("waiting", slot, new, ledger)
            return Admission(True, plan=new, facts=facts)
        new = replace(
            plan, standing=Standing.REFUSED, job=job or plan.job, revised=slot, slack=slack
        )
        facts = refused_facts("given up" if was_waiting else "refused", slot, new, ledger)
        is_running = record is not None and record.state is not JobState.WAITING
        return Admission(is_running, reason, new, facts)

    def _is_worth_waiting(self, job: Job) -> bool:
        peak = float(job.utility.values(np.array([-float(_age(job))]))[0])
        return job.utility_at(job.min_slots - 1) >= _LEAST_SHARE * peak > 0

    def _open_book(self, new: Job | None) -> Book:
        """The book, at prices that take a job into account that is offered now."""
        terms = self._terms
        if self._book is not None:
            if new is not None:
                self._book.offer(new)
            return self._book
        offered = self._offered if new is None else [*self._offered, new]
        self._book = Book(
            self._present,
            self._plans,
            offered,
            horizon=terms.horizon,
            log_ratio=terms.log_ratio,
            quantile=terms.quantile,
        )
        return self._book

    def _change(self, name: str, admission: Admission) -> None:
        self.changes[name] = admission
        if isinstance(admission.plan, JobPlan):
            self._plans[name] = admission.plan


def _whole(job: Job, share: float) -> Job:
    """A job whose value per worker-slot is that of the whole job, of which this part is left."""
    if not isinstance(job.utility, SlotUtility):
        return job
    return replace(job, utility=replace(job.utility, share=share))


def _age(job: Job) -> int:
    return job.utility.age if isinstance(job.utility, SlotUtility) else 0


def _num_changes(slots: tuple[SlotPlan, ...] | list[SlotPlan]) -> int:
    """Times that the number of ranks changes over a plan, pauses included."""
    return sum(
        after.slot != before.slot + 1 or before.num_workers != after.num_workers
        for before, after in pairwise(slots)
    )
