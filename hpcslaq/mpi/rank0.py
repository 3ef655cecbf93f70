"""The live driver: rank 0 turns messages, timers and signals into events and back.

One tick: take what has happened, journal it, hand it to the coordinator, send the
orders. It never computes for a job and never enters a job's communicator, so a tick
is bounded; ticks are timed and reported. What to do is `hpcslaq.core.coordinator`'s.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.jobs import JobSpec, JobState
from hpcslaq.mpi.arbiter import Arbiter
from hpcslaq.mpi.channel import ACTIVE_PAUSE_S, Backoff, Channel
from hpcslaq.mpi.messages import (
    TAG_EVENT,
    TAG_ORDER,
    Came,
    End,
    Farewell,
    Join,
    Known,
    Lead,
    Succeeded,
)
from hpcslaq.mpi.requests import RequestDesk
from hpcslaq.record.journal import JournalWriter

log = logging.getLogger(__name__)

#: Messages handled in one tick at the most, so that a flood cannot delay the timers, and the time
#: after which a tick takes no further message or timer, s.
_MESSAGES_PER_TICK = 64
_TICK_S = 10e-3
#: From so many arrivals on that are due together, the policy decides after the last only.
_CROWD = 32
#: Ticks kept for the percentiles.
_TICKS_KEPT = 100_000
#: How long rank 0 waits for the workers' farewells, s.
_FAREWELL_S = 10.0
#: Time between two looks for ranks that have died, s.
_LOOK_EVERY_S = 0.02


@dataclass(slots=True)
class TickTimes:
    """Durations of the ticks in which something happened, s."""

    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=_TICKS_KEPT))

    def percentile(self, share: float) -> float:
        """The duration below which `share` (0 to 1) of the ticks lie; 0 without ticks."""
        if not self.durations_s:
            return 0.0
        ordered = sorted(self.durations_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Rank0:
    """Drives a coordinator over the control channel until it orders the shutdown.

    `arrivals` : jobs still to be submitted, any order; `data_paths` : prepared data
    directory by data key; `desk` : requests from outside; `clock()` : seconds since run start;
    `stop_reason()` : non-empty once the run is to end early; `end_process(rank)` : called for a
    lost rank, which may only be stopped; `watch()` : called again and
    again; `log_failure(failed)` : writes it down for people.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        channel: Channel,
        journal: JournalWriter,
        *,
        arrivals: Iterable[JobSpec],
        data_paths: Mapping[str, str],
        desk: RequestDesk,
        clock: Callable[[], float],
        stop_reason: Callable[[], str],
        end_process: Callable[[int], None] = lambda rank: None,
        watch: Callable[[], None] = lambda: None,
        log_failure: Callable[[ev.JobFailed], None] = lambda failed: None,
    ) -> None:
        self._coordinator = coordinator
        self._channel = channel
        self._journal = journal
        self._data_paths = data_paths
        self._desk = desk
        self._clock = clock
        self._stop_reason = stop_reason
        self._end_process = end_process
        self._watch = watch
        self._log_failure = log_failure
        #: Why the run ends early; empty while it does not.
        self.stop_reason = ""
        #: Since when the journal cannot be written (time.monotonic); None: it can.
        self._unwritten_since: float | None = None
        #: When to look next for the dead (time.monotonic).
        self._look_at = 0.0
        #: Ranks whose death the coordinator knows.
        self._mourned: set[int] = set()
        self._arbiter = Arbiter(channel)
        #: Requests took all of the last tick: the next one begins with messages.
        self._is_turn_of_messages = False
        #: (due, number, event), the number keeping equal times in order of entry.
        self._timers: list[tuple[float, int, ev.Event]] = []
        self._numbers = itertools.count()
        self._last_arrival_s = 0.0
        for spec, is_followed in _arrivals(arrivals, clock()):
            self._at(spec.arrival_s, ev.JobSubmitted(spec, is_followed))
            self._last_arrival_s = max(self._last_arrival_s, spec.arrival_s)
        if not desk.is_serving:
            self._at(self._last_arrival_s, ev.ArrivalsClosed())
        self.exit_code: int | None = None
        self.ticks = TickTimes()
        self.farewells: dict[int, Farewell] = {}

    def run(self, hosts: Mapping[int, str]) -> int:
        """Serve until the coordinator orders the shutdown; the run's exit code."""
        self._feed(ev.RunStarted(dict(hosts)))
        backoff = Backoff(ACTIVE_PAUSE_S)
        while self.exit_code is None:
            begin = time.perf_counter()
            if self._tick():
                self._flush()
                self.ticks.durations_s.append(time.perf_counter() - begin)
                backoff.reset()
            else:
                backoff.pause()
        self._dismiss_all(sorted(hosts))
        return self.exit_code

    @property
    def lost(self) -> set[int]:
        """Ranks that have died in this start of the run."""
        return set(self._channel.lost)

    def _tick(self) -> bool:
        """Hand in what has happened since the last tick; whether anything had."""
        num_events = 0
        self._watch()
        reason = self._stop_reason()
        if reason and not self.stop_reason:
            self.stop_reason = reason
            log.warning("stopping early: %s", reason)
            self._feed(ev.StopRequested(reason))
            num_events += 1
        until = time.perf_counter() + _TICK_S
        if not self._is_turn_of_messages:
            num_events += self._take_requests()
        # Where requests took all of this tick, messages come first in the next.
        self._is_turn_of_messages = time.perf_counter() > until
        if not self._is_turn_of_messages:
            num_events += self._take_messages(until)
        self._arbiter.settle(self._mourned)
        return num_events + self._take_timers(until) > 0

    def _take_messages(self, until: float) -> int:
        """Hand in what the ranks say, one thing at least and not long after `until`; how much."""
        dead = self._find_dead()
        for num_events in range(_MESSAGES_PER_TICK):
            message = self._channel.poll(TAG_EVENT)
            if message is None:
                # All that the dead had said has been taken in.
                return num_events + self._mourn(dead)
            self._take(message)
            if time.perf_counter() > until:
                return num_events + 1
        return _MESSAGES_PER_TICK

    def _take_timers(self, until: float) -> int:
        """Hand in what is due, one thing at least and not long after `until`; how much."""
        now, num_events = self._clock(), 0
        while self._timers and self._timers[0][0] <= now and self.exit_code is None:
            self._feed(heapq.heappop(self._timers)[2])
            num_events += 1
            if time.perf_counter() > until:
                break
        return num_events

    def _find_dead(self) -> set[int]:
        """Ranks that have died and of whom the coordinator does not know it yet."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_EVERY_S
            self._channel.look()
        return self._channel.lost - self._mourned

    def _mourn(self, dead: set[int]) -> int:
        for rank in sorted(dead):
            self._channel.bury(rank)
            self._mourned.add(rank)
            self._end_process(rank)
            log.warning("rank %d is lost", rank)
            self._feed(ev.RankLost(rank, "its process died or stopped"))
        return len(dead)

    def _take(self, message: ev.Event | Succeeded | Came) -> None:
        """Hand in what a worker has sent."""
        if isinstance(message, Came):
            self._arbiter.note(message)
            return
        if not isinstance(message, Succeeded):
            self._feed(message)
            return
        # Whether the old leader's report has come, only this process knows.
        formed = message.formed
        record = self._coordinator.jobs[formed.job]
        is_expected = record.state in (JobState.STARTING, JobState.REGROUPING)
        if is_expected and record.generation == formed.generation:
            self._feed(formed)
        known = Known(formed.generation, self._coordinator.jobs[formed.job].iterations)
        self._channel.send(message.rank, TAG_ORDER, known)

    def _take_requests(self) -> int:
        """Hand in what was asked for from outside; how much."""
        num_events = 0
        for name, event in self._desk.events(self._clock()):
            if self.exit_code is not None:
                break  # the request waits for the next start of the run
            if isinstance(event, ev.ArrivalsClosed):
                self._at(self._last_arrival_s, event)
            else:
                self._feed(event)
                if not self._flush():
                    self._desk.keep(name)
                    continue
            self._desk.done(name)
            num_events += 1
        return num_events

    def _feed(self, event: ev.Event) -> None:
        """Journal one event, hand it to the coordinator, carry out its orders."""
        if self.exit_code is not None:
            return
        now = self._clock()
        self._journal.append(now, event)
        if isinstance(event, ev.JobFailed):
            self._log_failure(event)
        for order in self._coordinator.handle(event, now):
            self._journal.append(now, order)
            self._carry_out(order)

    def _flush(self) -> bool:
        """Write the journal; while the disk is full its lines wait in memory. Whether it could.

        What is lost if the run ends meanwhile is only what happened since: the next start goes
        on from the checkpoints.
        """
        try:
            self._journal.flush()
        except OSError as error:
            if self._unwritten_since is None:
                self._unwritten_since = time.monotonic()
                log.warning("journal not written, the run goes on: %s", error)
            return False
        if self._unwritten_since is not None:
            seconds = time.monotonic() - self._unwritten_since
            log.warning("journal written again after %.0f s", seconds)
            self._unwritten_since = None
        return True

    def _carry_out(self, order: cmd.Command) -> None:
        send = self._channel.send
        match order:
            case cmd.Start():
                spec, path = self._job(order.job)
                leader, *others = order.members
                lead = Lead(
                    spec,
                    path,
                    order.generation,
                    order.members,
                    order.known_iterations,
                    order.stored_iterations,
                )
                send(leader, TAG_ORDER, lead)
                join = Join(spec, path, order.generation, order.members, leader)
                for rank in others:
                    send(rank, TAG_ORDER, join)
            case cmd.Regroup():
                spec, path = self._job(order.job)
                leader = self._coordinator.jobs[order.job].members[0]
                join = Join(spec, path, order.generation, order.members, leader)
                for rank in order.joiners:
                    send(rank, TAG_ORDER, join)
                # Another than the coming leader only after the loss of one.
                for rank in {leader, order.members[0]}:
                    send(rank, TAG_ORDER, order)
            case cmd.Pause() | cmd.Stop():
                send(order.leader, TAG_ORDER, order)
            case cmd.Dismiss():
                for rank in order.ranks:
                    send(rank, TAG_ORDER, order)
            case cmd.WakeAt():
                self._at(order.at, ev.RoundElapsed())
            case cmd.Reject():
                log.warning("%s: rejected: %s", order.job, order.reason)
            case cmd.Shutdown():
                self.exit_code = order.exit_code

    def _job(self, name: str) -> tuple[JobSpec, str]:
        spec = self._coordinator.jobs[name].spec
        path = self._desk.data_path(name) or self._data_paths.get(spec.data)
        # Without its data a job fails where it is started, and the others go on.
        return spec, path or f"(lost with the request by which {name} came)"

    def _at(self, due: float, event: ev.Event) -> None:
        heapq.heappush(self._timers, (due, next(self._numbers), event))

    def _dismiss_all(self, ranks: list[int]) -> None:
        """Tell the workers to end, and collect their farewells."""
        assert self.exit_code is not None
        lost = self._channel.lost
        end = End(self.exit_code)
        for rank in ranks:
            self._channel.send(rank, TAG_ORDER, end)
        backoff, until = Backoff(ACTIVE_PAUSE_S), time.monotonic() + _FAREWELL_S
        while not {*self.farewells, *lost} >= set(ranks) and time.monotonic() < until:
            self._channel.look()
            message = self._channel.poll(TAG_EVENT)
            if isinstance(message, Farewell):
                self.farewells[message.rank] = message
            elif message is None:
                backoff.pause()
        missing = sorted(set(ranks) - set(self.farewells) - lost)
        if missing:
            log.warning("no farewell from ranks %s within %g s", missing, _FAREWELL_S)
        self._channel.flush(_FAREWELL_S)


def _arrivals(specs: Iterable[JobSpec], now: float) -> Iterator[tuple[JobSpec, bool]]:
    """The jobs in order of arrival, each with whether the policy is to wait for the next one.

    It does where a crowd arrives together; what is overdue at `now` arrives then.
    """
    ordered = sorted(specs, key=lambda spec: spec.arrival_s)
    for _, group in itertools.groupby(ordered, key=lambda spec: max(spec.arrival_s, now)):
        jobs = list(group)
        is_crowd = len(jobs) >= _CROWD
        for place, spec in enumerate(jobs, 1):
            yield spec, is_crowd and place < len(jobs)
