"""The losses of many jobs on several scales: single iterations, and means of blocks.

A round may hold ten iterations of one job and ten thousand of another, so each job's losses are
followed one by one and as means of blocks of 8, 64 and 512 iterations, each by a `track`.

Reports are only noted; `settle` takes those of all jobs in at once, which costs a tenth of
following them one by one. When that is done changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcslaq.predict.track import FIRST, Tracks

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: Iterations per block of each scale.
_BLOCKS = (1, 8, 64, 512)
#: A scale answers up to this many of its blocks ahead, if a coarser one can take over.
_REACH = 12
#: Blocks that a scale needs before it takes over from a finer one.
_READY = 6
#: Losses of one report that are followed one by one; earlier ones only enter the blocks.
_FINE = 16
#: An answer is made anew when the history has grown by this share (at least one loss).
_REFRESH_SHARE = 0.05


@dataclass(slots=True)
class _Job:
    """One job's sequences; row -1 of a scale: its first block is not complete."""

    floor: float | None
    rows: list[int] = field(default_factory=lambda: [-1] * len(_BLOCKS))
    #: Per coarser scale: sum and number of the losses in the open block.
    sums: list[float] = field(default_factory=lambda: [0.0] * len(_BLOCKS))
    counts: list[int] = field(default_factory=lambda: [0] * len(_BLOCKS))
    #: Losses taken in.
    iterations: int = 0
    #: Losses noted, and at how many of them the next answer is due.
    noted: int = 0
    due_at: float = 0.0
    #: Reports that wait, and how many of them come before the newest due answer.
    reports: list[tuple[float, ...]] = field(default_factory=list)
    num_due: int = 0


@dataclass(frozen=True, slots=True)
class Answers:
    """What became of some jobs' drops; all arrays are (n, ...) in the order of `jobs`."""

    jobs: tuple[str, ...]
    #: (n, m): signed drops and half-widths of their intervals.
    drops: Floats
    widths: Floats
    #: Whether a prediction can be made, and the relative error of recent ones.
    is_known: NDArray[np.bool_]
    error: Floats


