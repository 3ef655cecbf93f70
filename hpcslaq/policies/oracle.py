"""Ceilings for the simulator: SLAQ's rule and ours with perfect prediction.

Their forecaster must be told the truth (`predict.oracle.OracleForecaster.reveal`); jobs of
which nothing was told get the fair share.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcslaq.core.policy import Allocation, ClusterView, Forecaster
from hpcslaq.errors import PolicyError
from hpcslaq.policies.demand import PATIENCE_ROUNDS, AcceptsAll, Demand
from hpcslaq.policies.quality import Plan, QualityRule, plan_quality
from hpcslaq.predict.oracle import OracleForecaster


@dataclass(frozen=True, slots=True)
class OracleSlaqPolicy(AcceptsAll):
    """SLAQ's rule with the true losses and step times: drop in one round over D_j.

    Source: SLAQ, SoCC 2017, section 3.3. Deviation from `slaq`: true curves are not concave, so
    workers are shared along the hull of each gain.
    """

    patience_rounds: float = PATIENCE_ROUNDS

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "oracle-slaq"

    def forecaster(self) -> Forecaster:
        """A fresh forecaster to be told the truth."""
        return OracleForecaster()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        return self.plan(view).allocation

    def plan(self, view: ClusterView) -> Plan:
        """The allocation with its reasons."""
        rule = QualityRule((1.0,), 0.0, 0.0, 1.0, self.patience_rounds, by_largest_drop=True)
        return _plan(self.name, view, rule)


@dataclass(frozen=True, slots=True)
class OracleQualityPolicy(AcceptsAll):
    """The rule of `quality` with the true losses and step times, hence without optimism.

    Source: own, as `quality`; no other deviation from it.
    """

    horizon_rounds: float = 16.0
    regroup_s: float = 0.05
    hysteresis: float = 1.25
    patience_rounds: float = PATIENCE_ROUNDS
    completion: float = 0.005

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "oracle-quality"

    def forecaster(self) -> Forecaster:
        """A fresh forecaster to be told the truth."""
        return OracleForecaster()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        return self.plan(view).allocation

    def plan(self, view: ClusterView) -> Plan:
        """The allocation with its reasons."""
        rule = QualityRule(
            (1.0, self.horizon_rounds),
            0.0,
            self.regroup_s,
            self.hysteresis,
            self.patience_rounds,
            self.completion,
        )
        return _plan(self.name, view, rule)


def _plan(name: str, view: ClusterView, rule: QualityRule) -> Plan:
    if not isinstance(view.forecaster, OracleForecaster):
        raise PolicyError(f"{name}: the view holds another policy's forecaster")
    demand = Demand.of(view)
    return plan_quality(view, demand, view.forecaster.predict(demand.names), rule)
