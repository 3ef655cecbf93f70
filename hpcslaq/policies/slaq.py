"""SLAQ: give the next worker to the job whose normalised loss it lowers most.

Source: Zhang, Stafman, Or, Freedman: SLAQ: quality-driven scheduling for distributed machine
learning, SoCC 2017, sections 3.1-3.3, and the authors' published code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.policy import Allocation, ClusterView, Forecaster
from hpcslaq.errors import PolicyError
from hpcslaq.policies.demand import (
    PATIENCE_ROUNDS,
    AcceptsAll,
    Demand,
    choose_runners,
    share_evenly,
)
from hpcslaq.policies.greedy import take_best
from hpcslaq.predict.slaq import SlaqForecaster, SlaqPrediction
from hpcslaq.predict.table import Rows

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SlaqPolicy(AcceptsAll):
    """Maximise the sum over jobs of weight * (predicted drop in one round) / D_j.

    Source: SLAQ (Zhang et al., SoCC 2017), sections 3.1-3.3, and the authors' published code.
    Each job starts from its minimum, or from the fair share floor(C/J) while it has no
    prediction; the remaining workers go one by one to the largest marginal gain.

    Deviations, each for a case that the published code leaves open:

    - minima that do not fit together: jobs that waited `patience_rounds` rounds come first,
      then those without a prediction, then by gain per worker of the minimum
      (`demand.choose_runners`); the fair shares of unpredicted jobs shrink before that;
    - workers left when no job gains any more are shared evenly, up to the jobs' limits;
    - D_j is at most first minus lowest loss, so that one outlier upwards does not fix it; a
      job that never improved (D_j = 0) gains nothing once it has reported five losses;
    - the time of an iteration is the mean over all iterations (the code leaves the first
      out of the sum, but not out of the divisor);
    - the gain never goes below a job's target loss, where one is given;
    - a job's weight multiplies its gain (the paper has no weights).
    """

    #: Rounds after which a waiting job comes first.
    patience_rounds: float = PATIENCE_ROUNDS
    #: "curve": the fitted curves of the paper; "ratio": L_t (L_t/L_{t-1})^n, as in the
    #: published scheduler branch, which costs next to nothing per report.
    predictor: str = "curve"

    def __post_init__(self) -> None:
        if not self.patience_rounds > 0:
            raise ValueError(f"patience_rounds: {self.patience_rounds} is not > 0")
        if self.predictor not in ("curve", "ratio"):
            raise ValueError(f"predictor: {self.predictor!r} (valid: 'curve', 'ratio')")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "slaq"

    def forecaster(self) -> Forecaster:
        """A fresh predictor as in the paper."""
        return SlaqForecaster(uses_curves=self.predictor == "curve")

    def gains(self, view: ClusterView, allocation: Allocation) -> dict[str, float]:
        """Weighted, normalised drop predicted for one round, of each job with a prediction."""
        demand = Demand.of(view)
        if not len(demand):
            return {}
        found = self._gains(view, demand)
        counts = np.array([allocation.get(name, 0) for name in demand.names], dtype=np.int64)
        total = found.total(np.arange(len(demand)), counts).tolist()
        is_known = found.prediction.is_known.tolist()
        triples = zip(demand.names, total, is_known, strict=True)
        return {name: gain for name, gain, known in triples if known}

    def _gains(self, view: ClusterView, demand: Demand) -> _Gains:
        if not isinstance(view.forecaster, SlaqForecaster):
            raise PolicyError(f"{self.name}: the view holds another policy's forecaster")
        return _Gains(demand, view.forecaster.predict(demand.names), view)

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        if not len(demand):
            return {}
        gains = self._gains(view, demand)
        prediction = gains.prediction
        patience_s = self.patience_rounds * view.round_s
        everyone = np.arange(len(demand))
        urgency = gains.total(everyone, demand.least) / demand.least
        urgency[~prediction.is_known] = np.inf
        runs = choose_runners(demand, view.num_ranks, urgency, patience_s)
        least, limit = np.where(runs, demand.least, 0), np.where(runs, demand.limit, 0)
        counts = _start(least, limit, prediction.is_known, view.num_ranks)
        upper = np.where(prediction.is_known, limit, counts)
        counts = take_best(gains.marginal, counts, upper, view.num_ranks - int(counts.sum()))
        if int(counts.sum()) < view.num_ranks:
            counts = share_evenly(counts, limit, demand.weight, view.num_ranks)
        return demand.allocation(counts)


@dataclass(frozen=True, slots=True)
class _Gains:
    """g_j(a) of the jobs of a view."""

    demand: Demand
    prediction: SlaqPrediction
    view: ClusterView

    def total(self, which: Rows, count: Counts) -> Floats:
        """Weighted normalised drop within one round on `count : (m,)` workers; 0 if unknown."""
        return self._weighted(which, self.prediction.last_loss[which] - self._loss(which, count))

    def marginal(self, which: Rows, count: Counts) -> Floats:
        """What one more worker than `count : (m,)` adds."""
        loss = self._loss(which, count)
        # Mostly the next entry is the same job with one worker more: its loss is known then.
        following = np.append(loss[1:], 0.0)
        is_last = np.ones(len(which), dtype=bool)
        is_last[:-1] = (which[1:] != which[:-1]) | (count[1:] != count[:-1] + 1)
        following[is_last] = self._loss(which[is_last], count[is_last] + 1)
        return self._weighted(which, loss - following)

    def _loss(self, which: Rows, count: Counts) -> Floats:
        found = self.prediction
        # Work divides among the workers; that servers come in whole ones is left out.
        workers = np.maximum((count - found.servers[which]) * found.share[which], 0.0)
        iterations = self.view.round_s * workers / found.work[which]
        return self.prediction.loss_after(which, iterations)

    def _weighted(self, which: Rows, drop: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            gain = self.demand.weight[which] * drop / self.prediction.scale[which]
        return np.where(np.isfinite(gain), np.maximum(gain, 0.0), 0.0)


def _start(least: Counts, limit: Counts, is_known: NDArray[np.bool_], num_ranks: int) -> Counts:
    """The minimum, or floor(C/J) for unpredicted jobs as far as there is room for it."""
    share = num_ranks // max(1, int((limit > 0).sum()))
    wanted = np.where(is_known, least, np.clip(share, least, limit))
    if int(wanted.sum()) <= num_ranks:
        return wanted
    return share_evenly(least, wanted, np.ones(len(least)), num_ranks)
