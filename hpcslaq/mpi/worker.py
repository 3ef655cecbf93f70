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
from collections.abc import Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.data.dataset import Dataset
from hpcslaq.data.store import open_dataset
from hpcslaq.errors import DataError
from hpcslaq.mpi.boot import Ranks, process_usage
from hpcslaq.mpi.channel import CODEC, IDLE_PAUSE_S, Backoff, Channel
from hpcslaq.mpi.closing import close_job
from hpcslaq.mpi.entry import Entrance, failure_of
from hpcslaq.mpi.fence import Fence
from hpcslaq.mpi.groups import GroupFactory, JobGroup
from hpcslaq.mpi.leader import Leader
from hpcslaq.mpi.messages import (
    TAG_EVENT,
    TAG_ORDER,
    TAG_PEER,
    End,
    Farewell,
    Join,
    Lead,
    Ready,
    Refused,
    Succeeded,
)
from hpcslaq.mpi.prints import Prints
from hpcslaq.mpi.seat import (
    MODEL_ERRORS,
    Outcome,
    Seat,
    Stretch,
    outcome_of,
    snapshot_of,
    story_of,
)
from hpcslaq.mpi.watch import StepWatch, contained, limit_memory
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.store import CheckpointStore
from hpcslaq.train.catalogue import MODELS, build_model, load_model_class
from hpcslaq.train.reducer import MemberLost
from hpcslaq.train.stale import trainer_class
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import (
    Flag,
    StepReport,
    StopRule,
    Trainer,
)

log = logging.getLogger(__name__)


