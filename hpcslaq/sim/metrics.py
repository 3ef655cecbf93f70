"""Measures of a finished run: how good the models were when, and when the jobs ended.

They are functions of tracks (when each iteration of a job was complete, and its loss), so
the same code judges simulated runs and, by `tracks_of`, the journal of a live run. Quality is
normalised in hindsight, (L - L_best) / (L_first - L_best), which a policy never sees.
Source: SLAQ, section 5; see `mean_normalised_loss` for what is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobRecord, JobState

Floats = NDArray[np.float64]

#: Shares of the loss reduction whose times are reported.
FRACTIONS = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Track:
    """The life of one job's loss."""

    name: str
    #: Submission, s since run start.
    arrived_at: float
    #: When iteration k + 1 was complete: (n,) s since run start, ascending.
    times: Floats
    #: Its loss: (n,).
    losses: Floats
    #: Lowest loss that the job reaches when it trains to its end.
    best_loss: float
    #: When the job ended; None while it has not.
    ended_at: float | None

    def normalised(self) -> Floats:
        """(L - L_best) / (L_first - L_best) after each iteration: (n,), cut to [0, 1].

        Zero throughout where the job has nothing to gain.
        """
        if not self.losses.size or self.losses[0] <= self.best_loss:
            return np.zeros_like(self.losses)
        share = (self.losses - self.best_loss) / (self.losses[0] - self.best_loss)
        return np.asarray(np.clip(share, 0.0, 1.0))

    def time_to(self, fraction: float) -> float:
        """Seconds from arrival until `fraction` of the loss reduction; NaN if it never came."""
        hits = np.flatnonzero(self.normalised() <= 1.0 - fraction + 1e-12)
        return float(self.times[hits[0]] - self.arrived_at) if hits.size else math.nan


def normalised_loss(track: Track, at: Floats) -> Floats:
    """The track's normalised loss at the times `at` (m,): (m,); 1 before the first loss."""
    steps = np.concatenate([[1.0], track.normalised()])
    return np.asarray(steps[np.searchsorted(track.times, at, side="right")])


