"""Our own policy: workers where they lower the users' losses most, with foresight.

Source: own, after SLAQ (SoCC 2017) with ingredients of later work, each named where it is used.
What one reads here is the rule; the prediction is `predict.drop`, the sharing `hull`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.policy import Allocation, ClusterView, Forecaster
from hpcslaq.errors import PolicyError
from hpcslaq.policies.candidates import Remaining, candidate_counts, spread_rest
from hpcslaq.policies.demand import (
    PATIENCE_ROUNDS,
    AcceptsAll,
    Demand,
    choose_runners,
    share_evenly,
)
from hpcslaq.policies.hull import share_by_price
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.outlook import Outlook, interpolate

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Relative error from which a prediction is not believed, where it also promises much.
_BAD_ERROR = 0.75
_PROMISE = 0.05
#: Jobs whose gains are computed at once: all that is needed of them fits into the cache.
_BLOCK = 512
#: Share of the time to a deadline that is planned with.
_SLACK = 0.9


@dataclass(frozen=True, slots=True)
class QualityRule:
    """How gains are counted; `quality` and the oracles differ only in these."""

    #: Rounds ahead over which the best rate of drop counts: a job that is slow at first and
    #: fast later is worth its later rate.
    horizons: tuple[float, ...]
    #: Share of the interval's half-width that is added to a drop.
    optimism: float
    #: Seconds that a change of the group costs at least; more where more was measured.
    regroup_s: float
    #: Factor on the urgency of jobs that hold workers, where not all can run.
    hysteresis: float
    patience_rounds: float
    #: Value of a job's completion beside that of its whole drop, which counts 1.
    completion: float = 0.0
    #: Share of a job of which nothing is known, in fair shares.
    first_share: float = 1.0
    #: Normalise by the largest drop so far, as SLAQ does, and not by the expected whole.
    by_largest_drop: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided and why; all arrays are (n,) in the order of `demand.names`."""

    demand: Demand
    counts: Counts
    #: Predicted weighted, normalised drop per round on `counts`.
    gain: Floats
    #: The same per worker on the smallest number of workers, by which waiting jobs are ranked.
    least_rate: Floats
    #: Price of a worker: a job gets more only where its gain per worker is above.
    price: float
    #: Jobs that run; jobs that got a fair share because nothing is known of them.
    runs: Mask
    is_explored: Mask
    #: Smallest number of workers of a running job, deadlines included.
    floor: Counts

    @property
    def allocation(self) -> Allocation:
        """Workers by job."""
        return self.demand.allocation(self.counts)


