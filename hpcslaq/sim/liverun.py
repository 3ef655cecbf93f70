"""A finished live run as the simulator sees it: its jobs, with times fitted from its journal.

The losses of a job do not depend on its workers, so the recorded ones are the truth under any
allocation. Times are fitted: seconds per pass over the data by number of workers, from the
wall time between reports; what loading, regrouping and finishing took, from the events.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.policy import (
    Admission,
    Allocation,
    ClusterView,
    Forecaster,
    NoForecast,
    Policy,
)
from hpcslaq.errors import HpcslaqError
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.codec import Kind
from hpcslaq.record.journal import read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.sim.foresight import fit_samples
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.metrics import Track, tracks_of
from hpcslaq.sim.scaling import Delays, TableStepTime
from hpcslaq.sim.simulator import Entry, SimResult, Simulator

Floats = NDArray[np.float64]


class UnfitRunError(HpcslaqError):
    """A run from which nothing can be simulated: says why."""

    exit_code = 2


@dataclass(slots=True)
class _Seen:
    """What the journal tells of one job."""

    spec: JobSpec
    submitted_at: float
    losses: list[float] = field(default_factory=list)
    #: Passes over the data per iteration, in the same order.
    passes: list[float] = field(default_factory=list)
    #: (workers, passes, wall seconds) of each report.
    samples: list[tuple[int, float, float]] = field(default_factory=list)
    epochs: int = 0
    ordered_at: float | None = None
    #: Up to when the wall time is accounted for; None: the group does not train.
    trained_until: float | None = None
    is_first_group: bool = True
    load_s: float | None = None
    regroups_s: list[float] = field(default_factory=list)
    dissolved_at: float | None = None
    finish_s: float = 0.0
    ended_at: float | None = None
    is_done: bool = False
    has_failed: bool = False
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A finished run, ready to be simulated."""

    plan: RunPlan
    hosts: Mapping[int, str]
    #: Jobs that gave a loss; the others are named in `left_out` with the reason.
    jobs: tuple[SimJob, ...]
    left_out: Mapping[str, str]
    delays: Delays
    #: What came from outside: cancels, weights, lost ranks.
    happenings: tuple[tuple[float, ev.Event], ...]
    #: Live tracks of `jobs`, and when each job that is done ended.
    tracks: Mapping[str, Track]
    ended_at: Mapping[str, float]
    entries: Sequence[Entry]

    @classmethod
    def read(cls, run: RunDirectory) -> LiveRun:
        """Read a run; raises UnfitRunError where it has not ended, was restarted or is empty."""
        plan = RunPlan.read(run)
        entries = _entries(run)
        starts = [event for _, event, _ in entries if isinstance(event, ev.RunStarted)]
        if len(starts) != 1:
            raise UnfitRunError(f"{run.path}: was started {len(starts)} times, not once")
        if not any(isinstance(o, cmd.Shutdown) for _, _, orders in entries for o in orders):
            raise UnfitRunError(f"{run.path}: has not ended yet")
        seen, happenings = _fold(entries)
        left_out = {name: "gave no loss" for name, job in seen.items() if not job.losses}
        used = {name: job for name, job in seen.items() if name not in left_out}
        if not used:
            raise UnfitRunError(f"{run.path}: no job of it gave a loss")
        regroups = [second for job in used.values() for second in job.regroups_s]
        form_s = statistics.median(regroups) if regroups else 0.0
        delays = Delays(
            message_s=0.0, form_s=form_s, form_per_member_s=0.0, load_s=0.0, checkpoint_s=0.0
        )
        jobs = tuple(_sim_job(job, form_s) for job in used.values())
        return cls(
            plan=plan,
            hosts=dict(starts[0].hosts),
            jobs=jobs,
            left_out=left_out,
            delays=delays,
            happenings=tuple(
                (at, event)
                for at, event in happenings
                if isinstance(event, ev.RankLost) or getattr(event, "job", "") in used
            ),
            tracks={track.name: track for track in tracks_of(entries) if track.name in used},
            ended_at={
                name: job.ended_at
                for name, job in used.items()
                if job.is_done and job.ended_at is not None
            },
            entries=entries,
        )

    def policy(self, name: str | None = None) -> Policy:
        """The run's own policy, or another one with its default parameters."""
        if name is None or name == self.plan.policy:
            return make_policy(self.plan.policy, **self.plan.policy_options)
        return make_policy(name)

    def simulate(self, policy: Policy, workers: int | None = None) -> SimResult:
        """Simulate its jobs under a policy, on as many workers as it had or on `workers`."""
        hosts = self.hosts if workers is None else _resized(self.hosts, workers)
        happenings = [
            (at, event)
            for at, event in self.happenings
            if not isinstance(event, ev.RankLost) or event.rank in hosts
        ]
        return Simulator(
            policy,
            self.jobs,
            len(hosts),
            self.plan.round_s,
            delays=self.delays,
            hosts=hosts,
            happenings=happenings,
        ).run()

    def recorded_decisions(self) -> Policy:
        """A policy that gives each job what it was given in the run, at the same time."""
        times: dict[str, list[float]] = defaultdict(list)
        counts: dict[str, list[int]] = defaultdict(list)
        for now, _, orders in self.entries:
            for order in orders:
                if isinstance(order, cmd.Start | cmd.Regroup | cmd.Pause):
                    times[order.job].append(now)
                    members = () if isinstance(order, cmd.Pause) else order.members
                    counts[order.job].append(len(members))
        for job in times:
            # A pause that the job's end overtook was never carried out.
            while len(counts[job]) > 1 and counts[job][-1] == 0:
                times[job].pop()
                counts[job].pop()
        return RecordedDecisions(times, counts)


