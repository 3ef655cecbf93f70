"""What a journal adds up to: the state and the figures of a run and of its jobs.

`RunSummary` folds one entry at a time, so the same object serves a finished run, a live
display and the coordinator itself. It keeps the events that the coordinator accepted:
one that is illegal in the present state (`core.transitions`) is counted and left out.
How a job fares is in `jobsummary`; pictures are the report's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.commands import Command
from hpcslaq.core.events import Event
from hpcslaq.core.jobs import JobState
from hpcslaq.core.transitions import Trigger
from hpcslaq.errors import InvalidTransition
from hpcslaq.record.codec import Entry, Kind
from hpcslaq.record.jobsummary import JobSummary, finite

#: Kinds of rank time that ranks report (`RankReleased.usage`).
BUCKETS = ("compute", "reduce", "regroup", "checkpoint", "control", "load")


class RunSummary:
    """The figures of one run; feed it with `fold`, read attributes or `to_json`.

    Times are seconds since run start. With `keep_series` every job keeps its whole
    (iteration, time, loss) series, else only its last losses.
    """

    def __init__(self, policy: str | None = None, *, keep_series: bool = False) -> None:
        self.policy = policy
        self._keep_series = keep_series
        #: Jobs by name, in the order of submission.
        self.jobs: dict[str, JobSummary] = {}
        #: Host by worker rank of the newest start.
        self.hosts: dict[int, str] = {}
        #: Reason by rank that was lost since the newest start.
        self.lost: dict[int, str] = {}
        self.now = 0.0
        self.first_at: float | None = None
        #: Starts of the run: 1, and one more for each restart.
        self.incarnations = 0
        self.num_events = 0
        self.num_commands = 0
        #: Entries that were illegal when they came: refused submissions, late cancels, ...
        self.num_ignored = 0
        self.regroup_s = 0.0
        self.usage_s: Counter[str] = Counter()
        self.stop_reason: str | None = None
        self.exit_code: int | None = None
        #: When each live rank became available / was promised to its present group.
        self._up_since: dict[int, float] = {}
        self._busy_since: dict[int, float] = {}
        #: Rank-seconds of availability and of membership that are over.
        self._up_s = 0.0
        self._busy_s = 0.0

    def fold(self, kind: Kind, now: float, item: Event | Command) -> None:
        """Take in one journal entry; O(1), but for starts of the run."""
        if kind is Kind.EVENT:
            self.num_events += 1
        else:
            self.num_commands += 1
        if self.first_at is None:
            self.first_at = now
        handler = _HANDLERS.get(type(item))
        if handler is not None:
            try:
                is_taken = handler(self, now, item)
            except InvalidTransition:
                is_taken = False
            self.num_ignored += not is_taken
        # Last: a restart must know until when the run before it was seen.
        self.now = max(self.now, now)

    def fold_all(self, entries: Iterable[Entry]) -> None:
        """Take in many entries, for example `read_journal(path)`."""
        for entry in entries:
            self.fold(*entry)

    @property
    def wall_s(self) -> float:
        """Seconds from the first to the last entry."""
        return 0.0 if self.first_at is None else self.now - self.first_at

    @property
    def makespan_s(self) -> float | None:
        """Seconds from the first submission to the last end; None until all jobs ended."""
        ends = [job.finished_at for job in self.jobs.values()]
        if not ends or not all(job.state.is_final for job in self.jobs.values()):
            return None
        begin = min(job.submitted_at for job in self.jobs.values())
        return max(end for end in ends if end is not None) - begin

    @property
    def rank_seconds(self) -> float:
        """Rank-seconds for which worker ranks were available so far."""
        return self._up_s + sum(self.now - since for since in self._up_since.values())

    @property
    def idle_s(self) -> float:
        """Rank-seconds for which available ranks belonged to no group."""
        busy = self._busy_s + sum(self.now - since for since in self._busy_since.values())
        return max(0.0, self.rank_seconds - busy)

    @property
    def state(self) -> str:
        """`waiting` for a start, `running`, `stopping` or `ended`."""
        if self.exit_code is not None:
            return "ended"
        if self.incarnations == 0:
            return "waiting"
        return "running" if self.stop_reason is None else "stopping"

    def to_json(self, *, series: bool = False) -> dict[str, Any]:
        """All figures as one JSON-able value with stable keys; non-finite numbers as None.

        With `series` each job also has `series`, its (iteration, time, loss) triples.
        """
        counts = Counter(job.state.value for job in self.jobs.values())
        return {
            "policy": self.policy,
            "state": self.state,
            "exit_code": self.exit_code,
            "stop_reason": self.stop_reason,
            "ranks": len(self.hosts) + 1 if self.hosts else 0,
            "workers": len(self.hosts),
            "lost_ranks": {str(rank): reason for rank, reason in sorted(self.lost.items())},
            "wall_s": self.wall_s,
            "makespan_s": self.makespan_s,
            "incarnations": self.incarnations,
            "regroups": sum(job.regroups for job in self.jobs.values()),
            "pauses": sum(job.num_pauses for job in self.jobs.values()),
            "regroup_s": finite(self.regroup_s),
            "rank_seconds": self.rank_seconds,
            "usage_s": {
                **dict.fromkeys(BUCKETS, 0.0),
                **{key: finite(value) for key, value in sorted(self.usage_s.items())},
                "idle": self.idle_s,
            },
            "events": self.num_events,
            "commands": self.num_commands,
            "ignored": self.num_ignored,
            "counts": {state.value: counts.get(state.value, 0) for state in JobState},
            "jobs": [job.to_json(self.now, series=series) for job in self.jobs.values()],
        }

    def _run_started(self, now: float, event: ev.RunStarted) -> bool:
        # What ran before a restart ended, at the latest, when it was last heard of.
        for rank in list(self._up_since):
            self._take_down(rank, self.now)
        for job in self.jobs.values():
            if not job.state.is_final:
                job.close_group(self.now)
                job.move(Trigger.RESTARTED, self.now)
        self.incarnations += 1
        self.hosts = dict(event.hosts)
        self.lost = {}
        self.stop_reason = self.exit_code = None
        self._up_since = dict.fromkeys(self.hosts, now)
        return True

    def _job_submitted(self, now: float, event: ev.JobSubmitted) -> bool:
        if event.spec.name in self.jobs:
            return False
        self.jobs[event.spec.name] = JobSummary(event.spec, now, keep_series=self._keep_series)
        return True

    def _reject(self, now: float, command: cmd.Reject) -> bool:
        job = self.jobs.get(command.job)
        if job is None or job.state is not JobState.WAITING:
            return False
        job.reject(now, command.reason)
        return True

    def _cancelled(self, now: float, event: ev.JobCancelled) -> bool:
        job = self.jobs.get(event.job)
        if job is None or job.state.is_final:
            return False
        job.reason = event.reason or "cancelled"
        if job.state is JobState.WAITING:
            job.move(Trigger.CANCELLED_IDLE, now)
        return True

    def _weight_changed(self, now: float, event: ev.WeightChanged) -> bool:
        job = self.jobs.get(event.job)
        if job is None or job.state.is_final:
            return False
        job.weight = event.weight
        return True

    def _start(self, now: float, command: cmd.Start) -> bool:
        return self._order(now, command, Trigger.ORDERED_START, command.members)

    def _regroup(self, now: float, command: cmd.Regroup) -> bool:
        return self._order(now, command, Trigger.ORDERED_REGROUP, command.joiners)

    def _pause(self, now: float, command: cmd.Pause) -> bool:
        return self._order(now, command, Trigger.ORDERED_PAUSE)

    def _stop(self, now: float, command: cmd.Stop) -> bool:
        return self._order(now, command, Trigger.ORDERED_STOP)

    def _order(
        self,
        now: float,
        command: cmd.Start | cmd.Regroup | cmd.Pause | cmd.Stop,
        trigger: Trigger,
        promised: tuple[int, ...] = (),
    ) -> bool:
        job = self.jobs.get(command.job)
        if job is None:
            return False
        job.order(trigger, now, command.generation, promised)
        for rank in promised:
            self._busy_since.setdefault(rank, now)
        return True

    def _dismiss(self, now: float, command: cmd.Dismiss) -> bool:
        job = self.jobs.get(command.job)
        if job is None:
            return False
        job.promised -= set(command.ranks)
        # The first group of the job will not be formed any more.
        if job.state is JobState.STARTING and not job.promised:
            job.move(Trigger.LOST_ALL, now)
        return True

    def _formed(self, now: float, event: ev.GroupFormed) -> bool:
        job = self.jobs.get(event.job)
        if job is None:
            return False
        job.form(now, event)
        for rank in event.members:
            self._busy_since.setdefault(rank, now)
        self.regroup_s += event.seconds
        return True

    def _job_event(self, now: float, event: Any) -> bool:
        job = self.jobs.get(event.job)
        if job is None:
            return False
        job.fold(now, event)
        return True

    def _released(self, now: float, event: ev.RankReleased) -> bool:
        since = self._busy_since.pop(event.rank, None)
        if since is not None:
            self._busy_s += max(0.0, now - since)
        self.usage_s.update(event.usage)
        job = self.jobs.get(event.job)
        if job is not None:
            job.usage_s.update(event.usage)
        return True

    def _rank_lost(self, now: float, event: ev.RankLost) -> bool:
        if event.rank not in self._up_since:
            return False
        self.lost[event.rank] = event.reason
        self._take_down(event.rank, now)
        for job in self.jobs.values():
            if event.rank in job.members or event.rank in job.promised:
                job.lose(event.rank, now)
        return True

    def _take_down(self, rank: int, now: float) -> None:
        since = self._busy_since.pop(rank, None)
        if since is not None:
            self._busy_s += max(0.0, now - since)
        self._up_s += max(0.0, now - self._up_since.pop(rank))

    def _stop_requested(self, now: float, event: ev.StopRequested) -> bool:
        self.stop_reason = event.reason
        return True

    def _shutdown(self, now: float, command: cmd.Shutdown) -> bool:
        self.exit_code = command.exit_code
        return True


_HANDLERS: dict[type, Callable[[RunSummary, float, Any], bool]] = {
    ev.RunStarted: RunSummary._run_started,
    ev.JobSubmitted: RunSummary._job_submitted,
    ev.JobCancelled: RunSummary._cancelled,
    ev.WeightChanged: RunSummary._weight_changed,
    ev.GroupFormed: RunSummary._formed,
    ev.GroupDissolved: RunSummary._job_event,
    ev.ProgressReported: RunSummary._job_event,
    ev.CheckpointWritten: RunSummary._job_event,
    ev.CheckpointFailed: RunSummary._job_event,
    ev.JobPaused: RunSummary._job_event,
    ev.JobFinished: RunSummary._job_event,
    ev.JobStopped: RunSummary._job_event,
    ev.JobFailed: RunSummary._job_event,
    ev.RankReleased: RunSummary._released,
    ev.RankLost: RunSummary._rank_lost,
    ev.StopRequested: RunSummary._stop_requested,
    cmd.Start: RunSummary._start,
    cmd.Regroup: RunSummary._regroup,
    cmd.Pause: RunSummary._pause,
    cmd.Stop: RunSummary._stop,
    cmd.Dismiss: RunSummary._dismiss,
    cmd.Reject: RunSummary._reject,
    cmd.Shutdown: RunSummary._shutdown,
}
