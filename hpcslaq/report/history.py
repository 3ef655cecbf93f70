"""What the figures need over time and `RunSummary` does not keep: thinned loss curves.

Also the number of workers that were there. Folds a journal in bounded memory per job; states,
groups and sums are in `hpcslaq.record.summary`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcslaq.core import events as ev
from hpcslaq.core.commands import Command
from hpcslaq.record.jobsummary import Segment

#: Points kept of a job's losses; beyond twice as many every second one is dropped.
MAX_POINTS = 512


@dataclass(slots=True)
class LossCurve:
    """A job's losses over time, thinned evenly once there are many."""

    #: (s since run start, iteration, loss), oldest first; at most 2 * MAX_POINTS.
    points: list[tuple[float, int, float]] = field(default_factory=list)
    #: Completed iterations that were folded.
    iterations: int = 0
    first: float | None = None
    last: float | None = None
    #: Time and iteration of `last`.
    last_at: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    #: Only iterations divisible by this are kept in `points` (and the first one).
    stride: int = 1

    def extend(self, begin: float, end: float, first: int, losses: tuple[float, ...]) -> None:
        """Losses of iterations `first`, ... (from 1), spread evenly over (begin, end], s.

        Iterations that are known already (reported again after a restart) are left out.
        """
        for index, loss in enumerate(losses):
            iteration = first + index
            if iteration <= self.iterations:
                continue
            at = begin + (end - begin) * (index + 1) / len(losses)
            self._append(at, iteration, loss)

    def shown(self) -> list[tuple[float, int, float]]:
        """The kept points, ending with the newest."""
        if self.last is None or (self.points and self.points[-1][1] == self.iterations):
            return list(self.points)
        return [*self.points, (self.last_at, self.iterations, self.last)]

    def normalised(self) -> list[tuple[float, float]]:
        """(s since run start, loss as a share of its range: 1 the largest, 0 the least so far).

        Source: SLAQ, section 5.1 (normalised loss). Non-finite losses are left out.
        """
        span = self.most - self.least
        if not span > 0:
            return []
        return [
            (at, (loss - self.least) / span) for at, _, loss in self.shown() if math.isfinite(loss)
        ]

    def _append(self, at: float, iteration: int, loss: float) -> None:
        if self.first is None:
            self.first = loss
        self.last, self.last_at, self.iterations = loss, at, iteration
        if math.isfinite(loss):
            self.least, self.most = min(self.least, loss), max(self.most, loss)
        if iteration % self.stride and self.points:
            return
        self.points.append((at, iteration, loss))
        if len(self.points) > 2 * MAX_POINTS:
            self.stride *= 2
            head, tail = self.points[:1], self.points[1:]
            self.points = head + [point for point in tail if point[1] % self.stride == 0]


class History:
    """Folds a journal: `fold` each entry, then read the attributes."""

    def __init__(self) -> None:
        #: By job, in order of submission.
        self.curves: dict[str, LossCurve] = {}
        #: (s since run start, workers that are there from then on), in order of time.
        self.capacity: list[tuple[float, int]] = []
        #: Times of restarts and of losses of ranks, s since run start.
        self.restarts: list[float] = []
        self.rank_losses: list[float] = []
        #: Events and commands by the name of their class.
        self.counts: Counter[str] = Counter()
        #: Time of the newest entry, s since run start.
        self.now = 0.0

    def fold(self, now: float, item: ev.Event | Command) -> None:
        """Take in one entry of the journal."""
        self.now = max(self.now, now)
        self.counts[type(item).__name__] += 1
        match item:
            case ev.RunStarted():
                if self.capacity:
                    self.restarts.append(now)
                self.capacity.append((now, len(item.hosts)))
            case ev.JobSubmitted():
                self.curves.setdefault(item.spec.name, LossCurve())
            case ev.ProgressReported() if item.job in self.curves:
                curve = self.curves[item.job]
                curve.extend(now - item.seconds, now, item.first_iteration, item.losses)
            case ev.RankLost():
                self.rank_losses.append(now)
                if self.capacity:
                    self.capacity.append((now, self.capacity[-1][1] - 1))
            case _:
                pass


def worker_steps(
    segments: Sequence[Sequence[Segment]], now: float
) -> tuple[list[float], list[list[int]]]:
    """Times at which the number of workers of any job changes, and the numbers from then on.

    `segments` : those of each job; `now` : the end of the time that is looked at, s. Returns (T,)
    times in s since run start, the last one `now`, and for each job (T,) workers held from that
    time until the next.
    """
    edges = {0.0, now}
    for one_job in segments:
        for segment in one_job:
            edges |= {segment.start, now if segment.end is None else segment.end}
    times = sorted(edges)
    place = {time: index for index, time in enumerate(times)}
    counts = []
    for one_job in segments:
        row = [0] * len(times)
        for segment in one_job:
            end = place[now if segment.end is None else segment.end]
            for index in range(place[segment.start], end):
                row[index] = len(segment.members)
        counts.append(row)
    return times, counts
