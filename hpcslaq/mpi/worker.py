"""A worker rank: waits for orders, joins a job's group, trains, regroups, is released.

Life of a membership: `Lead` or `Join` arrives; the rank opens data and model; the
leader collects the joiners' `Ready` and answers `Enter`; all create the group; the
leader's state is broadcast; then passes follow one another, each with the flags of all
members in its small all-reduce, until an order is carried out at an epoch boundary or
the job ends. What only the leader does on the way is in `leader`.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.dataset import Dataset
from hpcslaq.data.store import open_dataset
from hpcslaq.errors import CheckpointError, DataError, HpcslaqError, TrainingError
from hpcslaq.mpi.boot import Ranks, process_usage
from hpcslaq.mpi.channel import ACTIVE_PAUSE_S, CODEC, IDLE_PAUSE_S, Backoff, Channel
from hpcslaq.mpi.fence import Fence
from hpcslaq.mpi.groups import GroupFactory, JobGroup
from hpcslaq.mpi.leader import Leader, Snapshot
from hpcslaq.mpi.messages import (
    TAG_EVENT,
    TAG_ORDER,
    TAG_PEER,
    Enter,
    Farewell,
    Join,
    Lead,
    Ready,
    Refused,
)
from hpcslaq.mpi.prints import Prints
from hpcslaq.record.modelfile import CENTER, SCALE, ModelInfo, SavedModel, write_model
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory, software_versions
from hpcslaq.record.store import CheckpointStore
from hpcslaq.train.catalogue import MODELS, build_model, load_model_class
from hpcslaq.train.model import Model
from hpcslaq.train.stale import trainer_class
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import USER_ERRORS, Flag, StepReport, Trainer, described, one_line

log = logging.getLogger(__name__)

#: What user code may raise on a worker, which ignores SIGINT: KeyboardInterrupt is its own.
MODEL_ERRORS = (*USER_ERRORS, KeyboardInterrupt)

#: Seconds by kind: "load", "compute", "reduce", "regroup",
#: "checkpoint", "control", and "wait" for the boundary at which a joiner may enter.
Usage = defaultdict[str, float]


class Outcome(Enum):
    """How a stretch of passes in one group ended."""

    LEAVING = "leaving"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(slots=True)
class Seat:
    """One rank's membership in a job, through its regroups, until the rank is released."""

    spec: JobSpec
    data: Dataset
    model: Model
    generation: int
    #: World ranks of the present group, the leader first.
    members: tuple[int, ...]
    usage: Usage = field(default_factory=lambda: defaultdict(float))
    #: Where the leader stands; None on the other members.
    leader: Leader | None = None


