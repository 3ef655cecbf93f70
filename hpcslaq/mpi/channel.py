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


class Channel:
    """Sends and receives control messages on one communicator of all ranks."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank = comm.Get_rank()
        self._status = MPI.Status()
        #: Sends under way: the buffer must live until the request is complete.
        self._sending: list[tuple[MPI.Request, bytes]] = []

    def send(self, dest: int, tag: int, message: object) -> None:
        """Hand `message` to MPI; never waits for the receiver."""
        buffer = CODEC.encode(message)
        self._sending = [(r, b) for r, b in self._sending if not r.Test()]
        self._sending.append((self._comm.Isend([buffer, MPI.BYTE], dest, tag), buffer))

    def poll(self, tag: int, source: int = MPI.ANY_SOURCE) -> Any:
        """The next message with this tag, or None where none has arrived."""
        matched = self._comm.Improbe(source, tag, self._status)
        if matched is None:
            return None
        buffer = bytearray(self._status.Get_count(MPI.BYTE))
        matched.Recv([buffer, MPI.BYTE])
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

    def flush(self, timeout_s: float) -> bool:
        """Wait until all sends are complete, at most `timeout_s`; whether they are."""
        backoff, until = Backoff(ACTIVE_PAUSE_S), time.monotonic() + timeout_s
        while True:
            self._sending = [(r, b) for r, b in self._sending if not r.Test()]
            if not self._sending:
                return True
            if time.monotonic() > until:
                return False
            backoff.pause()
