"""What an allocation says of itself: its size, and when it ends.

The end is in the environment (newer Slurm) or asked of Slurm, and asked again now and then
because an administrator may extend it; nothing here waits for the answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hpcslaq.slurm.commands import Answer
from hpcslaq.slurm.query import time_left, time_left_question

log = logging.getLogger(__name__)

#: The end is asked for again after this long, s: a cheap question, but to a shared service.
ASK_EVERY_S = 300.0
#: After a question without an answer, s.
_ASK_AGAIN_S = 60.0
#: An answer this old, s, is not believed when it says to stop: the limit may have moved.
_FRESH_S = 30.0
#: How often an answer under way is looked for, s.
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Allocation:
    """A Slurm job as seen from inside."""

    job_id: str
    num_nodes: int
    #: Tasks of the allocation; the ranks may be more.
    num_tasks: int
    #: How often the job was requeued.
    num_restarts: int = 0
    #: When it ends, in seconds since 1970; None where the environment does not say.
    end_at: float | None = None


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation in which this process runs; None outside of one."""
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        return None
    end_at = _integer(environ, "SLURM_JOB_END_TIME", 0)
    return Allocation(
        job_id,
        num_nodes=_integer(environ, "SLURM_JOB_NUM_NODES", 1),
        num_tasks=_integer(environ, "SLURM_NTASKS", 1),
        num_restarts=_integer(environ, "SLURM_RESTART_COUNT", 0),
        end_at=float(end_at) if end_at else None,
    )


class Asked(Protocol):
    """A question under way (`commands.Question`)."""

    def poll(self) -> Answer | None:
        """The answer; None while there is none."""


class EndWatch:
    """Says when a run should stop, `before_s` before its allocation ends: call it often.

    Of a short allocation at most the last half is given up.
    `clock()` : seconds since 1970; `ask(job_id)` : starts a question to Slurm.
    """

    def __init__(
        self,
        allocation: Allocation,
        before_s: float,
        *,
        clock: Callable[[], float] = time.time,
        ask: Callable[[str], Asked] = time_left_question,
    ) -> None:
        self._job_id = allocation.job_id
        self._began_at = clock()
        self._wanted_s = before_s
        self._clock = clock
        self._ask = ask
        #: When the allocation ends, as far as is known.
        self.end_at = allocation.end_at
        self._question: Asked | None = None
        self._asked_at = -float("inf")
        #: Nothing is to be done before this time.
        self._next_at = clock() if self.end_at is None else self._next_look(clock(), ASK_EVERY_S)
        self._reason = ""

    def __call__(self) -> str:
        """Why the run should stop now; empty while it should not."""
        if self._reason or self._clock() < self._next_at:
            return self._reason
        now = self._clock()
        if self._question is not None:
            self._look(self._question, now)
        elif self._is_due(now) and now - self._asked_at < _FRESH_S:
            assert self.end_at is not None
            self._reason = f"the allocation ends in {max(0.0, self.end_at - now):.0f} s"
        else:
            self._question = self._ask(self._job_id)
            self._asked_at = now
            self._next_at = now + _LOOK_EVERY_S
        return self._reason

    def _look(self, question: Asked, now: float) -> None:
        answer = question.poll()
        if answer is None:
            self._next_at = now + _LOOK_EVERY_S
            return
        self._question = None
        left_s = time_left(answer)
        if left_s is not None:
            self.end_at = now + left_s
        elif answer.problem:
            log.warning("the end of the allocation is not known: %s", answer.problem)
        self._next_at = self._next_look(now, _ASK_AGAIN_S if left_s is None else ASK_EVERY_S)

    def _is_due(self, now: float) -> bool:
        return now >= self._due_at()

    def _next_look(self, now: float, pause_s: float) -> float:
        return max(now, min(now + pause_s, self._due_at()))

    def _due_at(self) -> float:
        """When the run should stop; infinite while the end is not known."""
        if self.end_at is None:
            return float("inf")
        whole_s = max(0.0, self.end_at - self._began_at)
        return self.end_at - min(self._wanted_s, whole_s / 2)


def _integer(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdigit() else otherwise
