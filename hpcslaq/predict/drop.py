"""Our predictor: the drop of every job's loss, at all horizons, and its step time.

Losses are followed by `history`, step times by `steptime`; the results are kept in columns, ready
for `policies` to read. Losses are taken in when a prediction is asked for, or when many have
come: for all jobs together that takes a fraction of the time, and changes no result.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.predict.history import LossHistories
from hpcslaq.predict.outlook import KNOTS, Outlook
from hpcslaq.predict.steptime import StepTime, shape_of
from hpcslaq.predict.table import JobTable

Floats = NDArray[np.float64]

#: Reports after which losses are taken in though nobody asks: bounds the time of a decision.
_MOST_WAITING = 2048

OUTLOOK_COLUMNS: dict[str, float | tuple[float, ...]] = {
    "iterations": 0.0,
    "first": math.nan,
    "last": math.nan,
    "lowest": math.nan,
    "largest_drop": 0.0,
    "known": 0.0,
    "error": 1.0,
    "drops": (0.0,) * len(KNOTS),
    "widths": (0.0,) * len(KNOTS),
    "timing": (0.0, 0.0, 0.0, 1.0, 0.0, 1.0),
}


class DropForecaster:
    """Follows jobs for `quality` and its kin; implements `core.policy.Forecaster`."""

    def __init__(self) -> None:
        self._table = JobTable(OUTLOOK_COLUMNS)
        self._histories = LossHistories(KNOTS)
        self._timing: dict[str, StepTime] = {}

    def add(self, spec: JobSpec) -> None:
        """Begin to follow a job; one that is followed already keeps its history."""
        if spec.name not in self._table:
            row = self._table.add(spec.name)
            self._table["timing"][row, 3:] = shape_of(spec)
            self._histories.add(spec.name, spec.target_loss)
            self._timing[spec.name] = StepTime(spec)

    def add_like(self, spec: JobSpec, job: str) -> None:
        """Begin to follow a job that is expected to go on as `job` does now.

        Its own losses replace the expectation with its first report.
        """
        self._settle()
        self.add(spec)
        self._table.copy_row(job, spec.name)
        row = self._table.row(spec.name)
        self._table["timing"][row, 3:] = shape_of(spec)

    def discard(self, job: str) -> None:
        """Forget a job."""
        self._table.discard(job)
        self._histories.discard(job)
        self._timing.pop(job, None)

    def observe(self, report: ProgressReported) -> None:
        """Take in a report; iterations known already (repeated after a fault) are skipped."""
        table, job = self._table, report.job
        row, timing = table.row(job), self._timing[job]
        timing.observe(report.seconds, len(report.losses), report.num_workers)
        table["timing"][row, :3] = timing.params
        known = int(table["iterations"][row])
        fresh = report.losses[max(0, known + 1 - report.first_iteration) :]
        losses = tuple([loss for loss in fresh if math.isfinite(loss)])
        table["iterations"][row] = max(known, report.first_iteration + len(report.losses) - 1)
        if not losses:
            return
        follow_losses(table, row, losses)
        self._histories.note(job, losses)
        if self._histories.num_waiting >= _MOST_WAITING:
            self._settle()

    def _settle(self) -> None:
        """Take in the losses that wait; the columns follow."""
        if not self._histories.num_waiting:
            return
        found = self._histories.settle()
        table, rows = self._table, self._table.rows(found.jobs)
        table["drops"][rows] = np.maximum.accumulate(np.maximum(found.drops, 0.0), axis=1)
        table["widths"][rows] = found.widths
        table["known"][rows] = found.is_known
        table["error"][rows] = found.error

    def expected(self, spec: JobSpec) -> tuple[float, Floats] | None:
        """Iterations of a job that has not arrived, and their seconds on 1, 2, ... workers.

        None: nothing is known before its first report. A simulator may know better.
        """
        return None

    def predict(self, jobs: tuple[str, ...]) -> Outlook:
        """The columns of these jobs, copied; KeyError where one is not followed."""
        self._settle()
        return read_outlook(self._table, jobs)


def follow_losses(table: JobTable, row: int, losses: tuple[float, ...]) -> None:
    """Keep first, last and lowest loss and the largest drop of a row up to date."""
    last, largest = float(table["last"][row]), float(table["largest_drop"][row])
    for loss in losses:
        if last - loss > largest:
            largest = last - loss
        last = loss
    if math.isnan(table["first"][row]):
        table["first"][row] = losses[0]
    table["last"][row], table["largest_drop"][row] = last, largest
    lowest, least = float(table["lowest"][row]), min(losses)
    if not lowest <= least:
        table["lowest"][row] = least


def read_outlook(table: JobTable, jobs: tuple[str, ...]) -> Outlook:
    """The columns of these jobs, copied."""
    rows = table.rows(jobs)
    first, lowest = table["first"][rows], table["lowest"][rows]
    timing = table["timing"][rows]
    return Outlook(
        is_known=table["known"][rows] > 0.0,
        is_timed=timing[:, :3].sum(axis=1) > 0.0,
        first_loss=first,
        last_loss=table["last"][rows],
        lowest_loss=lowest,
        largest_drop=np.fmin(table["largest_drop"][rows], np.nan_to_num(first - lowest)),
        iterations=table["iterations"][rows],
        drops=table["drops"][rows],
        widths=table["widths"][rows],
        error=table["error"][rows],
        timing=timing,
    )
