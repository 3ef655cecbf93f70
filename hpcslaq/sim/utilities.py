"""Utilities for the jobs of any workload, and what a simulated run earned.

Most traces do not say what a job is worth; here it is drawn as in the evaluation of OASiS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcslaq.core.jobs import JobRecord, JobSpec, JobState
from hpcslaq.core.policy import ROUND_SLACK
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.sim.jobs import SimJob


@dataclass(frozen=True, slots=True)
class UtilityMix:
    """Table [utility]. Ranges are inclusive and drawn from uniformly.

    Source: OASiS, section V: a tenth of the jobs do not mind when they end (half the peak,
    always), 55 % are time-sensitive (a sigmoid that falls slowly), the rest time-critical (it
    falls within about a round).
    """

    peak: tuple[float, float] = (1.0, 100.0)
    #: When half of the peak is left, as a multiple of the time that the job takes by itself
    #: on as many workers as it can use, and of at least one round.
    target: tuple[float, float] = (1.0, 15.0)
    #: Shares of insensitive, sensitive and critical jobs.
    shares: tuple[float, float, float] = (0.10, 0.55, 0.35)
    #: Steepness per round of sensitive and of critical jobs.
    sensitive: tuple[float, float] = (0.01, 1.0)
    critical: tuple[float, float] = (4.0, 6.0)

    def __post_init__(self) -> None:
        for key in ("peak", "target", "sensitive", "critical"):
            low, high = getattr(self, key)
            if not 0 < low <= high:
                raise ValueError(f"{key}: {low} to {high} is not a range of numbers > 0")
        if any(share < 0 for share in self.shares) or abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(f"shares: {list(self.shares)} do not add up to 1")


def with_utilities(
    rng: np.random.Generator,
    jobs: Iterable[SimJob],
    mix: UtilityMix,
    round_s: float,
    workers: int,
) -> list[SimJob]:
    """The jobs with a drawn utility each; those that have one keep it.

    Policies that know deadlines only are told the targets of the time-critical jobs.
    """
    drawn = []
    for job in jobs:
        count = max(1, min(job.spec.worker_limit, workers))
        alone_s = max(job.num_iterations * job.step_time.seconds(count), round_s)
        utility = _draw(rng, mix, round_s, alone_s)
        if job.spec.utility is None:
            job = replace(job, spec=_worth(job.spec, utility, mix.critical[0] / round_s))
        drawn.append(job)
    return drawn


def earned(records: Iterable[JobRecord], round_s: float) -> float:
    """Total utility of the jobs that are done, by whole rounds from arrival to end."""
    total = 0.0
    for record in records:
        curve, ended_at = record.spec.utility, record.finished_at
        if curve is None or ended_at is None or record.state is not JobState.DONE:
            continue
        begin = int(record.submitted_at / round_s + ROUND_SLACK)
        end = max(int(ended_at / round_s - ROUND_SLACK), begin)
        total += curve.at((end - begin) * round_s)
    return total


def possible(jobs: Sequence[SimJob]) -> float:
    """The sum of the jobs' utilities if all ended at once."""
    return sum(job.spec.utility.at(0.0) for job in jobs if job.spec.utility is not None)


def _worth(spec: JobSpec, utility: UtilityCurve, critical: float) -> JobSpec:
    """The job with this utility; the target of a time-critical one is its deadline, too."""
    deadline_s = spec.deadline_s
    if deadline_s is None and utility.steepness is not None and utility.steepness >= critical:
        deadline_s = utility.target_s
    return replace(spec, utility=utility, deadline_s=deadline_s)


def _draw(
    rng: np.random.Generator, mix: UtilityMix, round_s: float, alone_s: float
) -> UtilityCurve:
    peak = float(rng.uniform(*mix.peak))
    target_s = float(rng.uniform(*mix.target)) * alone_s
    kind = int(rng.choice(3, p=np.array(mix.shares) / sum(mix.shares)))
    steepness = float(rng.uniform(*(mix.sensitive if kind == 1 else mix.critical)))
    if kind == 0:
        return UtilityCurve(UtilityKind.CONSTANT, peak / 2)
    return UtilityCurve(UtilityKind.SIGMOID, peak, target_s, steepness / round_s)