@dataclass(frozen=True, slots=True)
class RecordedDecisions:
    """Gives what was given at this time; jobs that should have ended keep what they have.

    What does not fit any more is taken from the jobs with the most workers.
    """

    times: Mapping[str, Sequence[float]]
    counts: Mapping[str, Sequence[int]]
    name: str = "recorded decisions"

    def forecaster(self) -> Forecaster:
        """Nothing is predicted."""
        return NoForecast()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        """All jobs were admitted."""
        return Admission(True)

    def allocate(self, view: ClusterView) -> Allocation:
        """What the run gave; see the class."""
        given: dict[str, int] = {}
        for record in view.jobs:
            job = record.spec.name
            place = bisect_right(self.times.get(job, ()), view.now + 1e-3)
            # One that was started a little later in the run starts when there is room.
            count = self.counts[job][place - 1] if place else 0
            given[job] = min(count, record.spec.rank_limit)
        least = {record.spec.name: record.spec.min_ranks for record in view.jobs}
        while sum(given.values()) > view.num_ranks:
            job = max(given, key=lambda name: given[name] - least[name])
            given[job] = given[job] - 1 if given[job] > least[job] else 0
        return {job: count for job, count in given.items() if count}


def _entries(run: RunDirectory) -> list[Entry]:
    entries: list[Entry] = []
    for kind, now, item in read_journal(run.journal):
        if kind is Kind.EVENT:
            entries.append((now, cast(ev.Event, item), []))
        elif entries:
            entries[-1][2].append(cast(cmd.Command, item))
    return entries


def _fold(
    entries: Sequence[Entry],
) -> tuple[dict[str, _Seen], list[tuple[float, ev.Event]]]:
    """What is known of each job that was not rejected, and what came from outside."""
    seen: dict[str, _Seen] = {}
    happenings: list[tuple[float, ev.Event]] = []
    for now, event, orders in entries:
        if isinstance(event, ev.JobSubmitted):
            if not any(isinstance(order, cmd.Reject) for order in orders):
                seen[event.spec.name] = _Seen(event.spec, now)
        elif isinstance(event, ev.JobCancelled | ev.WeightChanged | ev.RankLost):
            happenings.append((now, event))
        job = seen.get(getattr(event, "job", ""))
        if job is not None:
            _note(job, now, event)
        for order in orders:
            job = seen.get(getattr(order, "job", ""))
            if job is not None and isinstance(order, cmd.Start):
                job.ordered_at = now
    return seen, happenings


