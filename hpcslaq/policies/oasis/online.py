"""The scheduler `oasis` for `evaluate`: Algorithm 1 with price bounds from earlier jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpcslaq.policies.oasis.algorithm import Oasis
from hpcslaq.policies.oasis.model import Cluster, Job, SlotPlan
from hpcslaq.policies.oasis.prices import PriceBounds, density_bounds

#: (jobs, cluster, horizon) -> bounds: one of the functions of `prices`.
BoundsRule = Callable[[Sequence[Job], Cluster, int], PriceBounds]


@dataclass(frozen=True, slots=True)
class OasisScheduler:
    """OASiS with U and L estimated from `history`, the jobs of an earlier workload."""

    history: tuple[Job, ...] = field(repr=False)
    bounds_rule: BoundsRule = density_bounds
    #: Mis-estimation of U / L: 1 means none (figure 6 of the paper).
    factor: float = 1.0
    name: str = "oasis"

    def begin(self, cluster: Cluster, horizon: int, rng: np.random.Generator) -> OasisSession:
        """A session on an empty cluster; nothing is drawn."""
        bounds = self.bounds_rule(self.history, cluster, horizon).scaled(self.factor)
        return OasisSession(Oasis(cluster, horizon, bounds))


@dataclass(slots=True)
class OasisSession:
    """Carries out the schedules of the accepted jobs to the letter."""

    oasis: Oasis
    _by_slot: dict[int, dict[str, SlotPlan]] = field(default_factory=dict)

    def arrive(self, job: Job) -> bool:
        """Algorithm 1."""
        schedule = self.oasis.offer(job).schedule
        if schedule is None:
            return False
        for plan in schedule.slots:
            self._by_slot.setdefault(plan.slot, {})[job.name] = plan
        return True

    def plan(self, slot: int, left: Mapping[str, int]) -> dict[str, SlotPlan]:
        """What was reserved."""
        plans = self._by_slot.get(slot, {})
        return {name: plan for name, plan in plans.items() if name in left}

    def finish(self, job: Job, slot: int) -> None:
        """Nothing to do: plans are never revised."""
