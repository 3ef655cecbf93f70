"""Deadlines as promises: admit only what can be done in time, then keep the word.

Jobs without a deadline are taken and get what is left. What a step takes on n workers must be
known before a job starts: the forecaster is asked (`expected`), which learns it from profiles in
ElasticFlow and is told it in our simulator; a job of which nothing is known is not promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.policy import Admission, Allocation, ClusterView, Forecaster
from hpcslaq.errors import PolicyError
from hpcslaq.policies.candidates import Remaining, candidate_counts, spread_rest
from hpcslaq.policies.demand import Demand, share_evenly
from hpcslaq.policies.hull import share_by_price
from hpcslaq.predict.drop import DropForecaster

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: Slots of one round at the beginning of a plan, and ever longer ones behind them.
_EVEN_SLOTS, _LONG_SLOTS = 240, 200


@dataclass(frozen=True, slots=True)
class _Claim:
    """A job with a deadline, as the plan sees it."""

    name: str
    #: Seconds from now to the deadline, and iterations that are left.
    time_s: float
    iterations: float
    #: (limit + 1,) iterations per second on 0, 1, 2, ... workers.
    speed: Floats


@dataclass(frozen=True, slots=True)
class ElasticFlowPolicy:
    """Accept what can meet its deadline, guarantee its minimum share, lend the rest.

    Source: Gu et al., ElasticFlow, ASPLOS 2023. Admission (their algorithm 1): in order of
    deadlines each job is given the least number of workers (1, 2, 4, ... per slot, fewer where
    fewer are free) that ends it in time, its minimum satisfactory share; a job is refused if
    its own or an accepted job's deadline cannot be met. Allocation (algorithm 2): every job its
    share for the present slot, then what is left by marginal return.

    Deviations: slots are rounds at first and grow longer behind; the marginal return of workers is
    the gain in speed over the iterations that are left, shared along the concave hull (`hull`);
    `margin` of the work is planned in addition, for regroups and noise; `reserve_s` seconds
    before each deadline stay free. There is no bound on waiting: promises come first, jobs without
    one are served by arrival.
    """

    margin: float = 0.02
    reserve_s: float = 0.0

    def __post_init__(self) -> None:
        for key in ("margin", "reserve_s"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key}: {getattr(self, key)} is not >= 0")

    @property
    def name(self) -> str:
        """Name in job files and commands."""
        return "elasticflow"

    def forecaster(self) -> Forecaster:
        """A fresh predictor of drops and step times."""
        return DropForecaster()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        """Refuse a job whose deadline, or with which an accepted job's, cannot be met."""
        forecaster = self._forecaster(view)
        expected = None if spec.deadline_s is None else forecaster.expected(spec)
        if spec.deadline_s is None or expected is None:
            return Admission(True)
        iterations, seconds = expected
        _, claims = self._claims(view)
        speed = np.concatenate([[0.0], 1.0 / seconds])
        speed[: spec.min_ranks] = 0.0
        own = _Claim(spec.name, spec.deadline_s - self.reserve_s, iterations, _rising(speed))
        planned = _plan([*claims, own], view.num_ranks, view.round_s, self.margin)
        late = [claim.name for claim, _, is_kept in planned if not is_kept]
        was_late = {
            claim.name
            for claim, _, is_kept in _plan(claims, view.num_ranks, view.round_s, self.margin)
            if not is_kept
        }
        if spec.name in late:
            return Admission(False, f"cannot end within its deadline of {spec.deadline_s:g} s")
        broken = [name for name in late if name not in was_late]
        if broken:
            return Admission(False, f"would break the promise to {broken[0]}")
        return Admission(True)

    def allocate(self, view: ClusterView) -> Allocation:
        """Workers by job; see the class."""
        demand, claims = self._claims(view)
        if not len(demand):
            return {}
        shares = dict.fromkeys(demand.names, 0)
        for claim, share, _ in _plan(claims, view.num_ranks, view.round_s, self.margin):
            shares[claim.name] = share
        promised = np.array([shares[name] for name in demand.names], dtype=np.int64)
        floor = _with_others(promised, demand, view.num_ranks)
        outlook = self._forecaster(view).predict(demand.names)
        remaining = Remaining.of(demand, outlook).iterations
        everyone = np.arange(len(demand))
        options = candidate_counts(demand, outlook, floor)
        seconds = outlook.seconds(everyone, np.maximum(options, 1).astype(np.float64))
        gains = np.nan_to_num(1.0 / (seconds * np.maximum(remaining, 1.0)[:, None]), posinf=0.0)
        gains[~outlook.is_timed | (floor == 0)] = 0.0
        choice, _ = share_by_price(options, gains, view.num_ranks)
        counts = options[everyone, choice]
        counts = spread_rest(options, seconds, counts, demand.weight, view.num_ranks)
        upper = np.where((floor > 0) & ~outlook.is_timed, demand.limit, counts)
        return demand.allocation(share_evenly(counts, upper, demand.weight, view.num_ranks))

    def _claims(self, view: ClusterView) -> tuple[Demand, list[_Claim]]:
        demand = Demand.of(view)
        if not len(demand):
            return demand, []
        outlook = self._forecaster(view).predict(demand.names)
        remaining = Remaining.of(demand, outlook).iterations
        deadlines = demand.deadlines()
        claims = []
        for job in np.flatnonzero(np.isfinite(deadlines) & outlook.is_timed).tolist():
            if not np.isfinite(remaining[job]):
                continue
            counts = np.arange(1.0, demand.limit[job] + 1.0)
            seconds = outlook.seconds(np.array([job]), counts[None, :])[0]
            speed = np.concatenate([[0.0], 1.0 / seconds])
            speed[: demand.least[job]] = 0.0
            time_s = float(deadlines[job]) - self.reserve_s - view.now
            left = float(remaining[job])
            claims.append(_Claim(demand.names[job], time_s, left, _rising(speed)))
        return demand, claims

    def _forecaster(self, view: ClusterView) -> DropForecaster:
        if not isinstance(view.forecaster, DropForecaster):
            raise PolicyError(f"{self.name}: the view holds another policy's forecaster")
        return view.forecaster