class LossHistories:
    """Tracks of many jobs; see the module. `ahead` : (m,) > 0, where answers are wanted."""

    def __init__(self, ahead: Floats) -> None:
        self._ahead = ahead
        self._tracks = Tracks()
        self._jobs: dict[str, _Job] = {}
        #: Jobs with reports that wait, and the number of these reports.
        self._waiting: dict[str, None] = {}
        self.num_waiting = 0

    def add(self, job: str, floor: float | None = None) -> None:
        """Begin to follow a job."""
        self._jobs[job] = _Job(floor)

    def discard(self, job: str) -> None:
        """Forget a job; one that is not followed is none."""
        state = self._jobs.pop(job, None)
        if state is not None:
            self._waiting.pop(job, None)
            self.num_waiting -= len(state.reports)
            for row in state.rows:
                if row >= 0:
                    self._tracks.discard(row)

    def note(self, job: str, losses: tuple[float, ...]) -> None:
        """Note consecutive finite losses, one at least."""
        state = self._jobs[job]
        state.reports.append(losses)
        state.noted += len(losses)
        if state.noted >= state.due_at:
            state.due_at = state.noted + max(1.0, _REFRESH_SHARE * state.noted)
            state.num_due = len(state.reports)
        self._waiting[job] = None
        self.num_waiting += 1

    def settle(self) -> Answers:
        """Take in all that was noted; the answers that are due."""
        names = tuple(self._waiting)
        waiting = [self._jobs[name] for name in names]
        self._take([(job, job.reports[: job.num_due]) for job in waiting if job.num_due])
        due = [name for name, job in zip(names, waiting, strict=True) if job.num_due]
        answers = self.answer(due)
        self._take([(job, job.reports[job.num_due :]) for job in waiting])
        for job in waiting:
            job.reports, job.num_due = [], 0
        self._waiting.clear()
        self.num_waiting = 0
        return answers

    def answer(self, names: Sequence[str]) -> Answers:
        """What the losses that were taken in say of these jobs, each with one at least."""
        jobs = [self._jobs[name] for name in names]
        ahead, shape = self._ahead, (len(jobs), len(self._ahead))
        drops, widths = np.zeros(shape), np.zeros(shape)
        rows = np.array([job.rows for job in jobs], dtype=np.int64).reshape(-1, len(_BLOCKS))
        fine = rows[:, 0]
        is_usable = (rows >= 0) & (self._tracks.count[rows] >= _READY)
        is_usable[:, 0] = True
        reach = np.where(is_usable, _REACH * np.array(_BLOCKS), -1.0)
        last = len(_BLOCKS) - 1 - is_usable[:, ::-1].argmax(axis=1)
        reach[np.arange(len(jobs)), last] = math.inf
        # The finest scale that reaches so far answers.
        scale_of = np.argmax(ahead <= reach[:, :, None], axis=1)
        for scale in np.unique(scale_of).tolist():
            which = np.flatnonzero((scale_of == scale).any(axis=1))
            open_counts = np.array([jobs[index].counts[scale] for index in which.tolist()])
            said, width = self._ask(scale, rows[which, scale], open_counts)
            if scale:
                width += self._tracks.noise[fine[which], None]
            mine = scale_of[which] == scale
            drops[which] = np.where(mine, said, drops[which])
            widths[which] = np.where(mine, width, widths[which])
        errors = np.stack(
            [np.where(rows[:, s] >= 0, self._tracks.error(rows[:, s]), 1.0) for s in range(4)]
        )
        is_known = self._tracks.count[fine] >= FIRST
        return Answers(tuple(names), drops, widths, is_known, errors.min(axis=0))

    def _ask(self, scale: int, rows: Counts, open_counts: Counts) -> tuple[Floats, Floats]:
        """One scale's answers; a block's mean stands for its middle, so count from there."""
        if scale == 0:
            return self._tracks.drops(rows, self._ahead)
        block = _BLOCKS[scale]
        since = ((0.5 * block + open_counts) / block)[:, None]
        steps = np.concatenate([np.maximum(since, 1e-6), since + self._ahead / block], axis=1)
        drops, widths = self._tracks.drops(rows, steps)
        return drops[:, 1:] - drops[:, :1], widths[:, 1:]

    def _take(self, news: Sequence[tuple[_Job, list[tuple[float, ...]]]]) -> None:
        """Follow the reports of different jobs."""
        steps: dict[int, list[float]] = {}
        for job, reports in news:
            for losses in reports:
                self._lay_out(job, losses, steps)
        lengths = np.array([len(values) for values in steps.values()], dtype=np.int64)
        order = np.argsort(-lengths, kind="stable")
        rows = np.array(list(steps), dtype=np.int64)[order]
        values = list(steps.values())
        sequences = [values[index] for index in order.tolist()]
        lengths = lengths[order]
        for step in range(int(lengths.max(initial=0))):
            num = int((lengths > step).sum())
            loss = np.array([sequence[step] for sequence in sequences[:num]])
            self._tracks.observe(rows[:num], loss)

    def _lay_out(self, job: _Job, losses: tuple[float, ...], steps: dict[int, list[float]]) -> None:
        """Add one report to what each row of `steps` is to see."""
        fine = self._row(job, 0)
        if len(losses) > _FINE:
            # A gap: the line of single losses starts afresh behind it.
            skipped = job.iterations + len(losses) - _FINE
            self._tracks.reset(np.array([fine]), np.array([skipped]))
            steps[fine] = list(losses[-_FINE:])
        else:
            steps.setdefault(fine, []).extend(losses)
        job.iterations += len(losses)
        sums, counts = job.sums, job.counts
        for scale in range(1, len(_BLOCKS)):
            block, start = _BLOCKS[scale], 0
            while counts[scale] + len(losses) - start >= block:
                end = start + block - counts[scale]
                mean = _add(sums[scale], losses[start:end]) / block
                steps.setdefault(self._row(job, scale), []).append(mean)
                sums[scale], counts[scale], start = 0.0, 0, end
            sums[scale] = _add(sums[scale], losses[start:])
            counts[scale] += len(losses) - start

    def _row(self, job: _Job, scale: int) -> int:
        if job.rows[scale] < 0:
            job.rows[scale] = self._tracks.add(job.floor)
        return job.rows[scale]


def _add(total: float, losses: Sequence[float]) -> float:
    """One after the other: the built-in sum would depend on how the losses were reported."""
    for loss in losses:
        total += loss
    return total


class LossHistory:
    """One job on its own."""

    def __init__(self, ahead: Floats, floor: float | None = None) -> None:
        self._histories = LossHistories(ahead)
        self._histories.add("", floor)

    def observe(self, losses: tuple[float, ...]) -> None:
        """Take in consecutive finite losses."""
        self._histories.note("", losses)
        self._histories.settle()

    def answer(self) -> Answers:
        """The drops at `ahead` from the newest loss; there must be one."""
        return self._histories.answer(("",))
