"""Algorithm 1: admit an arriving job if its best schedule is worth more than its price.

Admission is final and plans are never revised here (`elastic` does both). Every
acceptance is checked against the constraints of the model, whoever made the schedule.

Source: OASiS, section IV-B, algorithm 1, and constraints (2)-(10).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcslaq.errors import PolicyError
from hpcslaq.policies.oasis.model import (
    FIT_TOLERANCE,
    Cluster,
    FloatArray,
    Job,
    Schedule,
    SlotPlan,
    rate_of,
)
from hpcslaq.policies.oasis.prices import Ledger, PriceBounds
from hpcslaq.policies.oasis.schedule import best_schedule


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one job: its schedule, or None for a rejection."""

    job: Job
    schedule: Schedule | None

    @property
    def payoff(self) -> float:
        """mu of the dual: the largest payoff at the prices on arrival, 0 for a rejection."""
        return 0.0 if self.schedule is None else self.schedule.payoff

    @property
    def utility(self) -> float:
        """What the job earns; 0 for a rejection."""
        return 0.0 if self.schedule is None else self.schedule.utility


class Oasis:
    """The online algorithm: offer the jobs in the order of their arrival."""

    def __init__(self, cluster: Cluster, horizon: int, bounds: PriceBounds) -> None:
        self.ledger = Ledger(cluster, horizon, bounds)
        #: One per job offered, in that order.
        self.decisions: list[Decision] = []

    def offer(self, job: Job) -> Decision:
        """Decide on a job and reserve what its schedule holds. Raises PolicyError on a bug."""
        schedule = best_schedule(job, self.ledger)
        if schedule is not None:
            self.ledger.reserve(job, schedule.slots)
            check_schedule(job, schedule, self.ledger)
        decision = Decision(job, schedule)
        self.decisions.append(decision)
        return decision

    @property
    def utility(self) -> float:
        """What the accepted jobs earn: the primal objective."""
        return sum(decision.utility for decision in self.decisions)

    @property
    def dual_bound(self) -> float:
        """The dual objective with the payoffs met on arrival, as in the proof.

        Prices never fell, so these stay feasible, and no schedule of the jobs earns more -
        if a host without room for a worker costs more than any job is worth, which U
        ensures for full hosts only. `certificate.dual_value` needs no such assumption.
        """
        payoffs = sum(decision.payoff for decision in self.decisions)
        return payoffs + self.ledger.resource_value


def check_schedule(job: Job, schedule: Schedule, ledger: Ledger, work: int | None = None) -> None:
    """Raise PolicyError, naming the constraint, unless a reserved schedule keeps them all.

    The ledger must hold the reservation already. work : units to do, default all.
    """
    need = job.work if work is None else work
    done = 0
    last = job.arrival - 1
    for plan in schedule.slots:
        if not last < plan.slot < ledger.horizon:
            raise PolicyError(
                f"{job.name}: constraints (9), (10): slot {plan.slot} is not in"
                f" ({last}, {ledger.horizon})"
            )
        last = plan.slot
        done += plan.rate
        check_slot(job, plan)
        _check_capacity(job, plan, ledger)
    if done < need:
        raise PolicyError(f"{job.name}: constraint (2): {done} units planned of {need}")


def check_slot(job: Job, plan: SlotPlan) -> None:
    """Raise PolicyError unless one slot keeps (3), (6), (7) and does the work that it claims."""
    workers, servers = plan.num_workers, plan.num_servers
    where = f"{job.name}, slot {plan.slot}"
    for side in (plan.workers, plan.servers):
        if any(count < 1 for _, count in side) or len({host for host, _ in side}) < len(side):
            raise PolicyError(f"{where}: constraints (11)-(13): bad counts {side}")
    if not 1 <= workers <= job.max_workers:
        raise PolicyError(f"{where}: constraint (3): {workers} workers, N = {job.max_workers}")
    if job.bandwidth_ratio * workers > servers + 1e-6:
        raise PolicyError(
            f"{where}: constraint (6): {servers} servers for {workers} workers,"
            f" b / B = {job.bandwidth_ratio}"
        )
    if servers > workers:
        raise PolicyError(f"{where}: constraint (7): {servers} servers > {workers} workers")
    if plan.rate > rate_of(job, workers, len(plan.workers) == 1):
        raise PolicyError(f"{where}: {workers} workers cannot do {plan.rate} units")


def _check_capacity(job: Job, plan: SlotPlan, ledger: Ledger) -> None:
    cluster = ledger.cluster
    for label, side, used, capacity in (
        ("(4)", plan.workers, ledger.worker_used, cluster.worker_capacity),
        ("(5)", plan.servers, ledger.server_used, cluster.server_capacity),
    ):
        hosts = [host for host, _ in side]
        over = _excess(used[plan.slot, hosts], capacity[hosts])
        if over > 0:
            raise PolicyError(
                f"{job.name}, slot {plan.slot}: constraint {label}: a host is over its"
                f" capacity by {over}"
            )


def _excess(used: FloatArray, capacity: FloatArray) -> float:
    slack = used - capacity * (1 + 1e3 * FIT_TOLERANCE)
    return float(np.max(slack, initial=0.0))
