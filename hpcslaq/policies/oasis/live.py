"""OASiS in a run: the policies `oasis` and `oasis-elastic`.

A job that arrives is offered its best schedule at the present prices (Algorithm 1) if jobs
like it have shown how long its steps take; else it is profiled first, on ranks that nobody
reserved. An accepted job gets what it reserved, slot by slot; what nobody reserved is lent.
A job that falls behind is planned anew on its remaining work, one that is ahead gives back
its last slots, and one that ends gives back all.

The model of a run is in `present`, what is written into the journal in `facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hpcslaq.core.jobs import JobRecord, JobSpec, JobState
from hpcslaq.core.policy import Admission, Allocation, ClusterView, Forecaster
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.errors import PolicyError
from hpcslaq.policies.demand import share_evenly
from hpcslaq.policies.oasis.algorithm import check_schedule
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
    slot_of,
    utility_of,
)
from hpcslaq.policies.oasis.prices import Ledger, PriceBounds, density_bounds
from hpcslaq.policies.oasis.schedule import best_schedule
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.similar import SimilarForecaster

Plans = dict[str, JobPlan]

#: A job in the retry queue is given up when less than this share of its peak is left.
_LEAST_SHARE = 0.01
#: Value with which a late job buys the earliest end that is left, whatever it costs.
_PRICELESS = 1e9


@dataclass(frozen=True, slots=True)
class OasisPolicy:
    """Admit jobs whose utility is worth its price, and carry out their schedules.

    Source: Bao, Peng, Wu, Li, INFOCOM 2018, algorithms 1 and 2. U and L: `density_bounds` of
    the last `window` jobs that were offered, biased low by `quantile`. Deviations: ranks are
    the one resource, workers and servers share a ledger; the plan includes `margin` of the
    work and `regroup_s` (or what was measured) of each slot; idle ranks are lent; late jobs
    are planned anew. With `retry` a refused job waits for lower prices. No plan reaches
    further than `horizon` rounds ahead.
    """

    horizon: int = 200
    log_ratio: float = 1.5
    quantile: float = 0.8
    window: int = 100
    margin: float = 0.1
    regroup_s: float = 0.05
    retry: bool = False

    def __post_init__(self) -> None:
        for key in ("horizon", "window"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} < 1")
        if not self.log_ratio >= 1:
            raise ValueError(f"log_ratio: {self.log_ratio} is not >= 1")
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile: {self.quantile} is not in [0, 1]")
        for key in ("margin", "regroup_s"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key}: {getattr(self, key)} is not >= 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "oasis"

    def forecaster(self) -> Forecaster:
        """A fresh predictor of step times that remembers jobs which have ended."""
        return SimilarForecaster()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        """Decide at once where the job's steps are known; else take it to be profiled."""
        arrival = slot_of(view.now, view.round_s)
        forecaster = self._forecaster(view)
        known = forecaster.expected(spec)
        if known is None:
            plan = JobPlan(Standing.OPEN, arrival)
            return Admission(True, plan=plan, facts=plain_facts("profiling", arrival, plan))
        present = Present.of(view, forecaster)
        desk = _Desk(self, view, present)
        effort = Effort(max(known[0], 1.0), known[1])
        return desk.offer(spec, JobPlan(Standing.OPEN, arrival), effort)

    def revise(self, view: ClusterView) -> Mapping[str, Admission]:
        """Decide on profiled jobs; plan late ones anew, shorten early ones; retry."""
        present = Present.of(view, self._forecaster(view))
        desk = _Desk(self, view, present)
        for record in view.jobs:
            if record.is_cancel_pending:
                continue
            desk.revise(record)
        if self._replans:
            desk.replan()
        return desk.changes

    def allocate(self, view: ClusterView) -> Allocation:
        """What is reserved for this slot, and the rest lent; see `_lend`."""
        present = Present.of(view, self._forecaster(view))
        return _lend(view, present)

    @property
    def _replans(self) -> bool:
        """Whether accepted jobs are offered better schedules."""
        return False

    @property
    def _penalty(self) -> float:
        """Utility that one more change of the number of ranks in a plan must be worth."""
        return 0.0

    def _forecaster(self, view: ClusterView) -> DropForecaster:
        if not isinstance(view.forecaster, DropForecaster):
            raise PolicyError(f"{self.name}: the view holds another policy's forecaster")
        return view.forecaster


