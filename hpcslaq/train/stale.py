"""Parameter servers with a bound on staleness: passes in which nobody waits for all others.

Between two epoch boundaries there is no collective exchange. A worker

    computes a pass on its chunks -> pushes to each server -> pulls its slice from each

and a server applies each push when it comes. The pull before pass c is answered once every
worker has completed c - k passes of the epoch, k being the job's staleness. At the boundary
all meet in the exchange of `trainer`, where flags, failures and regroups are dealt with as in
lock-step, and the states are the same on all members again.

A push counts as an estimate of what all workers together would have computed: its sums are
scaled up from the worker's rows to all rows, and the move that the model makes is scaled down
again. With plain SGD the pushes of a pass together do what one synchronous step does.

The order in which pushes arrive decides the bits: unlike everything else here, the results of
two runs differ.

Leaving early: a worker that fails, is to stop, or is told that another does, says goodbye to
every server; a server leaves when each worker has made its last push or said goodbye. So all
messages of an epoch are consumed before its boundary, and nobody waits for one that left.
Source: the bound is that of Ho et al., More Effective Distributed ML via a Stale Synchronous
Parallel Parameter Server (NIPS 2013), section 2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import TrainingError
from hpcslaq.train.exact import Array, Layout, Statistics
from hpcslaq.train.model import Chunk, Context
from hpcslaq.train.reducer import PostalReducer, Reducer
from hpcslaq.train.trainer import Flag, StepReport, StopRule, Trainer

#: Losses of an epoch, for models that have no option `losses_per_epoch`.
_LOSSES_PER_EPOCH = 10


@dataclass(slots=True)
class Desk:
    """Who may go on: the clocks of the workers of one epoch, as one server knows them."""

    num_workers: int
    #: Passes that a worker may be ahead of the slowest; infinite: any number.
    staleness: float
    #: Completed passes of each worker; infinite once it has made its last push or left.
    clocks: list[float] = field(default_factory=list)
    #: Workers that wait for the answer to a pull.
    waiting: set[int] = field(default_factory=set)
    #: Somebody leaves early: all are told to.
    is_ending: bool = False
    #: Most passes that a worker was ahead of the slowest when it was let go on.
    most_ahead: int = 0

    def __post_init__(self) -> None:
        self.clocks = [0.0] * self.num_workers

    @property
    def is_over(self) -> bool:
        """Whether no worker will send anything more in this epoch."""
        return all(math.isinf(clock) for clock in self.clocks)

    def pushed(self, worker: int, *, is_last: bool) -> None:
        """A worker has completed a pass; it now waits, unless that was its last."""
        if is_last:
            self.clocks[worker] = math.inf
        else:
            self.clocks[worker] += 1
            self.waiting.add(worker)

    def left(self, worker: int) -> None:
        """A worker said goodbye."""
        self.clocks[worker] = math.inf
        self.waiting.discard(worker)
        self.is_ending = True

    def answer(self) -> list[int]:
        """Workers that wait and may be answered now; they wait no longer."""
        slowest = min(self.clocks)
        if self.is_ending:
            ready = sorted(self.waiting)
        else:
            ready = [w for w in sorted(self.waiting) if self.clocks[w] - self.staleness <= slowest]
            for worker in ready:
                if math.isfinite(slowest):
                    self.most_ahead = max(self.most_ahead, int(self.clocks[worker] - slowest))
        self.waiting.difference_update(ready)
        return ready


@dataclass(slots=True)
class Tally:
    """What server 0 counts of an epoch, and all members take over at its end."""

    #: Reported losses, each the mean over the rows of the pushes since the last.
    losses: list[float] = field(default_factory=list)
    num_pushes: int = 0
    #: Sum of loss times share, and of the shares, since the last report.
    loss: float = 0.0
    share: float = 0.0
    #: Shares of the epoch so far; a pass of all workers makes 1.
    passes: float = 0.0

    def add(self, loss: float | None, share: float, every: float) -> None:
        """Count a push; a loss is reported whenever `every` passes are through."""
        before = self.passes
        self.num_pushes += 1
        self.passes += share
        if loss is not None:
            self.loss += loss * share
            self.share += share
        # Shares are rounded: a little less than a whole number counts as it.
        is_due = math.floor(self.passes / every + 1e-6) > math.floor(before / every + 1e-6)
        if is_due and self.share > 0:
            self.losses.append(self.loss / self.share)
            self.loss = self.share = 0.0


class StaleTrainer(Trainer):
    """A member of a job whose staleness is not 0; see the module.

    A worker's `step` is one pass, a server's is all its service until the epoch's end.
    """

    #: Passes that this worker has completed in the present epoch.
    _clock_now = 0
    #: Most passes that a worker was ahead of the slowest, as this server saw it.
    most_ahead = 0

    def regroup(
        self, reducer: Reducer, *, member: int, chunks: Iterable[int] | None = None
    ) -> None:
        """As for all trainers."""
        self._begin_epoch()
        super().regroup(reducer, member=member, chunks=chunks)

    @property
    def is_before_boundary(self) -> bool:
        """Whether this worker's next pass is its last of the epoch."""
        return self._clock_now == self._steps_per_epoch - 1

    @property
    def _step(self) -> int:
        return self._clock_now

    @property
    def _group(self) -> PostalReducer:
        return cast(PostalReducer, self._reducer)

    def _begin_epoch(self) -> None:
        self._clock_now = 0
        self._tally = Tally()
        #: Iterations before this epoch; the leader hears of further ones in the epoch.
        self._iterations_before = self.state.iterations
        #: What this member has wanted all to know since the last boundary.
        self._raised: dict[Flag, float] = {}

    def _pass(self, flags: Mapping[Flag, float]) -> StepReport:
        if self._num_workers == self._reducer.num_members:  # what is left of a group is one rank
            return super()._pass(flags)
        for flag, value in flags.items():
            self._raised[flag] = max(self._raised.get(flag, 0.0), value)
        if self.member >= self._num_workers:
            self._serve()
        elif self._work():
            return StepReport()
        report = self._meet()
        self._begin_epoch()
        return report

    # -- a worker ---------------------------------------------------------------------------

    def _work(self) -> bool:
        """Make a pass; whether there is another one before the boundary."""
        if self._clock_now == 0:
            self._attempt("parameters", self._note_checksum)
        is_last = self.is_before_boundary
        push = None
        if not self._raised.get(Flag.STOP):
            push = self._attempt("statistics", self._own_push)
        if push is None:
            self._say_goodbye()
            return False
        gradient, header = push
        servers = self._server_members()
        assert self._servers is not None
        for index, server in enumerate(servers):
            part = self._servers.part_of(index)
            payload = _encode({**header, "is_last": is_last}, [gradient[part]])
            self._group.post(server, payload)
        self._clock_now += 1
        if is_last:
            return False
        if self._pull(len(servers)):
            return True
        self._say_goodbye()
        return False

    def _own_push(self) -> tuple[Array, dict[str, Any]]:
        """This worker's share of the pass, scaled up to all rows: gradient (P,) and the rest."""
        assert self._servers is not None
        chunks = [self._chunk(index) for index in self._indices]
        num_rows = sum(chunk.num_rows for chunk in chunks)
        share = num_rows / max(self._info.num_rows, 1)
        layout, total = self._own_sums(chunks)
        if share:
            total /= share
        bad = [
            name
            for name, part in zip(layout.names, layout.views(total), strict=True)
            if not np.isfinite(part).all()
        ]
        if bad:
            raise TrainingError(f"statistics {', '.join(bad)}: not finite")
        gradient, uncut = self._servers.split(layout, layout.unpack(total))
        loss = self._own_loss(uncut)
        shapes = {name: np.shape(value) for name, value in uncut.items()}
        values = {name: np.ravel(value).tolist() for name, value in uncut.items()}
        return gradient, {"share": share, "loss": loss, "shapes": shapes, "values": values}

    def _own_sums(self, chunks: list[Chunk]) -> tuple[Layout, Array]:
        """Plain sums over the chunks, packed."""
        layout: Layout | None = None
        total = np.zeros(0)
        for chunk in chunks:
            statistics: Statistics = self._statistics(chunk)
            if layout is None:
                layout = Layout.of(statistics)
                total = np.zeros(layout.size)
            elif not layout.fits(statistics):
                raise TrainingError(layout.difference(statistics))
            for view, value in zip(layout.views(total), statistics.values(), strict=True):
                view += value
        assert layout is not None
        return layout, total

    def _own_loss(self, uncut: Mapping[str, Any]) -> float | None:
        """The loss of this pass on this worker's rows, by a state that is thrown away."""
        values = None if self._servers is None else self._servers.values
        scratch = {k: a if k == values else a.copy() for k, a in self.state.arrays.items()}
        # As if an epoch had one step: what is reported now and then is reported at once.
        context = replace(self._context(), step=0, steps_per_epoch=1)
        loss = self.model.observe(scratch, dict(uncut), context).loss
        if loss is not None and not math.isfinite(loss):
            raise TrainingError(f"the loss is {loss}")
        return None if loss is None else float(loss)

    def _pull(self, num_servers: int) -> bool:
        """Wait for all servers' slices; False where one says that the epoch ends early."""
        may_go_on = True
        began_at = self._clock()
        for _ in range(num_servers):
            server, payload = self._group.receive()
            header, slices = _decode(payload)
            may_go_on = may_go_on and not header["is_ending"]
            if not header["is_ending"]:
                assert self._servers is not None
                self._servers.put(self.state.arrays, server - self._num_workers, slices)
            for loss in header["losses"]:
                self.state.append_loss(loss)
        self._reduce_s += self._clock() - began_at
        return may_go_on

    def _say_goodbye(self) -> None:
        for server in self._server_members():
            self._group.post(server, _encode({"goodbye": True}, []))

    def _server_members(self) -> range:
        return range(self._num_workers, self._reducer.num_members)

    # -- a server ---------------------------------------------------------------------------

    def _serve(self) -> None:
        """Answer pushes until every worker is through with the epoch."""
        self._attempt("parameters", self._note_checksum)
        desk = Desk(self._num_workers, self.spec.staleness)
        desk.is_ending = self._error is not None
        num_told = 0
        while not desk.is_over:
            began_at = self._clock()
            worker, payload = self._group.receive()
            self._reduce_s += self._clock() - began_at
            header, parts = _decode(payload)
            if "goodbye" in header:
                desk.left(worker)
            else:
                if not desk.is_ending:
                    self._attempt("update", self._apply, header, parts)
                    desk.is_ending = self._error is not None
                desk.pushed(worker, is_last=header["is_last"])
            for ready in desk.answer():
                news: list[float] = []
                if ready == 0 and self.member == self._num_workers:
                    news, num_told = self._tally.losses[num_told:], len(self._tally.losses)
                self._answer(ready, desk.is_ending, news)
        self.most_ahead = max(self.most_ahead, desk.most_ahead)

    def _apply(self, header: Mapping[str, Any], gradient: Array) -> None:
        """Move this server's slice by one push."""
        assert self._servers is not None
        totals: dict[str, Any] = {
            name: np.array(header["values"][name]).reshape(shape) if shape else values[0]
            for (name, shape), values in zip(
                header["shapes"].items(), header["values"].values(), strict=True
            )
        }
        tally, per_epoch = self._tally, self._steps_per_epoch
        context = replace(
            self._context(),
            step=min(tally.num_pushes, per_epoch * self._num_workers - 1),
            steps_per_epoch=per_epoch * self._num_workers,
        )
        share = float(header["share"])
        arrays = self.state.arrays
        self._servers.apply(self.model, arrays, totals, gradient, context, share)
        wanted = self.model.settings.get("losses_per_epoch", _LOSSES_PER_EPOCH)
        tally.add(header["loss"], share, per_epoch / min(int(wanted), per_epoch))

    def _answer(self, worker: int, is_ending: bool, news: list[float]) -> None:
        slices = []
        if not is_ending and self._servers is not None:
            slices = [self._servers.own(self.state.arrays)]
        self._group.post(worker, _encode({"is_ending": is_ending, "losses": news}, slices))

    # -- the boundary -----------------------------------------------------------------------

    def _meet(self) -> StepReport:
        """The exchange at the end of an epoch, by all members."""
        self.state.iterations = self._iterations_before
        self._sum.begin({})
        reduced = self._exchange(self._raised)
        flags = {flag: float(reduced[flag]) for flag in Flag if reduced[flag] > 0}
        verdict = self._early_verdict(reduced)
        if verdict is not None:
            return verdict
        assert self._servers is not None
        began_at = self._clock()
        self._servers.spread(self.state.arrays)
        tally = self._share_tally()
        self._reduce_s += self._clock() - began_at
        stop = self._count_epoch(tally)
        self._attempt("update", self._check_arrays)
        if self._error is not None:  # the next exchange tells the others
            return StepReport(flags)
        return StepReport(
            flags,
            tally[-1] if tally else None,
            is_epoch_end=True,
            stop=stop,
            is_leaving=self._leave > 0,
        )

    def _count_epoch(self, losses: list[float]) -> StopRule | None:
        """Advance the counters by an epoch; the stop rule that is met."""
        state = self.state
        state.passes += self._steps_per_epoch
        state.epochs += 1
        found = [self._note_loss(loss) for loss in losses]
        stop = next((rule for rule in found if rule), None)
        is_last = state.epochs >= self.spec.max_epochs
        return stop or (StopRule.EPOCHS if is_last else None)

    def _share_tally(self) -> list[float]:
        """Server 0's losses of the epoch, and its small arrays, on all members."""
        assert self._servers is not None
        arrays, payload = self.state.arrays, None
        if self.member == self._num_workers:
            small = {name: arrays[name] for name in self._servers.uncut_names(arrays)}
            shapes = [[k, a.dtype.str, list(a.shape), a.ravel().tolist()] for k, a in small.items()]
            payload = json.dumps({"losses": self._tally.losses, "arrays": shapes}).encode()
        found = json.loads(self._group.broadcast(payload, self._num_workers))
        for name, dtype, shape, values in found["arrays"]:
            arrays[name] = np.array(values, dtype=dtype).reshape(shape)
        return [float(loss) for loss in found["losses"]]

    def _context(self) -> Context:
        state = self.state
        return Context(
            self._info,
            self.spec.seed,
            state.epochs,
            self._clock_now,
            self._steps_per_epoch,
            state.iterations,
            state.last_loss,
        )


def trainer_class(spec: JobSpec) -> type[Trainer]:
    """The kind of trainer that a job's members are."""
    return StaleTrainer if spec.staleness else Trainer


def _encode(header: Mapping[str, Any], arrays: list[Array]) -> bytes:
    """A message: the header's length, the header, and the values of at most one array."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *[array.tobytes() for array in arrays]])


def _decode(payload: bytes) -> tuple[dict[str, Any], NDArray[np.float64]]:
    size = int.from_bytes(payload[:8], "little")
    header: dict[str, Any] = json.loads(payload[8 : 8 + size])
    return header, np.frombuffer(payload, np.float64, offset=8 + size).copy()
