"""What a job is (`JobSpec`, asked for by the user) and how it fares (`JobRecord`).

Both are immutable; the coordinator replaces a record at each event. How a record
may change is the business of `transitions`, who changes it of `coordinator`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hpcslaq.core.utility import UtilityCurve

#: Slack of counts that come out of a division.
ROUNDING = 1e-9

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]{0,99}")


class Convergence(Enum):
    """Convergence class of a job's algorithm. Source: SLAQ, section 3.2 (two curve families)."""

    SUBLINEAR = "sublinear"  # first-order methods: f(k) = 1/(a k^2 + b k + c) + d
    SUPERLINEAR = "superlinear"  # (quasi-)Newton, EM-like: f(k) = mu^(k-b) + c


class Sync(Enum):
    """How the ranks of a job agree on the next parameters."""

    ALLREDUCE = "allreduce"  # all sum the statistics, all update
    PS = "ps"  # the last ranks of the group are parameter servers, each updates its slice


class JobState(Enum):
    """States of a job; `transitions.TRANSITIONS` says which event leads where."""

    # Equal means identical; what Enum has is a Python function that hashes the name.
    __hash__ = object.__hash__

    WAITING = "waiting"  # admitted, holds no ranks
    STARTING = "starting"  # ranks were promised, the first group is being formed
    RUNNING = "running"  # trains; no order under way
    REGROUPING = "regrouping"  # trains; will change its group at the next epoch boundary
    PAUSING = "pausing"  # trains; will checkpoint and give back all ranks at the boundary
    STOPPING = "stopping"  # will end without a result at its next iteration (cancelled)
    FINISHING = "finishing"  # the group is dissolved, the leader still evaluates and writes
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    # That of Enum hashes the name anew each time, which is felt in tables of transitions.
    __hash__ = object.__hash__

    @property
    def is_final(self) -> bool:
        """Whether the job has ended for good."""
        return self in _FINAL


#: Largest number that a job may have anywhere: what follows from it still fits into 64 bits.
MAX_COUNT = 2**63 - 1

