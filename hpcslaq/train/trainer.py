"""The loop body of one member of a job: one pass of statistics, reduction and update.

All members call `Trainer.step` in lock-step. A pass is

    statistics of my chunks -> maximum(flags, checks, maxima) -> add(statistics) -> update

with one small MAX and one large SUM all-reduce; the pass is computed again when the grid of
the exact sums does not fit (`exact`). Every decision is taken from reduced values, so all
members take the same one. Whoever fails says so in the next MAX; nobody waits in a SUM that
another member will not enter. What to do with a report is the driver's business.
"""

from __future__ import annotations

import math
import operator
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, cast

import numpy as np

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import TrainingError
from hpcslaq.train.exact import (
    MAX_SEGMENTS,
    Array,
    ExactSum,
    Layout,
    Statistics,
    misfits,
    next_bounds,
    not_finite,
    tight_bounds,
)
from hpcslaq.train.model import (
    Chunk,
    Context,
    Draw,
    Model,
    Step,
    Totals,
    TrainingData,
    data_info,
)
from hpcslaq.train.reducer import MemberLost, Reducer, SliceReducer
from hpcslaq.train.selfcheck import NUM_PLACES, SelfCheck
from hpcslaq.train.servers import Servers
from hpcslaq.train.state import TrainState

#: What user code may raise that is its job's failure; KeyboardInterrupt is the user's wish.
USER_ERRORS = (Exception, SystemExit)
#: How often a pass may be computed again before its statistics count as not reproducible.
_MAX_REDOS = 2
#: Checks in a row at which the members' states may differ: unlike processors differ now and
#: then in a last bit; a model whose results depend on the rank differs every time.
MAX_REPAIRS = 10
#: Most characters of a failure's details that are kept: they travel and are written down.
_MAX_DETAILS = 20_000


class Flag(IntEnum):
    """Places of the flags in the MAX reduction. Values are >= 0, the largest wins, 0: not set."""

    ERROR = 0  # 1 + index of a member that cannot go on
    STOP = 1  # end at once, without a result (cancelled)
    LEAVE = 2  # the group changes at the next epoch boundary; kept until then
    CHECKPOINT = 3  # free for the driver
    USER_1 = 4
    USER_2 = 5
    USER_3 = 6
    USER_4 = 7


class StopRule(Enum):
    """Why a job is done."""

    EPOCHS = "epochs"
    TARGET_LOSS = "target_loss"
    TOLERANCE = "tolerance"
    CONVERGED = "converged"


# Places in the MAX buffer after the flags: pairs (value, -value) whose maxima are equal up to
# the sign exactly if all members have the same value. Then the maxima of the segments.
# The self-check's places come last, where there is one.
_LAYOUT, _CHECKSUM, _PASSES, _STEPS, _MAXIMA = 8, 10, 12, 14, 16
_CHECKS = _MAXIMA + MAX_SEGMENTS


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job cannot go on."""

    #: Index of the member that reports it (where every member knows, 0).
    member: int
    #: One line.
    message: str
    #: The traceback, on the failing member; elsewhere empty.
    details: str = ""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What came of a pass: the same on every member, seconds and failure details apart."""

    #: Flags as reduced over all members; LEAVE is kept until the epoch's end.
    flags: Mapping[Flag, float] = field(default_factory=dict)
    #: Loss of the iteration that this pass completed, None: it completed none.
    loss: float | None = None
    is_epoch_end: bool = False
    #: The stop rule that is met: the job is done.
    stop: StopRule | None = None
    #: The epoch is over and LEAVE is set: all members hold the same state, dissolve the group.
    is_leaving: bool = False
    #: STOP was set: nothing was done, dissolve the group.
    is_stopped: bool = False
    #: The members' states differ: send the leader's to all (`Trainer.restore`), then go on as
    #: the rest of the report says. If the epoch did not end, the pass was not done.
    is_diverged: bool = False
    failure: Failure | None = None
    #: Times that the pass was computed again.
    num_redos: int = 0
    #: Seconds by the trainer's clock in model code, and in reductions (waiting included).
    compute_s: float = 0.0
    reduce_s: float = 0.0

    @property
    def is_final(self) -> bool:
        """Whether this group makes no further pass."""
        return self.is_leaving or self.is_stopped or bool(self.stop or self.failure)


