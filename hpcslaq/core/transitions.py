"""Legal states of a job and of a rank, as data.

`next_state` is the only door: the coordinator asks it before it changes anything, so
an illegal event raises with its story and leaves the state as it was.
"""

from __future__ import annotations

from enum import Enum

from hpcslaq.core.jobs import JobState
from hpcslaq.errors import InvalidTransition

S = JobState


class Trigger(Enum):
    """What moves a job: events from outside and the coordinator's own orders."""

    # Equal means identical; what Enum has is a Python function that hashes the name.
    __hash__ = object.__hash__

    ORDERED_START = "ordered start"
    ORDERED_REGROUP = "ordered regroup"
    ORDERED_PAUSE = "ordered pause"
    ORDERED_STOP = "ordered stop"
    FORMED = "group formed"
    DISSOLVED = "group dissolved"
    PROGRESSED = "progress reported"
    CHECKPOINTED = "checkpoint written"
    PAUSED = "job paused"
    FINISHED = "job finished"
    STOPPED = "job stopped"
    FAILED = "job failed"
    CANCELLED_IDLE = "cancelled without ranks"
    REFUSED = "refused by the policy"
    LOST_ALL = "lost all ranks"
    RESTARTED = "run restarted"

    __hash__ = object.__hash__  # as for JobState


#: (state, trigger) -> next state. What is not here is illegal.
TRANSITIONS: dict[tuple[JobState, Trigger], JobState] = {
    (S.WAITING, Trigger.ORDERED_START): S.STARTING,
    (S.WAITING, Trigger.CANCELLED_IDLE): S.CANCELLED,
    (S.WAITING, Trigger.REFUSED): S.REJECTED,
    (S.STARTING, Trigger.FORMED): S.RUNNING,
    (S.STARTING, Trigger.FAILED): S.FAILED,
    (S.RUNNING, Trigger.ORDERED_REGROUP): S.REGROUPING,
    (S.RUNNING, Trigger.ORDERED_PAUSE): S.PAUSING,
    (S.RUNNING, Trigger.ORDERED_STOP): S.STOPPING,
    (S.REGROUPING, Trigger.FORMED): S.RUNNING,
    (S.PAUSING, Trigger.PAUSED): S.WAITING,
    (S.STOPPING, Trigger.STOPPED): S.CANCELLED,
    (S.RUNNING, Trigger.DISSOLVED): S.FINISHING,
    (S.REGROUPING, Trigger.DISSOLVED): S.FINISHING,
    (S.PAUSING, Trigger.DISSOLVED): S.PAUSING,
    (S.STOPPING, Trigger.DISSOLVED): S.STOPPING,
    **{
        (state, trigger): target
        for state in (S.RUNNING, S.REGROUPING, S.PAUSING, S.STOPPING, S.FINISHING)
        for trigger, target in (
            (Trigger.PROGRESSED, state),
            (Trigger.CHECKPOINTED, state),
            (Trigger.FINISHED, S.DONE),
            (Trigger.FAILED, S.FAILED),
        )
    },
    **{
        (state, Trigger.LOST_ALL): S.WAITING
        for state in (S.STARTING, S.RUNNING, S.REGROUPING, S.PAUSING, S.FINISHING)
    },
    (S.STOPPING, Trigger.LOST_ALL): S.CANCELLED,
    **{
        (state, Trigger.RESTARTED): S.WAITING
        for state in (S.WAITING, S.STARTING, S.RUNNING, S.REGROUPING, S.PAUSING, S.FINISHING)
    },
    (S.STOPPING, Trigger.RESTARTED): S.CANCELLED,
    # A checkpoint is written off the critical path, so its report may come late.
    **{
        (state, Trigger.CHECKPOINTED): state
        for state in (S.STARTING, S.WAITING, S.DONE, S.FAILED, S.CANCELLED)
    },
}


class RankState(Enum):
    """States of a worker rank, as the coordinator knows them."""

    IDLE = "idle"  # waits for orders
    JOINING = "joining"  # promised to a group under formation
    BUSY = "busy"  # member of a group
    LEAVING = "leaving"  # member that is to leave at the boundary, or of a dissolved group
    LOST = "lost"


def next_state(job: str, state: JobState, trigger: Trigger) -> JobState:
    """The state to which `trigger` leads; raises InvalidTransition where it is illegal."""
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        legal = sorted(t.value for s, t in TRANSITIONS if s is state)
        raise InvalidTransition(
            f"{job}: {trigger.value!r} is illegal while {state.value}"
            f" (legal: {', '.join(legal) or 'nothing, the job has ended'})"
        ) from None
