"""SLAQ's own predictor: a curve fitted to each job's recent losses, mean time per iteration.

The curves and their fit are in `curves`. This module decides what is fitted and when, and
keeps the results in columns that `policies.slaq` reads.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import Convergence, JobSpec
from hpcslaq.predict.curves import (
    DECAY,
    DENSE_POINTS,
    MIN_POINTS,
    WINDOW,
    Fit,
    fit_curve,
    resample,
)
from hpcslaq.predict.steptime import shape_of, workers_among
from hpcslaq.predict.table import JobTable, Rows

Floats = NDArray[np.float64]

#: Losses that are kept per job: the third fallback doubles the window twice.
_HISTORY = 4 * WINDOW
_NONE, _SUBLINEAR, _GEOMETRIC = 0.0, 1.0, 2.0


def predict_curve(family: Convergence, k: Floats, loss: Floats) -> Fit | None:
    """The curve from which SLAQ predicts, or None where even the fallbacks find none.

    k, loss : (n,) all iterations and losses known, newest last, n >= MIN_POINTS.

    The newest WINDOW points with weight DECAY^(2m); below DENSE_POINTS points their spline.
    When that finds no falling curve, all points of the window count the same; then the window
    is doubled as often as there are points.
    Source: SLAQ, section 3.2 and published code. Deviations: the published code falls back
    where its solver gives up, and first tries a start from the mean of earlier fits; this fit
    is exact, so a start changes nothing, and the fallbacks serve curves that found nothing to
    fall (a rising end of the window). The families end at 0 or above; a history with losses
    below 0 is fitted as if the loss could still fall by as much as it did in the history.
    """
    lowest = float(loss.min())
    if lowest < 0.0:
        shift = float(loss.max()) - 2.0 * lowest
        fit = predict_curve(family, k, loss + shift)
        return None if fit is None else Fit(family, (*fit.params[:-1], fit.level - shift))
    recent_k, recent = k[-WINDOW:], loss[-WINDOW:]
    if len(recent) < DENSE_POINTS:
        recent_k, recent = resample(recent_k, recent)
    first = fit_curve(family, recent_k, recent, decay=DECAY)
    if _falls(first, recent_k):
        return first
    fit = fit_curve(family, recent_k, recent, decay=1.0)
    window = WINDOW
    while not _falls(fit, recent_k) and window < len(loss):
        window *= 2
        fit = fit_curve(family, k[-window:], loss[-window:], decay=1.0)
    return fit if _falls(fit, recent_k) else first


def _falls(fit: Fit | None, k: Floats) -> bool:
    """Whether the curve still falls after its newest point by more than rounding."""
    if fit is None:
        return False
    now = float(fit(float(k[-1])))
    drop = now - float(fit(float(k[-1]) + 10.0))
    return math.isfinite(drop) and drop > 1e-9 * abs(now)


@dataclass(frozen=True, slots=True)
class SlaqPrediction:
    """What `SlaqForecaster` knows of some jobs; all arrays are (n,)."""

    #: Whether there were enough losses; a known job that never improved predicts NaN, no gain.
    is_known: NDArray[np.bool_]
    #: Newest loss.
    last_loss: Floats
    #: D_j: largest drop in one iteration, at most the whole drop so far; > 0.
    scale: Floats
    #: Mean worker-seconds per iteration, > 0.
    work: Floats
    #: How many of a job's ranks do not work: so many, and of the rest all but this share.
    servers: Floats
    share: Floats
    kind: Floats
    params: Floats
    newest: Floats

    def loss_after(self, which: Rows, iterations: Floats) -> Floats:
        """Loss of the jobs `which : (m,)` after `iterations : (m,)` more; NaN where unknown."""
        kind, newest = self.kind[which], self.newest[which]
        p = self.params[which].T
        k = newest + iterations
        out = np.full(len(which), np.nan)
        sublinear, geometric = kind == _SUBLINEAR, kind == _GEOMETRIC
        if sublinear.any():
            a, b, c, d = p[:, sublinear]
            x = k[sublinear]
            out[sublinear] = 1.0 / np.maximum((a * x + b) * x + c, 1e-300) + d
        if geometric.any():
            rate, amplitude, at, level = p[:, geometric]
            out[geometric] = amplitude * np.exp(-rate * (k[geometric] - at)) + level
        return out


class SlaqForecaster:
    """Follows jobs as SLAQ does; implements `core.policy.Forecaster`.

    A fit takes about a millisecond, so a job's curve is fitted anew when its history has
    grown by `refit_share` (at least one loss) since the last fit, never by the clock. With
    `uses_curves` false, and for jobs with 2 to 4 losses, the loss is extrapolated as
    L_t (L_t/L_{t-1})^n, which is all that the published scheduler branch did.
    """

    def __init__(self, *, uses_curves: bool = True, refit_share: float = 0.05) -> None:
        self._uses_curves = uses_curves
        self._refit_share = refit_share
        self._table = JobTable(
            {
                "kind": _NONE,
                "params": (0.0, 0.0, 0.0, 0.0),
                "newest": 0.0,
                "last": np.nan,
                "first": np.nan,
                "lowest": np.nan,
                "largest_drop": 0.0,
                "seconds": 0.0,
                "iterations": 0.0,
                "servers": 0.0,
                "share": 1.0,
                "fit_due": float(MIN_POINTS),
            }
        )
        #: Newest losses of each job, in order, without gaps.
        self._history: dict[str, deque[float]] = {}
        self._family: dict[str, Convergence] = {}

    def add(self, spec: JobSpec) -> None:
        """Begin to follow a job; one that is followed already keeps its history."""
        if spec.name not in self._table:
            row = self._table.add(spec.name)
            _, self._table["servers"][row], self._table["share"][row] = shape_of(spec)
            self._history[spec.name] = deque(maxlen=_HISTORY)
            self._family[spec.name] = spec.convergence

    def add_like(self, spec: JobSpec, job: str) -> None:
        """Begin to follow a job that is expected to go on as `job` does now."""
        self.add(spec)
        self._table.copy_row(job, spec.name)
        row = self._table.row(spec.name)
        _, self._table["servers"][row], self._table["share"][row] = shape_of(spec)

    def discard(self, job: str) -> None:
        """Forget a job."""
        self._table.discard(job)
        self._history.pop(job, None)
        self._family.pop(job, None)

    def observe(self, report: ProgressReported) -> None:
        """Take in a report; iterations known already (repeated after a fault) are skipped."""
        table, job = self._table, report.job
        row, history = table.row(job), self._history[job]
        ranks = np.array(float(report.num_workers))
        workers = float(workers_among(ranks, table["servers"][row], table["share"][row]))
        table["seconds"][row] += report.seconds * workers
        table["iterations"][row] += len(report.losses)
        known = int(table["newest"][row])
        fresh = report.losses[max(0, known + 1 - report.first_iteration) :]
        if not fresh:
            return
        if report.first_iteration > known + 1:
            history.clear()
        table["newest"][row] = report.first_iteration + len(report.losses) - 1
        for loss in fresh:
            if not math.isfinite(loss):
                history.clear()
                continue
            if history:
                drop = history[-1] - loss
                table["largest_drop"][row] = max(float(table["largest_drop"][row]), drop)
            history.append(loss)
            table["lowest"][row] = np.fmin(table["lowest"][row], loss)
            if math.isnan(table["first"][row]):
                table["first"][row] = loss
            table["last"][row] = loss
        self._update_curve(job, row)

    def predict(self, jobs: tuple[str, ...]) -> SlaqPrediction:
        """The columns of these jobs, copied; KeyError where one is not followed."""
        table = self._table
        rows = table.rows(jobs)
        reach = table["first"][rows] - table["lowest"][rows]
        scale = np.fmin(table["largest_drop"][rows], np.nan_to_num(reach))
        work = table["seconds"][rows] / np.maximum(table["iterations"][rows], 1.0)
        kind = np.where(scale > 0.0, table["kind"][rows], _NONE)
        return SlaqPrediction(
            is_known=(kind != _NONE) | (table["newest"][rows] >= MIN_POINTS),
            last_loss=table["last"][rows],
            scale=np.where(scale > 0.0, scale, 1.0),
            work=np.maximum(work, 1e-9),
            servers=table["servers"][rows],
            share=table["share"][rows],
            kind=kind,
            params=table["params"][rows],
            newest=table["newest"][rows],
        )

    def _update_curve(self, job: str, row: int) -> None:
        table, history = self._table, self._history[job]
        num = len(history)
        newest = float(table["newest"][row])
        if self._uses_curves and num >= MIN_POINTS:
            if newest < table["fit_due"][row]:
                return
            loss = np.array(history)
            fit = predict_curve(
                self._family[job], np.arange(newest - num + 1.0, newest + 1.0), loss
            )
            table["fit_due"][row] = newest + max(1.0, self._refit_share * newest)
            if fit is not None:
                table["kind"][row], table["params"][row] = _columns_of(fit, newest)
                return
        table["kind"][row] = _NONE
        if num >= 2 and history[-1] > 0.0 and history[-2] > 0.0:
            ratio = min(history[-1] / history[-2], 1.0)
            table["kind"][row] = _GEOMETRIC
            table["params"][row] = (-math.log(max(ratio, 1e-300)), history[-1], newest, 0.0)


def _columns_of(fit: Fit, newest: float) -> tuple[float, tuple[float, ...]]:
    """Kind and parameters as columns; mu^(k-b) + c is kept as its value at `newest`."""
    if fit.family is Convergence.SUBLINEAR:
        return _SUBLINEAR, fit.params
    mu, _, level = fit.params
    amplitude = float(fit(newest)) - level
    return _GEOMETRIC, (-math.log(max(mu, 1e-300)), amplitude, newest, level)
