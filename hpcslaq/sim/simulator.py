"""The simulator: the coordinator of live runs, driven in virtual time.

Only the ranks are pretended (`cluster`); admission, allocation, placement and the order of
commands are the coordinator's and the policy's own. What comes out is the same journal of
(now, event, commands) as of a live run, and in addition the exact time of every iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import DECISIVE, Coordinator
from hpcslaq.core.jobs import JobRecord
from hpcslaq.core.policy import NoForecast, Policy
from hpcslaq.errors import InvalidTransition, PolicyError
from hpcslaq.sim.cluster import Cluster
from hpcslaq.sim.engine import Engine
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.metrics import Track
from hpcslaq.sim.scaling import Delays

#: (now, event, commands): one entry of the journal.
Entry = tuple[float, ev.Event, list[cmd.Command]]

#: Rounds in a row in which nothing but the round happened, after which the run is given up.
MAX_EMPTY_ROUNDS = 10_000


class Reports(Enum):
    """When jobs report their completed iterations; in all cases also at boundaries and ends."""

    #: Before each event after which the policy decides: it knows all that has happened.
    BEFORE_DECISIONS = "before decisions"
    #: Before a round.
    BEFORE_ROUNDS = "before rounds"
    #: Never besides: enough for policies that do not look at losses, and fastest.
    AT_BOUNDARIES = "at boundaries"


#: Events before which all jobs report.
_NEWS_BEFORE: dict[Reports, tuple[type, ...]] = {
    Reports.BEFORE_DECISIONS: DECISIVE,
    Reports.BEFORE_ROUNDS: (ev.RoundElapsed,),
    Reports.AT_BOUNDARIES: (),
}


@dataclass(frozen=True, slots=True)
class SimResult:
    """What a simulated run gave."""

    policy: str
    num_ranks: int
    #: Exit code of the run; None when it was cut off at `max_s`.
    exit_code: int | None
    #: Virtual time of the last event, s.
    ended_at: float
    #: All jobs in order of arrival.
    records: Mapping[str, JobRecord]
    #: Exact times of all iterations, in order of arrival.
    tracks: Sequence[Track]
    #: Empty when the simulator was told not to keep it.
    journal: Sequence[Entry]
    num_events: int


class Simulator:
    """One run of `jobs` under `policy` on pretended ranks; `run` gives the result.

    `hosts[r]` is the host of rank r (default: `num_ranks` ranks, 32 on a host). `happenings`
    are further (time, event) pairs from outside: JobCancelled, WeightChanged, RankLost or
    StopRequested. `on_record(now, event, commands)` is called for every entry of the journal.
    The same arguments give the same result.
    """

    def __init__(
        self,
        policy: Policy,
        jobs: Iterable[SimJob],
        num_ranks: int,
        round_s: float,
        *,
        seed: int = 0,
        noise: float = 0.0,
        delays: Delays | None = None,
        hosts: Mapping[int, str] | None = None,
        happenings: Iterable[tuple[float, ev.Event]] = (),
        reports: Reports | None = None,
        max_s: float = math.inf,
        keep_journal: bool = True,
        on_record: Callable[[float, ev.Event, list[cmd.Command]], None] | None = None,
    ) -> None:
        self._jobs = sorted(jobs, key=lambda job: job.spec.arrival_s)
        self._hosts = hosts or {rank: f"h{(rank - 1) // 32}" for rank in range(1, num_ranks + 1)}
        self._happenings = tuple(happenings)
        self._max_s = max_s
        self._keep_journal = keep_journal
        self._on_record = on_record
        self._engine = Engine()
        self.coordinator = Coordinator(policy, round_s)
        if reports is None:
            is_blind = isinstance(self.coordinator.forecaster, NoForecast)
            reports = Reports.BEFORE_ROUNDS if is_blind else Reports.BEFORE_DECISIONS
        self._news_before = _NEWS_BEFORE[reports]
        delays = delays or Delays()
        self._cluster = Cluster(
            self._engine,
            self._tell,
            self._jobs,
            delays,
            hosts=self._hosts,
            noise=noise,
            seed=seed,
        )
        self._journal: list[Entry] = []
        self._exit_code: int | None = None
        self._num_events = 0
        self._num_empty_rounds = 0

    def run(self) -> SimResult:
        """Simulate until the run ends by itself or `max_s` is reached.

        Raises PolicyError where the policy breaks a bound, or lets all jobs wait for ever.
        """
        engine = self._engine
        self._tell(ev.RunStarted(self._hosts))
        self._plan_news()
        while self._exit_code is None and (at := engine.next_at()) <= self._max_s:
            if at == math.inf:
                raise InvalidTransition("the run has not ended, but nothing will ever happen")
            engine.step()
        return self._result()

    def _plan_news(self) -> None:
        """Plan all that comes from outside the ranks."""
        plan = self._engine.plan
        for job in self._jobs:
            plan(job.spec.arrival_s, partial(self._tell, ev.JobSubmitted(job.spec)))
        last = self._jobs[-1].spec.arrival_s if self._jobs else 0.0
        plan(last, partial(self._tell, ev.ArrivalsClosed()))
        for at, event in self._happenings:
            plan(at, partial(self._happen, event))

    def _happen(self, event: ev.Event) -> None:
        """Something from outside; what concerns an ended job comes too late and is dropped."""
        if isinstance(event, ev.RankLost):
            self._cluster.lose(event.rank)
            return
        if isinstance(event, ev.JobCancelled | ev.WeightChanged):
            record = self.coordinator.jobs.get(event.job)
            if record is None or record.state.is_final:
                return
        self._tell(event)

    def _wake(self) -> None:
        self._num_empty_rounds += 1
        if self._num_empty_rounds > MAX_EMPTY_ROUNDS:
            raise PolicyError(
                f"{self.coordinator.policy.name}: gave no workers for {MAX_EMPTY_ROUNDS} rounds"
            )
        self._tell(ev.RoundElapsed())

    def _tell(self, event: ev.Event) -> None:
        """Hand an event to the coordinator, keep the journal, pass the commands on."""
        if self._exit_code is not None:
            return
        if isinstance(event, self._news_before):
            self._cluster.report_progress()
        now = self._engine.now
        orders = self.coordinator.handle(event, now)
        self._num_events += 1
        if self._keep_journal:
            self._journal.append((now, event, orders))
        if self._on_record is not None:
            self._on_record(now, event, orders)
        for order in orders:
            if isinstance(order, cmd.WakeAt):
                self._engine.plan(order.at, self._wake, priority=1)
            elif isinstance(order, cmd.Shutdown):
                self._exit_code = order.exit_code
            elif not isinstance(order, cmd.Note):
                self._num_empty_rounds = 0
                self._cluster.carry_out(order)

    def _result(self) -> SimResult:
        records = self.coordinator.jobs
        tracks = [
            Track(
                name=job.name,
                arrived_at=job.spec.arrival_s,
                times=(times := self._cluster.jobs[job.name].iteration_times()[: job.num_losses]),
                losses=np.asarray(job.losses[: len(times)], dtype=np.float64),
                best_loss=float(np.min(job.losses[: job.num_iterations])),
                ended_at=records[job.name].finished_at,
            )
            for job in self._jobs
            if job.name in records
        ]
        return SimResult(
            policy=self.coordinator.policy.name,
            num_ranks=len(self._hosts),
            exit_code=self._exit_code,
            ended_at=self._engine.now,
            records=records,
            tracks=tracks,
            journal=self._journal,
            num_events=self._num_events,
        )