def mean_normalised_loss(
    tracks: Iterable[Track], at: Floats, *, is_live_only: bool = False
) -> Floats:
    """Mean normalised loss over all jobs that have arrived, at each time of `at`: (m,).

    An ended job stays in the mean with what it reached, and a job without a loss counts 1.
    `is_live_only` leaves ended jobs out, as SLAQ's authors do. NaN while there is no job.
    """
    total, count = np.zeros(len(at)), np.zeros(len(at))
    for track in tracks:
        is_in = at >= track.arrived_at
        if is_live_only and track.ended_at is not None:
            is_in &= at < track.ended_at
        total += np.where(is_in, normalised_loss(track, at), 0.0)
        count += is_in
    mean = np.full(len(at), math.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def average_quality_loss(tracks: Sequence[Track], until: float) -> float:
    """Time average of `mean_normalised_loss` over all arrived jobs, exactly.

    From the first arrival to `until` (s since run start). With J(t) jobs arrived, the
    integral of the mean is the sum over jobs of their steps times the integral of 1 / J.
    """
    arrivals = np.sort([track.arrived_at for track in tracks])
    if not arrivals.size or until <= arrivals[0]:
        return math.nan
    edges = np.concatenate([np.minimum(arrivals, until), [until]])
    per_job = np.diff(edges) / np.arange(1, arrivals.size + 1)
    weights = np.concatenate([[0.0], np.cumsum(per_job)])
    total = 0.0
    for track in tracks:
        times = np.clip(np.concatenate([[track.arrived_at], track.times, [until]]), None, until)
        steps = np.concatenate([[1.0], track.normalised()])
        total += float(np.dot(steps, np.diff(np.interp(times, edges, weights))))
    return total / float(until - arrivals[0])


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run; times in seconds, NaN where no job has one."""

    num_jobs: int
    num_done: int
    num_rejected: int
    #: Of jobs that are done: submission to end.
    mean_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    #: First submission to last end.
    makespan_s: float
    #: Of jobs that are done: submission to first iteration's start.
    mean_wait_s: float
    #: Mean time to each share of the loss reduction over jobs that got there, and how many did.
    mean_time_to_s: Mapping[float, float]
    median_time_to_s: Mapping[float, float]
    p95_time_to_s: Mapping[float, float]
    num_reached: Mapping[float, int]
    #: Time average over all arrived jobs; see `average_quality_loss`.
    mean_normalised_loss: float
    num_regroups: int
    rank_seconds: float
    #: Until when the loss was averaged, s since run start.
    horizon_s: float


def summarise(
    records: Iterable[JobRecord], tracks: Sequence[Track], *, horizon_s: float | None = None
) -> Summary:
    """The figures of a run; the loss is averaged until `horizon_s` (None: the last end).

    Compare policies with the same `horizon_s`, or the longer run gets the longer tail of zeros.
    """
    records = list(records)
    done = [r for r in records if r.state is JobState.DONE]
    ends = [r.finished_at for r in records if r.finished_at is not None]
    last = max(ends, default=math.nan)
    jcts = _values(r.finished_at - r.submitted_at for r in done if r.finished_at is not None)
    waits = _values(r.started_at - r.submitted_at for r in done if r.started_at is not None)
    until = last if horizon_s is None else horizon_s
    times = {f: _values(track.time_to(f) for track in tracks) for f in FRACTIONS}
    times = {f: values[~np.isnan(values)] for f, values in times.items()}
    return Summary(
        num_jobs=len(records),
        num_done=len(done),
        num_rejected=sum(r.state is JobState.REJECTED for r in records),
        mean_jct_s=_mean(jcts),
        median_jct_s=_quantile(jcts, 0.5),
        p95_jct_s=_quantile(jcts, 0.95),
        makespan_s=last - min((r.submitted_at for r in records), default=math.nan),
        mean_wait_s=_mean(waits),
        mean_time_to_s={f: _mean(values) for f, values in times.items()},
        median_time_to_s={f: _quantile(values, 0.5) for f, values in times.items()},
        p95_time_to_s={f: _quantile(values, 0.95) for f, values in times.items()},
        num_reached={f: int(values.size) for f, values in times.items()},
        mean_normalised_loss=average_quality_loss(tracks, until) if until == until else math.nan,
        num_regroups=sum(r.regroups for r in records),
        rank_seconds=math.fsum(r.attained_rank_seconds(last) for r in records),
        horizon_s=until,
    )


def tracks_of(
    journal: Iterable[tuple[float, ev.Event, Sequence[cmd.Command]]],
    best_losses: Mapping[str, float] | None = None,
) -> list[Track]:
    """Tracks from the journal of a run, in order of arrival; iterations reported again count once.

    The iterations of a report are spread evenly over the time that they took, up to the
    report; so a time is late by less than the age of the job's newest complete iteration.
    `best_losses` overrides the lowest loss seen (needed for jobs that were cut short).
    """
    arrived: dict[str, float] = {}
    ended: dict[str, float] = {}
    times: dict[str, list[Floats]] = {}
    losses: dict[str, list[float]] = {}
    for now, event, _ in journal:
        match event:
            case ev.JobSubmitted(spec):
                arrived[spec.name] = now
                times[spec.name], losses[spec.name] = [], []
            case ev.ProgressReported():
                known = len(losses[event.job]) + 1 - event.first_iteration
                num = len(event.losses)
                if num > known:
                    each = event.seconds / num
                    ages = each * np.arange(num - 1.0 - known, -1.0, -1.0)
                    times[event.job].append(now - ages)
                    losses[event.job].extend(event.losses[known:])
            case ev.JobFinished() | ev.JobFailed() | ev.JobStopped():
                ended[event.job] = now
    best = dict(best_losses or {})
    return [
        Track(
            name=name,
            arrived_at=at,
            times=np.maximum.accumulate(np.concatenate(times[name] or [np.empty(0)])),
            losses=np.asarray(losses[name]),
            best_loss=best.get(name, min(losses[name], default=math.nan)),
            ended_at=ended.get(name),
        )
        for name, at in arrived.items()
    ]


def _values(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else math.nan


def _quantile(values: Floats, q: float) -> float:
    return float(np.quantile(values, q)) if values.size else math.nan
