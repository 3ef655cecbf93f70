"""A run as OASiS sees it now: ranks as the one resource, rounds as slots, jobs as tables.

Every rank takes one worker or one server of any job, so workers and servers share one ledger
and a job is a table of work per slot by its number of *ranks*. Slots are counted from the
present one here; `JobPlan` counts them from the start of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from hpcslaq.core.jobs import JobRecord, JobSpec
from hpcslaq.core.policy import ROUND_SLACK, ClusterView
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.policies.candidates import Remaining
from hpcslaq.policies.demand import Demand
from hpcslaq.policies.oasis.model import Cluster, FloatArray, Job, JobKind, SlotPlan
from hpcslaq.predict.drop import DropForecaster

#: Units of work per slot on the fewest ranks, and the least and most units of a job: rounding
#: down to units costs little, and the dynamic programme stays small.
_UNITS_PER_SLOT, _LEAST_UNITS, _MOST_UNITS = 20, 400, 4000
#: Part of the present slot that must be left if a plan is to begin in it.
_WHOLE_SLOT = 0.9


class Standing(Enum):
    """How a job stands with the policy."""

    OPEN = "open"  # nothing is known of it yet: it is profiled on idle ranks
    ACCEPTED = "accepted"
    WAITING = "waiting"  # refused once, waits for lower prices (retry queue)
    REFUSED = "refused"  # runs still, and ends as soon as it is paused


@dataclass(frozen=True, slots=True, eq=False)
class JobPlan:
    """What a job was promised; its `JobRecord.plan`."""

    standing: Standing
    #: Slot of its submission.
    arrival: int
    #: As it was modelled at the last decision; None: nothing was known of it.
    job: Job | None = None
    #: What is reserved, by slot of the run and number of the host; ranks are `workers`.
    slots: tuple[SlotPlan, ...] = ()
    #: Slot in which it is to end by the first plan.
    promised: int | None = None
    #: Slot of the last decision about it.
    revised: int = -1
    #: `Tax.slack` of `job`.
    slack: float = 1.0
    #: Part of the whole job that `job` is: what was done before the decision is not in it.
    share: float = 1.0

    def reserved(self, slot: int) -> int:
        """Ranks reserved in a slot."""
        return sum(plan.num_workers for plan in self.slots if plan.slot == slot)


@dataclass(frozen=True, slots=True)
class SlotUtility:
    """A user's utility by slots from now on; implements `model.Utility`."""

    curve: UtilityCurve
    slot_s: float
    #: Slots since the submission.
    age: int = 0
    #: Factor on the value; < 1 for the part of a job that is left, where densities are compared.
    share: float = 1.0

    @property
    def target(self) -> float | None:
        """The user's target, in slots from now."""
        target_s = self.curve.target_s
        return None if target_s is None else target_s / self.slot_s - self.age

    def values(self, delays: FloatArray) -> FloatArray:
        """The utility of ending so many slots from now."""
        after = (np.asarray(delays, dtype=np.float64) + self.age) * self.slot_s
        values = [self.share * self.curve.at(s) for s in after.ravel().tolist()]
        return np.array(values).reshape(after.shape)


def utility_of(spec: JobSpec) -> UtilityCurve:
    """What the job file says; else the weight, up to the deadline if there is one."""
    if spec.utility is not None:
        return spec.utility
    if spec.deadline_s is not None and spec.deadline_s > 0:
        return UtilityCurve(UtilityKind.STEP, spec.weight, spec.deadline_s)
    return UtilityCurve(UtilityKind.CONSTANT, spec.weight)


def slot_of(at: float, slot_s: float) -> int:
    """The slot in which an instant lies (s since run start)."""
    return math.floor(at / slot_s + ROUND_SLACK)


@dataclass(frozen=True, slots=True, eq=False)
class Effort:
    """What is left of a job: iterations, and (limit,) seconds of one on 1, 2, ... ranks."""

    iterations: float
    seconds: FloatArray
    #: Part of the whole job that this is.
    share: float = 1.0

    def capacity(self, plans: Iterable[SlotPlan], usable_s: float) -> FloatArray:
        """Iterations that each of these slots has room for."""
        counts = np.array([plan.num_workers for plan in plans], dtype=np.int64)
        limit = len(self.seconds)
        return np.asarray(usable_s / self.seconds[np.clip(counts, 1, limit) - 1])


