"""Signs of life in a file of the run directory: who is stopped or hangs is found, and ended.

A rank that is dead is noticed by MPI and the launcher; one that only stands still is not, and all
that wait for it do so for ever. So each rank counts on, in a place of its own in one small file,
from a thread that makes no MPI call. Rank 0 condemns whose count stands still; any process on the
same host carries that out. The rank is a dead one from then on.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcslaq.mpi.launch import die

log = logging.getLogger(__name__)

#: Time between two signs, s; many ranks share one file, so longer with their number.
PERIOD_S, PERIOD_PER_RANK_S = 1.0, 0.01
#: Bytes of a rank's place: its count, and whether it is condemned.
_COUNT_BYTES, _PLACE_BYTES = 8, 9


class Heartbeat:
    """One rank's sign of life, and its ear for sentences on its host.

    `hosts`, `pids` : host and process number of every rank; rank 0 makes the file beforehand
    (`prepare`). A file system that fails now and then only delays the signs.
    """

    def __init__(self, path: Path, rank: int, hosts: Sequence[str], pids: Sequence[int]) -> None:
        self._rank = rank
        self._near = {r: pids[r] for r, host in enumerate(hosts) if host == hosts[rank]}
        self._size = len(pids) * _PLACE_BYTES
        self._period_s = PERIOD_S + len(pids) * PERIOD_PER_RANK_S
        self._fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        self._carried_out: set[int] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    @staticmethod
    def prepare(path: Path, num_ranks: int) -> None:
        """Make the file anew, for ranks that open it later."""
        path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            os.ftruncate(fd, num_ranks * _PLACE_BYTES)
        finally:
            os.close(fd)

    def counts(self) -> dict[int, int]:
        """The count of each rank; empty where the file cannot be read."""
        data = self._read()
        return {
            rank: int.from_bytes(data[start : start + _COUNT_BYTES], "little")
            for rank, start in enumerate(range(0, len(data), _PLACE_BYTES))
        }

    def condemn(self, rank: int) -> None:
        """Have a rank ended by some process on its host."""
        with suppress(OSError):
            os.pwrite(self._fd, b"\1", rank * _PLACE_BYTES + _COUNT_BYTES)

    def close(self) -> None:
        """Give no more signs."""
        self._is_over.set()
        self._thread.join()
        os.close(self._fd)

    def _beat(self) -> None:
        count = 0
        while True:
            count += 1
            with suppress(OSError):
                place = self._rank * _PLACE_BYTES
                os.pwrite(self._fd, count.to_bytes(_COUNT_BYTES, "little"), place)
            self._carry_out(self._read())
            if self._is_over.wait(self._period_s):
                return

    def _carry_out(self, data: bytes) -> None:
        condemned = [r for r in self._near if data[r * _PLACE_BYTES + _COUNT_BYTES :][:1] == b"\1"]
        for rank in condemned:
            if rank == self._rank:
                log.critical("counted as lost: this rank ends")
                die()
            if rank not in self._carried_out:
                self._carried_out.add(rank)
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(self._near[rank], signal.SIGKILL)

    def _read(self) -> bytes:
        try:
            return os.pread(self._fd, self._size, 0)
        except OSError:
            return b""


class Watchman:
    """Rank 0's eye on the signs of the others: condemns who gives none for `limit_s`."""

    def __init__(self, heartbeat: Heartbeat, limit_s: float) -> None:
        self._heartbeat = heartbeat
        self._limit_s = limit_s
        self._look_at = 0.0
        #: Count of each rank, and since when it stands there (time.monotonic).
        self._seen: dict[int, tuple[int, float]] = {}
        self._condemned: set[int] = set()

    def look(self) -> None:
        """See who has counted on since the last time; cheap when called often."""
        now = time.monotonic()
        if now < self._look_at:
            return
        if now > self._look_at + self._limit_s / 2:
            # This process itself stood still: nobody is judged by that time.
            self._seen.clear()
        self._look_at = now + min(1.0, self._limit_s / 10)
        for rank, count in self._heartbeat.counts().items():
            before, since = self._seen.get(rank, (-1, now))
            if count != before:
                self._seen[rank] = (count, now)
            elif now - since > self._limit_s and rank and rank not in self._condemned:
                log.warning("rank %d gave no sign of life for %.0f s", rank, now - since)
                self._condemned.add(rank)
                self._heartbeat.condemn(rank)