def _plan(
    claims: Sequence[_Claim], num_ranks: int, round_s: float, margin: float
) -> list[tuple[_Claim, int, bool]]:
    """Each job with its share of the first slot and whether it ends in time, by deadline."""
    horizon = max((claim.time_s for claim in claims), default=0.0)
    edges = np.arange(_EVEN_SLOTS + 1) * round_s
    if horizon > edges[-1]:
        longer = np.geomspace(edges[-1], horizon, _LONG_SLOTS + 1)[1:]
        edges = np.concatenate([edges, longer])
    lengths = np.diff(edges)
    free = np.full(len(lengths), num_ranks, dtype=np.int64)
    planned = []
    for claim in sorted(claims, key=lambda one: one.time_s):
        usable = np.clip(claim.time_s - edges[:-1], 0.0, lengths)
        share, is_kept = _least_share(claim, usable, free, claim.iterations * (1.0 + margin))
        free -= share
        planned.append((claim, int(share[0]), is_kept))
    return planned


def _least_share(claim: _Claim, usable: Floats, free: Counts, work: float) -> tuple[Counts, bool]:
    """Workers in each slot with the least cap that does the work; the most if none does."""
    limit = len(claim.speed) - 1
    share = np.zeros(len(free), dtype=np.int64)
    cap = 1
    while True:
        share = np.minimum(min(cap, limit), free)
        rates = claim.speed[share]
        share[rates == 0.0] = 0
        done = np.cumsum(rates * usable)
        if done[-1] >= work:
            last = int(np.searchsorted(done, work))
            share[last + 1 :] = 0
            return share, True
        if cap >= limit:
            share[usable == 0.0] = 0
            return share, False
        cap *= 2


def _rising(speed: Floats) -> Floats:
    """The speed of the best number of workers up to each one: a job need not use all."""
    return np.asarray(np.maximum.accumulate(speed))


def _with_others(promised: Counts, demand: Demand, num_ranks: int) -> Counts:
    """The promised shares, raised to minima; then the minima of the others, by arrival."""
    floor = np.zeros(len(promised), dtype=np.int64)
    left = num_ranks
    for job in np.argsort(promised == 0, kind="stable").tolist():
        wanted = int(min(max(promised[job], demand.least[job]), demand.limit[job]))
        if wanted > left:
            wanted = int(demand.least[job])
        if wanted <= left:
            floor[job] = wanted
            left -= wanted
    return floor
