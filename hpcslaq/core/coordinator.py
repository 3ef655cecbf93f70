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

When a rank is lost, its group goes on without it, and the order under way for its job is
given again to those that are left.

No clock, no files, no MPI: the drivers are `hpcslaq.mpi` and `hpcslaq.sim`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobRecord, JobState, changed
from hpcslaq.core.placement import IdleRanks, choose_keepers
from hpcslaq.core.policy import (
    ROUND_SLACK,
    Admission,
    ClusterView,
    Forecaster,
    Planner,
    Policy,
    check_share,
    check_total,
)
from hpcslaq.core.ranks import RankTable
from hpcslaq.core.records import advanced, mean_cost, order_under_way
from hpcslaq.core.transitions import RankState, Trigger, next_state
from hpcslaq.errors import InvalidTransition

#: Exit codes that `Shutdown` carries (design, section 6).
EXIT_OK, EXIT_JOB_FAILED, EXIT_STOPPED_EARLY = 0, 1, 75

#: After these events the policy decides anew.
DECISIVE = (
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


#: Events that change nothing from which orders follow.
_NEWS = (ev.ProgressReported, ev.CheckpointWritten)


class Coordinator:
    """Keeps the state of all jobs and ranks; see the module's theory of operation."""

    def __init__(self, policy: Policy, round_s: float) -> None:
        if not (math.isfinite(round_s) and round_s > 0):
            raise ValueError(f"round_s: {round_s} is not a finite number > 0")
        self.policy = policy
        #: The policy, where it is one that plans ahead.
        self._planner = policy if isinstance(policy, Planner) else None
        #: Length of a round, s.
        self.round_s = round_s
        #: All jobs ever submitted, in order of arrival; a name is never used twice.
        self.jobs: dict[str, JobRecord] = {}
        #: Jobs that have not ended, in order of arrival; the same records as in `jobs`.
        self._live: dict[str, JobRecord] = {}
        #: Live jobs that are finishing or stopping: they can use no workers, policies see the rest.
        self._ending: set[str] = set()
        #: Live jobs with a target > 0.
        self._given: dict[str, None] = {}
        #: Worker ranks of the present incarnation; none before the first start.
        self.ranks = RankTable({})
        #: Running jobs that hold more than their target or that are to be stopped.
        self._too_large: dict[str, None] = {}
        #: Running or waiting jobs that hold less than their target, with what they lack.
        self._lacking: dict[str, int] = {}
        #: Sum of the values of `_lacking`.
        self._num_lacking = 0
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
            ev.CheckpointFailed: self._checkpoint_failed,
            ev.JobPaused: self._job_paused,
            ev.JobFinished: self._job_finished,
            ev.JobStopped: self._job_stopped,
            ev.JobFailed: self._job_failed,
            ev.RankReleased: self._rank_released,
            ev.RankLost: self._rank_lost,
            ev.RoundElapsed: self._round_elapsed,
            ev.StopRequested: self._stop_requested,
        }

    @classmethod
    def amid(
        cls,
        policy: Policy,
        round_s: float,
        hosts: Mapping[int, str],
        records: Iterable[JobRecord],
        forecaster: Forecaster,
    ) -> Coordinator:
        """A coordinator in the midst of a run, as if events had led there: for benchmarks.

        records : waiting and running jobs, their members disjoint ranks of `hosts`;
        `forecaster` follows them all.
        """
        made = cls(policy, round_s)
        made.ranks = RankTable(hosts)
        made.forecaster = forecaster
        made._is_round_pending = True
        for record in records:
            made._put(record)
            made.ranks.put(record.members, RankState.BUSY, record.name)
            made._last_generation = max(made._last_generation, record.generation)
        return made

    # -- the one mutator ---------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[cmd.Command]:
        """Apply `event`, which happened at `now` (s since run start); what is to be done.

        Raises InvalidTransition (nothing is changed) where the event is illegal now, and
        PolicyError where the policy breaks a bound.
        """
        if not isinstance(event, ev.RunStarted):
            if not self.ranks:
                raise InvalidTransition(f"{type(event).__name__} before the run started")
            if self.is_shut_down:
                raise InvalidTransition(f"{type(event).__name__} after the run was shut down")
        orders = self._appliers[type(event)](event, now)
        if isinstance(event, _NEWS):
            return orders
        if isinstance(event, DECISIVE) and not _is_followed(event):
            orders += self._revise(now)
            self._decide(now)
        orders += self._carry_out(is_patient=not isinstance(event, ev.RoundElapsed))
        orders += self._wake_or_end(now)
        return orders

    def view(self, now: float) -> ClusterView:
        """What the policy sees at `now`."""
        live = tuple(self._live.values())
        if self._ending:
            live = tuple([record for record in live if record.spec.name not in self._ending])
        if self._planner is None:
            return ClusterView(now, self.round_s, self.ranks.num_usable, live, self.forecaster)
        return ClusterView(
            now,
            self.round_s,
            self.ranks.num_usable,
            live,
            self.forecaster,
            MappingProxyType(self.jobs),
            self.ranks.usable_by_host(),
        )

    # -- events ------------------------------------------------------------------------

    def _run_started(self, event: ev.RunStarted, now: float) -> list[cmd.Command]:
        if not event.hosts:
            raise InvalidTransition("the run started without worker ranks")
        self.ranks = RankTable(event.hosts)
        self.is_closed = self.is_stopping = self.is_shut_down = False
        self._is_round_pending = False
        for name, record in tuple(self._live.items()):
            state = next_state(name, record.state, Trigger.RESTARTED)
            self._wait_again(changed(self._settled(record, now), target=0), state, now)
        return []

    def _job_submitted(self, event: ev.JobSubmitted, now: float) -> list[cmd.Command]:
        spec = event.spec
        if spec.name in self.jobs:
            raise InvalidTransition(f"{spec.name}: submitted, but there is a job of that name")
        record = JobRecord(spec, JobState.WAITING, submitted_at=now, held_since=now)
        view = self.view(now)
        if spec.min_ranks > view.num_ranks:
            reason = f"needs {spec.min_ranks} workers, the run has {view.num_ranks}"
            admission = Admission(False, reason)
        else:
            admission = self.policy.admit(spec, view)
        orders = self._note(spec.name, admission)
        record = changed(record, plan=admission.plan)
        if not admission.is_accepted:
            reason = admission.reason or "refused by the policy"
            self._put(changed(record, state=JobState.REJECTED, finished_at=now, reason=reason))
            return [*orders, cmd.Reject(spec.name, reason)]
        self._put(record)
        self.forecaster.add(spec)
        return orders

    def _arrivals_closed(self, event: ev.ArrivalsClosed, now: float) -> list[cmd.Command]:
        self.is_closed = True
        return []

    def _job_cancelled(self, event: ev.JobCancelled, now: float) -> list[cmd.Command]:
        record = self._live_record(event.job, "cancelled")
        if record.state is JobState.WAITING:
            next_state(event.job, record.state, Trigger.CANCELLED_IDLE)
            self._end(record, JobState.CANCELLED, now, event.reason)
        elif not record.is_cancel_pending:
            # A running job is stopped by `_carry_out`; others when their order is through.
            self._put(changed(record, is_cancel_pending=True, reason=event.reason))
        return []

    def _weight_changed(self, event: ev.WeightChanged, now: float) -> list[cmd.Command]:
        record = self._live_record(event.job, "reweighted")
        spec = replace(record.spec, weight=event.weight)
        self._put(changed(record, spec=spec))
        return []

    def _group_formed(self, event: ev.GroupFormed, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "formed")
        state = next_state(event.job, record.state, Trigger.FORMED)
        # A member may have been lost after the group was formed and before this report.
        members = tuple(r for r in event.members if r not in self.ranks.lost)
        if members != record.forming or not members:
            raise InvalidTransition(
                f"{event.job}: generation {event.generation} formed of {event.members}, "
                f"ordered were {record.forming}"
            )
        left = record.members
        was_running = record.state is JobState.REGROUPING
        record = self._settled(record, now)
        self._put(
            changed(
                record,
                state=state,
                members=members,
                started_at=now if record.started_at is None else record.started_at,
                regroups=record.regroups + was_running,
                regroup_s=mean_cost(record, event.seconds) if was_running else record.regroup_s,
            )
        )
        self.ranks.put(members, RankState.BUSY, event.job)
        self.ranks.let_go(set(left) - set(members))
        return []

    def _group_dissolved(self, event: ev.GroupDissolved, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "dissolved")
        state = next_state(event.job, record.state, Trigger.DISSOLVED)
        orders = self._dismiss_joiners(record)
        leader = record.members[0]
        self.ranks.let_go({*record.members, *record.forming} - {leader})
        # A generation that was ordered but is never formed is forgotten.
        self._put(
            changed(
                self._settled(record, now),
                state=state,
                members=(leader,),
                generation=event.generation,
                target=0,
                changed_at=now,
            )
        )
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
        # Its state, target and group are as before, so no index changes but that of live jobs.
        self.jobs[event.job] = self._live[event.job] = advanced(record, losses, event.epochs)
        if losses:
            self.forecaster.observe(event)
        return []

    def _checkpoint_written(self, event: ev.CheckpointWritten, now: float) -> list[cmd.Command]:
        record = self._record(event.job)
        next_state(event.job, record.state, Trigger.CHECKPOINTED)
        self._put(changed(record, stored_iterations=event.iterations))
        return []

    def _checkpoint_failed(self, event: ev.CheckpointFailed, now: float) -> list[cmd.Command]:
        record = self._record(event.job)
        next_state(event.job, record.state, Trigger.CHECKPOINTED)
        return []

    def _job_paused(self, event: ev.JobPaused, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "paused")
        state = next_state(event.job, record.state, Trigger.PAUSED)
        record = replace(self._dissolved(record, now), stored_iterations=event.iterations)
        self._wait_again(record, state, now)
        return []

    def _job_finished(self, event: ev.JobFinished, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "finished")
        next_state(event.job, record.state, Trigger.FINISHED)
        orders = self._dismiss_joiners(record)
        record = changed(
            self._dissolved(record, now),
            iterations=event.iterations,
            epochs=event.epochs,
            last_loss=event.final_loss,
        )
        self._end(record, JobState.DONE, now, event.reason)
        return orders

    def _job_stopped(self, event: ev.JobStopped, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "stopped")
        next_state(event.job, record.state, Trigger.STOPPED)
        self._end(self._dissolved(record, now), JobState.CANCELLED, now, record.reason)
        return []

    def _job_failed(self, event: ev.JobFailed, now: float) -> list[cmd.Command]:
        record = self._current(event.job, event.generation, "failed")
        next_state(event.job, record.state, Trigger.FAILED)
        orders = self._dismiss_joiners(record)
        self._end(self._dissolved(record, now), JobState.FAILED, now, event.message)
        return orders

    def _rank_released(self, event: ev.RankReleased, now: float) -> list[cmd.Command]:
        rank = self.ranks.get(event.rank)
        if rank is None or rank.job is None or rank.job != event.job or rank.is_released:
            story = "unknown" if rank is None else f"{rank.state.value}, job {rank.job}"
            raise InvalidTransition(f"rank {event.rank} released by {event.job}, but it is {story}")
        record = self.jobs[event.job]
        if event.rank not in record.members and event.rank not in record.forming:
            self.ranks.put((event.rank,), RankState.IDLE, None)
            return []
        rank.is_released = True
        return [] if self._has_survivors(record) else self._group_gone(record, now)

    def _rank_lost(self, event: ev.RankLost, now: float) -> list[cmd.Command]:
        rank = self.ranks.get(event.rank)
        if rank is None or rank.state is RankState.LOST:
            raise InvalidTransition(f"rank {event.rank} lost, but it was not there")
        job = rank.job
        self.ranks.put((event.rank,), RankState.LOST, None)
        # A rank on its way out, or dismissed, is in no group any more.
        if job is None or event.rank not in {*self.jobs[job].members, *self.jobs[job].forming}:
            return []
        return self._member_lost(self.jobs[job], event.rank, now)

    def _round_elapsed(self, event: ev.RoundElapsed, now: float) -> list[cmd.Command]:
        self._is_round_pending = False
        return []

    def _stop_requested(self, event: ev.StopRequested, now: float) -> list[cmd.Command]:
        self.is_stopping = True
        return []

    # -- deciding and carrying out -----------------------------------------------------

    def _revise(self, now: float) -> list[cmd.Command]:
        """Ask a policy that plans ahead for the plans that change, and take them over."""
        if self._planner is None or not self._live or self.is_stopping:
            return []
        orders: list[cmd.Command] = []
        revised = self._planner.revise(self.view(now))
        for job in revised:
            self._live_record(job, "planned anew")
        for job, admission in revised.items():
            record = changed(self._live[job], plan=admission.plan)
            orders += self._note(job, admission)
            if admission.is_accepted:
                self._put(record)
                continue
            state = next_state(job, record.state, Trigger.REFUSED)
            reason = admission.reason or "refused by the policy"
            self._put(record)
            self._end(record, state, now, reason)
            orders.append(cmd.Reject(job, reason))
        return orders

    def _note(self, job: str, admission: Admission) -> list[cmd.Command]:
        return [cmd.Note(job, admission.facts)] if admission.facts else []

    def _decide(self, now: float) -> None:
        """Ask the policy and note each job's target."""
        if not self._live:
            return
        view = self.view(now)
        allocation = {} if self.is_stopping else self.policy.allocate(view)
        # What was given before was checked then; only differences cost time.
        live = self._live
        differing = {
            job: count
            for job, count in allocation.items()
            if job not in live or live[job].target != count
        }
        for job, count in differing.items():
            check_share(job, count, live[job].spec if job in live else None)
        check_total(allocation, view.num_ranks)
        differing.update((job, 0) for job in self._given if job not in allocation)
        for job, count in differing.items():
            self._retarget(live[job], int(count))

    def _carry_out(self, is_patient: bool) -> list[cmd.Command]:
        """Orders that bring the jobs nearer to their targets with the ranks that are idle.

        The ranks of an ended or shrunk group are released one by one. If there is not enough
        for all, a patient coordinator waits until they are all there, so that a job does not
        start on the first of them; a round puts an end to its patience.
        """
        orders = [self._order_less(self.jobs[name]) for name in tuple(self._too_large)]
        idle = self.ranks.idle
        if not idle or not self._lacking:
            return orders
        if is_patient and self.ranks.departing and self._num_lacking > len(idle):
            return orders
        lacking = [self.jobs[name] for name in self._lacking]
        starting = [r for r in lacking if r.state is JobState.WAITING]
        growing = [r for r in lacking if r.state is not JobState.WAITING]
        starting.sort(key=lambda r: r.submitted_at)
        # Jobs without ranks come first; then the one that misses the largest share.
        growing.sort(key=lambda r: len(r.members) / r.target)
        pool = IdleRanks(idle, self.ranks.hosts)
        for record in (*starting, *growing):
            if not idle:
                break
            num = min(record.target - len(record.members), len(idle))
            if record.state is not JobState.WAITING:
                orders.append(self._order_more(record, Trigger.ORDERED_REGROUP, pool, num))
            elif num >= record.spec.min_ranks:
                orders.append(self._order_more(record, Trigger.ORDERED_START, pool, num))
        return orders

    def _order_less(self, record: JobRecord) -> cmd.Command:
        """The order for a running job that is to hold fewer ranks, or none."""
        if record.is_cancel_pending:
            return self._order(record, Trigger.ORDERED_STOP)
        if record.target == 0:
            return self._order(record, Trigger.ORDERED_PAUSE)
        keep = choose_keepers(record.members, self.ranks.hosts, record.target)
        leavers = set(record.members).difference(keep)
        self.ranks.put(leavers, RankState.LEAVING, record.name)
        return self._order(record, Trigger.ORDERED_REGROUP, keep)

    def _order_more(
        self, record: JobRecord, trigger: Trigger, pool: IdleRanks, num: int
    ) -> cmd.Command:
        """The order that gives a job `num` more of the idle ranks."""
        joiners = pool.take(record.members, num)
        self.ranks.put(joiners, RankState.JOINING, record.name)
        return self._order(record, trigger, record.members + joiners)

    def _order(
        self, record: JobRecord, trigger: Trigger, forming: tuple[int, ...] = ()
    ) -> cmd.Command:
        """Note an order for the job; a group to be formed gets a new generation."""
        state = next_state(record.name, record.state, trigger)
        generation = record.generation
        if forming:
            generation = self._last_generation = self._last_generation + 1
        # Policies do not see a job that is stopped: it keeps no share.
        target = 0 if state is JobState.STOPPING else record.target
        record = changed(record, state=state, generation=generation, forming=forming, target=target)
        self._put(record)
        return order_under_way(record)

    def _wake_or_end(self, now: float) -> list[cmd.Command]:
        """A WakeAt while jobs live; a Shutdown when nothing is left to do."""
        if self._is_over():
            self.is_shut_down = True
            if self._live or not self.is_closed:
                return [cmd.Shutdown(EXIT_STOPPED_EARLY)]
            bad = (JobState.FAILED, JobState.REJECTED)
            failed = any(r.state in bad for r in self.jobs.values())
            return [cmd.Shutdown(EXIT_JOB_FAILED if failed else EXIT_OK)]
        if self._live and not self._is_round_pending and not self.is_stopping:
            self._is_round_pending = True
            return [cmd.WakeAt(self._next_round(now))]
        return []

    def _next_round(self, now: float) -> float:
        """When the next round begins: a round from now, or at the next multiple of a round."""
        if self._planner is None:
            return now + self.round_s
        return (math.floor(now / self.round_s + ROUND_SLACK) + 1) * self.round_s

    def _is_over(self) -> bool:
        usable = self.ranks.num_usable
        if not self.ranks.is_at_rest:
            return False
        if self.is_stopping or not usable:
            return True
        # Jobs that need more ranks than are left have to wait for the next start of the run.
        return self.is_closed and not any(
            record.spec.min_ranks <= usable for record in self._live.values()
        )

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
        ends = ("dissolved", "finished", "failed")
        is_early = record.state is JobState.REGROUPING and what in ends
        if generation > record.generation or (generation < record.generation and not is_early):
            raise InvalidTransition(
                f"{job}: generation {generation} {what}, its newest is {record.generation}"
            )
        return record

    def _put(self, record: JobRecord) -> None:
        """Replace a job's record; keeps the indices of jobs by their situation true."""
        name, state, target = record.spec.name, record.state, record.target
        self.jobs[name] = record
        is_too_large, lacks, is_live, is_ending = False, 0, True, False
        if state is JobState.RUNNING:
            is_too_large = target < len(record.members) or record.is_cancel_pending
            lacks = 0 if is_too_large else target - len(record.members)
        elif state is JobState.WAITING:
            lacks = target
        else:
            is_live = not state.is_final
            is_ending = state is JobState.FINISHING or state is JobState.STOPPING
        if is_ending:
            self._ending.add(name)
        else:
            self._ending.discard(name)
        if is_live:
            self._live[name] = record
        else:
            self._live.pop(name, None)
        if is_live and target > 0:
            self._given[name] = None
        else:
            self._given.pop(name, None)
        if is_too_large:
            self._too_large[name] = None
        else:
            self._too_large.pop(name, None)
        self._num_lacking += lacks - self._lacking.pop(name, 0)
        if lacks:
            self._lacking[name] = lacks

    def _retarget(self, record: JobRecord, target: int) -> None:
        """What `_put` does when nothing but the target of a live job changed."""
        name, state = record.spec.name, record.state
        self.jobs[name] = self._live[name] = changed(record, target=target)
        if target > 0:
            self._given[name] = None
        else:
            self._given.pop(name, None)
        if state is JobState.RUNNING:
            lacks = target - len(record.members)
            if lacks < 0 or record.is_cancel_pending:
                self._too_large[name] = None
                lacks = 0
            else:
                self._too_large.pop(name, None)
        elif state is JobState.WAITING:
            lacks = target
        else:
            return  # an order is under way, so it neither lacks ranks nor has too many
        self._num_lacking += lacks - self._lacking.pop(name, 0)
        if lacks:
            self._lacking[name] = lacks

    def _settled(self, record: JobRecord, now: float) -> JobRecord:
        """The record with the present group's rank-seconds booked and no group."""
        return changed(
            record,
            rank_seconds=record.attained_rank_seconds(now),
            held_since=now,
            changed_at=now,
            members=(),
            forming=(),
        )

    def _dissolved(self, record: JobRecord, now: float) -> JobRecord:
        """The record without its group; the members are on their way out."""
        self.ranks.let_go({*record.members, *record.forming})
        return self._settled(record, now)

    def _dismiss_joiners(self, record: JobRecord) -> list[cmd.Command]:
        """A Dismiss for ranks that wait to join a generation that will not be formed."""
        waiting = tuple(
            rank
            for rank in record.forming
            if self.ranks[rank].state is RankState.JOINING and not self.ranks[rank].is_released
        )
        if not waiting:
            return []
        return [cmd.Dismiss(record.name, record.generation, waiting)]

    def _end(self, record: JobRecord, state: JobState, now: float, reason: str) -> None:
        self._put(
            changed(
                record,
                state=state,
                target=0,
                finished_at=now,
                reason=reason,
                is_cancel_pending=False,
            )
        )
        self.forecaster.discard(record.name)

    def _wait_again(self, record: JobRecord, state: JobState, now: float) -> None:
        """A job without its group waits, or ends if that is what was asked for."""
        if state.is_final or record.is_cancel_pending:
            self._end(record, JobState.CANCELLED, now, record.reason)
        else:
            self._put(changed(record, state=state))

    def _survivors(self, record: JobRecord) -> tuple[int, ...]:
        """Ranks that hold the job's state, or that will load it, and have not left."""
        group = record.forming if record.state is JobState.STARTING else record.members
        return tuple(rank for rank in group if not self.ranks[rank].is_released)

    def _has_survivors(self, record: JobRecord) -> bool:
        """Whether there is one: asked at every release, so it stops at the first."""
        group = record.forming if record.state is JobState.STARTING else record.members
        return any(not self.ranks[rank].is_released for rank in group)

    def _member_lost(self, record: JobRecord, rank: int, now: float) -> list[cmd.Command]:
        """Take a lost rank out of its job.

        The survivors repair their group by themselves and go on in the same generation. An
        order under way may have died with the leader, so it is repeated to those that are left.
        """
        record = changed(
            self._settled(record, now),
            members=tuple(r for r in record.members if r != rank),
            forming=tuple(r for r in record.forming if r != rank),
        )
        survivors = self._survivors(record)
        if survivors and record.state is JobState.REGROUPING and not record.forming:
            # All that were to stay are gone: one that was to leave stays instead.
            record = changed(record, forming=survivors[:1])
            self.ranks.put(survivors[:1], RankState.BUSY, record.name)
        self._put(record)
        if not survivors:
            return self._group_gone(record, now)
        return [] if record.state is JobState.RUNNING else [order_under_way(record)]

    def _group_gone(self, record: JobRecord, now: float) -> list[cmd.Command]:
        """No rank of the group is left: the job goes on from its checkpoint some time."""
        state = next_state(record.name, record.state, Trigger.LOST_ALL)
        orders = self._dismiss_joiners(record)
        self._wait_again(self._dissolved(record, now), state, now)
        return orders


def _is_followed(event: ev.Event) -> bool:
    """Whether the next event is a submission too, after which the policy decides for both."""
    return isinstance(event, ev.JobSubmitted) and event.is_followed
