"""A pretend cluster for tests of the coordinator: ranks that act when the test says so.

Truth and knowledge are apart. `groups`, `waiting` and `orders` are what the ranks really do;
the coordinator only knows what was delivered to it. Messages between the coordinator and one
rank keep their order; between different ranks nothing is promised, as with MPI. All events of
a job come from its leader, except RankReleased, which each rank sends for itself.

`World.tell` hands an event in, keeps the journal, posts the commands and checks the
invariants. The verbs (`form`, `release`, `finish`, ...) make a test read as a story; the
random test picks from `possible_steps` instead.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.jobs import JobRecord, JobSpec, JobState
from hpcslaq.core.policy import Admission, ClusterView, NoForecast
from hpcslaq.core.transitions import RankState


@dataclass
class Scripted:
    """A policy that gives what the test wrote down, cut to live jobs and to what is there."""

    targets: dict[str, int] = field(default_factory=dict)
    refusal: str = ""
    name: str = "scripted"

    def forecaster(self) -> NoForecast:
        return NoForecast()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        return Admission(not self.refusal, self.refusal)

    def allocate(self, view: ClusterView) -> Mapping[str, int]:
        specs = {record.name: record.spec for record in view.jobs}
        given, left = {}, view.num_ranks
        for job in (job for job in self.targets if job in specs):
            given[job] = min(self.targets[job], left)
            if given[job] < specs[job].min_workers:
                given[job] = 0
            left -= given[job]
        return given


@dataclass
class Group:
    """A group that trains; `members[0]` leads."""

    generation: int
    members: list[int]


def spec_of(name: str = "a", **fields: object) -> JobSpec:
    """A job that runs on 1 to 8 workers, unless told otherwise."""
    given = {"model": "logistic", "data": "toy", "num_chunks": 8, "max_epochs": 100, **fields}
    return JobSpec(name, **given)  # type: ignore[arg-type]


def snapshot(coordinator: Coordinator) -> dict[str, object]:
    """A deep copy of all that the coordinator remembers."""
    parts = {k: v for k, v in vars(coordinator).items() if k not in ("policy", "_appliers")}
    parts |= vars(coordinator.ranks)
    return copy.deepcopy({k: v for k, v in parts.items() if k != "forecaster"})


class World:
    """Coordinator, ranks and the messages between them."""

    def __init__(self, policy, num_ranks: int = 4, round_s: float = 10.0, hosts=None) -> None:
        self.policy = policy
        self.coordinator = Coordinator(policy, round_s)
        self.now = 0.0
        self.journal: list[tuple[float, ev.Event, list[cmd.Command]]] = []
        self.reached: dict[str, int] = {}  # iterations completed, by job
        self.stored: dict[str, int] = {}  # iterations in the newest checkpoint, by job
        self.under_way: dict[str, cmd.Command] = {}  # orders without an answer, by job
        self.newest_generation = 0
        #: Leaders say GroupDissolved before they say what became of the job.
        self.announces = False
        self.restart(hosts or {rank: f"h{rank // 4}" for rank in range(1, num_ranks + 1)})

    # -- the coordinator's side --------------------------------------------------------

    def tell(self, event: ev.Event, after: float = 0.5) -> list[cmd.Command]:
        """Hand in an event, post the commands, check everything."""
        self.now += after
        orders = self.coordinator.handle(event, self.now)
        self.journal.append((self.now, event, orders))
        self._forget_answered(event)
        for order in orders:
            self._check_order(order, event)
            self._post(order)
        check_invariants(self.coordinator)
        return orders

    def job(self, name: str) -> JobRecord:
        return self.coordinator.jobs[name]

    def idle(self) -> set[int]:
        return {r for r, rank in self.coordinator.ranks.items() if rank.state is RankState.IDLE}

    def submit(self, name: str, **fields: object) -> list[cmd.Command]:
        return self.tell(ev.JobSubmitted(spec_of(name, **fields)))

    def give(self, **targets: int) -> list[cmd.Command]:
        """The policy changes its mind; a round passes."""
        self.policy.targets = targets
        return self.tell(ev.RoundElapsed())

    def replayed(self) -> list[list[cmd.Command]]:
        """The commands of a fresh coordinator for the journal's events."""
        fresh = Coordinator(self.policy, self.coordinator.round_s)
        return [fresh.handle(event, now) for now, event, _ in self.journal]

    # -- what the ranks can do ---------------------------------------------------------

    def possible_steps(self) -> list[tuple[str, object]]:
        """Everything that could happen next among the ranks, but for losses and failures."""
        steps: list[tuple[str, object]] = [("read", r) for r, box in self.inbox.items() if box]
        steps += [("deliver", r) for r, box in self.outbox.items() if box]
        for job in sorted({order.job for order in self.waiting.values()} | set(self.groups)):
            if self._formable(job) is not None:
                steps.append(("boundary", job))
        for job, order in self.orders.items():
            if isinstance(order, cmd.Pause | cmd.Stop):
                steps.append(("boundary", job))
        return steps

    def step(self, kind: str, what) -> None:
        {"read": self.read, "deliver": self.deliver, "boundary": self.boundary}[kind](what)

    def read(self, rank: int) -> None:
        """The rank takes the oldest command sent to it."""
        order = self.inbox[rank].popleft()
        mine = self._group_of(rank)
        if isinstance(order, cmd.Dismiss):
            waits = self.waiting.get(rank)
            if waits is not None and waits.generation == order.generation:
                self._give_up(rank)
        elif isinstance(order, cmd.Start) or rank in getattr(order, "joiners", ()):
            if mine is not None:
                assert mine.generation == order.generation, f"{rank} trains, but gets {order}"
            elif order.generation > self.left.get(rank, 0):
                self.waiting[rank] = order
        elif mine is not None and self.groups.get(order.job) is mine:
            if mine.generation != order.generation or isinstance(order, cmd.Pause | cmd.Stop):
                self.orders[order.job] = order
                self.told[order.job] = rank

    def deliver(self, rank: int) -> list[cmd.Command]:
        """The rank's oldest message reaches the coordinator."""
        return self.tell(self.outbox[rank].popleft())

    def boundary(self, job: str) -> None:
        """What was ordered for the job takes place."""
        order = self.orders.get(job)
        if isinstance(order, cmd.Pause | cmd.Stop):
            self.orders.pop(job)
            group = self.groups.pop(job)
            if isinstance(order, cmd.Pause):
                self.stored[job] = self.reached[job]
                answer = ev.JobPaused(job, group.generation, self.reached[job])
            else:
                answer = ev.JobStopped(job, group.generation)
            self._dissolve(group, job, answer)
            return
        order = self._formable(job)
        assert order is not None, f"{job}: nothing to form"
        self.orders.pop(job, None)
        group = self.groups.get(job)
        members = [rank for rank in order.members if rank not in self.lost]
        for rank in members:
            self.waiting.pop(rank, None)
        self.groups[job] = Group(order.generation, members)
        self._say(members[0], ev.GroupFormed(job, order.generation, tuple(members)))
        if isinstance(order, cmd.Start):
            self.reached[job] = self.stored.get(job, 0)
            self._report(job, order.known_iterations)
        else:
            for rank in group.members:
                if rank not in members:
                    self._release(rank, job, group.generation)

    def train(self, job: str, iterations: int = 1) -> None:
        """Complete iterations and send the report."""
        before = self.reached[job]
        self.reached[job] += iterations
        self._report(job, before)

    def store(self, job: str) -> None:
        """Write a checkpoint."""
        self.stored[job] = self.reached[job]

    def end(self, job: str) -> None:
        """The job meets its stop rule."""
        self.orders.pop(job, None)
        group = self.groups.pop(job)
        num = self.reached[job]
        done = ev.JobFinished(job, group.generation, num, num // 2, 1.0, "0", "0", "epochs")
        self._dissolve(group, job, done)

    def break_down(self, job: str) -> None:
        """User code raises in the group."""
        self.orders.pop(job, None)
        group = self.groups.pop(job)
        self._dissolve(group, job, ev.JobFailed(job, group.generation, group.members[0], "no"))

    def break_start(self, job: str, ranks_give_up: bool) -> None:
        """The first group cannot load the job; its ranks give up, or wait to be dismissed."""
        order = self._formable(job)
        members = [rank for rank in order.members if rank not in self.lost]
        self.broken.add(order.generation)
        self._say(members[0], ev.JobFailed(job, order.generation, members[-1], "cannot load"))
        for rank in members:
            if ranks_give_up:
                self._give_up(rank)

    def kill(self, rank: int) -> list[cmd.Command]:
        """A rank dies; what it had sent before arrives first."""
        self.lost.add(rank)
        self.inbox[rank].clear()
        self.waiting.pop(rank, None)
        for job, group in list(self.groups.items()):
            if rank in group.members:
                if self.told.get(job) == rank:
                    self.orders.pop(job, None)
                group.members.remove(rank)
                if not group.members:
                    del self.groups[job]
        while self.outbox[rank]:
            self.deliver(rank)
        if self.coordinator.is_shut_down:
            return []
        return self.tell(ev.RankLost(rank))

    def die_at_boundary(self, job: str) -> list[cmd.Command]:
        """The leavers have left, but the leader dies before the next group is formed."""
        order, group = self._formable(job), self.groups[job]
        for rank in order.leavers:
            if rank in group.members:
                group.members.remove(rank)
                self._release(rank, job, group.generation)
        return self.kill(order.members[0])

    def regroupable(self) -> list[str]:
        """Jobs that can change their group now and whose coming leader is in it."""
        jobs = [job for job in sorted(self.groups) if self._formable(job)]
        return [j for j in jobs if self.orders[j].members[0] in self.groups[j].members]

    def restart(self, hosts: Mapping[int, str]) -> list[cmd.Command]:
        """The run starts (again) on these ranks; what was under way is gone."""
        self.groups: dict[str, Group] = {}
        #: Orders that have reached a group's leader, by job.
        self.orders: dict[str, cmd.Command] = {}
        #: The member that received the order; if it dies before the boundary, nobody knows it.
        self.told: dict[str, int] = {}
        #: Newest generation that a rank left; orders for it are out of date.
        self.left: dict[int, int] = {}
        #: Generations that will not be formed because a member cannot load the job.
        self.broken: set[int] = set()
        #: Ranks that wait to join, each with the order that told it so.
        self.waiting: dict[int, cmd.Start | cmd.Regroup] = {}
        self.lost: set[int] = set()
        self.inbox: dict[int, deque] = {rank: deque() for rank in hosts}
        self.outbox: dict[int, deque] = {rank: deque() for rank in hosts}
        self.wake_at: float | None = None
        self.exit_code: int | None = None
        self.under_way.clear()
        return self.tell(ev.RunStarted(dict(hosts)), after=0.0 if not self.journal else 5.0)

    def startable(self) -> list[str]:
        """Jobs whose first group can be formed now."""
        starts = {o.job for o in self.waiting.values() if isinstance(o, cmd.Start)}
        return sorted(job for job in starts if job not in self.groups and self._formable(job))

    def story(self) -> str:
        """The last events and what came of them, for the message of a failed test."""
        return "\n".join(f"{now}: {event} -> {out}" for now, event, out in self.journal[-12:])

    # -- verbs for stories: prompt ranks -----------------------------------------------

    def form(self, job: str) -> list[cmd.Command]:
        """The ordered group is formed and its leader says so; leavers keep silent as yet."""
        self._read_all()
        self.boundary(job)
        return self._deliver_all_of(self.groups[job].members[0])

    def pause(self, job: str) -> list[cmd.Command]:
        """The ordered checkpoint is written; the leader says so and nothing else."""
        return self._leader_says(job, self.boundary)

    stop = pause

    def finish(self, job: str) -> list[cmd.Command]:
        """The job ends and its leader says so; no rank is released yet."""
        return self._leader_says(job, self.end)

    def fail(self, job: str) -> list[cmd.Command]:
        return self._leader_says(job, self.break_down)

    def release(self, *ranks: int) -> list[cmd.Command]:
        """These ranks (all: none named) report that they wait for orders."""
        self._read_all()
        orders: list[cmd.Command] = []
        for rank in ranks or [r for r, box in self.outbox.items() if box]:
            orders += self._deliver_all_of(rank)
        return orders

    def _leader_says(self, job: str, act) -> list[cmd.Command]:
        self._read_all()
        leader = self.groups[job].members[0]
        act(job)
        return self.deliver(leader)

    def _read_all(self) -> None:
        for rank, box in self.inbox.items():
            while box:
                self.read(rank)

    def _deliver_all_of(self, rank: int) -> list[cmd.Command]:
        orders: list[cmd.Command] = []
        while self.outbox[rank]:
            orders += self.deliver(rank)
        return orders

    # -- helpers -----------------------------------------------------------------------

    def _formable(self, job: str) -> cmd.Start | cmd.Regroup | None:
        """The order by which the job's next group can be formed now, if all are there."""
        order = self.orders.get(job)
        if job in self.groups:
            if not isinstance(order, cmd.Regroup):
                return None
            newcomers = set(order.joiners)
        else:
            starts = [o for o in self.waiting.values() if o.job == job]
            starts = [o for o in starts if isinstance(o, cmd.Start)]
            starts = [o for o in starts if o.generation not in self.broken]
            if not starts:
                return None
            order = min(starts, key=lambda o: (-o.generation, len(o.members)))
            newcomers = set(order.members)
        newcomers -= self.lost
        there = {r for r, o in self.waiting.items() if o.generation == order.generation}
        alive = [rank for rank in order.members if rank not in self.lost]
        return order if newcomers <= there and alive else None

    def _group_of(self, rank: int) -> Group | None:
        groups = [group for group in self.groups.values() if rank in group.members]
        assert len(groups) <= 1, f"rank {rank} is in two groups"
        return groups[0] if groups else None

    def _report(self, job: str, since: int) -> None:
        num, group = self.reached[job], self.groups[job]
        if num > since:
            losses = tuple(1.0 / k for k in range(since + 1, num + 1))
            self._say(
                group.members[0],
                ev.ProgressReported(
                    job, group.generation, since + 1, losses, num // 2, 1.0, len(group.members)
                ),
            )

    def _dissolve(self, group: Group, job: str, message: ev.Event) -> None:
        if self.announces:
            self._say(group.members[0], ev.GroupDissolved(job, group.generation))
        self._say(group.members[0], message)
        for rank in group.members:
            self._release(rank, job, group.generation)

    def _give_up(self, rank: int) -> None:
        order = self.waiting.pop(rank)
        self._release(rank, order.job, order.generation)

    def _release(self, rank: int, job: str, generation: int) -> None:
        self.left[rank] = generation
        self._say(rank, ev.RankReleased(rank, job, generation))

    def _say(self, rank: int, event: ev.Event) -> None:
        if rank not in self.lost:
            self.outbox[rank].append(event)

    def _post(self, order: cmd.Command) -> None:
        match order:
            case cmd.Start():
                ranks = order.members
            case cmd.Regroup():
                ranks = (order.members[0], *order.joiners)
            case cmd.Pause() | cmd.Stop():
                ranks = (order.leader,)
            case cmd.Dismiss():
                ranks = order.ranks
            case cmd.WakeAt():
                assert self.wake_at is None, "two WakeAt outstanding"
                self.wake_at, ranks = order.at, ()
            case cmd.Shutdown():
                self.exit_code, ranks = order.exit_code, ()
            case _:
                ranks = ()
        for rank in ranks:
            if rank not in self.lost:
                self.inbox[rank].append(order)

    def _forget_answered(self, event: ev.Event) -> None:
        if isinstance(event, ev.RoundElapsed):
            self.wake_at = None
        for name in list(self.under_way):
            state = self.job(name).state
            if state is JobState.RUNNING or state is JobState.WAITING or state.is_final:
                if not isinstance(event, ev.JobCancelled):
                    del self.under_way[name]
        # The record already shows orders given in the same breath.
        answered = (ev.GroupFormed, ev.JobPaused, ev.JobStopped, ev.JobFinished, ev.JobFailed)
        if isinstance(event, answered):
            self.under_way.pop(event.job, None)

    def _check_order(self, order: cmd.Command, event: ev.Event) -> None:
        if isinstance(order, cmd.Start | cmd.Regroup | cmd.Pause | cmd.Stop):
            before = self.under_way.get(order.job)
            if isinstance(event, ev.RankLost | ev.RankReleased) and isinstance(order, cmd.Start):
                # The last rank of the group went away, and the job begins anew at once.
                if before is not None and order.generation > self.newest_generation:
                    before = None
            if before is not None:
                # The same order again, for those that are left after a loss.
                assert type(before) is type(order), f"{order} while {before} is under way"
                assert before.generation == order.generation, f"{order} while {before}"
            elif isinstance(order, cmd.Start | cmd.Regroup):
                assert order.generation > self.newest_generation, f"{order}: generation not new"
                self.newest_generation = order.generation
            self.under_way[order.job] = order


def check_invariants(c: Coordinator) -> None:
    """Everything that must hold of the coordinator between two events."""
    assert c.ranks.idle == {r for r, rank in c.ranks.items() if rank.state is RankState.IDLE}
    assert c.ranks.lost == {r for r, rank in c.ranks.items() if rank.state is RankState.LOST}
    live = [record for record in c.jobs.values() if not record.state.is_final]
    assert list(c._live.values()) == live
    assert set(c._given) == {record.name for record in live if record.target > 0}
    ending = (JobState.FINISHING, JobState.STOPPING)
    assert c._ending == {record.name for record in live if record.state in ending}
    running = [record for record in live if record.state is JobState.RUNNING]
    too_large = {r.name for r in running if r.target < len(r.members) or r.is_cancel_pending}
    assert set(c._too_large) == too_large
    able = [r for r in live if r.state in (JobState.RUNNING, JobState.WAITING)]
    lacking = {r.name: r.target - len(r.members) for r in able if r.name not in too_large}
    assert c._lacking == {name: num for name, num in lacking.items() if num}
    assert c._num_lacking == sum(c._lacking.values())
    owner: dict[int, str] = {}
    for record in c.jobs.values():
        _check_record(c, record)
        for rank in {*record.members, *record.forming}:
            assert rank not in owner, f"rank {rank} is in {owner[rank]} and in {record.name}"
            owner[rank] = record.name
    on_their_way = {r for r, rank in c.ranks.items() if rank.job is not None and r not in owner}
    assert c.ranks.departing == on_their_way
    for number, rank in c.ranks.items():
        assert not rank.is_released or number in owner
        if rank.state in (RankState.IDLE, RankState.LOST):
            assert rank.job is None and number not in owner, f"rank {number}: {rank}"
        else:
            assert rank.job in c.jobs
            assert owner.get(number, rank.job) == rank.job
            if rank.state is RankState.BUSY:
                assert owner.get(number) == rank.job, f"rank {number} trains for nobody"
    usable = c.ranks.num_usable
    assert sum(len(record.members) for record in live) <= usable
    assert sum(record.target for record in live) <= usable
    assert all(record.generation <= c._last_generation for record in live)


def _check_record(c: Coordinator, record: JobRecord) -> None:
    """The states of a record, of its ranks and of its fields fit."""
    state, members, forming = record.state, record.members, record.forming
    assert len(set(members)) == len(members) and len(set(forming)) == len(forming)
    has_members = state in (
        JobState.RUNNING,
        JobState.REGROUPING,
        JobState.PAUSING,
        JobState.STOPPING,
        JobState.FINISHING,
    )
    is_forming = state in (JobState.STARTING, JobState.REGROUPING)
    assert bool(members) == has_members, f"{record.name}: {state} with members {members}"
    assert bool(forming) == is_forming, f"{record.name}: {state} while forming {forming}"
    for rank in members:
        stays = not forming or rank in forming
        wanted = RankState.BUSY if stays else RankState.LEAVING
        assert c.ranks[rank].state is wanted and c.ranks[rank].job == record.name
    for rank in set(forming) - set(members):
        assert c.ranks[rank].state is RankState.JOINING and c.ranks[rank].job == record.name
    if state is JobState.REGROUPING:
        assert forming[0] in members, f"{record.name}: nobody hands the state on"
    assert 0 <= record.target <= record.spec.worker_limit
    assert (record.finished_at is not None) == state.is_final
    if state.is_final:
        assert record.target == 0 and not record.is_cancel_pending
    assert record.rank_seconds >= 0 and record.largest_drop >= 0
