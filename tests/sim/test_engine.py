"""The clock of virtual time."""

from __future__ import annotations

import math
import random

import pytest

from hpcslaq.sim.engine import Engine


def test_actions_happen_in_the_order_of_time_then_priority_then_planning() -> None:
    engine, done = Engine(), []
    plans = [(2.0, 0), (1.0, 1), (1.0, 0), (2.0, 0), (1.0, 0), (0.0, 5)]
    for number, (at, priority) in enumerate(plans):
        engine.plan(at, lambda number=number: done.append((engine.now, number)), priority)
    while engine.next_at() < math.inf:
        engine.step()
    assert done == [(0.0, 5), (1.0, 2), (1.0, 4), (1.0, 1), (2.0, 0), (2.0, 3)]


def test_an_action_may_plan_further_ones_even_for_now() -> None:
    engine, done = Engine(), []
    engine.plan(1.0, lambda: engine.plan(engine.now, lambda: done.append(engine.now)))
    engine.step()
    engine.step()
    assert done == [1.0] and engine.next_at() == math.inf


@pytest.mark.parametrize("at", [0.5, math.inf, math.nan])
def test_the_past_and_never_cannot_be_planned(at: float) -> None:
    engine = Engine()
    engine.plan(1.0, lambda: None)
    engine.step()
    with pytest.raises(ValueError, match="at: "):
        engine.plan(at, lambda: None)


def test_time_never_goes_back() -> None:
    engine, rng, seen = Engine(), random.Random(0), []

    def act() -> None:
        seen.append(engine.now)
        if len(seen) < 300:
            for _ in range(2):
                engine.plan(engine.now + rng.random(), act)

    engine.plan(0.0, act)
    while len(seen) < 300:
        engine.step()
    assert seen == sorted(seen)
