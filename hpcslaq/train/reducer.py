"""What a group must be able to do for the trainers of its members; `mpi.groups` does it by MPI."""

from __future__ import annotations

from typing import Protocol

from hpcslaq.train.exact import Array

#: Bounds of the slices in a vector: slice k is `vector[offsets[k] : offsets[k + 1]]`, member
#: `first + k` serves it.
Offsets = tuple[int, ...]


class MemberLost(Exception):
    """A member of the group has died: an operation may be complete on some of the others only."""


class Reducer(Protocol):
    """Reductions over the members of a job, in place, on 1-D contiguous float64 arrays."""

    @property
    def num_members(self) -> int: ...

    def maximum(self, buffer: Array) -> None:
        """Replace each element by its maximum over the members."""

    def add(self, buffer: Array) -> None:
        """Replace each element by its sum over the members; the order does not matter."""


class SliceReducer(Reducer, Protocol):
    """A reducer whose last members serve, where a job has parameter servers (`servers`)."""

    def add_slices(self, vector: Array, offsets: Offsets, first: int) -> None:
        """Sum each slice over the members, on its server; what follows the last slice, on all.

        Elsewhere a slice's content is undefined afterwards.
        """

    def spread_slices(self, vector: Array, offsets: Offsets, first: int) -> None:
        """Replace each slice, on all members, by what its server has there."""

    def collect_slices(self, vector: Array, offsets: Offsets, first: int) -> None:
        """The same on member 0 only; elsewhere nothing is changed."""

    def broadcast(self, payload: bytes | None, root: int = 0) -> bytes:
        """The bytes of member `root`, on all members; the others pass None."""


class PostalReducer(SliceReducer, Protocol):
    """Also messages between two members, for passes that are not in lock-step (`stale`)."""

    def post(self, member: int, payload: bytes) -> None:
        """Send a message; does not wait. Messages between two members keep their order."""

    def receive(self) -> tuple[int, bytes]:
        """Wait for a message of any member: who sent it, and what."""


class Solo:
    """The reducer of a job with one member."""

    num_members = 1

    def maximum(self, buffer: Array) -> None:
        """Nothing to do."""

    def add(self, buffer: Array) -> None:
        """Nothing to do."""
