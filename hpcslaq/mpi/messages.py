"""Control messages between ranks, and their tags, in one place.

The coordinator's commands and the workers' events travel as they are (`hpcslaq.core`);
here is only what has no place in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcslaq.core.jobs import JobSpec

#: Rank 0 to a worker.
TAG_ORDER = 1
#: A worker to rank 0: events of `hpcslaq.core.events` and `Farewell`.
TAG_EVENT = 2
#: A worker to a worker, while a group is being formed.
TAG_PEER = 3


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
class Enter:
    """Leader to joiner: all members are ready, create the group now."""

    generation: int


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


MESSAGES = (Plan, Lead, Join, Ready, Refused, Enter, Farewell)
