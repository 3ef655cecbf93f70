"""Runs schedulers on an instance slot by slot and says what they earned.

A scheduler's session is told of arrivals and completions and proposes what every job
holds in the next slot; the simulation checks each proposal against the constraints and
counts the work. Jobs that are unfinished at the horizon earn nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpcslaq.errors import PolicyError
from hpcslaq.policies.oasis.algorithm import check_slot
from hpcslaq.policies.oasis.model import (
    FIT_TOLERANCE,
    Cluster,
    Instance,
    Job,
    Sigmoid,
    SlotPlan,
)


class Session(Protocol):
    """One scheduler at work on one instance."""

    def arrive(self, job: Job) -> bool:
        """Take note of a job at the start of its arrival slot; whether it is admitted."""

    def plan(self, slot: int, left: Mapping[str, int]) -> Mapping[str, SlotPlan]:
        """What each job holds in `slot`; `left` : units still to do of all unfinished jobs."""

    def finish(self, job: Job, slot: int) -> None:
        """Take note that a job ended in `slot`."""


class Scheduler(Protocol):
    """Parameters of a scheduler; `begin` opens a session."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def begin(self, cluster: Cluster, horizon: int, rng: np.random.Generator) -> Session:
        """A session on an empty cluster."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one job fared."""

    job: Job
    #: Admitted on arrival, or served later all the same.
    is_admitted: bool
    #: Slot in which it ended; None: unfinished at the horizon.
    completion: int | None
    #: Worker-slots that it held.
    worker_slots: int
    #: Times that its workers changed between two slots while it was unfinished.
    changes: int

    @property
    def utility(self) -> float:
        """What it earned; 0 while unfinished."""
        return 0.0 if self.completion is None else self.job.utility_at(self.completion)

    @property
    def lateness(self) -> float | None:
        """Slots between the end and the target, < 0 if early; None without target or end."""
        target = self.job.utility.target
        if target is None or self.completion is None:
            return None
        return self.completion - self.job.arrival - target


@dataclass(frozen=True, slots=True)
class Result:
    """How one scheduler fared on one instance."""

    scheduler: str
    outcomes: tuple[Outcome, ...]

    @property
    def utility(self) -> float:
        """Total over the jobs."""
        return sum(outcome.utility for outcome in self.outcomes)

    @property
    def num_admitted(self) -> int:
        """Jobs that were admitted or served."""
        return sum(outcome.is_admitted for outcome in self.outcomes)

    @property
    def num_unfinished(self) -> int:
        """Admitted jobs that did not end by the horizon."""
        return sum(o.is_admitted and o.completion is None for o in self.outcomes)

    def lateness(self, horizon: int, is_critical: bool) -> list[float]:
        """End minus target in slots, of admitted time-critical or time-sensitive jobs.

        An unfinished job counts as ending at the horizon. Critical: a sigmoid that falls
        within about a slot (steepness >= 4); sensitive: any other with a target.
        """
        late = []
        for outcome in self.outcomes:
            utility = outcome.job.utility
            critical = isinstance(utility, Sigmoid) and utility.steepness >= 4
            if not outcome.is_admitted or utility.target is None or critical is not is_critical:
                continue
            end = horizon if outcome.completion is None else outcome.completion
            late.append(end - outcome.job.arrival - utility.target)
        return late


def simulate(instance: Instance, scheduler: Scheduler, rng: np.random.Generator) -> Result:
    """Run a scheduler over the whole horizon. Raises PolicyError on a proposal out of bounds."""
    session = scheduler.begin(instance.cluster, instance.horizon, rng)
    jobs = {job.name: job for job in instance.jobs}
    left: dict[str, int] = {}
    admitted: set[str] = set()
    ends: dict[str, int] = {}
    held = dict.fromkeys(jobs, 0)
    changes = dict.fromkeys(jobs, 0)
    before: Mapping[str, SlotPlan] = {}
    arrivals = list(reversed(instance.jobs))
    for slot in range(instance.horizon):
        while arrivals and arrivals[-1].arrival == slot:
            job = arrivals.pop()
            left[job.name] = job.work
            if session.arrive(job):
                admitted.add(job.name)
        plans = session.plan(slot, left)
        check_plans(instance.cluster, jobs, left, plans, slot)
        for name in left.keys() | before.keys():
            if name in left and _workers(before, name) != _workers(plans, name):
                changes[name] += 1
        for name, plan in plans.items():
            admitted.add(name)
            held[name] += plan.num_workers
            left[name] -= plan.rate
            if left[name] <= 0:
                del left[name]
                ends[name] = slot
                session.finish(jobs[name], slot)
        before = plans
    return Result(
        scheduler.name,
        tuple(
            Outcome(
                job, job.name in admitted, ends.get(job.name), held[job.name], changes[job.name]
            )
            for job in instance.jobs
        ),
    )


def check_plans(
    cluster: Cluster,
    jobs: Mapping[str, Job],
    left: Mapping[str, int],
    plans: Mapping[str, SlotPlan],
    slot: int,
) -> None:
    """Raise PolicyError unless the plans of one slot keep all constraints together."""
    worker_used = np.zeros_like(cluster.worker_capacity)
    server_used = np.zeros_like(cluster.server_capacity)
    for name, plan in plans.items():
        if name not in left or plan.slot != slot:
            raise PolicyError(f"{name}: planned in slot {slot}, but it is not live there")
        check_slot(jobs[name], plan)
        for host, count in plan.workers:
            worker_used[host] += count * jobs[name].worker_demand
        for host, count in plan.servers:
            server_used[host] += count * jobs[name].server_demand
    slack = 1 + 1e3 * FIT_TOLERANCE
    for label, used, capacity in (
        ("(4)", worker_used, cluster.worker_capacity),
        ("(5)", server_used, cluster.server_capacity),
    ):
        over = used > capacity * slack
        if over.any():
            host, resource = np.argwhere(over)[0]
            raise PolicyError(
                f"slot {slot}: constraint {label}: host {host} holds {used[host, resource]} of"
                f" resource {resource}, it has {capacity[host, resource]}"
            )


def compare(instance: Instance, schedulers: Sequence[Scheduler], seed: int) -> dict[str, Result]:
    """Results by scheduler name; every scheduler gets the same random numbers."""
    return {
        scheduler.name: simulate(instance, scheduler, np.random.default_rng(seed))
        for scheduler in schedulers
    }


def _workers(plans: Mapping[str, SlotPlan], name: str) -> int:
    return plans[name].num_workers if name in plans else 0
