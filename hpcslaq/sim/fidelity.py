"""How well the simulator foretells a live run, and what other policies would have given.

Both simulate the jobs of a `LiveRun`. Fidelity compares the run with its own simulation, job by
job; what-if puts other policies and sizes beside it, with that error as a measure of trust.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcslaq.core.jobs import JobRecord, JobState
from hpcslaq.core.policy import Policy
from hpcslaq.sim.liverun import LiveRun
from hpcslaq.sim.metrics import Track

#: Share of the loss reduction to which times are compared.
FRACTION = 0.9


@dataclass(frozen=True, slots=True)
class JobError:
    """A job live and simulated; times in seconds from its submission, NaN where it has none."""

    name: str
    jct_live_s: float
    jct_simulated_s: float
    time_to_live_s: float
    time_to_simulated_s: float

    @property
    def jct_error(self) -> float:
        """Relative error of the simulated JCT, positive where it is too long."""
        return self.jct_simulated_s / self.jct_live_s - 1.0

    @property
    def time_to_error(self) -> float:
        """Relative error of the simulated time to 90 % of the loss reduction."""
        return self.time_to_simulated_s / self.time_to_live_s - 1.0


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A run beside its own simulation."""

    policy: str
    decisions: str
    jobs: tuple[JobError, ...]
    makespan_live_s: float
    makespan_simulated_s: float
    left_out: Mapping[str, str]

    def figures(self) -> dict[str, float]:
        """The errors in short: relative, of means and in the mean over jobs."""
        errors = [abs(job.jct_error) for job in self.jobs]
        waits = [abs(job.time_to_error) for job in self.jobs if _is_number(job.time_to_error)]
        return {
            "mean_jct_live_s": _mean([job.jct_live_s for job in self.jobs]),
            "mean_jct_simulated_s": _mean([job.jct_simulated_s for job in self.jobs]),
            "mean_jct_error": _ratio(
                _mean([job.jct_simulated_s for job in self.jobs]),
                _mean([job.jct_live_s for job in self.jobs]),
            ),
            "mean_abs_jct_error": _mean(errors),
            "max_abs_jct_error": max(errors, default=math.nan),
            "mean_abs_time_to_90_error": _mean(waits),
            "makespan_error": _ratio(self.makespan_simulated_s, self.makespan_live_s),
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "policy": self.policy,
            "decisions": self.decisions,
            "figures": self.figures(),
            "makespan_live_s": self.makespan_live_s,
            "makespan_simulated_s": self.makespan_simulated_s,
            "left_out": dict(self.left_out),
            "jobs": [
                {
                    "name": job.name,
                    "jct_live_s": job.jct_live_s,
                    "jct_simulated_s": job.jct_simulated_s,
                    "jct_error": job.jct_error,
                    "time_to_90_live_s": job.time_to_live_s,
                    "time_to_90_simulated_s": job.time_to_simulated_s,
                    "time_to_90_error": job.time_to_error,
                }
                for job in self.jobs
            ],
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy on so many workers gave or would have given; times in seconds."""

    policy: str
    workers: int
    is_live: bool
    mean_jct_s: float
    mean_time_to_90_s: float
    makespan_s: float
    #: Summed weights of the jobs that ended in time (all that ended, where none has a deadline).
    utility: float
    num_done: int

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {key: getattr(self, key) for key in self.__dataclass_fields__}


def measure_fidelity(live: LiveRun, *, is_recorded: bool = False) -> Fidelity:
    """Simulate a run under its own policy, or with its recorded decisions, and compare."""
    policy = live.recorded_decisions() if is_recorded else live.policy()
    result = live.simulate(policy)
    simulated = {track.name: track for track in result.tracks}
    jobs = []
    for name, ended_at in live.ended_at.items():
        record = result.records[name]
        if record.state is not JobState.DONE or record.finished_at is None:
            continue
        track = live.tracks[name]
        jobs.append(
            JobError(
                name,
                ended_at - track.arrived_at,
                record.finished_at - record.submitted_at,
                track.time_to(FRACTION),
                simulated[name].time_to(FRACTION),
            )
        )
    return Fidelity(
        live.plan.policy,
        "recorded" if is_recorded else "the policy's own",
        tuple(jobs),
        _makespan_live(live),
        _makespan(result.records),
        live.left_out,
    )


def live_outcome(live: LiveRun) -> Outcome:
    """What the run itself gave."""
    jcts = {name: at - live.tracks[name].arrived_at for name, at in live.ended_at.items()}
    specs = {job.name: job.spec for job in live.jobs}
    utility = sum(
        specs[name].weight
        for name, jct in jcts.items()
        if (limit := specs[name].deadline_s) is None or jct <= limit
    )
    return Outcome(
        live.plan.policy,
        len(live.hosts),
        True,
        _mean(list(jcts.values())),
        _mean_time_to(list(live.tracks.values())),
        _makespan_live(live),
        utility,
        len(jcts),
    )


def what_if(live: LiveRun, policy: Policy, workers: int | None = None) -> Outcome:
    """What a policy would have given, on the run's workers or on other ones."""
    result = live.simulate(policy, workers)
    done = [r for r in result.records.values() if r.state is JobState.DONE]
    jcts = [r.finished_at - r.submitted_at for r in done if r.finished_at is not None]
    utility = sum(
        r.spec.weight
        for r in done
        if r.finished_at is not None
        and (r.spec.deadline_s is None or r.finished_at - r.submitted_at <= r.spec.deadline_s)
    )
    return Outcome(
        policy.name,
        result.num_ranks,
        False,
        _mean(jcts),
        _mean_time_to(result.tracks),
        _makespan(result.records),
        utility,
        len(done),
    )


def _mean_time_to(tracks: Sequence[Track]) -> float:
    times = [track.time_to(FRACTION) for track in tracks]
    return _mean([time for time in times if _is_number(time)])


def _makespan_live(live: LiveRun) -> float:
    begin = min(track.arrived_at for track in live.tracks.values())
    ends = [track.ended_at for track in live.tracks.values() if track.ended_at is not None]
    return max(ends, default=math.nan) - begin


def _makespan(records: Mapping[str, JobRecord]) -> float:
    ends = [r.finished_at for r in records.values() if r.finished_at is not None]
    return max(ends, default=math.nan) - min(r.submitted_at for r in records.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _ratio(new: float, old: float) -> float:
    return new / old - 1.0 if old else math.nan


def _is_number(value: float) -> bool:
    return value == value