_FINAL = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.REJECTED})


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the user asked for. Raises ValueError, naming the field, on impossible values."""

    name: str
    #: Name of the model class in the catalogue, or `module:Class` / `path.py:Class`.
    model: str
    #: Key of the prepared data set.
    data: str
    #: Number of chunks of the data; also the largest useful number of workers (ranks that
    #: compute; the parameter servers of a job come on top, see `rank_limit`).
    num_chunks: int
    #: Passes over the data after which the job is done.
    max_epochs: int
    #: Fewest workers with which the job may run.
    min_workers: int = 1
    #: Most workers that the job may hold; None: as many as it has chunks.
    max_workers: int | None = None
    #: Importance relative to other jobs, > 0.
    weight: float = 1.0
    #: Seconds after the start of the run at which the job is submitted.
    arrival_s: float = 0.0
    #: The job is done when its loss reaches this value; also replaces the unknown asymptote.
    target_loss: float | None = None
    #: The job is done when its loss improved by less than `tolerance` (relative) in each of
    #: `patience` iterations in a row; None: not used.
    tolerance: float | None = None
    patience: int = 1
    #: Seconds after submission by which the user wants the job to end; None: no deadline.
    deadline_s: float | None = None
    seed: int = 0
    convergence: Convergence = Convergence.SUBLINEAR
    #: Hyperparameters by name: numbers, strings, booleans, None, or lists of these.
    options: Mapping[str, object] = field(default_factory=dict)
    #: What the job is worth by the time that it takes; None: the policy's default.
    utility: UtilityCurve | None = None
    sync: Sync = Sync.ALLREDUCE
    #: Parameter servers of a `ps` job, the same number whatever the job holds; 0: see below.
    num_servers: int = 0
    #: One server for so many workers (>= 1), so that both numbers change with the job's ranks.
    #: A `ps` job has either this or `num_servers`.
    workers_per_server: float | None = None
    #: Passes that a worker may be ahead of the slowest: 0 is synchronous, infinity without bound.
    staleness: float = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name: {self.name!r} is not 1-100 letters, digits or ._+=,- "
                "starting with a letter or digit"
            )
        _at_least("num_chunks", self.num_chunks, 1)
        _at_least("max_epochs", self.max_epochs, 1)
        _at_least("min_workers", self.min_workers, 1)
        _at_least("patience", self.patience, 1)
        for key in ("num_chunks", "max_epochs", "min_workers", "max_workers", "patience", "seed"):
            value = getattr(self, key)
            if value is not None and abs(value) > MAX_COUNT:
                raise ValueError(f"{key}: a number of {value.bit_length()} bits is too large")
        if self.min_workers > self.num_chunks:
            raise ValueError(f"min_workers: {self.min_workers} > num_chunks = {self.num_chunks}")
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ValueError(f"max_workers: {self.max_workers} < min_workers = {self.min_workers}")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"weight: {self.weight} is not a finite number > 0")
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            raise ValueError(f"arrival_s: {self.arrival_s} is not a finite number >= 0")
        for key in ("target_loss", "tolerance", "deadline_s"):
            value = getattr(self, key)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{key}: {value} is not finite")
        self._check_servers()

    def _check_servers(self) -> None:
        _at_least("num_servers", self.num_servers, 0)
        if not (self.staleness >= 0 and (self.staleness == math.inf or self.staleness % 1 == 0)):
            raise ValueError(f"staleness: {self.staleness} is no whole number >= 0, nor infinite")
        ratio = self.workers_per_server
        if ratio is not None and not (math.isfinite(ratio) and ratio >= 1):
            raise ValueError(f"workers_per_server: {ratio} is not a finite number >= 1")
        if self.sync is Sync.PS:
            if (self.num_servers > 0) == (ratio is not None):
                raise ValueError(
                    "num_servers: a job with parameter servers needs either their number "
                    "or workers_per_server"
                )
            return
        given = {
            "num_servers": self.num_servers > 0,
            "workers_per_server": ratio is not None,
            "staleness": self.staleness != 0,
        }
        for key, is_given in given.items():
            if is_given:
                raise ValueError(f'{key}: only a job with sync = "ps" has parameter servers')

    @property
    def worker_limit(self) -> int:
        """Most workers that the job can use: never more than it has chunks."""
        if self.max_workers is None:
            return self.num_chunks
        return min(self.max_workers, self.num_chunks)

    @property
    def min_ranks(self) -> int:
        """Fewest ranks with which the job may run: its fewest workers and their servers."""
        return self.ranks_for(self.min_workers)

    @property
    def rank_limit(self) -> int:
        """Most ranks that the job can use: its most workers and their servers."""
        return self.ranks_for(self.worker_limit)

    @property
    def worker_share(self) -> float:
        """Share of workers among the ranks beyond `num_servers`, in (0, 1]."""
        ratio = self.workers_per_server
        return 1.0 if ratio is None else ratio / (ratio + 1.0)

    def ranks_for(self, num_workers: int) -> int:
        """Fewest ranks of which `num_workers` compute."""
        if self.workers_per_server is None:
            return num_workers + self.num_servers
        return num_workers + math.ceil(num_workers / self.workers_per_server - ROUNDING)

    def workers_among(self, num_ranks: int) -> int:
        """How many of the job's `num_ranks` >= 1 ranks compute; the others, the last, serve.

        The most that leave enough servers. At least one computes, also where a group that
        lost members is smaller than `min_ranks`.
        """
        if self.sync is Sync.ALLREDUCE:
            return num_ranks
        share = (num_ranks - self.num_servers) * self.worker_share
        return max(1, math.floor(share + ROUNDING))


# Without slots: a decision for thousands of jobs makes a new record for each job that changes,
# and copying one dictionary takes a fifth of the time of setting twenty slots.
@dataclass(frozen=True)
class JobRecord:
    """How a job fares, as the coordinator knows it. Times are seconds since run start."""

    spec: JobSpec
    state: JobState
    submitted_at: float
    #: World ranks of the present group, leader first; empty while none is formed.
    members: tuple[int, ...] = ()
    #: Members of the group under formation; empty unless STARTING or REGROUPING.
    forming: tuple[int, ...] = ()
    #: Generation of the newest group ordered for the job; 0 before the first.
    generation: int = 0
    #: Workers that the policy last gave the job.
    target: int = 0
    #: A cancel arrived while an order was under way; carried out when it is through.
    is_cancel_pending: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    #: Completed iterations and passes over the data that were reported.
    iterations: int = 0
    epochs: int = 0
    #: Iterations in the newest checkpoint that was reported; 0: none was written.
    stored_iterations: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    #: Largest drop of the loss in one iteration so far, >= 0 (D_j of SLAQ).
    largest_drop: float = 0.0
    #: Rank-seconds held until `held_since`, without the present group's.
    rank_seconds: float = 0.0
    held_since: float = 0.0
    #: Number of times that the group changed while the job was running.
    regroups: int = 0
    #: What such a change costs: seconds from the epoch boundary to the first new iteration, the
    #: mean of the last few; 0 before the first.
    regroup_s: float = 0.0
    #: When the number of its workers last changed.
    changed_at: float = 0.0
    #: What a policy that plans ahead promised the job (`policy.Planner`); only it can read this.
    plan: object = None
    #: Why the job is in its (final) state, for people.
    reason: str = ""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.spec.name

    @property
    def num_workers(self) -> int:
        """Ranks that the job holds now, its parameter servers included."""
        return len(self.members)

    def attained_rank_seconds(self, now: float) -> float:
        """Rank-seconds held until `now` (s since run start)."""
        return self.rank_seconds + len(self.members) * (now - self.held_since)


def changed(record: JobRecord, **changes: object) -> JobRecord:
    """What `dataclasses.replace` gives, in a fraction of its time; unknown fields are not found."""
    new = object.__new__(JobRecord)
    values = new.__dict__
    values.update(record.__dict__)
    values.update(changes)
    return new


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{key}: {value} < {least}")