@dataclass(frozen=True, slots=True)
class OasisElasticPolicy(OasisPolicy):
    """OASiS with a retry queue, and plans that are revised where their payoff rises.

    Source: own additions to OASiS, see `oasis.elastic`. A new plan must gain more than
    `switching_penalty` for each change of the number of ranks that it adds.
    """

    retry: bool = True
    switching_penalty: float = 0.0

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "oasis-elastic"

    @property
    def _replans(self) -> bool:
        return True

    @property
    def _penalty(self) -> float:
        return self.switching_penalty


class _Desk:
    """Decisions of one moment: each is made at the prices that the ones before left."""

    def __init__(self, policy: OasisPolicy, view: ClusterView, present: Present) -> None:
        self._policy, self._present = policy, present
        measured = present.demand.regroup_s
        regroup_s = max(policy.regroup_s, float(measured.max()) if len(measured) else 0.0)
        self._tax = Tax(policy.margin, regroup_s)
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
        self._offered = offered[-policy.window :]
        self.changes: dict[str, Admission] = {}

    def revise(self, record: JobRecord) -> None:
        """Look after one live job."""
        plan = self._plans[record.name]
        effort = self._present.efforts.get(record.name)
        match plan.standing:
            case Standing.REFUSED:
                if record.state is JobState.WAITING:
                    self._change(record.name, Admission(False, _PRICE_REASON, plan))
            case Standing.ACCEPTED:
                if effort is not None and self._is_due(plan):
                    self._keep_up(record, plan, effort)
            case Standing.OPEN | Standing.WAITING:
                if effort is not None and plan.revised < self._present.slot:
                    self._change(record.name, self.offer(record.spec, plan, effort))

    def offer(self, spec: JobSpec, plan: JobPlan, effort: Effort) -> Admission:
        """Algorithm 1 for one job; its earlier standing is `plan`."""
        present, policy = self._present, self._policy
        job = present.model(spec, plan.arrival, effort, self._tax)
        if job is None:
            return self._refuse(spec, plan, None, None, "no slot gets it on: rounds are too short")
        plan = replace(plan, share=effort.share)
        ledger = self._ledger(without=spec.name, also=_whole(job, effort.share))
        schedule = best_schedule(job, ledger, start=present.first)
        if schedule is None:
            waits = policy.retry and self._is_worth_waiting(job)
            return self._refuse(spec, plan, job, ledger, _PRICE_REASON, waits=waits)
        new = self._reserved(plan, job, schedule, ledger)
        new = replace(new, promised=new.slots[-1].slot)
        facts = accepted_facts("accepted", present.slot, new, schedule, ledger)
        return Admission(True, plan=new, facts=facts)

    def replan(self) -> None:
        """Offer every accepted job a better schedule for the rest of its work."""
        for name, plan in list(self._plans.items()):
            effort = self._present.efforts.get(name)
            if plan.standing is not Standing.ACCEPTED or effort is None:
                continue
            if not self._is_due(plan):
                continue
            if not plan.slots or self._records[name].is_cancel_pending:
                continue
            job = self._present.model(self._records[name].spec, plan.arrival, effort, self._tax)
            if job is None:
                continue
            ledger = self._ledger(without=name, also=_whole(job, effort.share))
            ahead = [
                replace(slot, slot=slot.slot - self._present.slot)
                for slot in plan.slots
                if slot.slot >= self._present.slot + self._present.first
            ]
            if not ahead:
                continue
            worth = job.utility_at(ahead[-1].slot)
            before = worth - ledger.cost(job, ahead)
            schedule = best_schedule(job, ledger, start=self._present.first)
            if schedule is None:
                continue
            extra = max(0, _num_changes(schedule.slots) - _num_changes(ahead))
            least = before + self._policy._penalty * extra + 1e-6 * max(1.0, abs(before))
            # A cheaper plan that ends later would break a promise for a price nobody pays.
            if schedule.payoff > least and schedule.utility > worth:
                self._adopt(name, plan, job, schedule, ledger, "improved")

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
            facts = plain_facts("shortened", present.slot, shorter)
            self._change(record.name, Admission(True, plan=shorter, facts=facts))

    def _catch_up(self, record: JobRecord, plan: JobPlan, effort: Effort) -> None:
        """The best schedule for what is left; where none pays any more, the earliest end."""
        job = self._present.model(record.spec, plan.arrival, effort, self._tax)
        if job is None:
            return
        ledger = self._ledger(without=record.name, also=_whole(job, effort.share))
        schedule = best_schedule(job, ledger, start=self._present.first)
        if schedule is None:
            horizon_s = self._present.slot_s * (ledger.horizon + 1)
            curve = UtilityCurve(UtilityKind.LINEAR, _PRICELESS, horizon_s)
            hurried = replace(job, utility=SlotUtility(curve, self._present.slot_s))
            schedule = best_schedule(hurried, ledger, start=self._present.first)
        if schedule is not None:
            self._adopt(record.name, plan, job, schedule, ledger, "replanned")

    def _adopt(
        self, name: str, plan: JobPlan, job: Job, schedule: Schedule, ledger: Ledger, what: str
    ) -> None:
        """Take over a new schedule of an accepted job."""
        schedule = replace(schedule, utility=job.utility_at(schedule.completion))
        effort = self._present.efforts.get(name)
        plan = plan if effort is None else replace(plan, share=effort.share)
        new = self._reserved(plan, job, schedule, ledger)
        present = self._present
        facts = accepted_facts(what, present.slot, new, schedule, ledger)
        self._change(name, Admission(True, plan=new, facts=facts))

    def _reserved(self, plan: JobPlan, job: Job, schedule: Schedule, ledger: Ledger) -> JobPlan:
        ledger.reserve(job, schedule.slots)
        check_schedule(job, schedule, ledger)
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

    def _ledger(self, *, without: str, also: Job) -> Ledger:
        """The ledger of all plans but one job's, at the prices of the jobs offered lately."""
        bounds = self._bounds(also)
        others = [plan for name, plan in self._plans.items() if name != without]
        return self._present.ledger(self._policy.horizon, bounds, others)

    def _bounds(self, job: Job) -> PriceBounds:
        policy = self._policy
        return density_bounds(
            [*self._offered, job],
            self._present.cluster,
            policy.horizon,
            log_ratio=policy.log_ratio,
            quantile=policy.quantile,
        )

    def _change(self, name: str, admission: Admission) -> None:
        self.changes[name] = admission
        if isinstance(admission.plan, JobPlan):
            self._plans[name] = admission.plan


