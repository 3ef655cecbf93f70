"""Policies that put the jobs in an order and serve them one after the other.

`las`, `srtf`, `edf`; `fifo` has a module of its own. They share `fifo.serve_in_order`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcslaq.core.policy import Allocation, ClusterView, Forecaster, NoForecast
from hpcslaq.errors import PolicyError
from hpcslaq.policies.candidates import Remaining
from hpcslaq.policies.demand import PATIENCE_ROUNDS, AcceptsAll, Demand
from hpcslaq.policies.fifo import serve_in_order
from hpcslaq.predict.drop import DropForecaster


@dataclass(frozen=True, slots=True)
class LasPolicy(AcceptsAll):
    """Discretised least attained service: short jobs first, without knowing which they are.

    Source: Gu et al., Tiresias, NSDI 2019, section 3.3 (2DAS). A job falls to the next queue
    when its rank-seconds pass `quantum_s`, `quantum_s` * 10, ... ; the lower queue goes
    first, within a queue the order of arrival. A job that waited `patience_rounds` rounds goes to
    the front (its STARVELIMIT).

    Deviations: jobs are elastic, so each takes up to its limit and the last one served what is
    left (Tiresias' jobs have a fixed size); rank-seconds are divided by the weight.
    """

    quantum_s: float = 60.0
    num_queues: int = 3
    patience_rounds: float = PATIENCE_ROUNDS

    def __post_init__(self) -> None:
        for key in ("quantum_s", "patience_rounds"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key}: {getattr(self, key)} is not > 0")
        if self.num_queues < 1:
            raise ValueError(f"num_queues: {self.num_queues} < 1")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "las"

    def forecaster(self) -> Forecaster:
        """Attained service needs no prediction."""
        return NoForecast()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        bounds = self.quantum_s * 10.0 ** np.arange(self.num_queues - 1)
        queue = np.searchsorted(bounds, demand.attained_s(view.now) / demand.weight, side="right")
        impatience = demand.impatience(self.patience_rounds * view.round_s)
        order = np.lexsort((np.arange(len(demand)), queue, -impatience))
        return demand.allocation(serve_in_order(demand, order, view.num_ranks))


@dataclass(frozen=True, slots=True)
class SrtfPolicy(AcceptsAll):
    """Shortest remaining time first, by predicted iterations and step times.

    Source: the classical rule (Schrage, 1968), as used for training jobs by Optimus and
    Tiresias' comparisons. Remaining iterations are those to the last epoch, or to the target loss
    where one is given; the step time is the learnt one at the job's limit. Jobs of which
    nothing is known yet go first, so that they become known. Deviation: jobs are elastic, each
    takes up to its limit. There is no bound on waiting, unless `patience_rounds` sets one: a job
    that waited as long goes first.
    """

    patience_rounds: float = math.inf

    def __post_init__(self) -> None:
        if not self.patience_rounds > 0:
            raise ValueError(f"patience_rounds: {self.patience_rounds} is not > 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "srtf"

    def forecaster(self) -> Forecaster:
        """A fresh predictor of drops and step times."""
        return DropForecaster()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        if not isinstance(view.forecaster, DropForecaster):
            raise PolicyError(f"{self.name}: the view holds another policy's forecaster")
        outlook = view.forecaster.predict(demand.names)
        remaining = Remaining.of(demand, outlook)
        seconds = outlook.seconds(np.arange(len(demand)), demand.limit.astype(np.float64))
        duration = np.where(outlook.is_timed, remaining.iterations * seconds, 0.0)
        impatience = demand.impatience(self.patience_rounds * view.round_s)
        order = np.lexsort((np.arange(len(demand)), duration, -impatience))
        return demand.allocation(serve_in_order(demand, order, view.num_ranks))


@dataclass(frozen=True, slots=True)
class EdfPolicy(AcceptsAll):
    """Earliest deadline first; jobs without a deadline come last, in order of arrival.

    Source: Liu and Layland, 1973, there for one processor. Deviations: every job takes up to its
    limit; deadlines that cannot be met any more are not given up. There is no bound on waiting,
    unless `patience_rounds` sets one: a job that waited as long goes first.
    """

    patience_rounds: float = math.inf

    def __post_init__(self) -> None:
        if not self.patience_rounds > 0:
            raise ValueError(f"patience_rounds: {self.patience_rounds} is not > 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "edf"

    def forecaster(self) -> Forecaster:
        """Deadlines need no prediction."""
        return NoForecast()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        impatience = demand.impatience(self.patience_rounds * view.round_s)
        order = np.lexsort((np.arange(len(demand)), demand.deadlines(), -impatience))
        return demand.allocation(serve_in_order(demand, order, view.num_ranks))
