"""How long one iteration of a job takes on n workers, learnt from whatever counts occurred.

    t(n) = fixed + per_chunk * ceil(chunks / n) + per_hop * log2(n)

The middle term is a staircase: a worker holds whole chunks. The last is the depth of an
all-reduce tree. All three are >= 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: What is believed before anything else is known, as shares of the first step time seen:
#: nearly all of it is work that divides.
_PRIOR_SHARES = (0.05, 0.93, 0.02)
#: Weight of that belief, in reports; each unknown is believed within its own size.
_PRIOR_WEIGHT = 0.1
#: Share of its weight that a report keeps when the next one comes.
_MEMORY = 0.95
#: An observation this many times off its prediction counts as only so many times off.
_CLIP = 2.0
#: Reports that are believed as they are before outliers are clipped.
_TRUSTING = 3
#: Each of the first reports is solved for, then every fourth, and all that surprise.
_EAGER, _SURPRISE = 8, 0.2
#: Steps below this, in seconds, are noise of the clock.
_SHORTEST = 1e-9

Three = tuple[float, float, float]
Six = tuple[float, float, float, float, float, float]


def step_seconds(
    fixed: Floats, per_chunk: Floats, per_hop: Floats, chunks: Floats, workers: Floats
) -> Floats:
    """t(n) in seconds; all arguments broadcast, `workers` >= 1."""
    return fixed + per_chunk * np.ceil(chunks / workers) + per_hop * np.log2(workers)


class StepTime:
    """Online fit of t(n) for one job: discounted, relative least squares with a prior.

    Three unknowns do not repay arrays: plain numbers take a tenth of the time.
    """

    __slots__ = ("_belief", "_centre", "_chunks", "_count", "_moments", "_targets", "params")

    def __init__(self, num_chunks: int) -> None:
        self._chunks = num_chunks
        self._count = 0
        #: Discounted normal equations of what was seen: 00, 01, 02, 11, 12, 22, and the right side.
        self._moments: Six = (0.0,) * 6
        self._targets: Three = (0.0,) * 3
        #: Precision (diagonal) and centre of the prior; it keeps its weight for what is never seen.
        self._belief: Three = (0.0,) * 3
        self._centre: Three = (0.0,) * 3
        #: fixed, per_chunk, per_hop in seconds; zeros until the first observation.
        self.params: Three = (0.0, 0.0, 0.0)

    def observe(self, seconds: float, num_iterations: int, num_workers: int) -> None:
        """Take in `num_iterations` that took `seconds` together on `num_workers`."""
        if num_iterations < 1 or not (math.isfinite(seconds) and seconds > 0.0):
            return
        seen = max(seconds / num_iterations, _SHORTEST)
        f1, f2 = self._features(num_workers)
        if self._count == 0:
            self._believe(seen, f1, f2)
        p0, p1, p2 = self.params
        expected = p0 + p1 * f1 + p2 * f2
        if self._count >= _TRUSTING:
            seen = min(max(seen, expected / _CLIP), expected * _CLIP)
        self._count += 1
        x, y, z, ratio = 1.0 / expected, f1 / expected, f2 / expected, seen / expected
        m00, m01, m02, m11, m12, m22 = self._moments
        self._moments = (
            _MEMORY * m00 + x * x,
            _MEMORY * m01 + x * y,
            _MEMORY * m02 + x * z,
            _MEMORY * m11 + y * y,
            _MEMORY * m12 + y * z,
            _MEMORY * m22 + z * z,
        )
        t0, t1, t2 = self._targets
        self._targets = (
            _MEMORY * t0 + x * ratio,
            _MEMORY * t1 + y * ratio,
            _MEMORY * t2 + z * ratio,
        )
        if self._count > _EAGER and self._count % 4 and abs(ratio - 1.0) < _SURPRISE:
            return  # nothing new: the next fourth report solves for all
        self._solve()

    def seconds(self, num_workers: int) -> float:
        """t(num_workers) as known now; 0 before the first observation."""
        f1, f2 = self._features(num_workers)
        return self.params[0] + self.params[1] * f1 + self.params[2] * f2

    def _features(self, num_workers: int) -> tuple[float, float]:
        """By what per_chunk and per_hop are multiplied."""
        return float(-(-self._chunks // num_workers)), math.log2(num_workers)

    def _believe(self, seen: float, f1: float, f2: float) -> None:
        """Spread the first step time over the terms as the prior says."""
        a, b, c = (share * seen for share in _PRIOR_SHARES)
        b, c = b / max(f1, 1.0), c / max(f2, 1.0)
        scale = seen / (a + b * f1 + c * f2)
        self.params = self._centre = (a * scale, b * scale, c * scale)
        self._belief = tuple(_PRIOR_WEIGHT / value**2 for value in self._centre)  # type: ignore[assignment]

    def _solve(self) -> None:
        """The best non-negative parameters: the unconstrained ones, or the best edge."""
        b0, b1, b2 = self._belief
        m00, m01, m02, m11, m12, m22 = self._moments
        moments = (m00 + b0, m01, m02, m11 + b1, m12, m22 + b2)
        centre, targets = self._centre, self._targets
        right = (
            b0 * centre[0] + targets[0],
            b1 * centre[1] + targets[1],
            b2 * centre[2] + targets[2],
        )
        whole = _solve_three(moments, right)
        if whole is None:
            whole = _solve_on_edges(moments, right)
        if whole is not None and sum(whole) > 0.0:
            self.params = whole


def _solve_three(m: Six, t: Three) -> Three | None:
    """The solution of the symmetric equations, by elimination; None if some of it is below 0."""
    m00, m01, m02, m11, m12, m22 = m
    u, v = m01 / m00, m02 / m00
    a, b, c = m11 - u * m01, m12 - u * m02, m22 - v * m02
    p, q = t[1] - u * t[0], t[2] - v * t[0]
    if not a > 0.0:
        return None
    w = b / a
    pivot = c - w * b
    if not pivot > 0.0:
        return None
    z = (q - w * p) / pivot
    y = (p - b * z) / a
    x = (t[0] - m01 * y - m02 * z) / m00
    is_sound = x >= 0.0 and y >= 0.0 and z >= 0.0 and math.isfinite(x + y + z)
    return (x, y, z) if is_sound else None


def _solve_on_edges(m: Six, t: Three) -> Three | None:
    """The best with one or two of the unknowns 0."""
    diagonal, off = (m[0], m[3], m[5]), {(0, 1): m[1], (0, 2): m[2], (1, 2): m[4]}
    best, found = math.inf, None
    for (i, j), cross in off.items():
        determinant = diagonal[i] * diagonal[j] - cross * cross
        if determinant > 0.0:
            x = (t[i] * diagonal[j] - t[j] * cross) / determinant
            y = (t[j] * diagonal[i] - t[i] * cross) / determinant
            # At the least squares the cost is minus the right side times the solution.
            cost = -(x * t[i] + y * t[j])
            if x >= 0.0 and y >= 0.0 and cost < best:
                best, found = cost, {i: x, j: y}
    for i in range(3):
        x = t[i] / diagonal[i]
        if x >= 0.0 and -x * t[i] < best:
            best, found = -x * t[i], {i: x}
    if found is None:
        return None
    return found.get(0, 0.0), found.get(1, 0.0), found.get(2, 0.0)


def useful_counts(num_chunks: int, least: int, limit: int) -> list[int]:
    """Numbers of workers worth considering: the first of each stair, between the bounds.

    Above 32 stairs the higher ones are thinned to steps of a tenth; `least` is always there.
    """
    counts = [least]
    per_worker = math.ceil(num_chunks / least)
    while per_worker > 1:
        following = min(per_worker - 1, max(math.ceil(num_chunks / counts[-1]) - 1, 1))
        if len(counts) >= 32:
            following = min(following, max(1, int(math.ceil(num_chunks / counts[-1]) / 1.1)))
        per_worker = following
        count = math.ceil(num_chunks / per_worker)
        if count > limit:
            break
        if count > counts[-1]:
            counts.append(count)
    return counts
