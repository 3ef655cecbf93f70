"""The seam between the coordinator and a policy: a frozen view in, a proposal out.

A policy is a frozen dataclass of parameters whose methods are pure functions of the
view. It proposes; the coordinator checks the bounds and disposes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Protocol, runtime_checkable

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobRecord, JobSpec
from hpcslaq.errors import PolicyError

#: Worker ranks by job name; a job that is not named gets none. Some of the ranks of a job with
#: parameter servers serve (`JobSpec.workers_among`).
Allocation = Mapping[str, int]

#: Part of a round by which an instant may lie before it and still counts as in it (rounding).
ROUND_SLACK = 1e-6


class Forecaster(Protocol):
    """Incremental prediction state of all live jobs, kept beside their records.

    The coordinator feeds it; a policy only reads it. `observe` is O(1) per loss.
    """

    def add(self, spec: JobSpec) -> None:
        """Begin to follow a job."""

    def observe(self, report: ProgressReported) -> None:
        """Take in the losses and the step time of one report."""

    def discard(self, job: str) -> None:
        """Forget a job that has ended."""


class NoForecast:
    """The forecaster of policies that do not predict."""

    def add(self, spec: JobSpec) -> None:
        """Do nothing."""

    def observe(self, report: ProgressReported) -> None:
        """Do nothing."""

    def discard(self, job: str) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a policy may know when it decides."""

    #: Seconds since run start.
    now: float
    #: Length of a round in seconds.
    round_s: float
    #: Usable worker ranks (not lost).
    num_ranks: int
    #: Jobs that have not ended, in the order of their arrival.
    jobs: tuple[JobRecord, ...]
    #: The forecaster that the policy asked for; of the type that it asked for.
    forecaster: Forecaster
    #: All jobs ever submitted, also those that have ended, by name in the order of arrival.
    history: Mapping[str, JobRecord] = field(default_factory=dict)
    #: Usable ranks by host, sorted by host; empty where it does not matter.
    hosts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether an arriving job is taken, and why not."""

    is_accepted: bool
    reason: str = ""
    #: Becomes `JobRecord.plan`, also of a job that is refused.
    plan: object = None
    #: What is to be in the journal about it (`commands.Note`); empty: nothing.
    facts: Mapping[str, object] = field(default_factory=dict)


class Policy(Protocol):
    """Decides who is admitted and how many workers each live job gets."""

    @property
    def name(self) -> str:
        """Name by which job files and commands choose the policy."""

    def forecaster(self) -> Forecaster:
        """A fresh forecaster of the kind that `allocate` reads."""

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        """Judge an arriving job; `view` does not hold it yet."""

    def allocate(self, view: ClusterView) -> Allocation:
        """Ranks for each job of the view: 0, or min_ranks to rank_limit of the job.

        The sum is at most `view.num_ranks`. The same view gives the same answer.
        """


@runtime_checkable
class Planner(Protocol):
    """A policy that makes each job a plan over future rounds, and revises plans.

    Rounds of a run under such a policy begin at multiples of their length.
    """

    def revise(self, view: ClusterView) -> Mapping[str, Admission]:
        """Jobs of the view whose plan changes; called before each `allocate`.

        A job that waits can be refused, too. The same view gives the same answer.
        """


def check_allocation(allocation: Allocation, view: ClusterView) -> None:
    """Raise PolicyError, naming the bound, where a proposal breaks one."""
    specs = {record.spec.name: record.spec for record in view.jobs}
    for job, count in allocation.items():
        check_share(job, count, specs.get(job))
    check_total(allocation, view.num_ranks)


def check_share(job: str, count: int, spec: JobSpec | None) -> None:
    """Raise PolicyError where one job's share breaks a bound; `spec` is None if it is not live."""
    if spec is None:
        raise PolicyError(f"{job}: given {count} workers, but it is not a live job")
    # The exact type first: asking an abstract class takes microseconds.
    if type(count) is not int and not isinstance(count, Integral):
        raise PolicyError(f"{job}: given {count}, which is not a whole number of workers")
    if count < 0:
        raise PolicyError(f"{job}: given {count} < 0 workers")
    if 0 < count < spec.min_ranks:
        servers = spec.min_ranks - spec.min_workers
        more = f" and {servers} servers" if servers else ""
        raise PolicyError(f"{job}: given {count} < min_workers = {spec.min_workers}{more}")
    if count > spec.rank_limit:
        raise PolicyError(f"{job}: given {count} > its limit of {spec.rank_limit} workers")


def check_total(allocation: Allocation, num_ranks: int) -> None:
    """Raise PolicyError where more workers are given than there are."""
    total = sum(allocation.values())
    if total > num_ranks:
        raise PolicyError(f"{total} workers given, but there are {num_ranks}")
