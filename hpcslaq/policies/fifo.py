"""First in, first out: the earliest job gets all that it can use, then the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcslaq.core.policy import Allocation, ClusterView, Forecaster, NoForecast
from hpcslaq.policies.demand import AcceptsAll, Demand


@dataclass(frozen=True, slots=True)
class FifoPolicy(AcceptsAll):
    """In order of arrival each job gets workers up to its limit while there are any.

    Source: the classical rule, as in batch queues with backfilling. Deviations: no reservations: a
    job whose minimum does not fit into what its elders left is passed over. It cannot be
    held up by younger jobs: at each decision its elders are served first, then it. There is no
    bound on waiting, unless `patience_rounds` sets one: a job that waited as long goes first.
    """

    patience_rounds: float = math.inf

    def __post_init__(self) -> None:
        if not self.patience_rounds > 0:
            raise ValueError(f"patience_rounds: {self.patience_rounds} is not > 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "fifo"

    def forecaster(self) -> Forecaster:
        """Arrival order needs no prediction."""
        return NoForecast()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        impatience = demand.impatience(self.patience_rounds * view.round_s)
        order = np.lexsort((np.arange(len(demand)), -impatience))
        return demand.allocation(serve_in_order(demand, order, view.num_ranks))


def serve_in_order(demand: Demand, order: np.ndarray, num_ranks: int) -> np.ndarray:
    """Counts (n,): along `order : (n,)` each job takes what is left, up to its limit."""
    counts = np.zeros(len(demand), dtype=np.int64)
    least, limit = demand.least[order], demand.limit[order]
    # Those in front that all get their limit, and then one by one.
    taken = np.cumsum(limit)
    num = int(np.searchsorted(taken, num_ranks, side="right"))
    counts[order[:num]] = limit[:num]
    left = num_ranks - (int(taken[num - 1]) if num else 0)
    rest = num + np.flatnonzero(least[num:] <= left)
    for index, fewest, most in zip(
        order[rest].tolist(), least[rest].tolist(), limit[rest].tolist(), strict=True
    ):
        if left == 0:
            break
        if fewest <= left:
            counts[index] = min(most, left)
            left -= min(most, left)
    return counts
