"""Control messages between ranks, and their tags, in one place.

The coordinator's commands and the workers' events travel as they are (`hpcslaq.core`);
here is only what has no place in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcslaq.core.events import GroupFormed
from hpcslaq.core.jobs import JobSpec

#: Rank 0 to a worker.
TAG_ORDER = 1
#: A worker to rank 0: events of `hpcslaq.core.events` and `Farewell`.
TAG_EVENT = 2
#: A worker to the leader of a group, while it is being formed.
TAG_PEER = 3
#: The leader of a group to a member, while it is being formed.
TAG_ENTRY = 4
#: Rank 0 to a member: `Verdict` and `Summons`.
TAG_VERDICT = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """To every worker, once: the run directory is ready."""

    run: str


@dataclass(frozen=True, slots=True)
class Lead:
    """To the first member of a new group: collect the others, load the state, train."""

    spec: JobSpec
    #: Directory of the prepared data set.
    data_path: str
    generation: int
    #: World ranks, the leader first.
    members: tuple[int, ...]
    known_iterations: int
    #: Iterations in the newest checkpoint that was reported; 0: none was written.
    stored_iterations: int = 0


@dataclass(frozen=True, slots=True)
class Join:
    """To the other members of a new group and to joiners of a running one: get ready."""

    spec: JobSpec
    data_path: str
    generation: int
    members: tuple[int, ...]
    #: To whom to say `Ready`: the leader of the present group, or of the first one.
    host: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Joiner to leader: model and data are open, I wait for `Enter`."""

    generation: int
    rank: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Joiner to leader: I cannot join; the job fails with this."""

    generation: int
    rank: int
    message: str
    details: str


@dataclass(frozen=True, slots=True)
class Call:
    """Leader to member, where deaths are survived: are you there? The group is created next."""

    generation: int
    leader: int


@dataclass(frozen=True, slots=True)
class Here:
    """Member to leader: I am, and will enter."""

    generation: int
    rank: int
    #: It knows of a death, of whatever rank.
    is_damaged: bool


@dataclass(frozen=True, slots=True)
class Enter:
    """Leader to member: all members are ready, create the group now."""

    generation: int
    members: tuple[int, ...]
    #: A member knows of a death: no communicator can be created.
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class Succeeded:
    """New leader to rank 0, after the loss of the old one: I speak for the job from now on."""

    rank: int
    #: What the old leader may have said or not.
    formed: GroupFormed


@dataclass(frozen=True, slots=True)
class Known:
    """Rank 0 to a new leader: of so many iterations the losses are known."""

    generation: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Came:
    """Member to rank 0, where deaths are survived: I came to the end of this group."""

    rank: int
    generation: int
    #: Groups of this generation that broke before.
    attempt: int
    members: tuple[int, ...]
    #: No operation failed here.
    is_well: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Rank 0 to the members of a group, when all have come to its end or died."""

    generation: int
    attempt: int
    #: Nothing failed anywhere, and all live; else `members` form another group.
    is_well: bool
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Summons:
    """Rank 0 to a member of a new group that has not come to its end, while others have.

    For those that the leader, now dead, did not tell of the group any more.
    """

    generation: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class End:
    """To every worker: the run is over."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class Farewell:
    """A worker's last message: its counts over the whole run."""

    rank: int
    #: Job communicators made, most alive at once, and alive at the end.
    communicators_made: int
    communicators_peak: int
    communicators_alive: int
    #: CPU seconds of the process and wall seconds since its start, by kind of activity.
    usage: Mapping[str, float] = field(default_factory=dict)


MESSAGES = (
    Plan,
    Lead,
    Join,
    Ready,
    Refused,
    Call,
    Here,
    Enter,
    Succeeded,
    Known,
    Came,
    Verdict,
    Summons,
    End,
    Farewell,
)
