"""The coordinator: events in, commands out, one mutator.

Theory of operation. `Coordinator.handle(event, now)` is the only method that changes
anything. It (1) applies the event to the records of jobs and ranks, asking
`transitions` before each change, (2) lets the policy decide anew when the event is of
a kind that changes what is best, and (3) turns the difference between what the policy
gave and what the jobs hold into orders, as far as ranks are idle and no order for the
job is under way. An illegal event raises and changes nothing.

At most one order per job is under way. A shrinking job keeps its leader; ranks that it
gives back become idle when they report, and only then are promised to another job, so
no job ever waits for another job's boundary.

No clock, no files, no MPI: the drivers are `hpcslaq.mpi` and `hpcslaq.sim`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobRecord, JobState
from hpcslaq.core.placement import choose_joiners, choose_keepers
from hpcslaq.core.policy import ClusterView, Forecaster, Policy, check_allocation
from hpcslaq.core.transitions import RankState, Trigger, next_state
from hpcslaq.errors import InvalidTransition

#: Exit codes that `Shutdown` carries (design, section 6).
EXIT_OK, EXIT_JOB_FAILED, EXIT_STOPPED_EARLY = 0, 1, 75

#: After these events the policy decides anew.
_DECISIVE = (
    ev.RunStarted,
    ev.JobSubmitted,
    ev.JobCancelled,
    ev.WeightChanged,
    ev.GroupDissolved,
    ev.JobFinished,
    ev.JobStopped,
    ev.JobFailed,
    ev.RankLost,
    ev.RoundElapsed,
    ev.StopRequested,
)


#: Live jobs in these states can use no workers: policies do not see them.
_BEYOND_POLICY = frozenset({JobState.FINISHING, JobState.STOPPING})


@dataclass(slots=True)
class RankRecord:
    """How a worker rank fares."""

    host: str
    state: RankState = RankState.IDLE
    #: Job whose group the rank is in, joins or leaves; None when idle or lost.
    job: str | None = None


class Coordinator:
    """Keeps the state of all jobs and ranks; see the module's theory of operation."""

    def __init__(self, policy: Policy, round_s: float) -> None:
        if not (math.isfinite(round_s) and round_s > 0):
            raise ValueError(f"round_s: {round_s} is not a finite number > 0")
        self.policy = policy
        #: Length of a round, s.
        self.round_s = round_s
        #: All jobs ever submitted, in order of arrival; a name is never used twice.
        self.jobs: dict[str, JobRecord] = {}
        #: Jobs that have not ended, in order of arrival; a subset of `jobs`.
        self._live: dict[str, None] = {}
        #: Worker ranks of the present incarnation.
        self.ranks: dict[int, RankRecord] = {}
        #: Host of each rank, as `placement` wants it.
        self._hosts: dict[int, str] = {}
        #: Idle ranks; exactly those whose record says IDLE.
        self._idle: set[int] = set()
        self._num_lost = 0
        #: Live jobs whose workers differ from their target or that are to be stopped.
        self._unsettled: dict[str, None] = {}
        self.forecaster: Forecaster = policy.forecaster()
        #: No more submissions will come.
        self.is_closed = False
        #: The run is to end early; every target is zero.
        self.is_stopping = False
        #: A Shutdown was issued; nothing is legal any more but a new RunStarted.
        self.is_shut_down = False
        #: A WakeAt is outstanding.
        self._is_round_pending = False
        #: Generations are numbered over all jobs, so that each is unique in the run.
        self._last_generation = 0
        self._appliers: dict[type, Callable[..., list[cmd.Command]]] = {
            ev.RunStarted: self._run_started,
            ev.JobSubmitted: self._job_submitted,
            ev.ArrivalsClosed: self._arrivals_closed,
            ev.JobCancelled: self._job_cancelled,
            ev.WeightChanged: self._weight_changed,
            ev.GroupFormed: self._group_formed,
            ev.GroupDissolved: self._group_dissolved,
            ev.ProgressReported: self._progress_reported,
            ev.CheckpointWritten: self._checkpoint_written,
            ev.JobPaused: self._job_paused,
            ev.JobFinished: self._job_finished,
            ev.JobStopped: self._job_stopped,
            ev.JobFailed: self._job_failed,
            ev.RankReleased: self._rank_released,
            ev.RankLost: self._rank_lost,
            ev.RoundElapsed: self._round_elapsed,
            ev.StopRequested: self._stop_requested,
        }

    # -- the one mutator ---------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[cmd.Command]:
        """Apply `event`, which happened at `now` (s since run start); what is to be done.

        Raises InvalidTransition (nothing is changed) where the event is illegal now, and
        PolicyError where the policy breaks a bound.
        """
        if self.is_shut_down and not isinstance(event, ev.RunStarted):
            raise InvalidTransition(f"{type(event).__name__} after the run was shut down")
        orders = self._appliers[type(event)](event, now)
        if isinstance(event, _DECISIVE):
            self._decide(now)
        orders += self._carry_out(now)
        orders += self._wake_or_end(now)
        return orders

    def view(self, now: float) -> ClusterView:
        """What the policy sees at `now`."""
        usable = len(self.ranks) - self._num_lost
        jobs = map(self.jobs.__getitem__, self._live)
        live = tuple(record for record in jobs if record.state not in _BEYOND_POLICY)
        return ClusterView(now, self.round_s, usable, live, self.forecaster)

    def is_release_due(self, event: ev.RankReleased) -> bool:
        """Whether the release can be handed in now, or an earlier event is still under way.

        Messages of different ranks may overtake each other: a member's release can arrive
        before its leader's news that the group was formed or dissolved.
        """
        rank = self.ranks.get(event.rank)
        if rank is None or rank.state is RankState.LEAVING:
            return True
        return rank.state is RankState.JOINING and not event.was_member

    # -- events ------------------------------------------------------------------------

    def _run_started(self, event: ev.RunStarted, now: float) -> list[cmd.Command]:
        self.ranks = {rank: RankRecord(host) for rank, host in sorted(event.hosts.items())}
        self._hosts = dict(event.hosts)
        self._idle = set(self.ranks)
        self._num_lost = 0
        self.is_closed = self.is_stopping = self.is_shut_down = False
        self._is_round_pending = False
        for name in list(self._live):
            record = self._settled(self.jobs[name], now)
            state = next_state(name, record.state, Trigger.RESTARTED)
            self._put(replace(record, state=state, target=0))
            if state.is_final or record.is_cancel_pending:
                self._end(name, JobState.CANCELLED, now, record.reason)
        return []

    def _job_submitted(self, event: ev.JobSubmitted, now: float) -> list[cmd.Command]:
        spec = event.spec
        if spec.name in self.jobs:
            raise InvalidTransition(f"{spec.name}: submitted, but there is a job of that name")
        record = JobRecord(spec, JobState.WAITING, submitted_at=now, held_since=now)
        view = self.view(now)
        if spec.min_workers > view.num_ranks:
            reason = f"needs {spec.min_workers} workers, the run has {view.num_ranks}"
        else:
            admission = self.policy.admit(spec, view)
            reason = "" if admission.is_accepted else admission.reason or "refused by the policy"
        if reason:
            self._put(replace(record, state=JobState.REJECTED, finished_at=now, reason=reason))
            return [cmd.Reject(spec.name, reason)]
        self._live[spec.name] = None
        self._put(record)
        self.forecaster.add(spec)
        return []

    def _arrivals_closed(self, event: ev.ArrivalsClosed, now: float) -> list[cmd.Command]:
        self.is_closed = True
        return []

    def _job_cancelled(self, event: ev.JobCancelled, now: float) -> list[cmd.Command]:
        record = self._live_record(event.job, "cancelled")
        if record.state is JobState.WAITING:
            next_state(event.job, record.state, Trigger.CANCELLED_IDLE)
            self._end(event.job, JobState.CANCELLED, now, event.reason)
        else:
            # A running job is stopped by `_carry_out`; others when their order is through.
            self._put(replace(record, is_cancel_pending=True, reason=event.reason))
        return []

    def _weight_changed(self, event: ev.WeightChanged, now: float) -> list[cmd.Command]:
        record = self._live_record(event.job, "reweighted")
        spec = replace(record.spec, weight=event.weight)
        self._put(replace(record, spec=spec))
        return []

    def _group_formed(self, event: ev.GroupFormed, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "formed")
        state = next_state(event.job, record.state, Trigger.FORMED)
        if event.members != record.forming:
            raise InvalidTransition(
                f"{event.job}: generation {event.generation} formed of {event.members}, "
                f"ordered were {record.forming}"
            )
        was_running = record.state is JobState.REGROUPING
        record = self._settled(record, now)
        self._put(
            replace(
                record,
                state=state,
                members=event.members,
                started_at=now if record.started_at is None else record.started_at,
                regroups=record.regroups + was_running,
                changed_at=now,
            )
        )
        for rank in event.members:
            self._set_rank(rank, RankState.BUSY, event.job)
        return []

    def _group_dissolved(self, event: ev.GroupDissolved, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "dissolved")
        state = next_state(event.job, record.state, Trigger.DISSOLVED)
        orders = self._dismiss_joiners(record)
        # A generation that was ordered but is never formed is forgotten.
        record = replace(self._dissolved(record, now), generation=event.generation)
        self._put(replace(record, state=state, target=0))
        return orders

    def _progress_reported(self, event: ev.ProgressReported, now: float) -> list[cmd.Command]:
        record = self._live_record(event.job, "reported")
        next_state(event.job, record.state, Trigger.PROGRESSED)
        # After a repair or a restart iterations are reported again: they are known already.
        known = record.iterations + 1 - event.first_iteration
        if known < 0:
            raise InvalidTransition(
                f"{event.job}: iteration {event.first_iteration} reported after {record.iterations}"
            )
        losses = event.losses[known:]
        if known and event.losses:
            share = len(losses) / len(event.losses)
            event = replace(
                event,
                first_iteration=record.iterations + 1,
                losses=losses,
                seconds=event.seconds * share,
            )
        self._put(_advanced(record, losses, event.epochs))
        if losses:
            self.forecaster.observe(event)
        return []

    def _checkpoint_written(self, event: ev.CheckpointWritten, now: float) -> list[cmd.Command]:
        record = self._record(event.job)
        next_state(event.job, record.state, Trigger.CHECKPOINTED)
        return []

    def _job_paused(self, event: ev.JobPaused, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "paused")
        state = next_state(event.job, record.state, Trigger.PAUSED)
        self._put(replace(self._dissolved(record, now), state=state))
        if record.is_cancel_pending:
            self._end(event.job, JobState.CANCELLED, now, record.reason)
        return []

    def _job_finished(self, event: ev.JobFinished, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "finished")
        next_state(event.job, record.state, Trigger.FINISHED)
        orders = self._dismiss_joiners(record)
        record = replace(
            self._dissolved(record, now),
            iterations=event.iterations,
            epochs=event.epochs,
            last_loss=event.final_loss,
        )
        self._put(record)
        self._end(event.job, JobState.DONE, now, event.reason)
        return orders

    def _job_stopped(self, event: ev.JobStopped, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "stopped")
        next_state(event.job, record.state, Trigger.STOPPED)
        self._put(self._dissolved(record, now))
        self._end(event.job, JobState.CANCELLED, now, record.reason)
        return []

    def _job_failed(self, event: ev.JobFailed, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "failed")
        next_state(event.job, record.state, Trigger.FAILED)
        orders = self._dismiss_joiners(record)
        self._put(self._dissolved(record, now))
        self._end(event.job, JobState.FAILED, now, event.message)
        return orders

    def _rank_released(self, event: ev.RankReleased, now: float) -> list[cmd.Command]:
        rank = self.ranks.get(event.rank)
        if rank is None or rank.state not in (RankState.LEAVING, RankState.JOINING):
            story = "unknown" if rank is None else f"{rank.state.value}, job {rank.job}"
            raise InvalidTransition(f"rank {event.rank} released, but it is {story}")
        self._set_rank(event.rank, RankState.IDLE, None)
        return []

    def _rank_lost(self, event: ev.RankLost, now: float) -> list[cmd.Command]:
        rank = self.ranks.get(event.rank)
        if rank is None or rank.state is RankState.LOST:
            raise InvalidTransition(f"rank {event.rank} lost, but it was not there")
        job = rank.job
        self._set_rank(event.rank, RankState.LOST, None)
        if job is None or job not in self._live:
            return []
        return self._member_lost(self.jobs[job], event.rank, now)

    def _round_elapsed(self, event: ev.RoundElapsed, now: float) -> list[cmd.Command]:
        self._is_round_pending = False
        return []

    def _stop_requested(self, event: ev.StopRequested, now: float) -> list[cmd.Command]:
        self.is_stopping = True
        return []

    # -- deciding and carrying out -----------------------------------------------------

    def _decide(self, now: float) -> None:
        """Ask the policy and note each job's target."""
        view = self.view(now)
        if not view.jobs:
            return
        allocation = {} if self.is_stopping else self.policy.allocate(view)
        check_allocation(allocation, view)
        for record in view.jobs:
            target = allocation.get(record.spec.name, 0)
            if target != record.target:
                self._put(replace(record, target=target))

    def _carry_out(self, now: float) -> list[cmd.Command]:
        """Orders that bring the jobs nearer to their targets with the ranks that are idle."""
        orders: list[cmd.Command] = []
        starting: list[JobRecord] = []
        growing: list[JobRecord] = []
        for name in tuple(self._unsettled):
            record = self.jobs[name]
            if record.state is JobState.RUNNING:
                held = len(record.members)
                if record.is_cancel_pending:
                    orders.append(self._order_stop(record))
                elif record.target == 0:
                    orders.append(self._order_pause(record))
                elif record.target < held:
                    orders.append(self._order_shrink(record))
                elif record.target > held:
                    growing.append(record)
            elif record.state is JobState.WAITING and record.target:
                starting.append(record)
        starting.sort(key=lambda r: r.submitted_at)
        # Jobs without ranks come first; then the one that misses the largest share.
        growing.sort(key=lambda r: len(r.members) / r.target)
        for record in starting:
            num = min(record.target, len(self._idle))
            if num >= record.spec.min_workers:
                orders.append(self._order_start(record, num))
        for record in growing:
            if not self._idle:
                break
            orders.append(self._order_growth(record))
        return orders

    def _order_stop(self, record: JobRecord) -> cmd.Command:
        self._ordered(record, Trigger.ORDERED_STOP)
        return cmd.Stop(record.name, record.generation, record.members[0])

    def _order_pause(self, record: JobRecord) -> cmd.Command:
        self._ordered(record, Trigger.ORDERED_PAUSE)
        return cmd.Pause(record.name, record.generation, record.members[0])

    def _order_shrink(self, record: JobRecord) -> cmd.Command:
        keep = choose_keepers(record.members, self._hosts, record.target)
        leavers = tuple(rank for rank in record.members if rank not in set(keep))
        for rank in leavers:
            self._set_rank(rank, RankState.LEAVING, record.name)
        generation = self._ordered(record, Trigger.ORDERED_REGROUP, forming=keep)
        return cmd.Regroup(record.name, generation, keep, (), leavers)

    def _order_start(self, record: JobRecord, num_workers: int) -> cmd.Command:
        members = choose_joiners(self._idle, self._hosts, (), num_workers)
        for rank in members:
            self._set_rank(rank, RankState.JOINING, record.name)
        generation = self._ordered(record, Trigger.ORDERED_START, forming=members)
        return cmd.Start(record.name, generation, members, record.iterations)

    def _order_growth(self, record: JobRecord) -> cmd.Command:
        num = min(record.target - len(record.members), len(self._idle))
        joiners = choose_joiners(self._idle, self._hosts, record.members, num)
        for rank in joiners:
            self._set_rank(rank, RankState.JOINING, record.name)
        members = record.members + joiners
        generation = self._ordered(record, Trigger.ORDERED_REGROUP, forming=members)
        return cmd.Regroup(record.name, generation, members, joiners, ())

    def _ordered(self, record: JobRecord, trigger: Trigger, forming: tuple[int, ...] = ()) -> int:
        """Note an order for the job; the generation that it carries."""
        state = next_state(record.name, record.state, trigger)
        generation = record.generation
        if forming:
            self._last_generation += 1
            generation = self._last_generation
        self._put(replace(record, state=state, generation=generation, forming=forming))
        return generation

    def _wake_or_end(self, now: float) -> list[cmd.Command]:
        """A WakeAt while jobs live; a Shutdown when nothing is left to do."""
        if self._is_over():
            self.is_shut_down = True
            if self._live or not self.is_closed:
                return [cmd.Shutdown(EXIT_STOPPED_EARLY)]
            failed = any(r.state is JobState.FAILED for r in self.jobs.values())
            return [cmd.Shutdown(EXIT_JOB_FAILED if failed else EXIT_OK)]
        if self._live and self.ranks and not self._is_round_pending and not self.is_stopping:
            self._is_round_pending = True
            return [cmd.WakeAt(now + self.round_s)]
        return []

    def _is_over(self) -> bool:
        if not self.ranks or len(self._idle) + self._num_lost < len(self.ranks):
            return False
        return self.is_stopping or (self.is_closed and not self._live)

    # -- helpers -----------------------------------------------------------------------

    def _record(self, job: str) -> JobRecord:
        try:
            return self.jobs[job]
        except KeyError:
            raise InvalidTransition(f"{job}: no job of that name was submitted") from None

    def _live_record(self, job: str, what: str) -> JobRecord:
        record = self._record(job)
        if job not in self._live:
            raise InvalidTransition(f"{job}: {what}, but it is {record.state.value}")
        return record

    def _current(self, job: str, generation: int, what: str) -> JobRecord:
        """The record of a live job, if `generation` is its newest."""
        record = self._live_record(job, what)
        # A job may finish before the regroup under way takes place.
        earlier = record.state is JobState.REGROUPING and what in (
            "dissolved",
            "finished",
            "failed",
        )
        if generation != record.generation and not earlier:
            raise InvalidTransition(
                f"{job}: generation {generation} {what}, its newest is {record.generation}"
            )
        return record

    def _put(self, record: JobRecord) -> None:
        """Replace a job's record; keeps `_unsettled` true."""
        name = record.spec.name
        self.jobs[name] = record
        if name in self._live and (
            record.target != len(record.members) or record.is_cancel_pending
        ):
            self._unsettled[name] = None
        else:
            self._unsettled.pop(name, None)

    def _set_rank(self, rank: int, state: RankState, job: str | None) -> None:
        record = self.ranks[rank]
        record.state, record.job = state, job
        self._num_lost += state is RankState.LOST
        if state is RankState.IDLE:
            self._idle.add(rank)
        else:
            self._idle.discard(rank)

    def _settled(self, record: JobRecord, now: float) -> JobRecord:
        """The record with the present group's rank-seconds booked and no group."""
        return replace(
            record,
            rank_seconds=record.attained_rank_seconds(now),
            held_since=now,
            members=(),
            forming=(),
        )

    def _dissolved(self, record: JobRecord, now: float) -> JobRecord:
        """The record without its group; the members are on their way out."""
        for rank in {*record.members, *record.forming}:
            if self.ranks[rank].state is RankState.BUSY:
                self._set_rank(rank, RankState.LEAVING, record.name)
        return replace(self._settled(record, now), changed_at=now)

    def _dismiss_joiners(self, record: JobRecord) -> list[cmd.Command]:
        """A Dismiss for ranks that wait to join a generation that will not be formed."""
        waiting = tuple(r for r in record.forming if self.ranks[r].state is RankState.JOINING)
        if not waiting:
            return []
        return [cmd.Dismiss(record.name, record.generation, waiting)]

    def _end(self, job: str, state: JobState, now: float, reason: str) -> None:
        del self._live[job]
        self._put(
            replace(
                self.jobs[job],
                state=state,
                target=0,
                finished_at=now,
                reason=reason,
                is_cancel_pending=False,
            )
        )
        self.forecaster.discard(job)

    def _member_lost(self, record: JobRecord, rank: int, now: float) -> list[cmd.Command]:
        """Take a lost rank out of its job; without members the job waits again.

        The survivors repair their group by themselves and go on; their driver reports
        the new membership as the same generation without the lost rank.
        """
        record = replace(
            self._settled(record, now),
            members=tuple(r for r in record.members if r != rank),
            forming=tuple(r for r in record.forming if r != rank),
            changed_at=now,
        )
        self._put(record)
        if record.members or record.forming:
            return []
        state = next_state(record.name, record.state, Trigger.LOST_ALL)
        self._put(replace(record, state=state))
        if state.is_final or record.is_cancel_pending:
            self._end(record.name, JobState.CANCELLED, now, record.reason)
        return []


def _advanced(record: JobRecord, losses: Iterable[float], epochs: int) -> JobRecord:
    """The record after these further losses."""
    first, last, drop, num = record.first_loss, record.last_loss, record.largest_drop, 0
    for loss in losses:
        if first is None:
            first = loss
        if last is not None:
            drop = max(drop, last - loss)
        last = loss
        num += 1
    return replace(
        record,
        first_loss=first,
        last_loss=last,
        largest_drop=drop,
        iterations=record.iterations + num,
        epochs=max(epochs, record.epochs),
    )