class Worker:
    """Serves orders until the shutdown; one instance per rank."""

    def __init__(self, ranks: Ranks, channel: Channel, run: RunDirectory, plan: RunPlan) -> None:
        assert ranks.workers is not None
        self._rank = ranks.rank
        self._channel = channel
        self._run = run
        self._plan = plan
        self._fence = Fence(run)
        self._groups = GroupFactory(ranks.workers)
        #: Opened data by path: a regroup opens nothing again.
        self._datasets: dict[str, Dataset] = {}
        # Imported now, while there is nothing to do, instead of in the first job of each model.
        for model in {job.model for job in plan.jobs} & set(MODELS):
            load_model_class(model)

    def serve(self) -> int:
        """Wait for orders and carry them out; the exit code that rank 0 sends."""
        backoff = Backoff(IDLE_PAUSE_S)
        while True:
            order = self._channel.wait(TAG_ORDER, backoff)
            match order:
                case Lead():
                    with self._prints_of(order.spec.name):
                        self._lead(order)
                case Join():
                    with self._prints_of(order.spec.name):
                        self._join(order)
                case cmd.Shutdown():
                    self._farewell()
                    return order.exit_code
                case _:
                    # An order for a group that has ended meanwhile.
                    log.debug("dropped %s", order)

    @contextmanager
    def _prints_of(self, job: str) -> Iterator[None]:
        """What user code prints goes to the job's log, whatever the launcher does with it."""
        prints = Prints(self._run.job_log(job), self._rank)
        with prints, redirect_stdout(prints), redirect_stderr(prints):
            yield

    # -- getting into a group ----------------------------------------------------------

    def _lead(self, order: Lead) -> None:
        """Lead the first group of a job: load its state, collect the joiners, train."""
        begin = time.perf_counter()
        try:
            seat = self._take_seat(order)
            state, leader = self._load_state(seat, order)
        except MODEL_ERRORS as error:  # of user code or data: the job's failure
            self._fail(order.spec.name, order.generation, error)
            self._release(order.spec.name, order.generation, {})
            return
        seat.leader = leader
        seat.usage["load"] += time.perf_counter() - begin - seat.usage["compute"]
        begin = time.perf_counter()
        refusal = self._collect_ready(order)
        if refusal is not None:
            message = ev.JobFailed(
                seat.spec.name, order.generation, refusal.rank, refusal.message, refusal.details
            )
            self._channel.send(0, TAG_EVENT, message)
            self._release(order.spec.name, order.generation, seat.usage)
            return
        for rank in order.members[1:]:
            self._channel.send(rank, TAG_PEER, Enter(order.generation))
        self._train(seat, self._groups.form(order.members, order.generation), state, begin)

    def _collect_ready(self, order: Lead) -> Refused | None:
        """Wait until every joiner is ready; what one said that cannot join."""
        missing = set(order.members[1:])
        backoff = Backoff(ACTIVE_PAUSE_S)
        while missing:
            message = self._channel.wait(TAG_PEER, backoff)
            assert isinstance(message, Ready | Refused)
            if message.generation != order.generation:
                continue
            if isinstance(message, Refused):
                return message
            missing.discard(message.rank)
        return None

    def _join(self, order: Join) -> None:
        """Get ready for a group that another rank leads; train once it is formed."""
        begin = time.perf_counter()
        leader, generation = order.members[0], order.generation
        try:
            seat = self._take_seat(order)
        except MODEL_ERRORS as error:  # of user code or data: the job's failure
            refusal = Refused(generation, self._rank, *_story(error))
            self._channel.send(leader, TAG_PEER, refusal)
            self._await_dismissal(generation)
            self._release(order.spec.name, generation, {})
            return
        seat.usage["load"] += time.perf_counter() - begin
        self._channel.send(leader, TAG_PEER, Ready(generation, self._rank))
        begin = time.perf_counter()
        if not self._await_entry(leader, generation):
            self._release(order.spec.name, generation, seat.usage)
            return
        seat.usage["wait"] += time.perf_counter() - begin
        begin = time.perf_counter()
        self._train(seat, self._groups.form(order.members, generation), None, begin)

    def _await_entry(self, leader: int, generation: int) -> bool:
        """Wait for the leader's Enter; False when rank 0 dismisses this rank instead."""
        backoff = Backoff(ACTIVE_PAUSE_S)
        while True:
            message = self._channel.poll(TAG_PEER, leader)
            if isinstance(message, Enter) and message.generation == generation:
                return True
            order = self._channel.poll(TAG_ORDER)
            if isinstance(order, cmd.Dismiss) and order.generation == generation:
                return False
            backoff.pause()

    def _await_dismissal(self, generation: int) -> None:
        backoff = Backoff(ACTIVE_PAUSE_S)
        while True:
            order = self._channel.wait(TAG_ORDER, backoff)
            if isinstance(order, cmd.Dismiss) and order.generation == generation:
                return

    def _take_seat(self, order: Lead | Join) -> Seat:
        """Open what the job needs on this rank; whatever goes wrong is the job's failure."""
        spec = order.spec
        data = self._datasets.get(order.data_path)
        if data is None:
            data = self._datasets[order.data_path] = open_dataset(Path(order.data_path))
        if spec.num_chunks > data.num_rows:  # a request is not checked against its data
            raise DataError(
                f"{spec.data}: {data.num_rows} rows, fewer than {spec.num_chunks} chunks"
            )
        return Seat(
            spec, data, build_model(spec.model, spec.options), order.generation, order.members
        )

    def _load_state(self, seat: Seat, order: Lead) -> tuple[TrainState, Leader]:
        """The newest valid checkpoint of the job, or its initial state if there is none."""
        spec = seat.spec
        identity = {"job": spec.name, "model": spec.model, "data": seat.data.content_hash}
        store = CheckpointStore(
            self._run.checkpoint_directory(spec.name),
            {**identity, "seed": spec.seed, "chunks": spec.num_chunks},
            self._plan.keep_checkpoints,
        )
        loaded = store.load_newest(order.stored_iterations)
        if loaded is None:
            begin = time.perf_counter()
            state = initial_state(seat.spec, seat.model, seat.data)
            seat.usage["compute"] += time.perf_counter() - begin
        else:
            state = TrainState.unpack(loaded.arrays)
        leader = Leader(
            self._channel,
            seat.spec.name,
            store,
            self._fence,
            known_iterations=order.known_iterations,
            report_every_s=self._plan.report_every_s,
            checkpoint_every_s=self._plan.checkpoint_every_s,
        )
        leader.checkpoints.newest = 0 if loaded is None else loaded.iteration
        return state, leader

    # -- training ----------------------------------------------------------------------

    def _train(self, seat: Seat, group: JobGroup, state: TrainState | None, begin: float) -> None:
        """Share the state, then train in one group after another until released.

        `state` : None on joiners; `begin` : when (perf_counter) the way to this group began.
        """
        trainer: Trainer | None = None
        must_share = True
        while True:
            with group:
                if must_share:
                    packed = state.pack() if state is not None and group.is_leader else None
                    arrays = group.broadcast_arrays(packed)
                    if state is None:
                        state = TrainState.unpack(arrays)
                assert state is not None
                if trainer is None:
                    trainer = trainer_class(seat.spec)(
                        seat.spec,
                        seat.model,
                        seat.data,
                        state,
                        group,
                        member=group.index,
                        clock=time.perf_counter,
                        self_check=seat.spec.name in self._plan.self_checks,
                    )
                else:
                    trainer.regroup(group, member=group.index)
                self._formed(seat, group, state, time.perf_counter() - begin)
                outcome, report = self._iterate(seat, group, trainer)
                state = trainer.state
                begin = time.perf_counter()
                order = None
                if outcome is Outcome.LEAVING:
                    order = self._share_order(seat, group)
                elif outcome is Outcome.FAILED:
                    report = _share_failure(group, report)
            if not isinstance(order, cmd.Regroup) or self._rank not in order.members:
                self._leave(seat, trainer, outcome, report, order)
                return
            group = self._reform(seat, order, state)
            must_share = bool(order.joiners)

    def _formed(self, seat: Seat, group: JobGroup, state: TrainState, seconds: float) -> None:
        """The group holds the state: the leader says so."""
        seat.generation, seat.members = group.generation, group.members
        seat.usage["regroup"] += seconds
        if seat.leader is not None:
            message = ev.GroupFormed(
                seat.spec.name, group.generation, group.members, state.iterations, seconds
            )
            self._channel.send(0, TAG_EVENT, message)

    def _reform(self, seat: Seat, order: cmd.Regroup, state: TrainState) -> JobGroup:
        """Form the next group out of members that stay and joiners that are ready."""
        if seat.leader is not None:
            seat.leader.order_done()
            for rank in order.joiners:
                self._channel.send(rank, TAG_PEER, Enter(order.generation))
        group = self._groups.form(order.members, order.generation)
        if seat.leader is not None:
            seat.leader.checkpoint(_snapshot(seat, state))
        return group

    def _share_order(self, seat: Seat, group: JobGroup) -> cmd.Regroup | cmd.Pause:
        """The leader's order, on all members."""
        payload = None if seat.leader is None else CODEC.encode(seat.leader.order)
        order = CODEC.decode(group.broadcast(payload))
        assert isinstance(order, cmd.Regroup | cmd.Pause)
        return order

    def _iterate(self, seat: Seat, group: JobGroup, trainer: Trainer) -> tuple[Outcome, StepReport]:
        """Make passes until this group ends; how and with which last report."""
        leader, usage = seat.leader, seat.usage
        began = time.perf_counter()
        while True:
            flags: dict[Flag, float] = {}
            if leader is not None:
                leave, stop = leader.poll(trainer.is_before_boundary)
                flags = {Flag.LEAVE: float(leave), Flag.STOP: float(stop)}
                flags[Flag.CHECKPOINT] = float(leader.is_checkpoint_due())
            report = trainer.step(flags)
            if report.is_diverged:
                self._repair(seat, group, trainer)
            usage["compute"] += report.compute_s
            usage["reduce"] += report.reduce_s
            now = time.perf_counter()
            if leader is not None:
                leader.passed(now - began)
                self._speak(seat, leader, group, trainer, report)
            usage["control"] += time.perf_counter() - began - report.compute_s - report.reduce_s
            began = time.perf_counter()
            if report.is_final:
                return _outcome(report), report

    def _speak(
        self, seat: Seat, leader: Leader, group: JobGroup, trainer: Trainer, report: StepReport
    ) -> None:
        """The leader's duties after a pass: progress, and checkpoints by cadence."""
        state = trainer.state
        leader.report(
            group.generation,
            state.losses,
            state.epochs,
            group.num_members,
            is_due=report.is_final,
        )
        leader.send_results()
        # The flag, not the clock: where there are parameter servers they sent their slices then.
        is_due = Flag.CHECKPOINT in report.flags
        if report.is_epoch_end and not report.is_final and is_due:
            leader.checkpoint(_snapshot(seat, state))

    def _repair(self, seat: Seat, group: JobGroup, trainer: Trainer) -> None:
        """The members' states differ (unlike processors): all take the leader's."""
        log.warning("%s: members held different states; repaired", seat.spec.name)
        packed = trainer.state.pack() if group.is_leader else None
        arrays = group.broadcast_arrays(packed)
        if not group.is_leader:
            trainer.restore(TrainState.unpack(arrays))

    # -- leaving -----------------------------------------------------------------------

    def _leave(
        self,
        seat: Seat,
        trainer: Trainer,
        outcome: Outcome,
        report: StepReport,
        order: cmd.Regroup | cmd.Pause | None,
    ) -> None:
        """Be released; the leader first says what became of the job."""
        if seat.leader is not None:
            begin, computed = time.perf_counter(), seat.usage["compute"]
            dissolved = ev.GroupDissolved(seat.spec.name, seat.generation)
            self._channel.send(0, TAG_EVENT, dissolved)
            self._close_job(seat, seat.leader, trainer, outcome, report, order)
            evaluated = seat.usage["compute"] - computed
            seat.usage["checkpoint"] += time.perf_counter() - begin - evaluated
        self._release(seat.spec.name, seat.generation, seat.usage)

    def _close_job(
        self,
        seat: Seat,
        leader: Leader,
        trainer: Trainer,
        outcome: Outcome,
        report: StepReport,
        order: cmd.Regroup | cmd.Pause | None,
    ) -> None:
        """The leader's last duties: the model or the checkpoint on disk, then the news."""
        name, generation = seat.spec.name, seat.generation
        message: ev.Event | None = None
        if outcome is Outcome.FINISHED:
            try:
                message = self._finish(seat, trainer, report)
            except MODEL_ERRORS as error:  # of user code or the disk: the job's failure
                self._fail(name, generation, error)
        elif outcome is Outcome.FAILED:
            failure = report.failure
            assert failure is not None
            rank = seat.members[failure.member]
            message = ev.JobFailed(name, generation, rank, failure.message, failure.details)
        elif outcome is Outcome.STOPPED and leader.refusal is not None:
            refusal = leader.refusal
            message = ev.JobFailed(name, generation, refusal.rank, refusal.message, refusal.details)
        elif outcome is Outcome.STOPPED:
            message = ev.JobStopped(name, generation)
        elif isinstance(order, cmd.Pause):
            message = self._pause(seat, leader, trainer.state)
        leader.checkpoints.close()
        leader.send_results()
        if message is not None:
            self._channel.send(0, TAG_EVENT, message)

    def _pause(self, seat: Seat, leader: Leader, state: TrainState) -> ev.Event:
        """Write the state, then give up the group.

        Where it cannot be written (disk full), the earlier checkpoints still stand: the job
        waits and will go on from the newest of them. To fail would lose it for good.
        """
        name, generation = seat.spec.name, seat.generation
        try:
            written = leader.checkpoints.write_now(_snapshot(seat, state))
        except (CheckpointError, OSError, MemoryError) as error:
            kept = leader.checkpoints.newest
            log.warning(
                "%s: paused after iteration %d, but will go on from %d: %s",
                name,
                state.iterations,
                kept,
                error,
            )
            return ev.JobPaused(name, generation, kept)
        self._channel.send(0, TAG_EVENT, written)
        return ev.JobPaused(name, generation, state.iterations)

    def _finish(self, seat: Seat, trainer: Trainer, report: StepReport) -> ev.JobFinished:
        """Evaluate the model, write it, and say so."""
        state, model = trainer.state, seat.model
        assert report.stop is not None
        begin = time.perf_counter()
        metrics = _evaluate(seat, state)
        seat.usage["compute"] += time.perf_counter() - begin
        finished = ev.JobFinished(
            seat.spec.name,
            seat.generation,
            state.iterations,
            state.epochs,
            float(state.last_loss if state.last_loss is not None else float("nan")),
            state.loss_digest(),
            state.model_digest(model),
            report.stop.value,
            metrics,
        )
        info = ModelInfo(
            job=seat.spec.name,
            model=seat.spec.model,
            options=seat.spec.options,
            data={"name": seat.data.name, "num_features": seat.data.num_features},
            labels=seat.data.class_labels or None,
            digests={
                "loss_digest": finished.loss_digest,
                "model_digest": finished.model_digest,
            },
            metrics=finished.metrics,
            iterations=state.iterations,
            epochs=state.epochs,
            final_loss=finished.final_loss,
            versions=software_versions(),
        )
        arrays = dict(state.arrays)
        if seat.data.center is not None and seat.data.scale is not None:
            arrays |= {CENTER: seat.data.center, SCALE: seat.data.scale}
        self._fence.check()
        write_model(self._run.model_file(seat.spec.name), SavedModel(info, arrays))
        return finished

    def _fail(self, job: str, generation: int, error: BaseException) -> None:
        message = ev.JobFailed(job, generation, self._rank, *_story(error))
        self._channel.send(0, TAG_EVENT, message)

    def _release(self, job: str, generation: int, usage: Mapping[str, float]) -> None:
        message = ev.RankReleased(self._rank, job, generation, dict(usage))
        self._channel.send(0, TAG_EVENT, message)

    def _farewell(self) -> None:
        message = Farewell(
            self._rank,
            self._groups.num_made,
            self._groups.num_peak,
            self._groups.num_alive,
            process_usage(),
        )
        self._channel.send(0, TAG_EVENT, message)
        self._channel.flush(10.0)


