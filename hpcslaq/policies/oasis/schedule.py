"""The best schedule of one job at given prices: Algorithm 2, made fast.

The programme F_t[w] = min over choices a of F_{t-1}[max(0, w - rate_a)] + cost_t(a) is exact
but costs slots x choices x work. Most of it cannot matter: a Lagrange multiplier on the
work gives, for all deadlines at once, a lower bound on the cost and usually a schedule close
to it. Deadlines that cannot beat the best schedule found are dropped, and so is every
(slot, choice) whose reduced cost exceeds the gap that is left (reduced-cost fixing, as for
the multiple-choice knapsack). The programme then runs over what survives; it stays exact.

Source: OASiS, section IV-C, algorithm 2; non-linear speed and packed placement are ours.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from hpcslaq.policies.oasis.menu import Menu, place, slot_menu
from hpcslaq.policies.oasis.model import FloatArray, IntArray, Job, Schedule
from hpcslaq.policies.oasis.prices import Ledger

#: Multipliers tried and deadlines repaired per job, at most; more cost more than they save.
MAX_MULTIPLIERS = 24
MAX_REPAIRS = 20


@dataclass(frozen=True, slots=True)
class _Found:
    """A way to do the work: the choice in each slot up to its last, and its payoff."""

    payoff: float
    choices: IntArray


def best_schedule(
    job: Job,
    ledger: Ledger,
    *,
    start: int | None = None,
    work: int | None = None,
    stop: int | None = None,
) -> Schedule | None:
    """The schedule of largest payoff, the earliest among equals; None if no payoff is > 0.

    start, stop : slots that may be used, [start, stop); default arrival and horizon
    work : units still to do; default all of the job's
    """
    first = job.arrival if start is None else start
    units = job.work if work is None else work
    utilities = _useful_utilities(job, ledger, first, units, stop)
    if not len(utilities):
        return None
    menu = slot_menu(job, ledger, first, first + len(utilities))
    found = solve(menu, utilities, units)
    return None if found is None else _schedule(job, ledger, menu, found.choices)


def greedy_schedule(job: Job, ledger: Ledger) -> Schedule | None:
    """As `best_schedule`, for jobs with `is_convex`: the cheapest worker-slots are the best.

    Raises ValueError for other jobs: servers, packing and non-linear speed break convexity.
    """
    if not job.is_convex:
        raise ValueError(f"{job.name}: the greedy is exact for linear speed without servers only")
    utilities = _useful_utilities(job, ledger, job.arrival, job.work, None)
    if not len(utilities):
        return None
    menu = slot_menu(job, ledger, job.arrival, job.arrival + len(utilities))
    need = -(-job.work // int(job.rates[1]))
    units = np.full((len(menu.costs), job.max_workers), np.inf)
    fits = np.isfinite(menu.costs[:, 1:])
    np.subtract(menu.costs[:, 1:], menu.costs[:, :-1], out=units, where=fits)
    held: list[tuple[float, int]] = []  # the cheapest units so far, dearest first
    cost, best, chosen = 0.0, 0.0, None
    for s in range(len(units)):
        for price in units[s]:
            if not math.isfinite(price) or (len(held) == need and price >= -held[0][0]):
                break
            cost += float(price)
            heapq.heappush(held, (-float(price), -s))
            if len(held) > need:
                cost += heapq.heappop(held)[0]
        if len(held) == need and utilities[s] - cost > best:
            best = utilities[s] - cost
            chosen = np.bincount([-slot for _, slot in held], minlength=s + 1)
    return None if chosen is None else _schedule(job, ledger, menu, chosen)


def payoff_bound(job: Job, ledger: Ledger) -> float:
    """An upper bound, at least 0, on the payoff of every schedule of the job; nearly tight."""
    utilities = _useful_utilities(job, ledger, job.arrival, job.work, None)
    if not len(utilities):
        return 0.0
    menu = slot_menu(job, ledger, job.arrival, job.arrival + len(utilities))
    bounds = DeadlineBounds(menu, utilities, job.work)
    bounds.tighten()
    return max(0.0, bounds.best_payoff, float(bounds.upper.max()))


def solve(menu: Menu, utilities: FloatArray, work: int) -> _Found | None:
    """The best choices over the menu's slots; None where no payoff is > 0.

    utilities : (S,) utility of ending in each slot, non-increasing
    """
    bounds = DeadlineBounds(menu, utilities, work)
    bounds.tighten()
    open_deadlines = bounds.open_deadlines()
    if not len(open_deadlines):
        return bounds.best
    return _programme(menu, utilities, work, bounds, open_deadlines)


class DeadlineBounds:
    """Upper bounds on the payoff of every deadline, and the best schedule met on the way.

    For a multiplier m the cost up to deadline j is at least
    m work + sum over slots s <= j of min_a (cost_s(a) - m rate_a).
    """

    def __init__(self, menu: Menu, utilities: FloatArray, work: int) -> None:
        self.menu, self.utilities, self.work = menu, utilities, work
        #: Tolerance below which payoffs count as equal.
        self.tolerance = 1e-9 * max(1.0, float(utilities[0]))
        #: (S,) no schedule that ends in slot s has a larger payoff.
        self.upper = np.full(len(utilities), np.inf)
        self.best: _Found | None = None
        #: Multipliers tried: m, (S, A) reduced costs less their minimum, (S,) cost bounds,
        #: (S,) choices, (S,) units done and (S,) cost of them, both summed up to the slot.
        self.tried: list[tuple[float, FloatArray, FloatArray, IntArray, IntArray, FloatArray]] = []
        self._settled = np.zeros(len(utilities), dtype=bool)

    @property
    def best_payoff(self) -> float:
        """Payoff of `best`; 0, that of a rejection, while there is none."""
        return 0.0 if self.best is None else self.best.payoff

    def tighten(self, max_multipliers: int = MAX_MULTIPLIERS) -> None:
        """Try multipliers where the largest upper bound is, until the gap is closed or tight."""
        finite = self.menu.costs[np.isfinite(self.menu.costs)]
        self._try(1.01 * float(finite.max(initial=0.0)) + 1e-12)
        self.upper[self.tried[0][4] < self.work] = -np.inf
        while len(self.tried) < max_multipliers:
            candidates = np.where(self._settled, -np.inf, self.upper)
            deadline = int(np.argmax(candidates))
            if not candidates[deadline] > self.best_payoff + self.tolerance:
                return
            self._tighten_at(deadline)

    def open_deadlines(self) -> IntArray:
        """Deadlines that may beat the best schedule, or equal it and come earlier."""
        best = self.best_payoff
        is_open = self.upper > best + self.tolerance
        if self.best is not None:
            last = len(self.best.choices) - 1
            is_open[:last] |= self.upper[:last] >= best - self.tolerance
        return np.flatnonzero(is_open)

    def survivors(self, open_deadlines: IntArray) -> np.ndarray:
        """(S, A) bool: choices that a schedule with an open deadline and the payoff can use."""
        alive = np.isfinite(self.menu.costs)
        least = self.best_payoff - self.tolerance
        for _, reduced, bound, *_ in self.tried:
            gap = np.full(len(self.upper), -np.inf)
            gap[open_deadlines] = (self.utilities - bound)[open_deadlines] - least
            # A slot takes part in all deadlines from itself on.
            slack = np.maximum.accumulate(gap[::-1])[::-1]
            alive &= reduced <= slack[:, None]
        return alive

    def _tighten_at(self, deadline: int) -> None:
        """One step of the search for the multiplier that bounds this deadline best."""
        below: tuple[float, float, float] = (0.0, 0.0, 0.0)
        above: tuple[float, float, float] | None = None
        for m, _, _, _, done, cost in self.tried:
            point = (m, float(done[deadline]), float(cost[deadline]))
            if done[deadline] < self.work:
                below = max(below, point)
            elif above is None or point < above:
                above = point
        assert above is not None
        # Where the two supporting lines meet the bound is largest, or one of them is tight.
        m = (above[2] - below[2]) / (above[1] - below[1])
        if not below[0] < m < above[0] or math.isclose(m, above[0], rel_tol=1e-12):
            self._settle(deadline, below[0], above[0])
            return
        self._try(m)
        done, cost = self.tried[-1][4][deadline], self.tried[-1][5][deadline]
        if math.isclose(cost - m * done, below[2] - m * below[1], rel_tol=1e-12, abs_tol=1e-15):
            self._settle(deadline, below[0], above[0])

    def _try(self, m: float) -> None:
        """Evaluate one multiplier for all deadlines."""
        menu = self.menu
        reduced = menu.costs - m * menu.rates
        choices = np.argmin(reduced, axis=1)
        rows = np.arange(len(choices))
        least = reduced[rows, choices]
        bound = m * self.work + np.cumsum(least)
        done = np.cumsum(menu.rates[choices])
        cost = np.cumsum(menu.costs[rows, choices])
        reduced -= least[:, None]
        self.tried.append((m, reduced, bound, choices, done, cost))
        np.minimum(self.upper, self.utilities - bound, out=self.upper)
        payoff = np.where(done >= self.work, self.utilities - cost, -np.inf)
        deadline = int(np.argmax(payoff))
        self._offer(choices[: deadline + 1], float(payoff[deadline]))

    def _settle(self, deadline: int, below: float, above: float) -> None:
        """The bound of a deadline is as tight as it gets: repair the two roundings around it."""
        self._settled[deadline] = True
        if self._settled.sum() > MAX_REPAIRS:
            return
        menu = self.menu
        costs = menu.costs[: deadline + 1]
        rows = np.arange(deadline + 1)
        for m, _, _, all_choices, *_ in self.tried:
            if m not in (below, above):
                continue
            choices = all_choices[: deadline + 1].copy()
            rates = menu.rates[choices]
            # Change one slot so that the sum is just enough: more if short, less if over.
            need = rates + (self.work - int(rates.sum()))
            change = np.where(menu.rates >= need[:, None], costs, np.inf)
            change -= costs[rows, choices][:, None]
            slot, choice = np.unravel_index(int(np.argmin(change)), change.shape)
            if math.isfinite(change[slot, choice]):
                choices[slot] = choice
                total = float(costs[rows, choices].sum())
                self._offer(choices, float(self.utilities[deadline]) - total)

    def _offer(self, choices: IntArray, payoff: float) -> None:
        if payoff > self.best_payoff + self.tolerance:
            used = np.flatnonzero(choices)
            last = int(used[-1])
            payoff += float(self.utilities[last] - self.utilities[len(choices) - 1])
            self.best = _Found(payoff, choices[: last + 1].copy())


def _programme(
    menu: Menu,
    utilities: FloatArray,
    work: int,
    bounds: DeadlineBounds,
    open_deadlines: IntArray,
) -> _Found | None:
    """The dynamic programme over the choices that survive; `bounds.best` if nothing beats it."""
    alive = bounds.survivors(open_deadlines)
    best = bounds.best_payoff
    best_slot = len(utilities) if bounds.best is None else len(bounds.best.choices) - 1
    end: int | None = None
    is_open = np.zeros(len(utilities), dtype=bool)
    is_open[open_deadlines] = True
    later = np.maximum.accumulate(np.where(is_open, bounds.upper, -np.inf)[::-1])[::-1]
    top = int(menu.rates.max())
    # pad[top + w] = F[w]; the cells below stand for w < 0, where nothing is left to do.
    pad = np.full(top + work + 1, np.inf)
    pad[: top + 1] = 0.0
    rows: list[FloatArray] = []
    scratch = np.empty(work + 1)
    for s in range(int(open_deadlines[-1]) + 1):
        if later[s] < best - bounds.tolerance:
            break
        now = pad[top:].copy()
        for a in np.flatnonzero(alive[s, 1:]) + 1:
            low = top - int(menu.rates[a])
            np.add(pad[low : low + work + 1], menu.costs[s, a], out=scratch)
            np.minimum(now, scratch, out=now)
        rows.append(now)
        pad[top:] = now
        payoff = float(utilities[s] - now[work])
        is_earlier = s < best_slot and best > 0 and payoff >= best - bounds.tolerance
        if is_open[s] and (payoff > best + bounds.tolerance or is_earlier):
            best, best_slot, end = payoff, s, s
    if end is None:
        return bounds.best
    return _Found(best, _trace(menu, alive, rows, work, end))


def _trace(menu: Menu, alive: np.ndarray, rows: list[FloatArray], work: int, end: int) -> IntArray:
    """Follow the programme back from F_end[work] to the choice in each slot."""
    choices = np.zeros(end + 1, dtype=np.int64)
    left = work
    for s in range(end, -1, -1):
        if left <= 0:
            break
        before = rows[s - 1] if s else np.where(np.arange(work + 1) == 0, 0.0, np.inf)
        if before[left] == rows[s][left]:
            continue
        options = np.flatnonzero(alive[s, 1:]) + 1
        values = before[np.maximum(left - menu.rates[options], 0)] + menu.costs[s, options]
        choices[s] = options[int(np.argmin(values))]
        left -= int(menu.rates[choices[s]])
    return choices


def _useful_utilities(
    job: Job, ledger: Ledger, start: int, work: int, stop: int | None
) -> FloatArray:
    """Utilities of slots from `start` on, up to the last in which a payoff can be positive."""
    end = ledger.horizon if stop is None else min(stop, ledger.horizon)
    if start >= end:
        return np.empty(0)
    delays = np.arange(start - job.arrival, end - job.arrival, dtype=np.float64)
    utilities = job.utility.values(delays)
    prices = ledger.worker_price[start:end] @ job.worker_demand
    fewest = job.worker_slot_range[0] * work / job.work
    # No schedule costs less than its worker-slots at the lowest price of any host and slot.
    useful = int(np.count_nonzero(utilities > fewest * prices.min()))
    return utilities[:useful]


def _schedule(job: Job, ledger: Ledger, menu: Menu, choices: IntArray) -> Schedule:
    plans = tuple(
        place(job, ledger, menu.start + int(s), int(menu.workers[a]), bool(menu.packed[a]))
        for s, a in enumerate(choices)
        if a
    )
    cost = float(menu.costs[np.arange(len(choices)), choices].sum())
    return Schedule(job.name, plans, job.utility_at(plans[-1].slot), cost)
