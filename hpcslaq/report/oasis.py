"""The part of a report about OASiS: what was promised, what came of it, and the bound.

Read from the notes in the journal (`policies.oasis.facts`): the reservations of each job, the
prices that follow from them, utility as planned and as earned, and what no schedule could
have surpassed (`policies.oasis.certificate`). Pictures are in `oasisfigures`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcslaq.core import commands as cmd
from hpcslaq.core.commands import Command
from hpcslaq.core.events import Event
from hpcslaq.core.jobs import JobState
from hpcslaq.policies.oasis.certificate import Certificate, certify
from hpcslaq.policies.oasis.facts import read_job, read_plan
from hpcslaq.policies.oasis.model import Cluster, Constant, Job, JobKind, SlotPlan
from hpcslaq.policies.oasis.present import SlotUtility, slot_of, utility_of
from hpcslaq.policies.oasis.prices import Ledger, PriceBounds
from hpcslaq.record.jobsummary import JobSummary
from hpcslaq.record.summary import RunSummary

#: Steps of the method that tightens the bound, and most jobs for which it is tried.
_ITERATIONS, _MOST_JOBS = 100, 300
#: Most slots and hosts whose prices are reported.
_MOST_SLOTS, _MOST_HOSTS = 400, 64

Facts = Mapping[str, Any]


@dataclass(slots=True)
class PlanHistory:
    """Folds a journal: the notes about each job, in order."""

    notes: dict[str, list[Facts]] = field(default_factory=dict)
    #: Newest L and U.
    low: float | None = None
    high: float | None = None

    def fold(self, item: Event | Command) -> None:
        """Take in one entry."""
        if isinstance(item, cmd.Note) and "what" in item.facts:
            facts: Facts = item.facts
            self.notes.setdefault(item.job, []).append(facts)
            self.low, self.high = facts.get("low", self.low), facts.get("high", self.high)

    def reserved(self, job: str) -> dict[int, SlotPlan]:
        """What the job had reserved for each slot when the slot began, by slot."""
        found: dict[int, SlotPlan] = {}
        for facts in self.notes.get(job, ()):
            found = {slot: plan for slot, plan in found.items() if slot < facts["slot"]}
            found |= {plan.slot: plan for plan in read_plan(facts)}
        return found


def describe_plans(plans: PlanHistory, summary: RunSummary, slot_s: float) -> dict[str, Any] | None:
    """The report's `oasis`; None where no plan was ever made.

    Per slot (`planned`, `actual`): ranks by job. `prices[i][h]` is the price of a rank in slot
    `slots[i]` on host h, as reserved in the end. `bound` and what follows from it are None
    until all jobs have ended.
    """
    if not plans.notes or not summary.hosts:
        return None
    end = max(slot_of(max(summary.now - 1e-9, 0.0), slot_s), 0)
    hosts = Counter(summary.hosts.values())
    jobs = [_describe_job(plans, summary.jobs[name], slot_s) for name in _names(plans, summary)]
    earned = math.fsum(job["utility"] for job in jobs)
    is_over = all(job.state.is_final for job in summary.jobs.values())
    ledger = _ledger(plans, summary, end + 1)
    found = None
    if is_over and ledger is not None:
        found = _certificate(plans, summary, ledger, slot_s, earned)
    bound = None if found is None else found.bound + _most_of_others(plans, summary, ledger)
    names = sorted(hosts)
    return {
        "slot_s": slot_s,
        "slots": list(range(min(end + 1, _MOST_SLOTS))),
        "hosts": names[:_MOST_HOSTS],
        "jobs": jobs,
        "utility": earned,
        "planned_utility": math.fsum(job["planned_utility"] or 0.0 for job in jobs),
        "bound": bound,
        "certified_ratio": None if bound is None or earned <= 0 else bound / earned,
        "promised_ratio": None if ledger is None else 2.0 * ledger.bounds.alpha,
        "price_low": plans.low,
        "price_high": plans.high,
        "prices": [] if ledger is None else _prices(ledger)[: end + 1],
        "planned": {job["name"]: _planned(plans, job["name"], end + 1) for job in jobs},
        "actual": {
            job["name"]: _actual(summary.jobs[job["name"]], slot_s, end + 1, summary.now)
            for job in jobs
        },
    }


def _names(plans: PlanHistory, summary: RunSummary) -> list[str]:
    return [name for name in summary.jobs if name in plans.notes]


def earned_by(job: JobSummary, slot_s: float) -> float:
    """What a job earned, by whole slots from its arrival to its end; 0 if it is not done."""
    if job.finished_at is None or job.state is not JobState.DONE:
        return 0.0
    end = slot_of(max(job.finished_at - 1e-9, 0.0), slot_s)
    return utility_of(job.spec).at(max(end - slot_of(job.submitted_at, slot_s), 0) * slot_s)


def _describe_job(plans: PlanHistory, job: JobSummary, slot_s: float) -> dict[str, Any]:
    notes = plans.notes[job.spec.name]
    curve = utility_of(job.spec)
    arrival = notes[0]["arrival"]
    taken = [facts for facts in notes if "end" in facts]
    promised = taken[0]["end"] if taken else None
    end = None
    if job.finished_at is not None and job.state is JobState.DONE:
        end = slot_of(max(job.finished_at - 1e-9, 0.0), slot_s)
    return {
        "name": job.spec.name,
        "standing": notes[-1]["what"] if not taken else "accepted",
        "arrival_slot": arrival,
        "decided_slot": (taken or notes)[0]["slot"],
        "promised_slot": promised,
        "end_slot": end,
        "late_slots": None if end is None or promised is None else end - promised,
        "revisions": sum(facts["what"] in ("replanned", "improved") for facts in taken[1:]),
        "shortened": sum(facts["what"] == "shortened" for facts in notes),
        "peak": curve.at(0.0),
        "planned_utility": taken[0]["utility"] if taken else None,
        "utility": earned_by(job, slot_s),
    }


def _planned(plans: PlanHistory, job: str, num_slots: int) -> list[int]:
    reserved = plans.reserved(job)
    return [
        reserved[slot].num_workers if slot in reserved else 0
        for slot in range(min(num_slots, _MOST_SLOTS))
    ]


def _actual(job: JobSummary, slot_s: float, num_slots: int, now: float) -> list[float]:
    """Mean ranks that the job held in each slot."""
    held = np.zeros(min(num_slots, _MOST_SLOTS))
    for segment in job.segments:
        until = now if segment.end is None else segment.end
        first, last = slot_of(segment.start, slot_s), slot_of(until, slot_s)
        for slot in range(max(first, 0), min(last + 1, len(held))):
            begin, end = max(segment.start, slot * slot_s), min(until, (slot + 1) * slot_s)
            held[slot] += len(segment.members) * max(0.0, end - begin) / slot_s
    return [round(value, 3) for value in held.tolist()]


def _ledger(plans: PlanHistory, summary: RunSummary, num_slots: int) -> Ledger | None:
    """The ledger with what was reserved for each slot when it began; None without prices."""
    if plans.low is None or plans.high is None:
        return None
    hosts = Counter(summary.hosts.values())
    capacity = np.array([[float(hosts[host])] for host in sorted(hosts)])
    bounds = PriceBounds(plans.low, np.array([plans.high]), 1.0, np.array([math.e]))
    horizon = max(num_slots, *(job["end"] + 1 for job in _offers(plans)), 1)
    ledger = Ledger(Cluster(capacity, np.empty((0, 1))), horizon, bounds)
    for name in plans.notes:
        slots = [
            SlotPlan(p.slot, tuple((h, n) for h, n in p.workers if h < len(capacity)), (), p.rate)
            for p in plans.reserved(name).values()
            if p.slot < horizon
        ]
        ledger.reserve(_RANK, slots)
    return ledger


def _offers(plans: PlanHistory) -> list[Facts]:
    return [facts for notes in plans.notes.values() for facts in notes if "end" in facts]


#: Stands for any job in a ledger of ranks: what it holds is one rank each.
_RANK = Job(
    name="rank",
    arrival=0,
    kind=JobKind.ALLREDUCE,
    work=1,
    rates=np.array([0, 1]),
    worker_demand=np.ones(1),
    server_demand=np.zeros(1),
    utility=Constant(1.0),
)


def _prices(ledger: Ledger) -> list[list[float]]:
    prices: list[list[float]] = ledger.worker_price[:_MOST_SLOTS, :_MOST_HOSTS, 0].tolist()
    return prices


def _certificate(
    plans: PlanHistory, summary: RunSummary, ledger: Ledger, slot_s: float, earned: float
) -> Certificate | None:
    """The bound over all jobs that were offered, as they were known when they were."""
    jobs = []
    for name in _names(plans, summary):
        job = _offered(plans, summary, ledger, name, slot_s)
        if job is not None:
            jobs.append(job)
    if not jobs or len(jobs) > _MOST_JOBS:
        return None
    jobs.sort(key=lambda job: job.arrival)
    return certify(ledger, jobs, earned, _ITERATIONS)


def _offered(
    plans: PlanHistory, summary: RunSummary, ledger: Ledger, name: str, slot_s: float
) -> Job | None:
    """A job as it was known when it was offered; None if it never was."""
    offer = next((facts for facts in plans.notes[name] if "work" in facts), None)
    if offer is None or offer["slot"] >= ledger.horizon:
        return None
    age = offer["slot"] - offer["arrival"]
    return read_job(name, offer, SlotUtility(utility_of(summary.jobs[name].spec), slot_s, age))


def _most_of_others(plans: PlanHistory, summary: RunSummary, ledger: Ledger | None) -> float:
    """The most that jobs can earn that were never offered: they ended while they were tried out.

    Their payoff in the dual is bounded by all that they are worth.
    """
    if ledger is None:
        return 0.0
    return math.fsum(
        utility_of(summary.jobs[name].spec).at(0.0)
        for name in _names(plans, summary)
        if _offered(plans, summary, ledger, name, 1.0) is None
    )