_PRICE_REASON = "it is worth less than the ranks that it needs cost at present"


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


def _lend(view: ClusterView, present: Present) -> Allocation:
    """Reservations of the present slot first, then what is idle is lent, in this order.

    Jobs that reserved ranks get them; those to be profiled their fewest. Accepted jobs then get
    all that they can use, by what an end in this slot instead of the planned one would earn
    per unit of work. What is left is shared evenly: by the jobs to be profiled, then by the
    retry queue.
    """
    demand = present.demand
    if not len(demand):
        return {}
    plans = [plan_of(job, view.round_s) for job in demand.jobs]
    reserved = [plan.reserved(present.slot) for plan in plans]
    by_standing = {
        standing: [index for index, plan in enumerate(plans) if plan.standing is standing]
        for standing in Standing
    }
    accepted = by_standing[Standing.ACCEPTED]
    counts = np.zeros(len(plans), dtype=np.int64)
    left = view.num_ranks

    def give(index: int, wanted: int) -> None:
        """Raise a job to as many as there are, if that is enough for it."""
        nonlocal left
        count = int(min(np.clip(wanted, demand.least[index], demand.limit[index]), left))
        count = min(count, int(counts[index]) + left)
        if count > counts[index] and count >= demand.least[index]:
            left -= count - int(counts[index])
            counts[index] = count

    for index in accepted:
        if reserved[index]:
            give(index, reserved[index])
    for index in by_standing[Standing.OPEN]:
        give(index, 1)
    gains = {index: _gain(demand.specs[index], plans[index], present) for index in accepted}
    for index in sorted(accepted, key=lambda i: (-gains[i], i)):
        give(index, int(counts[index]) + left)
    for standing in (Standing.OPEN, Standing.WAITING):
        for index in by_standing[standing]:
            give(index, 1)
        upper = counts.copy()
        running = [index for index in by_standing[standing] if counts[index]]
        upper[running] = demand.limit[running]
        counts = share_evenly(counts, upper, demand.weight, int(counts.sum()) + left)
        left = view.num_ranks - int(counts.sum())
    return demand.allocation(counts)


def _gain(spec: JobSpec, plan: JobPlan, present: Present) -> float:
    """Utility per rank-second that an accepted job gains by ending in this slot."""
    effort = present.efforts.get(spec.name)
    if effort is None or not plan.slots:
        return 0.0
    curve = utility_of(spec)
    now, end = present.slot - plan.arrival, plan.slots[-1].slot - plan.arrival
    sooner = curve.at(now * present.slot_s) - curve.at(max(now, end) * present.slot_s)
    return sooner / (effort.iterations * float(effort.seconds[0]))
