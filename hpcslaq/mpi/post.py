"""Messages between the members of one group, for passes that are not in lock-step.

As on the control plane (`channel`) nothing blocks: matched probes and capped back-off.
"""

from __future__ import annotations

from contextlib import suppress

from mpi4py import MPI

from hpcslaq.mpi.channel import ACTIVE_PAUSE_S, Backoff
from hpcslaq.mpi.points import PointComm

#: Of these messages; other point-to-point traffic of a group has the tag of a member.
_TAG = 32_000


class Post:
    """Sends to and receives from the members of one communicator."""

    def __init__(self, comm: MPI.Intracomm | PointComm) -> None:
        self._comm = comm
        self._status = MPI.Status()
        self._backoff = Backoff(ACTIVE_PAUSE_S)
        #: Sends under way: the buffer must live until the request is complete.
        self._sending: list[tuple[MPI.Request, bytes]] = []

    def send(self, member: int, payload: bytes) -> None:
        """Hand `payload` to MPI; never waits for the receiver."""
        self._sending = [(r, b) for r, b in self._sending if not r.Test()]
        self._sending.append((self._comm.Isend([payload, MPI.BYTE], member, _TAG), payload))

    def receive(self) -> tuple[int, bytes]:
        """Wait for the next message of any member: its index, and what it sent."""
        self._backoff.reset()
        while (matched := self._comm.Improbe(MPI.ANY_SOURCE, _TAG, self._status)) is None:
            self._backoff.pause()
        buffer = bytearray(self._status.Get_count(MPI.BYTE))
        matched.Recv([buffer, MPI.BYTE])
        return self._status.Get_source(), bytes(buffer)

    def close(self) -> None:
        """Wait until all was received that was sent from here, by members that are alive."""
        for request, _ in self._sending:
            with suppress(MPI.Exception):  # of a member that was lost
                request.Wait()
        self._sending = []
