"""Our predictor: the drop of every job's loss, at all horizons, and its step time.

A job's losses are followed by `track.Track` one by one, and as means of blocks of 8, 64 and
512 iterations: a round may hold ten iterations of one job and ten thousand of another. The
results are kept in columns, ready for `policies` to read.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.predict.outlook import KNOTS, Outlook
from hpcslaq.predict.steptime import StepTime, shape_of
from hpcslaq.predict.table import JobTable
from hpcslaq.predict.track import FIRST, Track

Floats = NDArray[np.float64]

#: Iterations per block of each scale.
_BLOCKS = (1, 8, 64, 512)
#: A scale answers up to this many of its blocks ahead, if a coarser one can take over.
_REACH = 12
#: Blocks that a scale needs before it takes over from a finer one.
_READY = 6
#: The columns follow when the history has grown by this share (at least one loss).
_REFRESH_SHARE = 0.05
#: Losses of one report that are followed one by one; earlier ones only enter the blocks.
_FINE = 16

OUTLOOK_COLUMNS: dict[str, float | tuple[float, ...]] = {
    "iterations": 0.0,
    "first": math.nan,
    "last": math.nan,
    "lowest": math.nan,
    "largest_drop": 0.0,
    "known": 0.0,
    "refresh_at": 0.0,
    "error": 1.0,
    "drops": (0.0,) * len(KNOTS),
    "widths": (0.0,) * len(KNOTS),
    "timing": (0.0, 0.0, 0.0, 1.0, 0.0, 1.0),
}


class LossHistory:
    """Tracks of one job on all scales."""

    __slots__ = ("_floor", "_last", "_means", "_tracks", "iterations")

    def __init__(self, floor: float | None = None) -> None:
        self._floor = floor
        #: Tracks by scale; coarser ones begin with their first block.
        self._tracks = [Track(floor)]
        #: Per coarser scale: sum and number of the losses in the open block.
        self._means = [[0.0, 0] for _ in _BLOCKS[1:]]
        self._last = math.nan
        #: Losses taken in.
        self.iterations = 0

    def observe(self, losses: tuple[float, ...]) -> None:
        """Take in consecutive finite losses."""
        if len(losses) > _FINE:
            # A gap: the line of single losses starts afresh behind it.
            skipped = self.iterations + len(losses) - _FINE
            self._tracks[0] = Track(self._floor, skipped)
        for loss in losses[-_FINE:]:
            self._tracks[0].observe(loss)
        for loss in losses:
            self._fill_blocks(loss)
        self.iterations += len(losses)
        self._last = losses[-1]

    def drops(self, ahead: Floats) -> tuple[Floats, Floats]:
        """Signed drops after `ahead : (m,) > 0` iterations from the newest loss; half-widths."""
        drops, widths = np.zeros(len(ahead)), np.zeros(len(ahead))
        todo = np.ones(len(ahead), dtype=bool)
        usable = [s for s, track in enumerate(self._tracks) if s == 0 or track.count >= _READY]
        for position, scale in enumerate(usable):
            mine = todo
            if position + 1 < len(usable):
                mine = todo & (ahead <= _REACH * _BLOCKS[scale])
            if mine.any():
                drops[mine], widths[mine] = self._ask(scale, ahead[mine])
            todo = todo & ~mine
        return drops, widths

    @property
    def is_known(self) -> bool:
        """Whether a prediction can be made."""
        return self._tracks[0].count >= FIRST

    @property
    def error(self) -> float:
        """Relative error of recent predictions, the best of the scales."""
        return min(track.error for track in self._tracks)

    def _ask(self, scale: int, ahead: Floats) -> tuple[Floats, Floats]:
        """One scale's answer; a block's mean stands for its middle, so count from there."""
        track = self._tracks[scale]
        if scale == 0:
            return track.drops(ahead)
        block = _BLOCKS[scale]
        since = (0.5 * block + self._means[scale - 1][1]) / block
        both = np.concatenate([[max(since, 1e-6)], since + ahead / block])
        drops, widths = track.drops(both)
        return drops[1:] - drops[0], widths[1:] + self._tracks[0].noise

    def _fill_blocks(self, loss: float) -> None:
        for scale, mean in enumerate(self._means, start=1):
            mean[0] += loss
            mean[1] += 1
            if mean[1] < _BLOCKS[scale]:
                continue
            if scale == len(self._tracks):
                self._tracks.append(Track(self._floor))
            if scale < len(self._tracks):
                self._tracks[scale].observe(mean[0] / mean[1])
            mean[0], mean[1] = 0.0, 0


class DropForecaster:
    """Follows jobs for `quality` and its kin; implements `core.policy.Forecaster`."""

    def __init__(self) -> None:
        self._table = JobTable(OUTLOOK_COLUMNS)
        self._history: dict[str, LossHistory] = {}
        self._timing: dict[str, StepTime] = {}

    def add(self, spec: JobSpec) -> None:
        """Begin to follow a job; one that is followed already keeps its history."""
        if spec.name not in self._table:
            row = self._table.add(spec.name)
            self._table["timing"][row, 3:] = shape_of(spec)
            self._history[spec.name] = LossHistory(spec.target_loss)
            self._timing[spec.name] = StepTime(spec)

    def add_like(self, spec: JobSpec, job: str) -> None:
        """Begin to follow a job that is expected to go on as `job` does now.

        Its own losses replace the expectation with its first report.
        """
        self.add(spec)
        self._table.copy_row(job, spec.name)
        row = self._table.row(spec.name)
        self._table["timing"][row, 3:] = shape_of(spec)
        self._table["refresh_at"][row] = 0.0

    def discard(self, job: str) -> None:
        """Forget a job."""
        self._table.discard(job)
        self._history.pop(job, None)
        self._timing.pop(job, None)

    def observe(self, report: ProgressReported) -> None:
        """Take in a report; iterations known already (repeated after a fault) are skipped."""
        table, job = self._table, report.job
        row, history, timing = table.row(job), self._history[job], self._timing[job]
        timing.observe(report.seconds, len(report.losses), report.num_workers)
        table["timing"][row, :3] = timing.params
        known = int(table["iterations"][row])
        fresh = report.losses[max(0, known + 1 - report.first_iteration) :]
        losses = tuple(loss for loss in fresh if math.isfinite(loss))
        table["iterations"][row] = max(known, report.first_iteration + len(report.losses) - 1)
        if not losses:
            return
        follow_losses(table, row, losses)
        history.observe(losses)
        iterations = float(table["iterations"][row])
        if history.is_known and iterations < table["refresh_at"][row]:
            return
        table["refresh_at"][row] = iterations + max(1.0, _REFRESH_SHARE * iterations)
        drops, widths = history.drops(KNOTS)
        table["drops"][row] = np.maximum.accumulate(np.maximum(drops, 0.0))
        table["widths"][row] = widths
        table["known"][row] = history.is_known
        table["error"][row] = history.error

    def expected(self, spec: JobSpec) -> tuple[float, Floats] | None:
        """Iterations of a job that has not arrived, and their seconds on 1, 2, ... workers.

        None: nothing is known before its first report. A simulator may know better.
        """
        return None

    def predict(self, jobs: tuple[str, ...]) -> Outlook:
        """The columns of these jobs, copied; KeyError where one is not followed."""
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
    table["lowest"][row] = np.fmin(table["lowest"][row], min(losses))


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
