"""What has happened: frozen facts that a driver hands to the coordinator.

Names are in the past tense. Each event carries all that the coordinator needs, so
that a journal of (now, event) replays to the same commands. Orders are in `commands`.

Order of events. All events of a job but RankReleased come from the leader of its group, in
the order in which they happened; each rank reports its own release. Between ranks nothing is
promised, so a release may come before the report of what freed the rank. What a rank sent
before it died is handed in before its RankLost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcslaq.core.jobs import JobSpec


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run (re)started with these worker ranks: `hosts[r]` is the host of world rank r.

    After a restart every unfinished job is waiting again and continues from its checkpoint.
    """

    hosts: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job arrived."""

    spec: JobSpec
    #: Another submission follows at once: the policy decides after the last of them, so that a
    #: thousand jobs that come together cost one decision and not a thousand.
    is_followed: bool = False


@dataclass(frozen=True, slots=True)
class ArrivalsClosed:
    """No more jobs will be submitted; the run ends when the present ones have."""


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The user wants the job to end."""

    job: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """The user changed the importance of a job; ValueError where it is not > 0."""

    job: str
    weight: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"weight: {self.weight} is not a finite number > 0")


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """The members of `generation` hold the job's state and train."""

    job: str
    generation: int
    members: tuple[int, ...]
    #: Completed iterations at the formation (> 0 when the state came from a checkpoint).
    iterations: int = 0
    #: Seconds from the boundary to the first new iteration, on the slowest known member.
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupDissolved:
    """The group makes no further pass: its members, the leader apart, are on their way out.

    What became of the job follows (JobFinished, JobFailed, JobPaused or JobStopped): its leader
    may still have to evaluate the model or to write it.
    """

    job: str
    generation: int


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """Iterations completed since the last report.

    `losses[i]` is the loss of iteration `first_iteration + i` (counted from 1), `seconds` the
    wall time they took together on `num_workers` workers, without regrouping.
    """

    job: str
    generation: int
    first_iteration: int
    losses: tuple[float, ...]
    epochs: int
    seconds: float
    num_workers: int


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A checkpoint of the job's state after `iterations` is on disk."""

    job: str
    iterations: int
    epochs: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint after `iterations` could not be written: the job goes on, older ones stay.

    Said once, until one is written again.
    """

    job: str
    iterations: int
    message: str


@dataclass(frozen=True, slots=True)
class JobPaused:
    """The group is dissolved; the state after `iterations` is in a checkpoint."""

    job: str
    generation: int
    iterations: int


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The job met its stop rule; its model is on disk."""

    job: str
    generation: int
    iterations: int
    epochs: int
    final_loss: float
    #: SHA-256 over the little-endian float64 bytes of the loss sequence / of the parameters.
    loss_digest: str
    model_digest: str
    #: Which stop rule: "epochs", "target_loss", "tolerance" or "converged".
    reason: str
    #: Measures on held-out data by name, for example {"auc": 0.99}.
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobStopped:
    """The group of a cancelled job is dissolved."""

    job: str
    generation: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job cannot go on; `message` is one line, `details` a traceback or empty."""

    job: str
    generation: int
    rank: int
    message: str
    details: str = ""


@dataclass(frozen=True, slots=True)
class RankReleased:
    """A rank left a group (or gave up joining one) and waits for orders.

    `usage`: seconds spent in this membership by kind ("compute", "reduce", "regroup",
    "checkpoint", "control", "load", "wait").
    """

    rank: int
    job: str
    generation: int
    usage: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankLost:
    """A rank died or stopped answering; it is never used again in this run.

    The coordinator then repeats the order under way for the rank's job, if there is one, to
    those that are left: the same generation without the lost rank.
    """

    rank: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RoundElapsed:
    """The scheduling interval is over (SLAQ's epoch, OASiS's slot)."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The whole run is to checkpoint and end early (signal, time limit, preemption)."""

    reason: str = ""


Event = (
    RunStarted
    | JobSubmitted
    | ArrivalsClosed
    | JobCancelled
    | WeightChanged
    | GroupFormed
    | GroupDissolved
    | ProgressReported
    | CheckpointWritten
    | CheckpointFailed
    | JobPaused
    | JobFinished
    | JobStopped
    | JobFailed
    | RankReleased
    | RankLost
    | RoundElapsed
    | StopRequested
)
