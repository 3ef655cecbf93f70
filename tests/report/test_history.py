"""Loss curves in bounded memory, and the workers of jobs over time."""

from __future__ import annotations

import itertools
import math

import pytest

from hpcslaq.core.events import JobSubmitted, ProgressReported, RankLost, RunStarted
from hpcslaq.core.jobs import JobSpec
from hpcslaq.record.jobsummary import Segment
from hpcslaq.report.history import MAX_POINTS, History, LossCurve, worker_steps


def test_losses_of_one_report_are_spread_over_its_time() -> None:
    curve = LossCurve()
    curve.extend(2.0, 4.0, 1, (8.0, 4.0))
    assert curve.shown() == [(3.0, 1, 8.0), (4.0, 2, 4.0)]
    assert curve.normalised() == [(3.0, 1.0), (4.0, 0.0)]


def test_iterations_that_are_reported_again_are_left_out() -> None:
    curve = LossCurve()
    curve.extend(0.0, 2.0, 1, (8.0, 4.0))
    curve.extend(5.0, 7.0, 2, (4.0, 2.0))
    assert [(iteration, loss) for _, iteration, loss in curve.shown()] == [
        (1, 8.0),
        (2, 4.0),
        (3, 2.0),
    ]


@pytest.mark.parametrize("total", [MAX_POINTS, 2 * MAX_POINTS + 1, 50_000])
def test_a_long_curve_is_thinned_evenly_and_keeps_both_ends(total: int) -> None:
    curve = LossCurve()
    for first in range(1, total + 1, 7):
        losses = tuple(1.0 / n for n in range(first, min(first + 7, total + 1)))
        curve.extend(float(first), first + 1.0, first, losses)
    shown = curve.shown()
    assert len(shown) <= 2 * MAX_POINTS + 1
    assert (shown[0][1], shown[-1][1]) == (1, total)
    gaps = {b[1] - a[1] for a, b in itertools.pairwise(shown[1:-1])}
    assert len(gaps) <= 1
    assert (curve.most, curve.least) == (1.0, 1.0 / total)


def test_non_finite_losses_do_not_spoil_the_scale() -> None:
    curve = LossCurve()
    curve.extend(0.0, 3.0, 1, (2.0, math.nan, 1.0))
    assert curve.normalised() == [(1.0, 1.0), (3.0, 0.0)]


def test_a_flat_curve_has_no_normalised_form() -> None:
    curve = LossCurve()
    curve.extend(0.0, 2.0, 1, (3.0, 3.0))
    assert curve.normalised() == []


def test_capacity_falls_with_lost_ranks_and_returns_with_a_restart() -> None:
    history = History()
    history.fold(0.0, RunStarted({1: "a", 2: "a", 3: "b"}))
    history.fold(5.0, RankLost(2))
    history.fold(9.0, RunStarted({1: "a", 2: "a"}))
    assert history.capacity == [(0.0, 3), (5.0, 2), (9.0, 2)]
    assert (history.restarts, history.rank_losses, history.now) == ([9.0], [5.0], 9.0)


def test_progress_is_kept_by_job() -> None:
    history = History()
    history.fold(0.0, JobSubmitted(JobSpec("a", "m", "d", 1, 1)))
    history.fold(1.0, ProgressReported("a", 1, 1, (0.5,), 1, 1.0, 1))
    history.fold(1.0, ProgressReported("unknown", 1, 1, (0.5,), 1, 1.0, 1))
    assert {name: curve.last for name, curve in history.curves.items()} == {"a": 0.5}
    assert history.counts == {"JobSubmitted": 1, "ProgressReported": 2}


def test_worker_steps_change_where_any_group_changes() -> None:
    one = [Segment(1.0, 3.0, (1, 2)), Segment(3.0, None, (1,))]
    two = [Segment(3.0, 4.0, (2,))]
    times, counts = worker_steps([one, two], 6.0)
    assert times == [0.0, 1.0, 3.0, 4.0, 6.0]
    assert counts == [[0, 2, 1, 1, 0], [0, 0, 1, 0, 0]]


def test_worker_steps_without_groups_are_zero() -> None:
    assert worker_steps([[]], 2.0) == ([0.0, 2.0], [[0, 0]])
