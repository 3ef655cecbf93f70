"""A forecaster that is told the future: for the simulator, to see how far a policy could get."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.predict.drop import OUTLOOK_COLUMNS, follow_losses, read_outlook
from hpcslaq.predict.outlook import KNOTS, Outlook
from hpcslaq.predict.steptime import shape_of
from hpcslaq.predict.table import JobTable

Floats = NDArray[np.float64]


class OracleForecaster:
    """Predicts without error what `reveal` told it; implements `core.policy.Forecaster`."""

    def __init__(self) -> None:
        self._table = JobTable(OUTLOOK_COLUMNS)
        self._losses: dict[str, Floats] = {}

    def reveal(self, job: str, losses: Floats, timing: tuple[float, float, float]) -> None:
        """Tell the whole loss sequence `(N,)`, N >= 1, iteration 1 first, of a followed job.

        timing : seconds that are fixed, per chunk of the fullest worker, and per hop (see
        `steptime.step_seconds`). Raises ValueError on an empty or non-finite sequence.
        """
        if len(losses) == 0 or not np.isfinite(losses).all():
            raise ValueError(f"losses: the sequence of {job} is empty or not finite")
        row = self._table.row(job)
        self._losses[job] = np.asarray(losses, dtype=np.float64)
        self._table["timing"][row, :3] = timing
        self._table["known"][row], self._table["error"][row] = 1.0, 0.0
        follow_losses(self._table, row, (float(losses[0]),))
        self._look_ahead(job, row)

    def add(self, spec: JobSpec) -> None:
        """Begin to follow a job."""
        if spec.name not in self._table:
            row = self._table.add(spec.name)
            self._table["timing"][row, 3:] = shape_of(spec)

    def observe(self, report: ProgressReported) -> None:
        """Move to the iteration that was reached."""
        table, job = self._table, report.job
        row = table.row(job)
        known = int(table["iterations"][row])
        fresh = report.losses[max(0, known + 1 - report.first_iteration) :]
        if fresh:
            follow_losses(table, row, fresh)
            table["iterations"][row] = report.first_iteration + len(report.losses) - 1
            if job in self._losses:
                self._look_ahead(job, row)

    def discard(self, job: str) -> None:
        """Forget a job."""
        self._table.discard(job)
        self._losses.pop(job, None)

    def predict(self, jobs: tuple[str, ...]) -> Outlook:
        """The columns of these jobs, copied; KeyError where one is not followed."""
        return read_outlook(self._table, jobs)

    def _look_ahead(self, job: str, row: int) -> None:
        losses = self._losses[job]
        now = min(max(int(self._table["iterations"][row]), 1), len(losses)) - 1
        ahead = np.minimum(now + KNOTS, len(losses) - 1).astype(np.int64)
        lowest = np.minimum.accumulate(losses[now:])
        self._table["drops"][row] = np.maximum(losses[now] - lowest[ahead - now], 0.0)
