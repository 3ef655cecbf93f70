"""OASiS in a run: the policies `oasis` and `oasis-elastic`.

A job that arrives is offered its best schedule at the present prices (Algorithm 1) if jobs
like it have shown how long its steps take; else it is profiled first, on ranks that nobody
reserved. An accepted job gets what it reserved, slot by slot; what nobody reserved is lent.
A job that falls behind is planned anew on its remaining work, one that is ahead gives back
its last slots, and one that ends gives back all.

The model of a run is in `present`, decisions are in `desk`, lending is in `lend`, and what is
written into the journal in `facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.policy import Admission, Allocation, ClusterView, Forecaster
from hpcslaq.errors import PolicyError
from hpcslaq.policies.oasis.desk import Desk, Terms
from hpcslaq.policies.oasis.facts import plain_facts
from hpcslaq.policies.oasis.lend import lend
from hpcslaq.policies.oasis.present import Effort, JobPlan, Present, Standing, slot_of
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.similar import SimilarForecaster


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
        desk = Desk(self._terms(), view, present)
        effort = Effort(max(known[0], 1.0), known[1])
        return desk.offer(spec, JobPlan(Standing.OPEN, arrival), effort)

    def revise(self, view: ClusterView) -> Mapping[str, Admission]:
        """Decide on profiled jobs; plan late ones anew, shorten early ones; retry."""
        present = Present.of(view, self._forecaster(view))
        desk = Desk(self._terms(), view, present)
        for record in view.jobs:
            if record.is_cancel_pending:
                continue
            desk.revise(record)
        if self._terms().replans:
            desk.replan()
        return desk.changes

    def allocate(self, view: ClusterView) -> Allocation:
        """What is reserved for this slot, and the rest lent; see `lend`."""
        present = Present.of(view, self._forecaster(view))
        return lend(view, present)

    def _terms(self) -> Terms:
        return Terms(
            self.horizon,
            self.log_ratio,
            self.quantile,
            self.window,
            self.margin,
            self.regroup_s,
            self.retry,
        )

    def _forecaster(self, view: ClusterView) -> DropForecaster:
        if not isinstance(view.forecaster, DropForecaster):
            raise PolicyError(f"{self.name}: the view holds another policy's forecaster")
        return view.forecaster


@dataclass(frozen=True, slots=True)
class OasisElasticPolicy(OasisPolicy):
    """OASiS with a retry queue, and plans that are revised where their payoff rises.

    Source: own additions to OASiS, see `oasis.elastic`; else with the deviations of `oasis`. A
    new plan must gain more than `switching_penalty` for each change of the number of ranks that
    it adds.
    """

    retry: bool = True
    switching_penalty: float = 0.0

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "oasis-elastic"

    def _terms(self) -> Terms:
        # Slotted dataclasses are made anew: super() without arguments does not find them.
        return replace(OasisPolicy._terms(self), replans=True, penalty=self.switching_penalty)