class Worker:
    """Serves orders until the shutdown; one instance per rank."""

    def __init__(self, ranks: Ranks, channel: Channel, run: RunDirectory, plan: RunPlan) -> None:
        assert ranks.workers is not None
        self._rank = ranks.rank
        self._channel = channel
        self._run = run
        self._plan = plan
        self._fence = Fence(run)
        self._groups = GroupFactory(ranks.workers, survives=channel.survives, lost=channel.dead)
        self._entrance = Entrance(channel, self._groups)
        #: Newest generation that this rank was called to: an order that comes again is dropped.
        self._newest = 0
        #: Entered around each call of user code.
        self._guard: AbstractContextManager[object] = nullcontext()
        if plan.memory_limit_mb:
            limit_memory(int(plan.memory_limit_mb * 2**20))
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
                case Lead() | Join() if order.generation <= self._newest:
                    log.debug("dropped %s", order)
                case Lead():
                    with self._at_work_for(order.spec.name):
                        self._lead(order)
                case Join():
                    with self._at_work_for(order.spec.name):
                        self._join(order)
                case End():
                    self._farewell()
                    return order.exit_code
                case _:
                    # An order for a group that has ended meanwhile.
                    log.debug("dropped %s", order)

    @contextmanager
    def _at_work_for(self, job: str) -> Iterator[None]:
        """User code of this job may run: what it prints goes to the job's log.

        What it changes in the process is put back, and none of its calls may last too long.
        """
        prints = Prints(self._run.job_log(job), self._rank)
        watch = StepWatch(self._plan.step_limit_s, job) if self._plan.step_limit_s else None
        self._guard = watch or nullcontext()
        try:
            with prints, redirect_stdout(prints), redirect_stderr(prints), contained():
                yield
        finally:
            if watch is not None:
                watch.close()

    # -- getting into a group ----------------------------------------------------------

    def _lead(self, order: Lead) -> None:
        """Lead the first group of a job: load its state, collect the joiners, train."""
        self._newest = order.generation
        begin = time.perf_counter()
        try:
            seat = self._take_seat(order)
        except MODEL_ERRORS as error:  # of user code or data: the job's failure
            self._fail(order.spec.name, order.generation, error)
            self._release(order.spec.name, order.generation, {})
            return
        seat.usage["load"] += time.perf_counter() - begin
        self._lead_from(seat, order)

    def _lead_from(self, seat: Seat, order: Lead) -> None:
        """Lead the first group from this seat on."""
        name, generation = order.spec.name, order.generation
        begin, computed = time.perf_counter(), seat.usage["compute"]
        try:
            state = self._load_state(seat, order.stored_iterations)
        except MODEL_ERRORS as error:  # of user code or data: the job's failure
            self._fail(name, generation, error)
            self._release(name, generation, seat.usage)
            return
        seat.leader = self._new_leader(seat, order.known_iterations)
        now = time.perf_counter()
        seat.usage["load"] += now - begin - (seat.usage["compute"] - computed)
        refusal = self._entrance.collect(order)
        if refusal is not None:
            self._channel.send(0, TAG_EVENT, failure_of(name, refusal))
            self._release(name, generation, seat.usage)
            return
        seat.ordered = order.members
        group = self._entrance.lead(order.members, order.members[1:], generation, seat.leader)
        self._train(seat, group, state, now)

    def _join(self, order: Join) -> None:
        """Get ready for a group that another rank leads; train once it is formed."""
        self._newest = generation = order.generation
        begin = time.perf_counter()
        try:
            seat = self._take_seat(order)
        except MODEL_ERRORS as error:  # of user code or data: the job's failure
            refusal = Refused(generation, self._rank, *story_of(error))
            self._channel.send(order.host, TAG_PEER, refusal)
            self._entrance.wait_for_dismissal(refusal)
            self._release(order.spec.name, generation, {})
            return
        seat.usage["load"] += time.perf_counter() - begin
        self._channel.send(order.host, TAG_PEER, Ready(generation, self._rank))
        begin = time.perf_counter()
        entry = self._entrance.wait(generation, order.host)
        seat.usage["wait"] += time.perf_counter() - begin
        if isinstance(entry, Lead):
            self._lead_from(seat, entry)
            return
        if entry is None:
            self._release(order.spec.name, generation, seat.usage)
            return
        assert isinstance(entry, JobGroup)
        begin = time.perf_counter()
        seat.ordered = order.members
        self._train(seat, entry, None, begin)

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
        with self._guard:
            model = build_model(spec.model, spec.options)
        identity = {"job": spec.name, "model": spec.model, "data": data.content_hash}
        store = CheckpointStore(
            self._run.checkpoint_directory(spec.name),
            {**identity, "seed": spec.seed, "chunks": spec.num_chunks},
            self._plan.keep_checkpoints,
        )
        return Seat(spec, data, model, order.generation, order.members, store)

    def _load_state(self, seat: Seat, stored_iterations: int) -> TrainState:
        """The newest valid checkpoint of the job, or its initial state if there is none."""
        loaded = seat.store.load_newest(stored_iterations)
        if loaded is not None:
            seat.newest_checkpoint = loaded.iteration
            return TrainState.unpack(loaded.arrays)
        begin = time.perf_counter()
        with self._guard:
            state = initial_state(seat.spec, seat.model, seat.data)
        seat.usage["compute"] += time.perf_counter() - begin
        return state

    def _new_leader(self, seat: Seat, known_iterations: int | None) -> Leader:
        leader = Leader(
            self._channel,
            seat.spec.name,
            seat.store,
            self._fence,
            known_iterations=known_iterations,
            report_every_s=self._plan.report_every_s,
            checkpoint_every_s=self._plan.checkpoint_every_s,
        )
        leader.checkpoints.newest = seat.newest_checkpoint
        return leader

    # -- training ----------------------------------------------------------------------

    def _train(self, seat: Seat, group: JobGroup, state: TrainState | None, begin: float) -> None:
        """Share the state, then train in one group after another until released.

        `state` : None on joiners; `begin` : when (perf_counter) the way to this group began.
        """
        stretch = Stretch(group, state, is_repaired=group.attempt > 0)
        while True:
            group = stretch.group
            try:
                if not stretch.is_prepared:
                    self._prepare(seat, stretch)
                    self._formed(seat, group, stretch.state, time.perf_counter() - begin)
                self._iterate(seat, stretch)
                begin = time.perf_counter()
                if stretch.outcome is Outcome.LEAVING:
                    stretch.order = self._share_order(seat, group)
                elif stretch.outcome is Outcome.FAILED:
                    stretch.report = _share_failure(group, stretch.report)
                is_well = True
            except MemberLost as loss:
                log.warning("%s: a member of the group is lost: %s", seat.spec.name, loss)
                begin = time.perf_counter()
                is_well = False
            survivors = self._entrance.agree(group, is_well)
            if survivors is not None:
                stretch = stretch.repaired(survivors)
                continue
            group.free()
            order = stretch.order
            if not isinstance(order, cmd.Regroup) or self._rank not in order.members:
                self._leave(seat, stretch)
                return
            next_group = self._reform(seat, order, stretch)
            if next_group is None:
                self._release(seat.spec.name, seat.generation, seat.usage)
                return
            stretch = Stretch(
                next_group,
                stretch.state,
                stretch.trainer,
                must_share=bool(order.joiners),
                is_repaired=next_group.attempt > 0,
            )

    def _prepare(self, seat: Seat, stretch: Stretch) -> None:
        """All members hold the same state, and each has its chunks."""
        group, trainer = stretch.group, stretch.trainer
        met = None if trainer is None else trainer.met
        if stretch.is_repaired:
            met = self._share_newest(seat, stretch)
        elif stretch.must_share:
            packed = stretch.state.pack() if stretch.state and group.is_leader else None
            arrays = group.broadcast_arrays(packed)
            stretch.state = stretch.state or TrainState.unpack(arrays)
        assert stretch.state is not None
        if trainer is None:
            trainer = stretch.trainer = trainer_class(seat.spec)(
                seat.spec,
                seat.model,
                seat.data,
                stretch.state,
                group,
                member=group.index,
                clock=time.perf_counter,
                self_check=seat.spec.name in self._plan.self_checks,
                guard=self._guard,
            )
            trainer.met = met
        else:
            trainer.recover(stretch.state, met)
            trainer.regroup(group, member=group.index)
        stretch.is_prepared = True

    def _share_newest(self, seat: Seat, stretch: Stretch) -> StopRule | None:
        """After a loss: the state of the most advanced member on all, and the rule it `met`.

        Members differ by a pass at the most; a joiner may hold no state yet. Where nobody does,
        the leader died before it had sent it, and the new one loads it.
        """
        group, trainer, state = stretch.group, stretch.trainer, stretch.state
        passes = np.zeros(group.num_members)
        if state is not None and (trainer is None or trainer.is_whole):
            passes[group.index] = 1.0 + state.passes
        group.maximum(passes)
        root = int(passes.argmax())
        if not passes.any() and group.is_leader:
            state = self._load_state(seat, 0)
        met = trainer.met.value if trainer is not None and trainer.met is not None else ""
        said = group.broadcast(met.encode() if group.index == root else None, root).decode()
        if passes.min() < passes.max() or not passes.any():
            is_root = group.index == root
            packed = state.pack() if is_root and state is not None else None
            arrays = group.broadcast_arrays(packed, root)
            if not is_root:
                state = TrainState.unpack(arrays)
        stretch.state = state
        return StopRule(said) if said else None

    def _formed(
        self, seat: Seat, group: JobGroup, state: TrainState | None, seconds: float
    ) -> None:
        """The group holds the state: the leader says so."""
        assert state is not None
        seat.generation, seat.members = group.generation, group.members
        seat.usage["regroup"] += seconds
        if not group.is_leader:
            return
        if seat.leader is None:
            seat.leader = self._new_leader(seat, None)
        has_succeeded = not seat.leader.is_known
        seat.leader.generation = group.generation
        if has_succeeded or seat.announced < group.generation:
            seat.announced = group.generation
            formed = ev.GroupFormed(
                seat.spec.name, group.generation, seat.ordered, state.iterations, seconds
            )
            seat.leader.is_known = True
            message = Succeeded(self._rank, formed) if has_succeeded else formed
            self._channel.send(0, TAG_EVENT, message)

    def _reform(self, seat: Seat, order: cmd.Regroup, stretch: Stretch) -> JobGroup | None:
        """Form the next group out of members that stay and joiners that are ready.

        None where this rank is dismissed.
        """
        self._newest = max(self._newest, order.generation)
        entry: JobGroup | Lead | cmd.Regroup | None = order
        if order.members[0] != self._rank:
            self._resign(seat)
            if self._channel.survives:
                entry = self._entrance.wait(order.generation, order.members[0])
            else:
                entry = self._groups.form(order.members, order.generation)
        seat.ordered = order.members
        if isinstance(entry, JobGroup):
            group = entry
        elif isinstance(entry, cmd.Regroup):
            if seat.leader is None:
                seat.leader = self._new_leader(seat, None)
            seat.leader.order_done()
            group = self._entrance.lead(entry.members, entry.joiners, entry.generation, seat.leader)
        else:
            return None
        if seat.leader is not None:
            assert stretch.state is not None
            seat.leader.checkpoint(snapshot_of(seat, stretch.state))
        return group

    def _resign(self, seat: Seat) -> None:
        """Lead no more: another member will, or nobody."""
        if seat.leader is not None:
            seat.leader.checkpoints.close()
            seat.leader.send_results()
            seat.newest_checkpoint = seat.leader.checkpoints.newest
            seat.leader = None

    def _share_order(self, seat: Seat, group: JobGroup) -> cmd.Regroup | cmd.Pause:
        """The leader's order, on all members."""
        payload = None if seat.leader is None else CODEC.encode(seat.leader.order)
        order = CODEC.decode(group.broadcast(payload))
        assert isinstance(order, cmd.Regroup | cmd.Pause)
        return order

    def _iterate(self, seat: Seat, stretch: Stretch) -> None:
        """Make passes until this group ends; `stretch` gets its outcome and last report."""
        leader, usage, group, trainer = seat.leader, seat.usage, stretch.group, stretch.trainer
        assert trainer is not None
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
            stretch.state = trainer.state
            usage["compute"] += report.compute_s
            usage["reduce"] += report.reduce_s
            now = time.perf_counter()
            if leader is not None:
                leader.passed(now - began)
                self._speak(seat, leader, group, trainer, report)
            usage["control"] += time.perf_counter() - began - report.compute_s - report.reduce_s
            began = time.perf_counter()
            if report.is_final:
                stretch.outcome, stretch.report = outcome_of(report), report
                return

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
            leader.checkpoint(snapshot_of(seat, state))

    def _repair(self, seat: Seat, group: JobGroup, trainer: Trainer) -> None:
        """The members' states differ (unlike processors): all take the leader's."""
        log.warning("%s: members held different states; repaired", seat.spec.name)
        packed = trainer.state.pack() if group.is_leader else None
        arrays = group.broadcast_arrays(packed)
        if not group.is_leader:
            trainer.restore(TrainState.unpack(arrays))

    # -- leaving -----------------------------------------------------------------------

    def _leave(self, seat: Seat, stretch: Stretch) -> None:
        """Be released; the leader first says what became of the job."""
        if isinstance(stretch.order, cmd.Regroup):
            self._resign(seat)
        elif seat.leader is not None:
            begin, computed = time.perf_counter(), seat.usage["compute"]
            dissolved = ev.GroupDissolved(seat.spec.name, seat.generation)
            self._channel.send(0, TAG_EVENT, dissolved)
            close_job(self._channel, self._run, self._fence, seat, stretch, self._guard)
            evaluated = seat.usage["compute"] - computed
            seat.usage["checkpoint"] += time.perf_counter() - begin - evaluated
        self._release(seat.spec.name, seat.generation, seat.usage)

    def _fail(self, job: str, generation: int, error: BaseException) -> None:
        message = ev.JobFailed(job, generation, self._rank, *story_of(error))
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


def _share_failure(group: JobGroup, report: StepReport) -> StepReport:
    """The report with what the failing member says of its failure, on all members."""
    failure = report.failure
    assert failure is not None
    said = json.dumps([failure.message, failure.details]).encode()
    payload = said if group.index == failure.member else None
    message, details = json.loads(group.broadcast(payload, failure.member))
    return replace(report, failure=replace(failure, message=message, details=details))
