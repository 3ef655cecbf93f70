"""The ledger of a moment in a run, with what each live job has reserved in it.

Made once for all decisions of the moment; each is made at the prices that the ones before
left. Slots are counted from the present one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hpcslaq.policies.oasis.model import Job, SlotPlan
from hpcslaq.policies.oasis.present import JobPlan, Present
from hpcslaq.policies.oasis.prices import Ledger, PriceBounds, density_bounds


class Book:
    """Reservations by job, and prices from the jobs that were offered lately."""

    def __init__(
        self,
        present: Present,
        plans: Mapping[str, JobPlan],
        offered: Iterable[Job],
        *,
        horizon: int,
        log_ratio: float,
        quantile: float,
    ) -> None:
        """`offered` : at least one job, as wholes."""
        self._present = present
        self._offered = list(offered)
        self._log_ratio, self._quantile = log_ratio, quantile
        self.ledger = Ledger(present.cluster, horizon, self._bounds(horizon))
        #: What each job holds in the ledger.
        self._held: dict[str, tuple[Job, tuple[SlotPlan, ...]]] = {}
        for name, plan in plans.items():
            if plan.job is not None and plan.slots:
                self.put(name, plan.job, self.ahead(plan))

    def offer(self, job: Job) -> None:
        """Take a further job into the prices."""
        self._offered.append(job)
        self.ledger.rebase(self._bounds(self.ledger.horizon))

    def put(self, name: str, job: Job, slots: tuple[SlotPlan, ...]) -> None:
        """Replace what a job holds."""
        self.take_out(name)
        self.ledger.reserve(job, slots)
        self._held[name] = (job, slots)

    def take_out(self, name: str) -> tuple[Job, tuple[SlotPlan, ...]] | None:
        """Release what a job holds; what that was."""
        held = self._held.pop(name, None)
        if held is not None:
            self.ledger.release(*held)
        return held

    def ahead(self, plan: JobPlan) -> tuple[SlotPlan, ...]:
        """The slots of a plan from now on, on hosts that are there."""
        slot, num_hosts = self._present.slot, len(self._present.cluster.worker_capacity)
        return tuple(
            replace(
                part,
                slot=part.slot - slot,
                workers=tuple((host, n) for host, n in part.workers if host < num_hosts),
            )
            for part in plan.slots
            if slot <= part.slot < slot + self.ledger.horizon
        )

    def _bounds(self, horizon: int) -> PriceBounds:
        return density_bounds(
            self._offered,
            self._present.cluster,
            horizon,
            log_ratio=self._log_ratio,
            quantile=self._quantile,
        )
