"""SLAQ's curve fit as its published code carries it out, to check against its published figures.

No policy uses it: `curves` solves the same least squares exactly, in a hundredth of the time. Here
a general trust-region solver starts from ones, often stops far from the least squares or gives
up after a set number of steps, and what it does next depends on all its earlier fits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from hpcslaq.core.jobs import Convergence
from hpcslaq.predict.curves import (
    DECAY,
    DENSE_POINTS,
    MIN_POINTS,
    WINDOW,
    Fit,
    resample,
)

Floats = NDArray[np.float64]

_UPPER = {
    Convergence.SUBLINEAR: (np.inf, np.inf, np.inf, np.inf),
    Convergence.SUPERLINEAR: (1.0, np.inf, np.inf),
}
#: The middle of a bounded parameter, one above the bound of the others.
_START = {Convergence.SUBLINEAR: (1.0, 1.0, 1.0, 1.0), Convergence.SUPERLINEAR: (0.5, 1.0, 1.0)}


class PublishedFitter:
    """Fits one loss history as it grows; remembers what it found, as the published code does.

    Source: SLAQ's published code (andrewor14/spark, branch andrew-as, folder plotting). First the
    newest WINDOW points, below DENSE_POINTS points their spline, from ones; where the solver
    gives up from the mean of all earlier fits, then with even weights, then in doubled windows.
    """

    def __init__(self, family: Convergence, *, decay: float = DECAY, start: float = 1.0) -> None:
        """`decay` 1 is the authors' unweighted fit; `start` is a factor on where it begins."""
        self._family, self._decay = family, decay
        lower_half = np.array(_START[family]) * start
        self._first = np.minimum(lower_half, 0.99 * np.array(_UPPER[family]))
        self._found: list[Floats] = []
        #: Fits that began elsewhere than at `start`, because the solver had given up there.
        self.num_restarts = 0

    def fit(self, loss: Floats) -> Fit | None:
        """The curve through all losses `(n,)` so far, n >= MIN_POINTS; None where all failed."""
        if len(loss) < MIN_POINTS:
            raise ValueError(f"loss: {len(loss)} points < {MIN_POINTS}")
        k = np.arange(1.0, len(loss) + 1.0)
        found = self._attempt(k, loss)
        if found is None:
            return None
        self._found.append(found)
        return Fit(self._family, tuple(found.tolist()))

    def _attempt(self, k: Floats, loss: Floats) -> Floats | None:
        recent_k, recent = k[-WINDOW:], loss[-WINDOW:]
        if len(recent) < DENSE_POINTS:
            recent_k, recent = resample(recent_k, recent)
        found = self._solve(recent_k, recent, self._decay, self._first)
        if found is not None:
            return found
        self.num_restarts += 1
        start = np.mean(self._found, axis=0) if self._found else self._first
        for decay in (self._decay, 1.0):
            found = self._solve(recent_k, recent, decay, start)
            if found is not None:
                return found
        window = WINDOW
        while found is None and window < len(loss):
            window *= 2
            found = self._solve(k[-window:], loss[-window:], 1.0, start)
        return found

    def _solve(self, k: Floats, loss: Floats, decay: float, start: Floats) -> Floats | None:
        """Parameters where the solver stopped by itself; None where it gave up."""
        sigma = decay ** np.arange(len(loss), dtype=np.float64)
        family = self._family

        def misses(params: Floats) -> Floats:
            return np.asarray((_curve(family, params, k) - loss) / sigma)

        with np.errstate(all="ignore"):
            if not np.isfinite(misses(start)).all():
                return None
            try:
                found = least_squares(misses, start, bounds=(0.0, _UPPER[family]))
            except ValueError:  # a step led to a value that is not finite
                return None
        return np.asarray(found.x) if found.success else None


def _curve(family: Convergence, params: Floats, k: Floats) -> Floats:
    """The family's curve without the guards of `curves.evaluate`, which the code lacks."""
    if family is Convergence.SUBLINEAR:
        a, b, c, d = params
        return np.asarray(1.0 / ((a * k + b) * k + c) + d)
    mu, b, c = params
    return np.asarray(mu ** (k - b) + c)


def published_drops(
    family: Convergence,
    loss: Floats,
    ahead: Floats,
    *,
    decay: float = DECAY,
    start: float = 1.0,
) -> tuple[Floats, int]:
    """Drops that the published code predicts after each loss, and its number of restarts.

    loss : (n,); ahead : (m,) iterations. (n, m); NaN before MIN_POINTS losses and where no fit
    was found.
    """
    fitter = PublishedFitter(family, decay=decay, start=start)
    drops = np.full((len(loss), len(ahead)), math.nan)
    for num in range(MIN_POINTS, len(loss) + 1):
        fit = fitter.fit(loss[:num])
        if fit is not None:
            drops[num - 1] = loss[num - 1] - fit(num + ahead)
    return drops, fitter.num_restarts
