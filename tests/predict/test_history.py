"""Histories of many jobs: when and with whom losses are taken in changes nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.predict.history import LossHistories
from hpcslaq.predict.track import Track, Tracks

AHEAD = np.array([0.5, 1.0, 10.0, 200.0, 1e5])
K = np.arange(1.0, 701.0)
RNG = np.random.default_rng(4)
CURVES = {
    "smooth": 1.0 / (0.1 * K + 1.0) + 0.3,
    "noisy": 0.95**K + 0.5 + 0.01 * RNG.standard_normal(len(K)),
    "flat": np.full(len(K), 0.7),
    "below zero": -np.log1p(K),
    "enormous": RNG.standard_normal(len(K)) * 1e200,
}
FLOORS = {"smooth": 0.35}


def answers(histories: LossHistories, names: list[str]) -> list[bytes]:
    found = histories.answer(names)
    return [array.tobytes() for array in (found.drops, found.widths, found.error, found.is_known)]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_jobs_taken_in_together_get_the_bits_that_they_get_alone(data: st.DataObject) -> None:
    together = LossHistories(AHEAD)
    alone = {name: LossHistories(AHEAD) for name in CURVES}
    at = dict.fromkeys(CURVES, 0)
    for name, floor in ((name, FLOORS.get(name)) for name in CURVES):
        together.add(name, floor)
        alone[name].add(name, floor)
    for _ in range(data.draw(st.integers(1, 12))):
        for name in data.draw(st.lists(st.sampled_from(sorted(CURVES)), max_size=8)):
            size = data.draw(st.sampled_from([1, 2, 5, 40, 150]))
            losses = tuple(CURVES[name][at[name] : at[name] + size].tolist())
            if losses:
                at[name] += len(losses)
                together.note(name, losses)
                alone[name].note(name, losses)
                alone[name].settle()
        if data.draw(st.booleans()):
            together.settle()
    together.settle()
    known = [name for name in sorted(CURVES) if at[name]]
    for index, name in enumerate(known):
        mine = together.answer(known)
        own = alone[name].answer([name])
        assert mine.drops[index].tobytes() == own.drops[0].tobytes()
        assert mine.widths[index].tobytes() == own.widths[0].tobytes()
        assert mine.error[index] == own.error[0]


@pytest.mark.parametrize("times", [1, 3])
def test_the_due_answer_is_of_the_report_at_which_it_was_due(times: int) -> None:
    """Whether answers are fetched after every report or at the end, the newest due one is the same.

    After 100 losses an answer is due with every fifth one.
    """
    eager, lazy = LossHistories(AHEAD), LossHistories(AHEAD)
    for histories in (eager, lazy):
        histories.add("a")
    losses = CURVES["noisy"].tolist()
    newest = None
    for index in range(103 * times):
        for histories in (eager, lazy):
            histories.note("a", (losses[index],))
        found = eager.settle()
        newest = found if found.jobs else newest
    assert newest is not None
    found = lazy.settle()
    assert found.jobs == ("a",)
    assert found.drops.tobytes() == newest.drops.tobytes()
    assert answers(lazy, ["a"]) == answers(eager, ["a"])
    assert found.drops.tobytes() != lazy.answer(["a"]).drops.tobytes()


def test_how_losses_are_split_into_reports_changes_nothing_below_the_gap() -> None:
    one, many = LossHistories(AHEAD), LossHistories(AHEAD)
    for histories, size in ((one, 1), (many, 16)):
        histories.add("a")
        for start in range(0, len(K), size):
            histories.note("a", tuple(CURVES["smooth"][start : start + size].tolist()))
        histories.settle()
    assert answers(one, ["a"]) == answers(many, ["a"])


def test_a_discarded_jobs_reports_are_forgotten_and_its_rows_serve_the_next() -> None:
    histories = LossHistories(AHEAD)
    for name in ("a", "b", "a2"):
        histories.add(name)
        histories.note(name, tuple(CURVES["smooth"][:100].tolist()))
        if name == "a":
            histories.settle()
            histories.discard("a")
    histories.discard("b")
    assert histories.num_waiting == 1
    found = histories.settle()
    assert found.jobs == ("a2",)
    fresh = LossHistories(AHEAD)
    fresh.add("c")
    fresh.note("c", tuple(CURVES["smooth"][:100].tolist()))
    assert found.drops.tobytes() == fresh.settle().drops.tobytes()


def test_rows_of_tracks_do_not_touch_each_other() -> None:
    tracks = Tracks()
    rows = np.array([tracks.add(FLOORS.get(name)) for name in CURVES])
    own = {name: Track(FLOORS.get(name)) for name in CURVES}
    for step in range(60):
        takes = [index for index in range(len(rows)) if (step + index) % 3]
        losses = np.array([list(CURVES.values())[index][step] for index in takes])
        tracks.observe(rows[takes], losses)
        for index, loss in zip(takes, losses.tolist(), strict=True):
            list(own.values())[index].observe(loss)
    drops, widths = tracks.drops(rows, AHEAD)
    for index, track in enumerate(own.values()):
        assert track.drops(AHEAD)[0].tobytes() == drops[index].tobytes()
        assert track.drops(AHEAD)[1].tobytes() == widths[index].tobytes()
