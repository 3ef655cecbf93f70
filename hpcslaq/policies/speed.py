"""Policies that share workers by predicted speed alone, blind to the loss: `optimus`, `maxmin`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.policy import Allocation, ClusterView, Forecaster
from hpcslaq.errors import PolicyError
from hpcslaq.policies.candidates import Remaining, candidate_counts
from hpcslaq.policies.demand import (
    PATIENCE_ROUNDS,
    AcceptsAll,
    Demand,
    choose_runners,
    share_evenly,
)
from hpcslaq.policies.hull import share_by_price
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.outlook import Outlook

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OptimusPolicy(AcceptsAll):
    """The next worker to the job whose remaining time it shortens most.

    Source: Peng et al., Optimus, EuroSys 2018, section 4.1: remaining time is remaining
    iterations times the step time on n workers, and the marginal gain is its fall per worker.

    Deviations: remaining iterations are those to the job's last epoch, or to its target loss
    by our predicted drops, where Optimus fits 1/(a k + b) + c and stops at a threshold; there is
    one kind of task (no parameter servers); jumps over plateaus (`hull`); minima that do not fit
    together go to the shortest remaining time, then by arrival, after those that waited for
    `patience_rounds` rounds; jobs without a step time get the fair share; what is left is shared
    evenly.
    """

    patience_rounds: float = PATIENCE_ROUNDS

    def __post_init__(self) -> None:
        if not self.patience_rounds > 0:
            raise ValueError(f"patience_rounds: {self.patience_rounds} is not > 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "optimus"

    def forecaster(self) -> Forecaster:
        """A fresh predictor of drops and step times."""
        return DropForecaster()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        if not len(demand):
            return {}
        outlook = _outlook(self.name, view, demand)
        remaining = Remaining.of(demand, outlook)
        is_timed = outlook.is_timed & np.isfinite(remaining.iterations)
        everyone = np.arange(len(demand))
        alone = outlook.seconds(everyone, demand.least.astype(np.float64))
        duration = np.where(is_timed, remaining.iterations, 0.0) * alone
        patience_s = self.patience_rounds * view.round_s
        runs = choose_runners(demand, view.num_ranks, -duration, patience_s)
        floor = np.where(runs, demand.least, 0)
        share = view.num_ranks // max(1, int(runs.sum()))
        wanted = np.where(runs & ~is_timed, np.clip(share, demand.least, demand.limit), floor)
        floor = share_evenly(floor, wanted, np.ones(len(demand)), view.num_ranks)
        options = candidate_counts(demand, outlook, floor)
        seconds = outlook.seconds(everyone, np.maximum(options, 1).astype(np.float64))
        left = np.where(is_timed & runs, remaining.iterations, 0.0)
        gains = demand.weight[:, None] * left[:, None] * (seconds[:, :1] - seconds)
        choice, _ = share_by_price(options, gains, view.num_ranks)
        counts = options[everyone, choice]
        limit = np.where(runs, demand.limit, 0)
        return demand.allocation(share_evenly(counts, limit, demand.weight, view.num_ranks))


@dataclass(frozen=True, slots=True)
class MaxminPolicy(AcceptsAll):
    """Raise the smallest normalised throughput as high as it goes.

    Source: Narayanan et al., Gavel, OSDI 2020, section 4.1 (max-min fairness with weights): the
    throughput of each job is divided by that on its fair share, and by its weight.

    Deviations: whole workers at one instant in place of fractions of time, found by bisection
    on the common level in place of a linear programme; workers of one type; a job without a
    step time counts as scaling perfectly; minima that do not fit together take turns
    as under `fair`; what is left is shared evenly.
    """

    patience_rounds: float = PATIENCE_ROUNDS

    def __post_init__(self) -> None:
        if not self.patience_rounds > 0:
            raise ValueError(f"patience_rounds: {self.patience_rounds} is not > 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "maxmin"

    def forecaster(self) -> Forecaster:
        """A fresh predictor of drops and step times."""
        return DropForecaster()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        if not len(demand):
            return {}
        outlook = _outlook(self.name, view, demand)
        patience_s = self.patience_rounds * view.round_s
        turn_s = patience_s * demand.least * demand.weight
        turns = np.floor(demand.attained_s(view.now) / turn_s)
        runs = choose_runners(demand, view.num_ranks, -turns, patience_s)
        floor = np.where(runs, demand.least, 0)
        options = np.sort(candidate_counts(demand, outlook, floor), axis=1)
        level = self._levels(demand, outlook, options, view.num_ranks)
        counts = _raise_together(options, level, view.num_ranks)
        limit = np.where(runs, demand.limit, 0)
        return demand.allocation(share_evenly(counts, limit, demand.weight, view.num_ranks))

    def _levels(self, demand: Demand, outlook: Outlook, options: Counts, num_ranks: int) -> Floats:
        """Normalised throughput of each job on each of `options : (n, p)`."""
        workers = np.maximum(options, 1).astype(np.float64)
        everyone = np.arange(len(demand))
        fair = np.clip(num_ranks * demand.weight / demand.weight.sum(), 1.0, demand.limit)
        alone = outlook.seconds(everyone, np.ceil(fair))
        speed_up = alone[:, None] / outlook.seconds(everyone, workers)
        speed_up = np.where(outlook.is_timed[:, None], speed_up, workers / fair[:, None])
        return np.asarray(np.maximum.accumulate(speed_up / demand.weight[:, None], axis=1))


def _outlook(name: str, view: ClusterView, demand: Demand) -> Outlook:
    if not isinstance(view.forecaster, DropForecaster):
        raise PolicyError(f"{name}: the view holds another policy's forecaster")
    return view.forecaster.predict(demand.names)


def _raise_together(options: Counts, level: Floats, budget: int) -> Counts:
    """Counts (n,) that make the smallest level as large as the budget allows.

    options, level : (n, p), neither falls along a row. A job that cannot reach a level stays
    on the fewest workers of its highest one.
    """
    rows = np.arange(len(options))

    def counts_at(wanted: float) -> Counts:
        reached = (level < min(wanted, 1e300)).sum(axis=1)
        best = (level < level[:, -1:]).sum(axis=1)
        return np.asarray(options[rows, np.minimum(reached, best)])

    values = np.unique(level)
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        if int(counts_at(float(values[middle])).sum()) <= budget:
            low = middle
        else:
            high = middle
    return counts_at(float(values[low]))
