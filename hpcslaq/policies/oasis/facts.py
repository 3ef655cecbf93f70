"""What OASiS writes into the journal about a job, and how a report reads it again.

Numbers of slots are slots of the run. A note says what was decided (`what`) and when
(`slot`); of a job that was offered a schedule also what was known of it, so that the
bound on what any schedule could have earned can be computed from the journal alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcslaq.policies.oasis.model import Job, JobKind, Schedule, SlotPlan, Utility
from hpcslaq.policies.oasis.present import JobPlan
from hpcslaq.policies.oasis.prices import Ledger

Facts = dict[str, object]


def plain_facts(what: str, slot: int, plan: JobPlan) -> Facts:
    """A change without an offer: profiling, shortened."""
    return {"what": what, "slot": slot, "arrival": plan.arrival, "plan": _plan(plan.slots)}


def refused_facts(what: str, slot: int, plan: JobPlan, ledger: Ledger | None) -> Facts:
    """An offer that found no schedule worth its price."""
    return {**plain_facts(what, slot, plan), **_job(plan), **_bounds(ledger)}


def accepted_facts(
    what: str, slot: int, plan: JobPlan, schedule: Schedule, ledger: Ledger
) -> Facts:
    """An offer that was taken; `ledger` holds the reservation, `schedule` counts from `slot`."""
    prices = [
        [slot + part.slot, host, float(ledger.worker_price[part.slot, host, 0])]
        for part in schedule.slots
        for host, _ in part.workers
    ]
    return {
        **plain_facts(what, slot, plan),
        **_job(plan),
        **_bounds(ledger),
        "utility": schedule.utility,
        "cost": schedule.cost,
        "end": slot + schedule.completion,
        "prices": prices,
    }


def read_plan(facts: Mapping[str, Any]) -> tuple[SlotPlan, ...]:
    """The reservations of a note."""
    return tuple(
        SlotPlan(slot, tuple((host, count) for host, count in held), (), rate)
        for slot, rate, held in facts["plan"]
    )


def read_job(name: str, facts: Mapping[str, Any], utility: Utility) -> Job | None:
    """The job that was offered, arriving in the slot of the note; None if none was.

    Its speed is the estimated one without the reserves of the plan: a bound must hold for
    schedules that lose no time.
    """
    if "work" not in facts:
        return None
    rates = np.minimum(np.ceil(np.array(facts["rates"]) * facts["slack"]), facts["work"])
    return Job(
        name=name,
        arrival=facts["slot"],
        kind=JobKind.ALLREDUCE,
        work=facts["work"],
        rates=rates.astype(np.int64),
        worker_demand=np.ones(1),
        server_demand=np.zeros(1),
        utility=utility,
    )


def _plan(slots: tuple[SlotPlan, ...]) -> list[object]:
    return [[part.slot, part.rate, [[h, n] for h, n in part.workers]] for part in slots]


def _job(plan: JobPlan) -> Facts:
    job = plan.job
    if job is None:
        return {}
    return {"work": job.work, "rates": job.rates.tolist(), "slack": plan.slack}


def _bounds(ledger: Ledger | None) -> Facts:
    if ledger is None:
        return {}
    bounds = ledger.bounds
    return {"low": bounds.worker_low, "high": float(bounds.worker_high[0])}
