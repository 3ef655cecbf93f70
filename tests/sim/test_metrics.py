"""Measures of a run, by hand and by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcslaq.core import events as ev
from hpcslaq.sim.metrics import (
    Track,
    average_quality_loss,
    mean_normalised_loss,
    normalised_loss,
    summarise,
    tracks_of,
)
from hpcslaq.sim.simulator import Simulator
from tests.sim.pretend import PROMPT, EvenSplit, job_of


def track_of(times, losses, *, arrived_at=0.0, best=None, ended_at=None, name="a") -> Track:
    losses = np.asarray(losses, dtype=np.float64)
    best = losses.min() if best is None else best
    return Track(name, arrived_at, np.asarray(times, dtype=np.float64), losses, best, ended_at)


#: Loss 5 at 2 s, 3 at 4 s, 1 at 6 s: normalised 1, 0.5, 0.
SIMPLE = track_of([2.0, 4.0, 6.0], [5.0, 3.0, 1.0], ended_at=6.0)
#: Arrives at 4 s, loss 2 at 5 s; it would come down to 1.
LATE = track_of([5.0, 7.0], [2.0, 1.5], arrived_at=4.0, best=1.0, name="b")


def test_the_normalised_loss_is_a_staircase_from_1_to_0() -> None:
    at = np.array([0.0, 1.9, 2.0, 3.9, 4.0, 5.9, 6.0, 99.0])
    assert normalised_loss(SIMPLE, at).tolist() == [1, 1, 1, 1, 0.5, 0.5, 0, 0]


def test_losses_above_the_first_count_1_and_a_job_without_gain_counts_0() -> None:
    assert track_of([1, 2, 3], [2.0, 4.0, 1.0]).normalised().tolist() == [1, 1, 0]
    assert track_of([1, 2], [1.0, 1.0]).normalised().tolist() == [0, 0]
    assert track_of([], [], best=1.0).normalised().tolist() == []


@pytest.mark.parametrize(
    ("track", "fraction", "seconds"),
    [
        (SIMPLE, 0.5, 4.0),
        (SIMPLE, 0.51, 6.0),
        (SIMPLE, 1.0, 6.0),
        (LATE, 0.5, 3.0),  # from its arrival
        (LATE, 0.9, math.nan),
        (track_of([3.0], [1.0]), 0.9, 3.0),
        (track_of([], [], best=1.0), 0.5, math.nan),
    ],
)
def test_the_time_to_a_share_of_the_reduction_counts_from_arrival(track, fraction, seconds) -> None:
    assert track.time_to(fraction) == pytest.approx(seconds, nan_ok=True)


def test_a_share_is_reached_in_spite_of_rounding() -> None:
    losses = 0.1 + 0.9 * (1.0 - np.array([0.0, 0.3, 0.9, 1.0]))
    assert track_of([1, 2, 3, 4], losses).time_to(0.9) == 3.0


def test_the_mean_is_over_all_arrived_jobs_or_over_live_ones() -> None:
    at = np.array([3.0, 4.0, 5.0, 6.0, 8.0])
    assert mean_normalised_loss([SIMPLE, LATE], at).tolist() == [1, 0.75, 0.75, 0.5, 0.25]
    live = mean_normalised_loss([SIMPLE, LATE], at, is_live_only=True)
    assert live.tolist() == [1, 0.75, 0.75, 1, 0.5]
    assert np.isnan(mean_normalised_loss([LATE], np.array([3.0]))).all()


def test_the_time_average_of_one_job_is_the_area_of_its_staircase() -> None:
    assert average_quality_loss([SIMPLE], 8.0) == pytest.approx((4 * 1.0 + 2 * 0.5) / 8)
    assert average_quality_loss([LATE], 8.0) == pytest.approx((3 * 1.0 + 1 * 0.5) / 4)
    assert average_quality_loss([SIMPLE], 3.0) == 1.0
    assert math.isnan(average_quality_loss([], 3.0))
    assert math.isnan(average_quality_loss([LATE], 4.0))


@pytest.mark.parametrize("seed", range(10))
def test_the_exact_time_average_agrees_with_a_fine_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tracks = []
    for index in range(8):
        arrived = float(rng.uniform(0, 40))
        times = arrived + np.cumsum(rng.uniform(0.1, 5.0, 12))
        losses = np.sort(rng.uniform(0, 1, 12))[::-1]
        tracks.append(track_of(times, losses, arrived_at=arrived, name=f"j{index}"))
    first, until = min(track.arrived_at for track in tracks), 70.0
    grid = first + (until - first) * (np.arange(200_000) + 0.5) / 200_000
    brute = mean_normalised_loss(tracks, grid).mean()
    assert average_quality_loss(tracks, until) == pytest.approx(brute, rel=1e-4)


def test_a_summary_of_a_small_run() -> None:
    jobs = [job_of("a", max_workers=2), job_of("b", max_workers=2, arrival_s=3.0)]
    jobs += [job_of("c", arrival_s=5.0, chunks=8, min_workers=5)]
    result = Simulator(EvenSplit(), jobs, 4, 100.0, delays=PROMPT).run()
    summary = summarise(result.records.values(), result.tracks)
    assert (summary.num_jobs, summary.num_done, summary.num_rejected) == (3, 2, 1)
    assert (summary.mean_jct_s, summary.median_jct_s, summary.makespan_s) == (20.0, 20.0, 23.0)
    assert (summary.mean_wait_s, summary.num_regroups, summary.rank_seconds) == (0.0, 0, 80.0)
    # 1 / k has fallen by 80 % of 0.9 after iteration 4 (0.25 <= 0.1 + 0.2 * 0.9).
    assert summary.mean_time_to_s[0.5] == pytest.approx(2 * 2.0)
    assert summary.num_reached == {f: 2 for f in (0.5, 0.8, 0.9, 0.95, 0.99)}
    assert summary.mean_normalised_loss == average_quality_loss(result.tracks, 23.0)
    longer = summarise(result.records.values(), result.tracks, horizon_s=46.0)
    assert longer.mean_normalised_loss < summary.mean_normalised_loss


def test_a_summary_of_nothing_has_no_figures() -> None:
    summary = summarise([], [])
    assert summary.num_jobs == 0
    assert math.isnan(summary.mean_jct_s) and math.isnan(summary.mean_normalised_loss)
    assert math.isnan(summary.mean_time_to_s[0.9])


def test_iterations_reported_again_count_once() -> None:
    spec = job_of().spec

    def progress(first: int, *losses: float) -> ev.ProgressReported:
        return ev.ProgressReported("a", 1, first, losses, 0, 2.0 * len(losses), 1)

    journal = [
        (1.0, ev.JobSubmitted(spec), []),
        (6.0, progress(1, 9.0, 8.0), []),
        (9.0, progress(2, 8.0), []),
        (14.0, progress(2, 8.0, 7.0, 6.0), []),
        (20.0, ev.JobStopped("a", 1), []),
    ]
    (track,) = tracks_of(journal)
    assert track.times.tolist() == [4.0, 6.0, 12.0, 14.0]
    assert track.losses.tolist() == [9.0, 8.0, 7.0, 6.0]
    assert (track.arrived_at, track.best_loss, track.ended_at) == (1.0, 6.0, 20.0)
    assert tracks_of(journal, {"a": 2.0})[0].best_loss == 2.0
