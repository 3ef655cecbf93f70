"""SLAQ's two curve families and their bounded, weighted least-squares fit.

Numeric functions of one loss history; they keep no state. Which history is fitted and
when is the business of `slaq`.

The fit is exact. Given its shape, a curve of either family is linear in an amplitude and a
level, which have a closed form; the shape has two numbers (sublinear) or one (superlinear)
and is found on a grid that is refined around its best point. A general solver that starts
from all ones, as the published code does, often stops far from the least squares, because
the valley is long and flat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from hpcslaq.core.jobs import Convergence

Floats = NDArray[np.float64]

#: Weight of a point `m` steps old is DECAY**(2 m). Source: SLAQ's published code.
DECAY = 0.8
#: Newest points that are fitted.
WINDOW = 100
#: Fewest points for a fit.
MIN_POINTS = 5
#: Histories with fewer points are resampled by a cubic spline to at least as many.
DENSE_POINTS = 50
#: Points whose weight is below this share of the newest one's cannot move the fit.
_NEGLIGIBLE = 1e-13
_ROUNDS = 4
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted curve: `params` is (a, b, c, d) or (mu, b, c), by family.

    `level` is the loss that the curve approaches (d or c).
    """

    family: Convergence
    params: tuple[float, ...]

    def __call__(self, k: float | Floats) -> Floats:
        """Predicted loss at iteration(s) `k`, the shape of `k`."""
        return evaluate(self.family, self.params, np.asarray(k, dtype=np.float64))

    @property
    def level(self) -> float:
        """The asymptote."""
        return self.params[-1]


def evaluate(family: Convergence, params: tuple[float, ...], k: Floats) -> Floats:
    """Loss at iterations `k : (n,)`: 1/(a k^2 + b k + c) + d, or mu^(k-b) + c.

    Source: SLAQ, section 3.2.
    """
    if family is Convergence.SUBLINEAR:
        a, b, c, d = params
        return 1.0 / np.maximum((a * k + b) * k + c, _TINY) + d
    mu, b, c = params
    exponent = (k - b) * math.log(max(mu, _TINY))
    return np.exp(np.clip(exponent, -700.0, 300.0)) + c


def fit_curve(family: Convergence, k: Floats, loss: Floats, *, decay: float = DECAY) -> Fit | None:
    """The curve of least weighted squared error with all parameters >= 0 and mu <= 1.

    k, loss : (n,) iterations (ascending, the last >= 1) and losses, newest last, n >= 2.
    decay : the weight of a point m steps old is decay**(2 m).
    None where no finite curve exists (losses that are not finite or overflow).

    Source: SLAQ, section 3.2 and published code, which uses a local search instead.
    """
    num_kept = len(k)
    if decay < 1.0:
        num_kept = min(num_kept, 1 + int(math.log(_NEGLIGIBLE) / (2.0 * math.log(decay))))
    k, loss = k[-num_kept:], loss[-num_kept:]
    if not np.isfinite(loss).all():
        return None
    weight = decay ** (2.0 * np.arange(len(k) - 1.0, -1.0, -1.0))
    weight /= weight.sum()
    # In units of the spread, so that squares neither overflow nor vanish.
    unit = float(np.abs(loss).max()) or 1.0
    scaled = loss / unit
    # Shapes whose numbers overflow cost infinity, and so lose.
    with np.errstate(over="ignore", invalid="ignore"):
        if family is Convergence.SUBLINEAR:
            return _fit_sublinear(k, scaled, weight, unit)
        return _fit_superlinear(k, scaled, weight, unit)


def resample(k: Floats, loss: Floats) -> tuple[Floats, Floats]:
    """At least DENSE_POINTS points of the cubic spline through a short history.

    k, loss : (n,) with n >= 2. The grid starts at the oldest point and, as in SLAQ's
    published code, ends one step before the newest.
    """
    per_step = math.ceil(DENSE_POINTS / (len(k) - 1))
    dense = k[0] + np.arange((len(k) - 1) * per_step) / per_step
    return dense, np.asarray(CubicSpline(k, loss)(dense), dtype=np.float64)


