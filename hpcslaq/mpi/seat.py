"""A rank's membership in a job, and what the ways out of it need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from hpcslaq.core import commands as cmd
from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.dataset import Dataset
from hpcslaq.errors import HpcslaqError
from hpcslaq.mpi.groups import JobGroup
from hpcslaq.mpi.leader import Leader, Snapshot
from hpcslaq.record.store import CheckpointStore
from hpcslaq.train.model import Model
from hpcslaq.train.state import TrainState
from hpcslaq.train.trainer import USER_ERRORS, StepReport, Trainer, described

#: What user code may raise on a worker, which ignores SIGINT: KeyboardInterrupt is its own.
MODEL_ERRORS = (*USER_ERRORS, KeyboardInterrupt)

#: Seconds by kind: "load", "compute", "reduce", "regroup",
#: "checkpoint", "control", and "wait" for the boundary at which a joiner may enter.
Usage = defaultdict[str, float]


class Outcome(Enum):
    """How a stretch of passes in one group ended."""

    LEAVING = "leaving"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(slots=True)
class Seat:
    """One rank's membership in a job, through its regroups, until the rank is released."""

    spec: JobSpec
    data: Dataset
    model: Model
    generation: int
    #: World ranks of the present group, the leader first.
    members: tuple[int, ...]
    #: Where the checkpoints are.
    store: CheckpointStore
    #: Members with which rank 0 ordered the present group, those included that died since.
    ordered: tuple[int, ...] = ()
    #: Newest generation of which this rank, as its leader, has said that it is formed.
    announced: int = 0
    usage: Usage = field(default_factory=lambda: defaultdict(float))
    #: Completed iterations of the newest checkpoint that this rank knows of; 0: none.
    newest_checkpoint: int = 0
    #: Where the leader stands; None on the other members.
    leader: Leader | None = None


@dataclass(slots=True)
class Stretch:
    """What a member does in one group: passes until the group changes, ends or breaks."""

    group: JobGroup
    #: None on a joiner that has not received it yet.
    state: TrainState | None
    trainer: Trainer | None = None
    #: The leader's state is to be sent to all.
    must_share: bool = True
    #: The group is what is left of one that lost a member: the members' states may differ.
    is_repaired: bool = False
    #: All members hold the same state and have their chunks.
    is_prepared: bool = False
    outcome: Outcome = Outcome.LEAVING
    report: StepReport = field(default_factory=StepReport)
    order: cmd.Regroup | cmd.Pause | None = None

    def repaired(self, survivors: Sequence[int]) -> Stretch:
        """The same with those that are left."""
        state = self.state if self.trainer is None else self.trainer.state
        return Stretch(self.group.repaired(survivors), state, self.trainer, is_repaired=True)


def outcome_of(report: StepReport) -> Outcome:
    if report.failure is not None:
        return Outcome.FAILED
    if report.is_stopped:
        return Outcome.STOPPED
    return Outcome.FINISHED if report.stop is not None else Outcome.LEAVING


def snapshot_of(seat: Seat, state: TrainState) -> Snapshot:
    """A copy of the state that a writing thread may keep."""
    arrays = {name: array.copy() for name, array in state.pack().items()}
    return Snapshot(state.iterations, state.epochs, arrays)


def story_of(error: BaseException) -> tuple[str, str]:
    """One line on a failure, and its traceback where there is more to say."""
    line, details = described(error)
    if not isinstance(error, HpcslaqError):
        return line, details
    # Our own errors say all; where user code is behind one, its place is wanted, too.
    return line.removeprefix(f"{type(error).__name__}: "), details if error.__cause__ else ""
