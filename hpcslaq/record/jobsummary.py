"""The figures of one job, folded from the events and commands of a journal.

The run as a whole, and which entry concerns which job, is in `summary`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec, JobState
from hpcslaq.core.transitions import Trigger, next_state
from hpcslaq.errors import InvalidTransition

#: Losses kept for a sparkline.
NUM_RECENT = 64


@dataclass(frozen=True, slots=True)
class Segment:
    """For how long a job held which ranks; `end` is None while it still does."""

    start: float
    end: float | None
    members: tuple[int, ...]


class JobSummary:
    """How a job fared so far. Times are seconds since run start."""

    __slots__ = (
        "_members_since",
        "_past_segments",
        "checkpoint_at",
        "checkpoint_bytes",
        "checkpoint_iterations",
        "checkpoint_problem",
        "details",
        "epochs",
        "failure",
        "final_loss",
        "finished_at",
        "first_loss",
        "generation",
        "iterations",
        "last_loss",
        "loss_digest",
        "members",
        "metrics",
        "model_digest",
        "num_checkpoints",
        "num_pauses",
        "promised",
        "reason",
        "recent",
        "regroups",
        "series",
        "spec",
        "started_at",
        "state",
        "submitted_at",
        "usage_s",
        "weight",
    )

    def __init__(self, spec: JobSpec, now: float, *, keep_series: bool = False) -> None:
        self.spec = spec
        self.weight = spec.weight
        self.state = JobState.WAITING
        self.submitted_at = now
        #: When its first group was formed.
        self.started_at: float | None = None
        self.finished_at: float | None = None
        #: Ranks of the present group, leader first, and since when.
        self.members: tuple[int, ...] = ()
        self._members_since = now
        #: Ranks that were ordered to join and have not yet.
        self.promised: set[int] = set()
        self.generation = 0
        self.iterations = 0
        self.epochs = 0
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self.final_loss: float | None = None
        self.loss_digest: str | None = None
        self.model_digest: str | None = None
        self.metrics: dict[str, float] = {}
        #: Times that the group changed while the job was running; starts are not counted.
        self.regroups = 0
        #: Times that the job gave back all its ranks without having ended.
        self.num_pauses = 0
        self.num_checkpoints = 0
        self.checkpoint_bytes = 0
        self.checkpoint_at: float | None = None
        self.checkpoint_iterations = 0
        #: Why checkpoints cannot be written any more; empty while they can.
        self.checkpoint_problem = ""
        #: Why the job is in its final state.
        self.reason = ""
        self.failure: str | None = None
        self.details = ""
        self.usage_s: Counter[str] = Counter()
        #: The last losses, oldest first.
        self.recent: deque[float] = deque(maxlen=NUM_RECENT)
        #: (iteration, time, loss), or None where it is not kept.
        self.series: list[tuple[int, float, float]] | None = [] if keep_series else None
        self._past_segments: list[Segment] = []

    def move(self, trigger: Trigger, now: float) -> None:
        """Change the state as the table says; raises InvalidTransition and changes nothing."""
        state = next_state(self.spec.name, self.state, trigger)
        has_ended = state.is_final and not self.state.is_final
        self.state = state
        if has_ended:
            self.finished_at = now
            self.promised = set()
            self.close_group(now)

    def order(
        self, trigger: Trigger, now: float, generation: int, promised: tuple[int, ...]
    ) -> None:
        """The coordinator ordered something; `promised` ranks are to join."""
        self.move(trigger, now)
        self.generation = generation
        if promised:
            self.promised = set(promised)

    def reject(self, now: float, reason: str) -> None:
        """The job was not admitted."""
        self.state = JobState.REJECTED
        self.finished_at = now
        self.reason = reason

    def form(self, now: float, event: ev.GroupFormed) -> None:
        """A new group trains; its members replace the present ones."""
        if event.generation < self.generation:
            raise InvalidTransition(
                f"{self.spec.name}: generation {event.generation} formed after"
                f" {self.generation} was ordered"
            )
        # After a loss of ranks the survivors may go on without an order.
        if self.state is not JobState.RUNNING or not self.members:
            self.move(Trigger.FORMED, now)
        if self.members:
            self.regroups += 1
        else:
            # The state came from a checkpoint, perhaps older than what was reported last.
            self._rewind(event.iterations)
        if self.started_at is None:
            self.started_at = now
        self.generation = event.generation
        self.promised = set()
        if event.members != self.members:
            self.close_group(now)
            self.members = event.members
            self._members_since = now

    def lose(self, rank: int, now: float) -> None:
        """A rank died that belonged to the group or was to join it."""
        self.promised.discard(rank)
        if rank in self.members:
            rest = tuple(member for member in self.members if member != rank)
            self.close_group(now)
            self.members, self._members_since = rest, now
        if not self.members and not (self.state is JobState.STARTING and self.promised):
            self.promised = set()
            self.move(Trigger.LOST_ALL, now)

    def close_group(self, now: float) -> None:
        """The job holds no ranks from now on."""
        if self.members:
            self._past_segments.append(Segment(self._members_since, now, self.members))
        self.members = ()

    def fold(self, now: float, event: Any) -> None:
        """Take in an event of this job other than its first and its groups'."""
        _HANDLERS[type(event)](self, now, event)

    def _progress(self, now: float, event: ev.ProgressReported) -> None:
        self.move(Trigger.PROGRESSED, now)
        # After a restart the iterations since the checkpoint are trained, and reported, again.
        self._rewind(event.first_iteration - 1)
        count = len(event.losses)
        if self.series is not None:
            step = event.seconds / count if count else 0.0
            self.series += [
                (event.first_iteration + n, now - step * (count - 1 - n), loss)
                for n, loss in enumerate(event.losses)
            ]
        if count:
            if self.first_loss is None:
                self.first_loss = event.losses[0]
            self.last_loss = event.losses[-1]
            self.recent.extend(event.losses)
        self.iterations = event.first_iteration - 1 + count
        self.epochs = event.epochs

    def _rewind(self, iterations: int) -> None:
        """Forget what was reported after `iterations`."""
        surplus = self.iterations - iterations
        if surplus <= 0:
            return
        for _ in range(min(surplus, len(self.recent))):
            self.recent.pop()
        if self.series is not None:
            while self.series and self.series[-1][0] > iterations:
                self.series.pop()
        self.iterations = iterations

    def _checkpoint_age_s(self, now: float) -> float | None:
        """How much work a restart would repeat at most, s; None without a checkpoint or a need."""
        if self.checkpoint_at is None or self.state.is_final:
            return None
        return max(0.0, now - self.checkpoint_at)

    def _checkpoint(self, now: float, event: ev.CheckpointWritten) -> None:
        self.move(Trigger.CHECKPOINTED, now)
        self.num_checkpoints += 1
        self.checkpoint_bytes = event.num_bytes
        self.checkpoint_at = now
        self.checkpoint_iterations = event.iterations
        self.checkpoint_problem = ""

    def _checkpoint_failed(self, now: float, event: ev.CheckpointFailed) -> None:
        self.move(Trigger.CHECKPOINTED, now)
        self.checkpoint_problem = event.message

    def _dissolved(self, now: float, event: ev.GroupDissolved) -> None:
        self.move(Trigger.DISSOLVED, now)
        leader = self.members[:1]
        self.close_group(now)
        self.members, self._members_since = leader, now
        self.promised = set()

    def _paused(self, now: float, event: ev.JobPaused) -> None:
        self.move(Trigger.PAUSED, now)
        self.num_pauses += 1
        self.close_group(now)

    def _finished(self, now: float, event: ev.JobFinished) -> None:
        self.move(Trigger.FINISHED, now)
        self.iterations = event.iterations
        self.epochs = event.epochs
        self.final_loss = self.last_loss = event.final_loss
        self.loss_digest = event.loss_digest
        self.model_digest = event.model_digest
        self.metrics = dict(event.metrics)
        self.reason = event.reason

    def _stopped(self, now: float, event: ev.JobStopped) -> None:
        self.move(Trigger.STOPPED, now)

    def _failed(self, now: float, event: ev.JobFailed) -> None:
        self.move(Trigger.FAILED, now)
        self.reason = self.failure = event.message
        self.details = event.details

    @property
    def segments(self) -> list[Segment]:
        """Which ranks the job held when, in order; the last may be open."""
        if not self.members:
            return list(self._past_segments)
        return [*self._past_segments, Segment(self._members_since, None, self.members)]

    def rank_seconds(self, now: float) -> float:
        """Rank-seconds held until `now`."""
        return math.fsum(
            len(segment.members) * ((now if segment.end is None else segment.end) - segment.start)
            for segment in self.segments
        )

    @property
    def jct_s(self) -> float | None:
        """Seconds from the submission to the end; None while the job lives."""
        return None if self.finished_at is None else self.finished_at - self.submitted_at

    @property
    def queue_s(self) -> float | None:
        """Seconds from the submission to the first group; None before."""
        return None if self.started_at is None else self.started_at - self.submitted_at

    def to_json(self, now: float, *, series: bool = False) -> dict[str, Any]:
        """All figures as a JSON-able value with stable keys; non-finite numbers as None."""
        figures: dict[str, Any] = {
            "name": self.spec.name,
            "model": self.spec.model,
            "data": self.spec.data,
            "state": self.state.value,
            "reason": self.reason,
            "epochs": self.epochs,
            "iterations": self.iterations,
            "first_loss": finite(self.first_loss),
            "last_loss": finite(self.last_loss),
            "final_loss": finite(self.final_loss),
            "loss_digest": self.loss_digest,
            "model_digest": self.model_digest,
            "metrics": {name: finite(value) for name, value in self.metrics.items()},
            "weight": finite(self.weight),
            "regroups": self.regroups,
            "pauses": self.num_pauses,
            "members": list(self.members),
            "rank_seconds": self.rank_seconds(now),
            "submitted_at": self.submitted_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "jct_s": self.jct_s,
            "queue_s": self.queue_s,
            "checkpoints": self.num_checkpoints,
            "checkpoint_bytes": self.checkpoint_bytes,
            "checkpoint_at": self.checkpoint_at,
            "checkpoint_iterations": self.checkpoint_iterations,
            "checkpoint_age_s": self._checkpoint_age_s(now),
            "checkpoint_problem": self.checkpoint_problem or None,
            "usage_s": {key: finite(value) for key, value in sorted(self.usage_s.items())},
            "failure": self.failure,
            "details": self.details,
            "recent_losses": [finite(loss) for loss in self.recent],
            "segments": [[s.start, s.end, list(s.members)] for s in self.segments],
        }
        if series:
            figures["series"] = [[n, finite(at), finite(loss)] for n, at, loss in self.series or ()]
        return figures


def finite(value: float | None) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None


_HANDLERS: dict[type, Callable[[JobSummary, float, Any], None]] = {
    ev.ProgressReported: JobSummary._progress,
    ev.CheckpointWritten: JobSummary._checkpoint,
    ev.CheckpointFailed: JobSummary._checkpoint_failed,
    ev.GroupDissolved: JobSummary._dissolved,
    ev.JobPaused: JobSummary._paused,
    ev.JobFinished: JobSummary._finished,
    ev.JobStopped: JobSummary._stopped,
    ev.JobFailed: JobSummary._failed,
}