def _fit_sublinear(k: Floats, loss: Floats, weight: Floats, unit: float) -> Fit | None:
    """1/(a k^2 + b k + c) + d with z = (K - k)/K: s / (1 - slope z + bend z^2) + d.

    The bounds a, b, c >= 0 are max(0, slope - 1) <= bend <= slope/2; the shape is
    (log slope, position of bend between its bounds).
    """
    newest = float(k[-1])
    z = (newest - k) / newest
    top = math.log(2.0)
    grid, spread = np.linspace(math.log(1e-4), top, 25), np.linspace(0.0, 1.0, 5)
    steps = np.array([grid[1] - grid[0], spread[1]])
    log_slope, position = (axis.ravel() for axis in np.meshgrid(grid, spread))
    around = np.linspace(-1.0, 1.0, 7)
    for is_last in (False,) * _ROUNDS + (True,):
        slope = np.exp(log_slope)
        least = np.maximum(0.0, slope - 1.0)
        bend = least + position * (0.5 * slope - least)
        basis = 1.0 / (1.0 - slope[:, None] * z + bend[:, None] * (z * z))
        cost, amplitude, level = _fit_levels(basis, loss, weight, np.full(len(slope), 1e-12))
        best = int(np.argmin(cost))
        if is_last:
            break
        mesh = np.meshgrid(log_slope[best] + around * steps[0], position[best] + around * steps[1])
        log_slope = np.minimum(mesh[0].ravel(), top)
        position = np.clip(mesh[1].ravel(), 0.0, 1.0)
        steps = steps / 3.0
    if not math.isfinite(cost[best]):
        return None
    scale = 1.0 / (float(amplitude[best]) * unit)
    a = float(bend[best])
    b = max(float(slope[best]) - 2.0 * a, 0.0)
    c = max(1.0 - a - b, 0.0)
    params = (a * scale / newest**2, b * scale / newest, c * scale, float(level[best]) * unit)
    return Fit(Convergence.SUBLINEAR, params)


def _fit_superlinear(k: Floats, loss: Floats, weight: Floats, unit: float) -> Fit | None:
    """mu^(k-b) + c as s exp(rate (K - k)) + c; the bound b >= 0 is s >= mu^K."""
    newest = float(k[-1])
    age = newest - k
    log_rate = np.linspace(math.log(1e-6), math.log(7.0), 80)
    step = float(log_rate[1] - log_rate[0])
    for is_last in (False,) * _ROUNDS + (True,):
        rate = np.exp(log_rate)
        basis = np.exp(np.minimum(rate[:, None] * age, 300.0))
        least = np.exp(np.maximum(-rate * newest, -600.0)) / unit
        cost, amplitude, level = _fit_levels(basis, loss, weight, least)
        best = int(np.argmin(cost))
        if is_last:
            break
        log_rate = log_rate[best] + np.linspace(-1.0, 1.0, 11) * step
        step /= 5.0
    if not math.isfinite(cost[best]):
        return None
    b = newest + math.log(float(amplitude[best]) * unit) / float(rate[best])
    params = (math.exp(-float(rate[best])), max(b, 0.0), float(level[best]) * unit)
    return Fit(Convergence.SUPERLINEAR, params)


def _fit_levels(
    basis: Floats, loss: Floats, weight: Floats, least: Floats
) -> tuple[Floats, Floats, Floats]:
    """Cost, amplitude >= least and level >= 0 of the best fit of each shape.

    basis : (S, n); loss, weight : (n,), the weights sum to 1; least : (S,).
    The problem is convex in two numbers, so the best is inside or on one of two edges.
    """
    mean = float(loss @ weight)
    basis_mean = basis @ weight
    centred = basis - basis_mean[:, None]
    amplitude = (centred @ (weight * (loss - mean))) / np.maximum(
        (centred * centred) @ weight, _TINY
    )
    level = mean - amplitude * basis_mean
    outside = (amplitude < least) | (level < 0.0)
    if outside.any():
        rows = basis[outside]
        floor = least[outside]
        on_floor = np.maximum(0.0, mean - floor * basis_mean[outside])
        no_level = np.maximum(floor, (rows @ (weight * loss)) / ((rows * rows) @ weight))
        take_floor = _costs(rows, floor, on_floor, loss, weight) <= _costs(
            rows, no_level, np.zeros_like(floor), loss, weight
        )
        amplitude[outside] = np.where(take_floor, floor, no_level)
        level[outside] = np.where(take_floor, on_floor, 0.0)
    return _costs(basis, amplitude, level, loss, weight), amplitude, level


def _costs(basis: Floats, amplitude: Floats, level: Floats, loss: Floats, weight: Floats) -> Floats:
    """Weighted mean squared residual of each shape, inf where it is not finite."""
    residual = amplitude[:, None] * basis + level[:, None] - loss
    cost = (residual * residual) @ weight
    return np.where(np.isfinite(cost), cost, np.inf)