@dataclass(frozen=True, slots=True, eq=False)
class Present:
    """The view, read once."""

    slot: int
    slot_s: float
    #: Slot, counted from now, in which new plans begin: 0, or 1 late in a slot.
    first: int
    num_ranks: int
    cluster: Cluster
    demand: Demand
    #: What is known of each live job's effort.
    efforts: dict[str, Effort] = field(repr=False)

    @classmethod
    def of(cls, view: ClusterView, forecaster: DropForecaster) -> Present:
        """Read the view."""
        slot = slot_of(view.now, view.round_s)
        passed = view.now / view.round_s - slot
        hosts = list(view.hosts.values()) or [view.num_ranks]
        demand = Demand.of(view)
        return cls(
            slot=slot,
            slot_s=view.round_s,
            first=0 if passed <= 1.0 - _WHOLE_SLOT else 1,
            num_ranks=view.num_ranks,
            cluster=Cluster(np.array(hosts, dtype=np.float64)[:, None], np.empty((0, 1))),
            demand=demand,
            efforts=_efforts(demand, forecaster),
        )

    def model(self, spec: JobSpec, arrival: int, effort: Effort, tax: Tax) -> Job | None:
        """The job from now on, in slots from now; None if no slot gets it on by a unit.

        arrival : slot of the run in which it was submitted
        """
        per_slot = tax.usable_s(self.slot_s) / (effort.seconds * (1.0 + tax.margin))
        per_slot = per_slot[: self.num_ranks].copy()
        per_slot[: spec.min_ranks - 1] = 0.0
        if spec.min_ranks > len(per_slot):
            return None
        alone = effort.iterations / float(per_slot[spec.min_ranks - 1])
        work = int(np.clip(math.ceil(_UNITS_PER_SLOT * alone), _LEAST_UNITS, _MOST_UNITS))
        rates = np.floor(np.minimum(per_slot / effort.iterations, 1.0) * work + 1e-9)
        if rates.max() < 1:
            return None
        return Job(
            name=spec.name,
            arrival=0,
            kind=JobKind.ALLREDUCE,
            work=work,
            rates=np.concatenate([[0], rates.astype(np.int64)]),
            worker_demand=np.ones(1),
            server_demand=np.zeros(1),
            utility=SlotUtility(utility_of(spec), self.slot_s, self.slot - arrival),
        )

    def in_run(self, slots: Iterable[SlotPlan]) -> tuple[SlotPlan, ...]:
        """Slots from now as slots of the run."""
        return tuple(replace(slot, slot=slot.slot + self.slot) for slot in slots)


@dataclass(frozen=True, slots=True)
class Tax:
    """What is planned in addition to the work."""

    #: Share of the work, for noise and for the end of the last epoch.
    margin: float
    #: Seconds of each slot in which the group changes and does not train.
    regroup_s: float

    def usable_s(self, slot_s: float) -> float:
        """Seconds of a slot that train; at least half of it."""
        return max(slot_s - self.regroup_s, 0.5 * slot_s)

    def slack(self, slot_s: float) -> float:
        """How many times the planned work a slot holds if nothing of it is lost, >= 1."""
        return (1.0 + self.margin) * slot_s / self.usable_s(slot_s)


def plan_of(record: JobRecord, slot_s: float) -> JobPlan:
    """The record's plan; an open one where another policy left none."""
    if isinstance(record.plan, JobPlan):
        return record.plan
    return JobPlan(Standing.OPEN, slot_of(record.submitted_at, slot_s))


def _efforts(demand: Demand, forecaster: DropForecaster) -> dict[str, Effort]:
    efforts: dict[str, Effort] = {}
    if not len(demand):
        return efforts
    outlook = forecaster.predict(demand.names)
    remaining = Remaining.of(demand, outlook).iterations
    for index, spec in enumerate(demand.specs):
        if outlook.is_timed[index] and math.isfinite(remaining[index]):
            counts = np.arange(1.0, demand.limit[index] + 1.0)
            seconds = outlook.seconds(np.array([index]), counts[None, :])[0]
            left = max(float(remaining[index]), 1.0)
            share = left / (left + demand.jobs[index].iterations)
            efforts[spec.name] = Effort(left, seconds, share)
            continue
        known = forecaster.expected(spec)
        if known is not None:
            efforts[spec.name] = Effort(max(known[0], 1.0), known[1])
    return efforts
