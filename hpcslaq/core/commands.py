"""What the coordinator wants done: frozen orders that a driver carries out.

Names are imperatives. A driver answers an order with events (`events`).

After the loss of a rank an order may come again with fewer ranks: it then replaces the
earlier one of its generation. Whoever has carried it out already, or has left that
generation, ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """Form the first group of a waiting job; `members[0]` leads and loads the state.

    The leader takes the newest valid checkpoint, or the initial state where none was written:
    `stored_iterations` says whether one was, so that a lost one is no silent start from zero.
    """

    job: str
    generation: int
    members: tuple[int, ...]
    #: Iterations whose losses are known already; later ones of the history are to be reported.
    known_iterations: int = 0
    #: Iterations in the newest checkpoint that was written; 0: none was.
    stored_iterations: int = 0


@dataclass(frozen=True, slots=True)
class Regroup:
    """Change the group at the job's next epoch boundary; the leader (`members[0]`) stays.

    Only after the loss of a leader may another member of the group lead the next one.
    """

    job: str
    generation: int
    members: tuple[int, ...]
    joiners: tuple[int, ...]
    leavers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Checkpoint at the next epoch boundary and dissolve the group."""

    job: str
    generation: int
    leader: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Dissolve the group at the next iteration without a result."""

    job: str
    generation: int
    leader: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Ranks that were to join this generation are to wait for orders again."""

    job: str
    generation: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """The job was not admitted."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Nothing to do: what the policy decided about a job, for those who read the journal."""

    job: str
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Hand in `RoundElapsed` at this time (s since run start)."""

    at: float


@dataclass(frozen=True, slots=True)
class Shutdown:
    """All ranks are idle and nothing is left to do: end with this exit code."""

    exit_code: int


Command = Start | Regroup | Pause | Stop | Dismiss | Reject | Note | WakeAt | Shutdown