@dataclass(frozen=True, slots=True)
class QualityPolicy(AcceptsAll):
    """Maximise the predicted drop of the users' normalised losses, all jobs together.

    Source: own; SLAQ's aim (SoCC 2017). It deviates from SLAQ in all that follows, with the concave
    hull after Everett (1963), a bonus for the unknown after Auer et al. (UCB, 2002), the best rate
    over several horizons after Gittins' index (1979), ageing after Tiresias (NSDI 2019).

    - The gain of a job on n workers is its predicted drop, plus `optimism` times the half-width
      of its interval (so little-known jobs are explored: upper confidence bound), over the whole
      drop that is expected of it, times its weight; the best rate over 1 and `horizon_rounds`
      rounds counts. No gain is seen below its target loss or after its last epoch.
    - Iterations follow the learnt step time, with whole chunks; only numbers of workers at
      which a step gets faster are considered, never more than the fastest. A change of the group
      costs what it cost the job before, at least `regroup_s`, so small advantages move nothing.
    - Workers are shared along the concave hull of each gain (`hull`).
    - Every job has its minimum. Minima that do not fit together go to jobs that waited for
      `patience_rounds` rounds, then by gain per worker; jobs that hold workers count
      `hysteresis` times.
    - A deadline that can still be met raises the minimum to the workers it takes.
    - A job counts `completion` times its whole drop for its end, spread over what is left until
      then: of two jobs that gain alike, the one that ends sooner goes first.
    - Jobs without a prediction get `first_share` fair shares, since losses fall most in the
      beginning; jobs whose recent predictions were bad get the fair share.
    - Workers that nobody gains from are shared evenly among jobs that they make faster.
    """

    optimism: float = 0.1
    horizon_rounds: float = 16.0
    regroup_s: float = 0.05
    hysteresis: float = 1.25
    patience_rounds: float = PATIENCE_ROUNDS
    completion: float = 0.005
    first_share: float = 4.0

    def __post_init__(self) -> None:
        for key in ("optimism", "regroup_s", "completion"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key}: {getattr(self, key)} is not >= 0")
        for key in ("horizon_rounds", "hysteresis", "first_share"):
            if not getattr(self, key) >= 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not >= 1")
        if not self.patience_rounds > 0:
            raise ValueError(f"patience_rounds: {self.patience_rounds} is not > 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "quality"

    def forecaster(self) -> Forecaster:
        """A fresh predictor of drops and step times."""
        return DropForecaster()

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand = Demand.of(view)
        if _leaves_no_choice(demand, view.num_ranks):
            return demand.allocation(demand.limit)
        return self._plan(view, demand).allocation

    def plan(self, view: ClusterView) -> Plan:
        """The allocation with its reasons."""
        return self._plan(view, Demand.of(view))

    def _plan(self, view: ClusterView, demand: Demand) -> Plan:
        if not isinstance(view.forecaster, DropForecaster):
            raise PolicyError(f"{self.name}: the view holds another policy's forecaster")
        rule = QualityRule(
            (1.0, self.horizon_rounds),
            self.optimism,
            self.regroup_s,
            self.hysteresis,
            self.patience_rounds,
            self.completion,
            self.first_share,
        )
        return plan_quality(view, demand, view.forecaster.predict(demand.names), rule)


def _leaves_no_choice(demand: Demand, num_ranks: int) -> bool:
    """Whether no job can shrink or grow and all fit: then nobody need predict anything."""
    limit = demand.limit
    return int(limit.sum()) <= num_ranks and bool((demand.least >= limit).all())


def plan_quality(view: ClusterView, demand: Demand, outlook: Outlook, rule: QualityRule) -> Plan:
    """Share the view's ranks by predicted gains."""
    num_jobs = len(demand)
    everyone = np.arange(num_jobs)
    if num_jobs == 0:
        nothing = np.zeros(0, dtype=np.int64)
        no = np.zeros(0, dtype=bool)
        return Plan(demand, nothing, np.zeros(0), np.zeros(0), 0.0, no, no, nothing)
    remaining = Remaining.of(demand, outlook)
    whole = _whole_drop(demand, outlook, remaining, rule)
    is_new = ~(outlook.is_known & outlook.is_timed)
    is_seen = ~is_new & ~_is_misleading(outlook, whole)
    options = candidate_counts(demand, outlook, demand.least)
    seconds = outlook.seconds(everyone, np.maximum(options, 1).astype(np.float64))
    needed = _needed_counts(view, demand, remaining, options, seconds)
    at_least = _gains(view, demand, outlook, remaining, whole, options[:, :1], seconds[:, :1], rule)
    least_rate = at_least[:, 0] / demand.least
    urgency = np.where(is_seen, least_rate, np.inf)
    urgency = np.where(needed > demand.least, np.inf, urgency)
    urgency *= np.where(demand.held > 0, rule.hysteresis, 1.0)
    runs = choose_runners(demand, view.num_ranks, urgency, rule.patience_rounds * view.round_s)
    shares = np.where(is_new, rule.first_share, np.where(is_seen, 0.0, 1.0))
    floor = _floors(demand, runs, needed, shares, view.num_ranks)
    raised = np.flatnonzero(floor != demand.least)
    if len(raised):
        options[raised] = np.where(
            runs[raised, None], np.maximum(options[raised], floor[raised, None]), 0
        )
        workers = np.maximum(options[raised], 1).astype(np.float64)
        seconds[raised] = outlook.seconds(raised, workers)
    gains = _gains(view, demand, outlook, remaining, whole, options, seconds, rule)
    gains[~is_seen | ~runs] = 0.0
    choice, price = share_by_price(options, gains, view.num_ranks)
    counts = options[everyone, choice]
    gain = gains[everyone, choice]
    counts = spread_rest(options, seconds, counts, demand.weight, view.num_ranks)
    if not outlook.is_timed.all():
        upper = np.where(runs & ~outlook.is_timed, demand.limit, counts)
        counts = share_evenly(counts, upper, demand.weight, view.num_ranks)
    return Plan(demand, counts, gain, least_rate, price, runs, runs & ~is_seen, floor)


def _gains(
    view: ClusterView,
    demand: Demand,
    outlook: Outlook,
    remaining: Remaining,
    whole: Floats,
    options: Counts,
    seconds: Floats,
    rule: QualityRule,
) -> Floats:
    """Weighted, normalised drop per round on each number of workers of `options : (n, p)`."""
    hoped = outlook.drops + rule.optimism * outlook.widths
    regroup_s = _regroup_costs(demand, rule)
    scale = demand.weight / whole
    gains = np.empty(options.shape)
    for start in range(0, len(demand), _BLOCK):
        rows = slice(start, start + _BLOCK)
        held = options[rows] == demand.held[rows, None]
        cost = np.where(held, 0.0, regroup_s[rows, None])
        which = np.arange(len(cost))
        best = np.zeros(cost.shape)
        for horizon in rule.horizons:
            time = np.maximum(horizon * view.round_s - cost, 0.0)
            iterations = np.minimum(time / seconds[rows], remaining.iterations[rows, None])
            drop = interpolate(hoped[rows], which, iterations)
            np.maximum(best, drop / horizon, out=best)
        gains[rows] = best * scale[rows, None]
        if rule.completion > 0.0:
            left = remaining.iterations[rows, None] * seconds[rows] + cost
            rounds = np.maximum(left / view.round_s, 1.0)
            gains[rows] += rule.completion * demand.weight[rows, None] / rounds
    return np.asarray(np.nan_to_num(gains, nan=0.0, posinf=1e300))


def _regroup_costs(demand: Demand, rule: QualityRule) -> Floats:
    """Seconds that a change of each group costs, (n,): as measured, else the median of the rest."""
    is_measured = demand.regroup_s > 0.0
    usual = float(np.median(demand.regroup_s[is_measured])) if is_measured.any() else 0.0
    return np.maximum(np.where(is_measured, demand.regroup_s, usual), rule.regroup_s)


def _whole_drop(
    demand: Demand, outlook: Outlook, remaining: Remaining, rule: QualityRule
) -> Floats:
    """The whole drop expected of each job, (n,) > 0: what its losses are normalised by."""
    if rule.by_largest_drop:
        whole = outlook.largest_drop
    else:
        everyone = np.arange(len(demand))
        future = outlook.drop_after(everyone, remaining.iterations)
        whole = np.maximum(np.nan_to_num(outlook.first_loss - outlook.last_loss), 0.0) + future
    smallest = 1e-9 * np.maximum(np.abs(np.nan_to_num(outlook.last_loss)), 1e-290)
    return np.asarray(np.where(whole > smallest, whole, np.inf))


def _is_misleading(outlook: Outlook, whole: Floats) -> Mask:
    """Jobs whose predictions fail and promise much; a noisy plateau promises little."""
    promise = (outlook.drops[:, 3] + outlook.widths[:, 3]) / whole
    return np.asarray((outlook.error > _BAD_ERROR) & (promise > _PROMISE))


def _needed_counts(
    view: ClusterView, demand: Demand, remaining: Remaining, options: Counts, seconds: Floats
) -> Counts:
    """Fewest workers with which a job meets its deadline, (n,): the minimum where it cannot."""
    if not [spec for spec in demand.specs if spec.deadline_s is not None]:
        return demand.least
    left = _SLACK * (demand.deadlines() - view.now)
    duration = np.where(np.isfinite(left), remaining.iterations, 0.0)[:, None] * seconds
    in_time = (duration <= left[:, None]) & np.isfinite(left)[:, None]
    fitting = np.where(in_time, options, np.iinfo(np.int64).max).min(axis=1)
    return np.where(in_time.any(axis=1), fitting, demand.least)


def _floors(
    demand: Demand,
    runs: Mask,
    needed: Counts,
    shares: Floats,
    num_ranks: int,
) -> Counts:
    """Minimum of each job: its own, then what deadlines need, then `shares` fair shares."""
    floor = np.where(runs, demand.least, 0)
    left = num_ranks - int(floor.sum())
    wish = np.where(runs, needed - demand.least, 0)
    if wish.any():
        for job in np.lexsort((np.arange(len(demand)), demand.deadlines())).tolist():
            if 0 < wish[job] <= left:
                floor[job] += wish[job]
                left -= int(wish[job])
    share = (shares * (num_ranks / max(1, int(runs.sum())))).astype(np.int64)
    fair = np.clip(share, demand.least, demand.limit)
    wanted = np.where(runs & (shares > 0.0), np.maximum(fair, floor), floor)
    return share_evenly(floor, wanted, np.ones(len(demand)), num_ranks)