def _evaluate(seat: Seat, state: TrainState) -> dict[str, float]:
    """The measures on held-out rows. Raises TrainingError, from whatever user code raised."""
    holdout = seat.data.holdout()
    if holdout is None:
        return {}
    try:
        found = seat.model.evaluate(state.arrays, holdout)
        return {str(key): float(value) for key, value in found.items()}
    except MODEL_ERRORS as error:
        raise TrainingError(f"evaluate: {one_line(error)}") from error


def _outcome(report: StepReport) -> Outcome:
    if report.failure is not None:
        return Outcome.FAILED
    if report.is_stopped:
        return Outcome.STOPPED
    return Outcome.FINISHED if report.stop is not None else Outcome.LEAVING


def _share_failure(group: JobGroup, report: StepReport) -> StepReport:
    """The report with what the failing member says of its failure, on all members."""
    failure = report.failure
    assert failure is not None
    said = json.dumps([failure.message, failure.details]).encode()
    payload = said if group.index == failure.member else None
    message, details = json.loads(group.broadcast(payload, failure.member))
    return replace(report, failure=replace(failure, message=message, details=details))


def _snapshot(seat: Seat, state: TrainState) -> Snapshot:
    """A copy of the state that a writing thread may keep."""
    arrays = {name: array.copy() for name, array in state.pack().items()}
    return Snapshot(state.iterations, state.epochs, arrays)


def _story(error: BaseException) -> tuple[str, str]:
    """One line on a failure, and its traceback where there is more to say."""
    line, details = described(error)
    if not isinstance(error, HpcslaqError):
        return line, details
    # Our own errors say all; where user code is behind one, its place is wanted, too.
    return line.removeprefix(f"{type(error).__name__}: "), details if error.__cause__ else ""
