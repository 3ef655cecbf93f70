"""Groups of ranks without a communicator: collectives made of messages between two ranks.

After a death no communicator can be created any more without risk (`groups`), but messages
between living ranks still arrive. Nothing here waits for a rank without looking who has died, so
every member of a group that lost one comes out of every operation, without help of the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from hpcslaq.train.reducer import MemberLost

#: Tags of one group: of collectives, and of what the group sends itself.
_TAGS_PER_GROUP = 2
#: How often (s) a member that waits looks who has died, and after how long it begins to sleep.
_LOOK_EVERY_S, _SPIN_S = 2e-3, 20e-3
#: Length of the pauses of one that has waited long, s.
_PAUSE_S = 0.5e-3


class PointComm:
    """What `JobGroup` needs of an intracommunicator, on messages over one of all workers.

    Collectives are complete when their call returns, the nonblocking ones, too.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        places: Sequence[int],
        number: int,
        lost: Callable[[], set[int]],
    ) -> None:
        """`places` : ranks of the members in `comm`, this one among them; `number` : differs from
        group to group, alike on all members; `lost()` : ranks of `comm` that have died.
        """
        self._comm = comm
        self._places = tuple(places)
        self._tag = number * _TAGS_PER_GROUP
        self._lost = lost
        self._index = self._places.index(comm.Get_rank())

    def Get_rank(self) -> int:
        """This rank's index among the members."""
        return self._index

    def Get_size(self) -> int:
        """Number of members."""
        return len(self._places)

    def Free(self) -> None:
        """There is nothing to free; messages of a broken group are never received."""

    def Revoke(self) -> None:
        """The others notice a death by themselves."""

    # -- messages ----------------------------------------------------------------------

    def Isend(self, buffer: Any, dest: int, tag: int) -> MPI.Request:
        """Messages of all tags that the group uses itself are in one order."""
        return self._comm.Isend(buffer, self._places[dest], self._tag + 1)

    def Irecv(self, buffer: Any, source: int, tag: int) -> MPI.Request:
        """The counterpart of `Isend`."""
        return self._comm.Irecv(buffer, self._places[source], self._tag + 1)

    def Improbe(self, source: int, tag: int, status: MPI.Status) -> MPI.Message | None:
        """The next message of any member; afterwards `status` names the member's index.

        Raises MemberLost where there is none and a member has died.
        """
        for index, place in enumerate(self._places):
            message = self._comm.Improbe(place, self._tag + 1, status)
            if message is not None:
                status.Set_source(index)
                return message
        self._check()
        return None

    def wait(self, requests: Sequence[MPI.Request]) -> None:
        """Wait until all are complete. Raises MemberLost where a member has died."""
        if MPI.Request.Testall(list(requests)):
            return
        pending = [request for request in requests if request != MPI.REQUEST_NULL]
        began = looked = time.monotonic()
        while pending:
            pending = [request for request in pending if not request.Test()]
            now = time.monotonic()
            if now - looked >= _LOOK_EVERY_S:
                self._check()
                looked = time.monotonic()
            if now - began > _SPIN_S:
                time.sleep(_PAUSE_S)
            else:
                os.sched_yield()

    def _check(self) -> None:
        lost = self._lost()
        if lost and not lost.isdisjoint(self._places):
            _raise(sorted(lost.intersection(self._places)))

    def _send(self, buffer: np.ndarray, member: int) -> MPI.Request:
        return self._comm.Isend(buffer, self._places[member], self._tag)

    def _receive(self, buffer: np.ndarray, member: int) -> MPI.Request:
        return self._comm.Irecv(buffer, self._places[member], self._tag)

    # -- collectives -------------------------------------------------------------------

    def Allreduce(self, sendbuf: Any, buffer: np.ndarray, op: MPI.Op) -> None:
        """In place, by recursive doubling; those beyond the last power of two are folded in."""
        index, size = self._index, len(self._places)
        power = 1 << (size.bit_length() - 1)
        other = np.empty_like(buffer)
        if index >= power:
            self.wait([self._send(buffer, index - power)])
            self.wait([self._receive(buffer, index - power)])
            return
        if index + power < size:
            self.wait([self._receive(other, index + power)])
            _combine(op, buffer, other)
        distance = 1
        while distance < power:
            peer = index ^ distance
            self.wait([self._receive(other, peer), self._send(buffer, peer)])
            _combine(op, buffer, other)
            distance *= 2
        if index + power < size:
            self.wait([self._send(buffer, index + power)])

    def Bcast(self, buffer: Any, root: int) -> None:
        """The content of the root's buffer (an array, or [buffer, MPI.BYTE]) on all members."""
        array = np.frombuffer(buffer[0], np.uint8) if isinstance(buffer, list) else buffer
        size = len(self._places)
        place = (self._index - root) % size
        distance = 1
        while distance < size:
            distance *= 2
        while distance > 1:  # binomial tree
            distance //= 2
            if place % (2 * distance) == distance:
                self.wait([self._receive(array, (place - distance + root) % size)])
            elif place % (2 * distance) == 0 and place + distance < size:
                self.wait([self._send(array, (place + distance + root) % size)])

    def Iallreduce(self, sendbuf: Any, buffer: np.ndarray, op: MPI.Op) -> MPI.Request:
        """As `Allreduce`."""
        self.Allreduce(sendbuf, buffer, op)
        return MPI.REQUEST_NULL

    def Ibcast(self, buffer: np.ndarray, root: int) -> MPI.Request:
        """As `Bcast`."""
        self.Bcast(buffer, root)
        return MPI.REQUEST_NULL

    def Ireduce(
        self, sendbuf: Any, buffer: np.ndarray | None, op: MPI.Op, root: int
    ) -> MPI.Request:
        """In place at the root, where `sendbuf` is MPI.IN_PLACE; from `sendbuf` elsewhere."""
        if self._index != root:
            self.wait([self._send(sendbuf, root)])
            return MPI.REQUEST_NULL
        assert buffer is not None
        other = np.empty_like(buffer)
        for member in range(len(self._places)):
            if member != root:
                self.wait([self._receive(other, member)])
                _combine(op, buffer, other)
        return MPI.REQUEST_NULL


def _combine(op: MPI.Op, buffer: np.ndarray, other: np.ndarray) -> None:
    function = np.add if op == MPI.SUM else np.maximum
    function(buffer, other, out=buffer)


def _raise(lost: list[int]) -> NoReturn:
    raise MemberLost(f"workers {lost} have died")
