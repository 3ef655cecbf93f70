"""What a forecaster that predicts drops tells a policy: columns, one row per job.

The drop as a function of the iterations ahead is kept at powers of two and interpolated, so
that a policy can ask for it at any number of iterations of thousands of jobs at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.predict.steptime import step_seconds
from hpcslaq.predict.table import Rows

Floats = NDArray[np.float64]

#: Iterations ahead at which drops are kept: 1, 2, 4, ..., 2^17.
KNOTS: Floats = np.exp2(np.arange(18.0))
#: Just below the last knot, so that there is always a next one.
_LAST = float(np.nextafter(KNOTS[-1], 0.0))


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predictions for n jobs; all arrays are (n,) unless a shape is given."""

    #: Whether there were enough losses for a prediction.
    is_known: NDArray[np.bool_]
    #: Whether a step was ever timed.
    is_timed: NDArray[np.bool_]
    first_loss: Floats
    last_loss: Floats
    lowest_loss: Floats
    #: Largest drop in one iteration so far, at most the whole drop; >= 0.
    largest_drop: Floats
    #: Completed iterations.
    iterations: Floats
    #: (n, len(KNOTS)): predicted drop (>= 0, never falling along a row) and interval half-width.
    drops: Floats
    widths: Floats
    #: Recent relative error of the predictions in [0, 1].
    error: Floats
    #: (n, 6): fixed, per_chunk, per_hop seconds, chunks, servers and share of workers.
    timing: Floats

    def drop_after(self, which: Rows, iterations: Floats, *, optimism: float = 0.0) -> Floats:
        """Predicted drop of the jobs `which : (m,)` after `iterations : (m,)` or (m, p) more.

        `optimism` times the half-width of the interval is added.
        """
        table = self.drops if optimism == 0.0 else self.drops + optimism * self.widths
        return interpolate(table, which, iterations)

    def iterations_until(self, which: Rows, drop: Floats) -> Floats:
        """Iterations after which the loss has fallen by `drop : (m,)`; inf where it never will."""
        return invert(self.drops, which, drop)

    def remaining(self, estimate: Floats) -> Floats:
        """Iterations that are left of each job, given an estimate (n,): just that.

        A simulator that tells the truth (`sim.foresight`) answers with the true ones.
        """
        return estimate

    def seconds(self, which: Rows, workers: Floats) -> Floats:
        """Seconds per iteration of `which : (m,)` on `workers : (m,)` or (m, p) ranks, > 0."""
        timing = self.timing[which]
        if workers.ndim == 2:
            timing = timing[:, None, :]
        return np.maximum(step_seconds(timing, workers), 1e-9)


def interpolate(table: Floats, which: Rows, iterations: Floats) -> Floats:
    """Linear between the knots (and 0 at 0), constant after the last."""
    ahead = np.minimum(iterations, _LAST)
    # ahead = mantissa * 2^exponent with 1/2 <= mantissa < 1, so the knot below is 2^(exponent - 1)
    # and the way to the next one is 2 mantissa - 1, exactly.
    mantissa, exponent = np.frexp(ahead)
    left = np.maximum(exponent - 1, 0)
    row = which[:, None] if ahead.ndim == 2 else which
    flat = row * len(KNOTS) + left
    values = table.ravel()
    low = values.take(flat)
    flat += 1
    inner = values.take(flat)
    inner -= low
    mantissa *= 2.0
    mantissa -= 1.0
    inner *= mantissa
    inner += low
    return np.asarray(np.where(ahead < 1.0, low * ahead, inner))


def invert(table: Floats, which: Rows, drop: Floats) -> Floats:
    """Iterations after which the never-falling rows of `table` reach `drop : (m,)`."""
    rows = np.concatenate([np.zeros((len(which), 1)), table[which]], axis=1)
    grid = np.concatenate([[0.0], KNOTS])
    right = (rows < drop[:, None]).sum(axis=1)
    is_never = right == len(grid)
    right = np.clip(right, 1, len(grid) - 1)
    index = np.arange(len(which))
    low, high = rows[index, right - 1], rows[index, right]
    share = (drop - low) / np.maximum(high - low, 1e-300)
    found = grid[right - 1] + (grid[right] - grid[right - 1]) * np.clip(share, 0.0, 1.0)
    return np.where(is_never, np.inf, np.where(drop <= 0.0, 0.0, found))
