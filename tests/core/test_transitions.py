"""The tables of legal states."""

from __future__ import annotations

import pytest

from hpcslaq.core.jobs import JobState
from hpcslaq.core.transitions import TRANSITIONS, Trigger, next_state
from hpcslaq.errors import InvalidTransition

S, T = JobState, Trigger


@pytest.mark.parametrize(
    ("state", "trigger", "target"),
    [
        (S.WAITING, T.ORDERED_START, S.STARTING),
        (S.STARTING, T.FORMED, S.RUNNING),
        (S.RUNNING, T.ORDERED_REGROUP, S.REGROUPING),
        (S.REGROUPING, T.FORMED, S.RUNNING),
        (S.REGROUPING, T.FINISHED, S.DONE),
        (S.PAUSING, T.PAUSED, S.WAITING),
        (S.STOPPING, T.LOST_ALL, S.CANCELLED),
        (S.REGROUPING, T.LOST_ALL, S.WAITING),
        (S.RUNNING, T.RESTARTED, S.WAITING),
        (S.DONE, T.CHECKPOINTED, S.DONE),
    ],
)
def test_a_legal_trigger_leads_where_the_table_says(state, trigger, target) -> None:
    assert next_state("a", state, trigger) is target


@pytest.mark.parametrize(
    ("state", "trigger", "text"),
    [
        (S.WAITING, T.FORMED, "a: 'group formed' is illegal while waiting"),
        (S.DONE, T.PROGRESSED, "illegal while done .legal: checkpoint written"),
        (S.REJECTED, T.CHECKPOINTED, "nothing, the job has ended"),
        (S.RUNNING, T.ORDERED_START, "legal: .*ordered pause, ordered regroup, ordered stop"),
    ],
)
def test_an_illegal_trigger_raises_with_the_story(state, trigger, text) -> None:
    with pytest.raises(InvalidTransition, match=text):
        next_state("a", state, trigger)


def test_final_states_are_never_left() -> None:
    assert all(target is state for (state, _), target in TRANSITIONS.items() if state.is_final)


def test_every_state_that_holds_ranks_survives_losses_and_restarts() -> None:
    for state in (S.STARTING, S.RUNNING, S.REGROUPING, S.PAUSING, S.STOPPING):
        assert (state, T.LOST_ALL) in TRANSITIONS and (state, T.RESTARTED) in TRANSITIONS


def test_every_state_is_reached_from_waiting() -> None:
    reached, frontier = {S.WAITING}, [S.WAITING]
    while frontier:
        state = frontier.pop()
        new = {target for (s, _), target in TRANSITIONS.items() if s is state} - reached
        reached |= new
        frontier += new
    assert reached == set(JobState)


def test_every_trigger_is_used() -> None:
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)
