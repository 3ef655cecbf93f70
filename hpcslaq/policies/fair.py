"""Fair shares: the baseline of SLAQ's evaluation.

Source: max-min fairness as in the resource-fairness schedulers that SLAQ compares with
(SoCC 2017, section 5), here weighted, in whole workers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcslaq.core.policy import Allocation, ClusterView, Forecaster, NoForecast
from hpcslaq.policies.demand import (
    PATIENCE_ROUNDS,
    AcceptsAll,
    Demand,
    choose_runners,
    share_evenly,
)


@dataclass(frozen=True, slots=True)
class FairPolicy(AcceptsAll):
    """Weighted equal shares between each job's minimum and its limit; work-conserving.

    Source: the baseline of SLAQ (SoCC 2017, section 5). Deviations, for cases that it leaves open:
    minima that do not fit together take turns: the order is by rank-seconds per weight
    attained so far, in steps of `patience_rounds` rounds on the minimum, so that a turn lasts
    about that long; a job that waited that long comes first.
    """

    #: Rounds after which a waiting job comes first.
    patience_rounds: float = PATIENCE_ROUNDS

    def __post_init__(self) -> None:
        if not self.patience_rounds > 0:
            raise ValueError(f"patience_rounds: {self.patience_rounds} is not > 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "fair"

    def forecaster(self) -> Forecaster:
        """Fairness needs no prediction."""
        return NoForecast()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        if not len(demand):
            return {}
        patience_s = self.patience_rounds * view.round_s
        turn_s = patience_s * demand.least * demand.weight
        turns = np.floor(demand.attained_s(view.now) / turn_s)
        runs = choose_runners(demand, view.num_ranks, -turns, patience_s)
        lower, upper = np.where(runs, demand.least, 0), np.where(runs, demand.limit, 0)
        return demand.allocation(share_evenly(lower, upper, demand.weight, view.num_ranks))