def _note(job: _Seen, now: float, event: ev.Event) -> None:
    match event:
        case ev.GroupFormed():
            if job.ordered_at is not None:
                if job.is_first_group:
                    job.load_s = now - job.ordered_at
                job.ordered_at = None
            else:
                job.regroups_s.append(event.seconds)
            job.is_first_group, job.trained_until = False, now
        case ev.ProgressReported():
            _note_progress(job, now, event)
        case ev.GroupDissolved():
            job.dissolved_at, job.trained_until = now, None
        case ev.JobFinished():
            job.is_done, job.ended_at = True, now
            job.finish_s = max(now - (job.dissolved_at or now), 0.0)
        case ev.JobFailed():
            job.has_failed, job.ended_at = True, now
        case ev.JobCancelled():
            job.is_cancelled = True
        case ev.JobPaused() | ev.JobStopped():
            job.trained_until = None


def _note_progress(job: _Seen, now: float, event: ev.ProgressReported) -> None:
    known = len(job.losses) + 1 - event.first_iteration
    fresh = event.losses[max(known, 0) :]
    passes = max(event.epochs - job.epochs, 0)
    job.epochs = max(event.epochs, job.epochs)
    if not fresh or known > 0:
        job.trained_until = now
        return
    # A job whose iterations are less than a pass is counted in iterations.
    done = float(max(passes, len(fresh)))
    job.losses += fresh
    job.passes += [done / len(fresh)] * len(fresh)
    # The wall time since the last report holds what the report's own seconds leave out
    # (checkpoints, orders); a regroup lies between reports of different groups.
    wall = event.seconds if job.trained_until is None else now - job.trained_until
    job.samples.append((event.num_workers, done, max(wall, 1e-9)))
    job.trained_until = now


def _sim_job(job: _Seen, form_s: float) -> SimJob:
    losses = np.array(job.losses)
    passes = np.array(job.passes)
    mean = float(passes.mean())
    if job.is_cancelled:
        # It would have gone on; how is not known, but the cancel must find it alive.
        more = 10 * losses.size + 1000
        losses = np.append(losses, np.full(more, losses[-1]))
        passes = np.append(passes, np.full(more, mean))
    per_epoch = max(1, round(len(job.losses) / max(job.epochs, 1)))
    spec = replace(
        job.spec,
        arrival_s=job.submitted_at,
        # Iterations and passes differ where a step needs several (line searches), or many.
        max_epochs=-(-losses.size // per_epoch),
        target_loss=None,
        tolerance=None,
    )
    table = fit_samples(
        [(spec.workers_among(ranks), wall / done, done) for ranks, done, wall in job.samples],
        spec.num_chunks,
        spec.worker_limit,
    )
    step_time = TableStepTime(table.counts, tuple(mean * time for time in table.times))
    fails_at = None
    if job.has_failed:
        losses, passes = np.append(losses, losses[-1]), np.append(passes, mean)
        fails_at = losses.size
        spec = replace(spec, max_epochs=-(-losses.size // per_epoch))
    load_s = None if job.load_s is None else max(job.load_s - form_s, 0.0)
    return SimJob(
        spec,
        losses,
        step_time,
        per_epoch,
        efforts=passes / mean,
        load_s=load_s,
        finish_s=job.finish_s,
        fails_at=fails_at,
    )


def _resized(hosts: Mapping[int, str], workers: int) -> dict[int, str]:
    """The first hosts' pattern, repeated on further hosts where there are more workers."""
    pattern = [hosts[rank] for rank in sorted(hosts)]
    names = {}
    for rank in range(1, workers + 1):
        turn, place = divmod(rank - 1, len(pattern))
        names[rank] = pattern[place] if turn == 0 else f"{pattern[place]}+{turn}"
    return names
