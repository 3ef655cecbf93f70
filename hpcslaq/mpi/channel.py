"""The control plane: small messages between two ranks, sent and polled without blocking.

Matched probes and capped back-off; no `irecv` of pickled objects (mpi4py's default
buffer truncates them), no collectives, nothing unpickled: messages are JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, get_args

from mpi4py import MPI

from hpcslaq.core import commands, events
from hpcslaq.core.coordinator import EXIT_STOPPED_EARLY
from hpcslaq.errors import HpcslaqError
from hpcslaq.mpi import messages
from hpcslaq.record.codec import JOB_CLASSES, Codec

#: First and longest pause of a rank that has work to expect soon, s.
ACTIVE_PAUSE_S = (20e-6, 1e-3)
#: The same for a rank that waits for orders: the cap keeps it below 1 % of a core.
IDLE_PAUSE_S = (20e-6, 10e-3)

CODEC = Codec(
    (*JOB_CLASSES, *get_args(commands.Command), *get_args(events.Event), *messages.MESSAGES)
)


class Backoff:
    """Pauses that double from `shortest` to `longest` seconds until `reset`."""

    def __init__(self, pauses_s: tuple[float, float]) -> None:
        self._shortest, self._longest = pauses_s
        self._next = self._shortest

    def pause(self) -> None:
        """Sleep a little, next time longer."""
        time.sleep(self._next)
        self._next = min(2 * self._next, self._longest)

    def reset(self) -> None:
        """Start over with the shortest pause: something happened."""
        self._next = self._shortest


class CoordinatorLost(HpcslaqError):
    """Rank 0 has died: there is nobody to report to, and a new start resumes the run."""

    exit_code = EXIT_STOPPED_EARLY


class Channel:
    """Sends and receives control messages on one communicator of all ranks.

    With `survives` (ULFM) the death of a rank is no error: what it had sent can still be read,
    until `bury`; what is sent to it is dropped.
    """

    def __init__(self, comm: MPI.Intracomm, *, survives: bool = False) -> None:
        self._comm = comm
        self.rank = comm.Get_rank()
        self.survives = survives
        #: Ranks that are known to be dead.
        self.lost: set[int] = set()
        #: Those of them whose messages are not read any more.
        self._buried: set[int] = set()
        self._status = MPI.Status()
        #: Sends under way: the buffer must live until the request is complete.
        self._sending: list[tuple[MPI.Request, bytes]] = []

    def send(self, dest: int, tag: int, message: object) -> None:
        """Hand `message` to MPI; never waits for the receiver."""
        self._sending = self._unsent()
        if dest in self.lost:
            return
        buffer = CODEC.encode(message)
        try:
            self._sending.append((self._comm.Isend([buffer, MPI.BYTE], dest, tag), buffer))
        except MPI.Exception as error:
            self._survive(error)

    def poll(self, tag: int, source: int = MPI.ANY_SOURCE) -> Any:
        """The next message with this tag, or None where none has arrived."""
        while True:
            try:
                matched = self._comm.Improbe(source, tag, self._status)
                if matched is None:
                    return None
                buffer = bytearray(self._status.Get_count(MPI.BYTE))
                matched.Recv([buffer, MPI.BYTE])
            except MPI.Exception as error:
                # Said once for each death; what the living sent is found by the next look.
                if not self._survive(error) or source in self.lost:
                    return None
                continue
            if self._status.Get_source() not in self._buried:
                return CODEC.decode(bytes(buffer))

    def wait(
        self,
        tag: int,
        backoff: Backoff,
        give_up: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Poll until a message arrives; None when `give_up()` says so first."""
        backoff.reset()
        while (message := self.poll(tag)) is None:
            if give_up():
                return None
            backoff.pause()
        return message

    def look(self) -> set[int]:
        """Ask MPI who has died; the ranks of whom that is news.

        Raises CoordinatorLost where it is rank 0. MPI knows only what its progress engine has
        seen: some other call should have come before.
        """
        if not self.survives:
            return set()
        self._comm.Ack_failed()
        failed, everybody = self._comm.Get_failed(), self._comm.Get_group()
        try:
            num = failed.Get_size()
            dead = set(failed.Translate_ranks(list(range(num)), everybody)) if num else set()
        finally:
            failed.Free()
            everybody.Free()
        news = dead - self.lost
        self.lost |= news
        if 0 in self.lost and self.rank != 0:
            raise CoordinatorLost("rank 0 has died; the same command resumes the run")
        return news

    def dead(self) -> set[int]:
        """All ranks that have died, as MPI knows now; see `look`."""
        self.look()
        return self.lost

    def bury(self, rank: int) -> None:
        """Read nothing any more of what a dead rank has sent."""
        self._buried.add(rank)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all sends are complete, at most `timeout_s`; whether they are."""
        backoff, until = Backoff(ACTIVE_PAUSE_S), time.monotonic() + timeout_s
        while True:
            self._sending = self._unsent()
            if not self._sending:
                return True
            if time.monotonic() > until:
                return False
            backoff.pause()

    def _unsent(self) -> list[tuple[MPI.Request, bytes]]:
        unsent = []
        for request, buffer in self._sending:
            try:
                if not request.Test():
                    unsent.append((request, buffer))
            except MPI.Exception as error:  # the receiver has died
                self._survive(error)
        return unsent

    def _survive(self, error: MPI.Exception) -> bool:
        """After an error of MPI: whether it tells of a death of which nobody knew here.

        Raises it again where deaths are not to be survived.
        """
        if not self.survives:
            raise error
        return bool(self.look())