class Trainer:
    """One member's part of a job. Raises TrainingError if it holds no chunk and serves nothing."""

    def __init__(
        self,
        spec: JobSpec,
        model: Model,
        data: TrainingData,
        state: TrainState,
        reducer: Reducer,
        *,
        member: int = 0,
        chunks: Iterable[int] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        self_check: bool = False,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        """Join the job as `member`; `chunks` defaults to this worker's `chunk_share`.

        guard : entered around each call of user code.
        self_check : now and then a chunk is computed again elsewhere (all members alike).
        """
        self.spec, self.model, self.data, self.state = spec, model, data, state
        self._info = data_info(data)
        self._steps_per_epoch = 1
        #: Name and type of each array of the model's state: they stay the same for ever.
        self._types = {name: array.dtype for name, array in state.arrays.items()}
        self._sum = ExactSum(spec.num_chunks)
        #: Layout of the statistics in this pass, as all members agreed on it.
        self._layout: Layout | None = None
        self._check = SelfCheck() if self_check else None
        self._buffer: Array = np.zeros(_CHECKS + (NUM_PLACES if self_check else 0))
        self._clock = clock
        self._guard = guard or nullcontext()
        self._reduce_s = 0.0
        self._chunks: dict[int, Chunk] = {}
        #: The stop rule that was met, before all members have confirmed that it was.
        self.met: StopRule | None = None
        self.regroup(reducer, member=member, chunks=chunks)
        # A failure here is told to all in the first pass.
        self._attempt("steps_per_epoch", self._count_steps)

    @property
    def is_before_boundary(self) -> bool:
        """Whether the next pass is the last of its epoch: after it the group may change."""
        return self.state.step == self._steps_per_epoch - 1

    def regroup(
        self, reducer: Reducer, *, member: int, chunks: Iterable[int] | None = None
    ) -> None:
        """Go on in another group, at an epoch boundary; chunks that are kept are not read again."""
        num_workers = self.spec.workers_among(reducer.num_members)
        if chunks is None:
            chunks = chunk_share(self.spec.num_chunks, num_workers, member)
        self._reducer, self.member, self._num_workers = reducer, member, num_workers
        self._indices = tuple(chunks) if member < num_workers else ()
        if not self._indices and member < num_workers:
            raise TrainingError(
                f"job {self.spec.name}: member {member} of {num_workers} workers holds no chunk"
            )
        self._chunks = {i: c for i, c in self._chunks.items() if i in self._indices}
        self._leave = 0.0
        self._error: Failure | None = None
        self._servers: Servers | None = None
        if num_workers < reducer.num_members:
            self._servers = self._attempt("parameter servers", self._cut)
        self._checksum = 0.0
        # Counted anew by all, as a joiner knows of no earlier one.
        self._num_repairs, self._is_repaired = 0, False

    def _cut(self) -> Servers:
        """Take this member's place among workers and parameter servers."""
        slices = self.model.slices()
        if slices is None:
            raise TrainingError(self.model.sync_problem(self.model.settings))
        group = cast(SliceReducer, self._reducer)
        return Servers(slices, group, self.member, self._num_workers, self.state.arrays)

    def restore(self, state: TrainState) -> None:
        """Go on from this state (after `is_diverged`); nothing derived from the old one is kept."""
        self.state = state
        for chunk in self._chunks.values():
            chunk.cache.clear()

    def recover(self, state: TrainState, met: StopRule | None) -> None:
        """Go on after the loss of a member from the state of the most advanced one, and its `met`.

        The pass that was under way is made again, unless it was complete: its iteration counts.
        """
        if state is not self.state:
            self.restore(state)
        self.met = met

    @property
    def is_whole(self) -> bool:
        """Whether another group may go on from this member's state at any moment.

        Not where it could not complete a pass, nor where parameter servers hold parts of it.
        """
        return self._error is None and self._servers is None

    def fail(self, message: str, details: str = "") -> None:
        """Give up for a reason outside of the model: the next `step` tells all members."""
        self._error = Failure(self.member, f"{self._place()}: {message}", details)

    def step(self, flags: Mapping[Flag, float] | None = None) -> StepReport:
        """Make one pass together with all other members.

        flags : what this member wants all to know. User code that raises and values that are
        not finite end up in the report's `failure`, on all members.
        """
        began_at = self._clock()
        self._reduce_s = 0.0
        if self._servers is not None:
            self._servers.release(self.state.arrays)
        if self.met is None:
            report = self._pass(flags or {})
            self.met = report.stop
        else:  # the group broke before all knew
            report = StepReport(is_epoch_end=self.state.step == 0, stop=self.met)
        is_ending = report.stop is not None or report.is_leaving
        if is_ending or self._must_gather(report):
            report = self._confirm(report)
            self._gather(report, is_for_all=is_ending)
        compute_s = self._clock() - began_at - self._reduce_s
        return replace(report, compute_s=compute_s, reduce_s=self._reduce_s)

    def _must_gather(self, report: StepReport) -> bool:
        is_wanted = report.is_epoch_end and Flag.CHECKPOINT in report.flags
        return self._servers is not None and is_wanted

    def _gather(self, report: StepReport, is_for_all: bool) -> None:
        """Make the states whole that parameter servers share, where nobody has failed."""
        if self._servers is not None and report.failure is None:
            began_at = self._clock()
            self._servers.gather(self.state.arrays, is_for_all=is_for_all)
            self._reduce_s += self._clock() - began_at

    # -- one pass -------------------------------------------------------------------------

    def _pass(self, flags: Mapping[Flag, float]) -> StepReport:
        bounds = self.state.bounds
        for num_redos in range(_MAX_REDOS + 1):
            self._accumulate(bounds)
            reduced = self._exchange(flags)
            verdict = self._verdict(reduced)
            if verdict is not None:
                return verdict
            layout = self._layout
            assert layout is not None
            maxima = reduced[_MAXIMA : _MAXIMA + len(layout.names)].tolist()
            wrong = misfits(layout, maxima, bounds)
            if not wrong:
                self.state.redos += num_redos
                return self._finish(layout, maxima, reduced, num_redos)
            bounds = tight_bounds(layout, maxima)
        return self._failed_alike(
            reduced, f"statistics {wrong[0]!r} change when computed again: not reproducible"
        )

    def _accumulate(self, bounds: Mapping[str, int]) -> None:
        """Sum the statistics of this member's chunks; a failure is kept for the exchange."""
        self._sum.begin(bounds)
        if self.state.step == 0:
            self._attempt("parameters", self._note_checksum)
        check = self._check
        if check is not None:
            place = (self.spec.seed, self.state.passes, self.spec.num_chunks)
            check.begin(*place, self.member, self._num_workers)
        for index in self._indices:
            if self._error is not None:
                return
            self._attempt(f"statistics of chunk {index}", self._add_chunk, index)
        if check is not None and check.is_checker:
            self._attempt(f"self-check of chunk {check.chunk}", self._check_chunk, check)

    def _add_chunk(self, index: int) -> None:
        statistics = self._statistics(self._chunk(index))
        self._sum.add(statistics)
        if self._check is not None and self._check.chunk == index:
            self._check.note(statistics)

    def _check_chunk(self, check: SelfCheck) -> None:
        """Compute a chunk as one that has just arrived here: from the data, with empty cache."""
        assert check.chunk is not None
        batch = self.data.chunk(check.chunk, self.spec.num_chunks)
        check.note(self._statistics(Chunk(check.chunk, batch.X, batch.y)))

    def _statistics(self, chunk: Chunk) -> Statistics:
        state, spec = self.state, self.spec
        steps = self._steps_per_epoch
        draw = Draw(spec.seed, state.epochs, self._step, steps, chunk.index, spec.num_chunks)
        return self.model.statistics(state.arrays, chunk, draw)

    @property
    def _step(self) -> int:
        """Passes of this epoch that this member has made."""
        return self.state.step

    def _count_steps(self) -> None:
        steps = operator.index(self.model.steps_per_epoch(self._info))
        if steps < 1:
            raise TrainingError(f"{steps} steps per epoch, expected 1 or more")
        self._steps_per_epoch = steps

    def _note_checksum(self) -> None:
        self._checksum = self.state.checksum(self.model)

    def _attempt(self, where: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call user code unless it failed before; an exception becomes this member's error.

        So does SystemExit: it would end the rank, and the other members would wait for ever.
        """
        return self._try(where, self._guarded, function, *args)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        with self._guard:
            return function(*args)

    def _try(self, where: str, function: Callable[..., Any], *args: Any) -> Any:
        """The same for what also waits for other members: no limit on its time."""
        if self._error is not None:
            return None
        try:
            return function(*args)
        except MemberLost:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: its failure is the job's
            self._error = self._failure(error, where)
            return None

    def _chunk(self, index: int) -> Chunk:
        chunk = self._chunks.get(index)
        if chunk is None:
            batch = self.data.chunk(index, self.spec.num_chunks)
            chunk = self._chunks[index] = Chunk(index, batch.X, batch.y)
        return chunk

    def _exchange(self, flags: Mapping[Flag, float]) -> Array:
        """The MAX reduction of flags, checks and maxima; a view that is valid until the next."""
        buffer, layout = self._buffer, self._sum.layout
        buffer[:] = 0.0
        for flag, value in flags.items():
            buffer[flag] = value
        if self._error is not None:
            buffer[Flag.ERROR] = 1.0 + self.member
        else:
            _set_pair(buffer, _PASSES, float(self.state.passes))
            _set_pair(buffer, _STEPS, float(self._steps_per_epoch))
            if layout is None:  # a server has no say in it
                buffer[_LAYOUT : _LAYOUT + 2] = -math.inf
            else:
                _set_pair(buffer, _LAYOUT, layout.signature)
                buffer[_MAXIMA : _MAXIMA + len(layout.names)] = self._sum.maxima
            if self.state.step == 0:
                _set_pair(buffer, _CHECKSUM, self._checksum)
        if self._check is not None:
            self._check.fill(buffer[_CHECKS:])
        began_at = self._clock()
        self._reducer.maximum(buffer)
        self._reduce_s += self._clock() - began_at
        self._leave = buffer[Flag.LEAVE] = max(self._leave, float(buffer[Flag.LEAVE]))
        return buffer

    def _verdict(self, reduced: Array) -> StepReport | None:
        """Why the pass cannot be completed, or None. All members come to the same verdict."""
        verdict = self._early_verdict(reduced)
        if verdict is not None:
            return verdict
        layout = self._layout = self._agreed_layout(reduced)
        if layout is None:
            own = self._sum.layout
            names = None if own is None else own.names
            return self._failed_alike(
                reduced, f"statistics: members disagree on names or shapes (here {names})"
            )
        infinite = not_finite(layout, reduced[_MAXIMA : _MAXIMA + len(layout.names)])
        if infinite:
            return self._failed_alike(
                reduced, f"statistics {', '.join(infinite)}: not finite (NaN, infinite or > 2^1000)"
            )
        problem = None if self._check is None else self._check.verdict(reduced[_CHECKS:], layout)
        return None if problem is None else self._failed_alike(reduced, problem)

    def _early_verdict(self, reduced: Array) -> StepReport | None:
        """The same for all but the statistics."""
        if reduced[Flag.ERROR] > 0:
            return StepReport(_flags(reduced), failure=self._failure_of(reduced))
        if reduced[Flag.STOP] > 0:
            return StepReport(_flags(reduced), is_stopped=True)
        if _differs(reduced, _STEPS):
            return self._failed_alike(
                reduced, f"steps_per_epoch: members disagree (here {self._steps_per_epoch})"
            )
        if self._is_diverged(reduced):
            return self._diverged(StepReport(_flags(reduced)))
        return None

    def _agreed_layout(self, reduced: Array) -> Layout | None:
        """The layout of the statistics of all chunks; None if they differ."""
        if _differs(reduced, _LAYOUT):
            return None
        if self._servers is None:
            return self._sum.layout
        return self._servers.layout_of(self._sum.layout, float(reduced[_LAYOUT]))

    def _finish(
        self, layout: Layout, maxima: list[float], reduced: Array, num_redos: int
    ) -> StepReport:
        """Add up the statistics, update the model, count, and look at the stop rules."""
        flags = _flags(reduced)
        state = self.state
        totals = self._add_up(layout)
        state.bounds = next_bounds(layout, maxima, state.bounds)
        context = Context(
            self._info,
            self.spec.seed,
            state.epochs,
            state.step,
            self._steps_per_epoch,
            state.iterations,
            state.last_loss,
        )
        done = self._attempt("update", self._update, totals, context)
        if self._servers is not None:
            began_at = self._clock()
            self._servers.spread(state.arrays)
            self._reduce_s += self._clock() - began_at
        if done is None:  # the next exchange tells the others
            return StepReport(flags, num_redos=num_redos)
        if done.loss is not None and not math.isfinite(done.loss):
            return self._failed_alike(reduced, f"the loss is {done.loss}")
        stop, is_epoch_end = self._count(done.loss, done.is_converged)
        return StepReport(
            flags,
            done.loss,
            is_epoch_end,
            stop,
            is_leaving=is_epoch_end and self._leave > 0,
            num_redos=num_redos,
        )

    def _add_up(self, layout: Layout) -> Totals | None:
        """The statistics summed over all members; None, on all members, if they do not fit."""
        has_own = self._sum.layout is not None
        total = self._sum.total if has_own else np.zeros(layout.size)
        began_at = self._clock()
        totals: Totals | None
        if self._servers is None:
            self._reducer.add(total)
            totals = layout.unpack(total)
        else:
            totals = self._try("statistics", self._servers.add, layout, total)
        self._reduce_s += self._clock() - began_at
        return totals

    def _update(self, totals: Totals, context: Context) -> Step:
        arrays = self.state.arrays
        if self._servers is None:
            done = self.model.update(arrays, totals, context)
        else:
            done = self._servers.update(self.model, arrays, totals, context)
        if not isinstance(done, Step):
            raise TypeError(f"update returned {type(done).__name__}, not Step")
        if context.is_last_step:
            self._check_arrays()
        loss = None if done.loss is None else float(done.loss)
        return Step(loss, bool(done.is_converged))

    def _check_arrays(self) -> None:
        """At a boundary the state may be packed: what cannot be is the update's failure."""
        arrays = self.state.arrays
        if arrays.keys() != self._types.keys():
            raise TrainingError(
                f"state: the update left {sorted(arrays)}, before were {sorted(self._types)}"
            )
        for name, dtype in self._types.items():
            # A 0-d array becomes a scalar in most arithmetic.
            array = arrays[name] = np.asarray(arrays[name])
            if array.dtype != dtype:
                raise TrainingError(
                    f"state: {name!r} was {dtype}, the update made it {array.dtype}"
                )

    def _count(self, loss: float | None, is_converged: bool) -> tuple[StopRule | None, bool]:
        """Advance the counters; the stop rule that is met, and whether an epoch ended."""
        state, spec = self.state, self.spec
        state.passes += 1
        state.step += 1
        is_epoch_end = state.step == self._steps_per_epoch
        if is_epoch_end:
            state.step = 0
            state.epochs += 1
        stop = StopRule.EPOCHS if state.epochs >= spec.max_epochs else None
        if is_converged:
            stop = StopRule.CONVERGED
        if loss is not None:
            stop = self._note_loss(loss) or stop
        return stop, is_epoch_end

    def _note_loss(self, loss: float) -> StopRule | None:
        """Count an iteration; the stop rule that its loss meets."""
        state, spec = self.state, self.spec
        stop = None
        if spec.tolerance is not None and state.last_loss is not None:
            drop = state.last_loss - loss
            is_slow = drop < spec.tolerance * max(abs(state.last_loss), 1e-300)
            state.num_slow = state.num_slow + 1 if is_slow else 0
            if state.num_slow >= spec.patience:
                stop = StopRule.TOLERANCE
        state.append_loss(loss)
        if spec.target_loss is not None and loss <= spec.target_loss:
            stop = StopRule.TARGET_LOSS
        return stop

    # -- agreement and failures -----------------------------------------------------------

    def _confirm(self, report: StepReport) -> StepReport:
        """One more MAX before the group dissolves: nobody failed, all hold the same state.

        A member whose update failed makes its exchange in its next `step`; they meet here.
        """
        buffer = self._buffer
        buffer[:] = 0.0
        self._attempt("parameters", self._note_checksum)
        if self._error is not None:
            buffer[Flag.ERROR] = 1.0 + self.member
        _set_pair(buffer, _CHECKSUM, self._checksum)
        _set_pair(buffer, _PASSES, float(self.state.passes))
        began_at = self._clock()
        self._reducer.maximum(buffer)
        self._reduce_s += self._clock() - began_at
        if buffer[Flag.ERROR] > 0:
            failure = self._failure_of(buffer)
            return replace(report, failure=failure, stop=None, is_leaving=False)
        return self._diverged(report) if self._is_diverged(buffer) else report

    def _is_diverged(self, reduced: Array) -> bool:
        """Whether the members' states differ; counts the times in a row."""
        if _differs(reduced, _CHECKSUM) or _differs(reduced, _PASSES):
            self._num_repairs, self._is_repaired = self._num_repairs + 1, True
            return True
        is_compared = bool(reduced[_CHECKSUM])  # not inside an epoch
        if is_compared and not self._is_repaired:
            self._num_repairs = 0
        # That states are alike just after a repair proves nothing.
        self._is_repaired = self._is_repaired and not is_compared
        return False

    def _diverged(self, report: StepReport) -> StepReport:
        """The report that asks for a repair, or gives up where repairs do not help."""
        if self._num_repairs <= MAX_REPAIRS:
            return replace(report, is_diverged=True)
        problem = (
            f"the members' states differed {self._num_repairs} times in a row, though each time "
            "all took the leader's: update or parameters give other results on other ranks "
            "(random numbers without context.rng, time, addresses, unlike processors?)"
        )
        failure = Failure(0, f"{self._place()}: {problem}")
        return replace(report, failure=failure, stop=None, is_leaving=False)

    def _failure(self, error: BaseException, where: str) -> Failure:
        text, details = described(error)
        return Failure(self.member, f"{self._place()}: {where}: {text}", details)

    def _failure_of(self, reduced: Array) -> Failure:
        """The failure that the ERROR flag tells of; only its own member knows the details."""
        member = int(reduced[Flag.ERROR]) - 1
        if member == self.member and self._error is not None:
            return self._error
        return Failure(member, f"{self._place()}: member {member} failed")

    def _failed_alike(self, reduced: Array, problem: str) -> StepReport:
        """A failure that every member sees in the same reduced values; the first reports it."""
        message = f"{self._place()}: {problem}"
        return StepReport(_flags(reduced), failure=Failure(0, message))

    def _place(self) -> str:
        return f"job {self.spec.name}, iteration {self.state.iterations + 1}"


def described(error: BaseException) -> tuple[str, str]:
    """One line on an exception, and its traceback: of bounded size, fit to be written down."""
    details = "".join(traceback.format_exception(error))
    if len(details) > _MAX_DETAILS:
        half = _MAX_DETAILS // 2
        details = f"{details[:half]}\n[...]\n{details[-half:]}"
    return _printable(one_line(error)), _printable(details)


def one_line(error: BaseException) -> str:
    """The class of an error and the first line of what it says."""
    if isinstance(error, SystemExit):
        return f"SystemExit: sys.exit({error.code!r}) was called; a model must raise an error"
    try:
        text = str(error)[:1000]
    except Exception:  # noqa: BLE001 - user code: the exception's own __str__
        text = "(its message cannot be shown)"
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def chunk_share(num_chunks: int, num_members: int, index: int) -> range:
    """The chunks of one member: consecutive, the shares' sizes differ by at most one."""
    size, rest = divmod(num_chunks, num_members)
    start = index * size + min(index, rest)
    return range(start, start + size + (index < rest))


def _set_pair(buffer: Array, place: int, value: float) -> None:
    buffer[place], buffer[place + 1] = value, -value


def _differs(reduced: Array, place: int) -> bool:
    return bool(reduced[place] != -reduced[place + 1])


def _flags(reduced: Array) -> dict[Flag, float]:
    return {flag: float(reduced[flag]) for flag in Flag if reduced[flag] > 0}
