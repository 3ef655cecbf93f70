"""What only the leader of a group does: orders, progress reports, checkpoints.

The leader polls its control channel between passes, keeps at most one order under way,
and raises the leave flag only when everybody whom the order concerns is ready. Writing
a checkpoint is left to a thread that makes no MPI call, so that nobody waits for a disk.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.errors import CheckpointError
from hpcslaq.mpi.channel import ACTIVE_PAUSE_S, Backoff, Channel
from hpcslaq.mpi.fence import Fence
from hpcslaq.mpi.messages import TAG_EVENT, TAG_ORDER, TAG_PEER, Known, Ready, Refused
from hpcslaq.record.store import CheckpointStore

log = logging.getLogger(__name__)

#: A leader looks for orders at most this often before a boundary, and inside an epoch, s. Each
#: look enters MPI, which hands the core to another rank when there is nothing and ranks
#: outnumber cores: at every pass of a small job that cost a quarter of its time.
LOOK_EVERY_S, LOOK_INSIDE_S = 5e-3, 0.1
#: Longest part of an error that is reported.
_MAX_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job's state, copied, on its way to disk."""

    iterations: int
    epochs: int
    arrays: Mapping[str, np.ndarray]


class CheckpointWriter:
    """Writes snapshots one after another in a thread of its own.

    A snapshot that waits is replaced by a newer one. A failed write is logged and reported once;
    training goes on and the last good checkpoint stays.
    """

    def __init__(self, job: str, store: CheckpointStore, fence: Fence) -> None:
        self._job = job
        self._store = store
        self._fence = fence
        self._inbox: queue.Queue[Snapshot | None] = queue.Queue()
        self._results: queue.Queue[ev.CheckpointWritten | ev.CheckpointFailed] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._has_warned = False
        #: Completed iterations of the newest checkpoint on disk; 0: there is none.
        self.newest = 0

    def submit(self, snapshot: Snapshot) -> None:
        """Have `snapshot` written soon; never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
            self._thread.start()
        self._inbox.put(snapshot)

    def write_now(self, snapshot: Snapshot) -> ev.CheckpointWritten:
        """Write `snapshot` and wait for it. Raises CheckpointError where it cannot."""
        self.close()
        return self._write(snapshot)

    def results(self) -> list[ev.CheckpointWritten | ev.CheckpointFailed]:
        """What has been written since the last call, and that nothing can be written any more."""
        done = []
        while True:
            try:
                done.append(self._results.get_nowait())
            except queue.Empty:
                return done

    def close(self) -> None:
        """Wait until all that was submitted is written, and end the thread."""
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        is_last = False
        while not is_last:
            snapshot = self._inbox.get()
            while not self._inbox.empty():
                newer = self._inbox.get()
                is_last = is_last or newer is None
                snapshot = newer or snapshot
            if snapshot is None:
                return
            try:
                self._results.put(self._write(snapshot))
                self._has_warned = False
            except (CheckpointError, OSError, MemoryError) as error:
                if not self._has_warned:
                    log.warning("checkpoint not written, training goes on: %s", error)
                    self._has_warned = True
                    message = " ".join(str(error).split())[:_MAX_MESSAGE]
                    failed = ev.CheckpointFailed(self._job, snapshot.iterations, message)
                    self._results.put(failed)

    def _write(self, snapshot: Snapshot) -> ev.CheckpointWritten:
        begin = time.monotonic()
        meta = {"epochs": snapshot.epochs}
        self._fence.check()
        num_bytes = self._store.save(snapshot.iterations, snapshot.arrays, meta)
        seconds = time.monotonic() - begin
        self.newest = snapshot.iterations
        return ev.CheckpointWritten(
            self._job, snapshot.iterations, snapshot.epochs, num_bytes, seconds
        )


class Leader:
    """The leader's side of one membership; lives through regroups, ends with the group."""

    def __init__(
        self,
        channel: Channel,
        job: str,
        store: CheckpointStore,
        fence: Fence,
        *,
        known_iterations: int | None,
        report_every_s: float,
        checkpoint_every_s: float,
    ) -> None:
        self._channel = channel
        self._job = job
        self.checkpoints = CheckpointWriter(job, store, fence)
        self._report_every_s = report_every_s
        self._checkpoint_every_s = checkpoint_every_s
        #: The order under way; None when there is none.
        self.order: cmd.Regroup | cmd.Pause | cmd.Stop | None = None
        self._ready: set[int] = set()
        #: What a joiner that cannot join said; the job fails with it.
        self.refusal: Refused | None = None
        #: Iterations whose losses rank 0 knows; None: a new leader that has yet to be told.
        self._reported = known_iterations
        #: Rank 0 takes this rank for the leader.
        self.is_known = known_iterations is not None
        #: Of the present group.
        self.generation = 0
        self._reported_at = time.monotonic()
        self._checkpointed_at = time.monotonic()
        self._polled_at = 0.0
        #: Wall seconds of the passes since the last report.
        self._seconds = 0.0

    def poll(self, is_before_boundary: bool) -> tuple[bool, bool]:
        """Look for news, now and then; (leave, stop): the flags to raise in the next pass."""
        now = time.monotonic()
        if now - self._polled_at < (LOOK_EVERY_S if is_before_boundary else LOOK_INSIDE_S):
            return (False, False)
        self._polled_at = now
        self.take_orders()
        if isinstance(self.order, cmd.Regroup) and not self.refusal:
            self._poll_joiners(self.order)
            return (self._ready >= set(self.order.joiners), self.refusal is not None)
        is_stop = isinstance(self.order, cmd.Stop) or self.refusal is not None
        return (isinstance(self.order, cmd.Pause), is_stop)

    def take_orders(self) -> None:
        """Take what rank 0 has sent; orders that come again after a loss may be out of date."""
        while (order := self._channel.poll(TAG_ORDER, 0)) is not None:
            match order:
                case Known():
                    self._reported = order.iterations
                case cmd.Regroup() if order.generation > self.generation:
                    self._ready &= set(order.joiners)
                    self.order = order
                case cmd.Pause() | cmd.Stop() if order.generation >= self.generation:
                    self.order = order
                case _:
                    log.debug("dropped %s", order)

    def _poll_joiners(self, order: cmd.Regroup) -> None:
        while not self._ready >= set(order.joiners):
            message = self._channel.poll(TAG_PEER)
            if message is None:
                return
            if message.generation != order.generation:
                continue  # of a generation that was given up
            if isinstance(message, Ready):
                self._ready.add(message.rank)
            elif isinstance(message, Refused):
                self.refusal = message
                return

    def order_done(self) -> None:
        """The order under way was carried out."""
        self.order = None
        self._ready.clear()

    def passed(self, seconds: float) -> None:
        """A pass took `seconds` of wall time."""
        self._seconds += seconds

    def report(
        self, generation: int, losses: np.ndarray, epochs: int, num_workers: int, is_due: bool
    ) -> None:
        """Send the losses since the last report, if it is time or `is_due`.

        `losses` : (iterations,) float64, the whole history.
        """
        now = time.monotonic()
        if not is_due and now - self._reported_at < self._report_every_s:
            return
        self._reported_at = now
        if self._reported is None:
            if not is_due:
                return
            self._await_known()
        assert self._reported is not None
        news = losses[self._reported :]
        if len(news) == 0:
            return
        message = ev.ProgressReported(
            self._job,
            generation,
            self._reported + 1,
            tuple(news.tolist()),
            epochs,
            self._seconds,
            num_workers,
        )
        self._channel.send(0, TAG_EVENT, message)
        self._reported = len(losses)
        self._seconds = 0.0

    def _await_known(self) -> None:
        backoff = Backoff(ACTIVE_PAUSE_S)
        while self._reported is None:
            self.take_orders()
            backoff.pause()

    def is_checkpoint_due(self) -> bool:
        """Whether the cadence asks for a checkpoint at this epoch boundary."""
        return time.monotonic() - self._checkpointed_at >= self._checkpoint_every_s

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Have a snapshot written off the critical path, and report those that are done."""
        self._checkpointed_at = time.monotonic()
        self.checkpoints.submit(snapshot)

    def send_results(self) -> None:
        """Report the checkpoints that have been written."""
        for written in self.checkpoints.results():
            self._channel.send(0, TAG_EVENT, written)
