"""The drop of a loss: known curves, the edges, the interval, one step at a time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core.jobs import Convergence
from hpcslaq.predict.curves import fit_curve
from hpcslaq.predict.track import FIRST, Track

TEN = np.array([10.0])


def follow(losses: np.ndarray, floor: float | None = None) -> Track:
    track = Track(floor)
    for loss in losses.tolist():
        track.observe(loss)
    return track


def drop(losses: np.ndarray, floor: float | None = None) -> float:
    return float(follow(losses, floor).drops(TEN)[0][0])


K = np.arange(1.0, 201.0)


@pytest.mark.parametrize(
    ("curve", "num"),
    [
        (1.0 / (0.2 * K + 1.0) + 0.4, 60),
        (0.95**K + 0.5, 40),
        ((K + 3.0) ** -0.5 + 0.2, 60),
        (5.0 - np.log(K + 2.0) * 0.5, 100),
        (-np.log1p(K), 60),
    ],
    ids=["hyperbola", "geometric", "square root", "logarithm", "below zero"],
)
def test_the_drop_of_a_smooth_curve_is_found_within_a_tenth(curve: np.ndarray, num: int) -> None:
    assert drop(curve[:num]) == pytest.approx(curve[num - 1] - curve[num + 9], rel=0.1)


def test_a_plateau_promises_nothing() -> None:
    assert drop(np.full(50, 0.7)) == 0.0


def test_a_noisy_plateau_promises_little_of_its_noise() -> None:
    rng = np.random.default_rng(3)
    said = [drop(1.0 + 0.01 * rng.standard_normal(60)) for _ in range(20)]
    assert abs(float(np.mean(said))) < 0.01


def test_noise_is_seen_through_where_the_single_drop_is_below_it() -> None:
    rng = np.random.default_rng(5)
    curve = 1.0 / (0.05 * K + 1.0) + 0.2
    true = curve[99] - curve[109]
    assert np.diff(curve)[99] > -0.003 / 2
    said = [drop((curve + 0.003 * rng.standard_normal(len(K)))[:100]) for _ in range(20)]
    assert float(np.median(said)) == pytest.approx(true, rel=0.5)


def test_after_a_sudden_drop_the_prediction_is_within_a_factor_of_two_twenty_steps_on() -> None:
    curve = 0.3 / K + 0.6
    curve[100:] = 0.3 * 0.9 ** (K[100:] - 100.0) + 0.2
    true = curve[119] - curve[129]
    assert 0.5 * true < drop(curve[:120]) < 2.0 * true


def test_a_drop_beyond_half_of_what_is_left_is_damped_until_it_was_seen() -> None:
    assert drop(np.array([2.0, 1.8, 1.5, 1.2])) < 0.6
    fast = 2.0 * 0.7**K
    assert drop(fast[:30]) == pytest.approx(fast[29] - fast[39], rel=0.35)


def test_a_sigmoidal_start_is_followed_once_the_fall_has_begun() -> None:
    k = np.arange(1.0, 61.0)
    loss = 0.2 + 1.0 / (1.0 + np.exp(0.25 * (k - 30.0)))
    for num in (25, 30, 35, 45):  # on the shoulder, at the steepest point, and after it
        true = loss[num - 1] - loss[num + 4]
        said = follow(loss[:num]).drops(np.array([5.0]))[0][0]
        assert 0.5 * true < said < 2.0 * true
    assert follow(loss[:6]).drops(np.array([5.0]))[0][0] < 0.1  # nothing is promised yet


def test_a_diverging_loss_promises_nothing() -> None:
    for loss in (
        0.5 * 1.3 ** np.arange(1.0, 41.0),
        np.arange(1.0, 41.0) ** 2,
        10.0 ** np.arange(300),
    ):
        drops, widths = follow(loss).drops(np.array([1.0, 10.0, 1000.0]))
        assert (drops <= 0.0).all() and np.isfinite(widths).all()


def test_a_target_loss_bounds_the_drop() -> None:
    falling = 2.0 - 0.1 * K[:12]
    assert drop(falling) > 0.35
    assert drop(falling, floor=0.7) <= falling[-1] - 0.7 + 1e-12
    assert drop(falling, floor=5.0) == 0.0


def test_fewer_than_three_losses_say_nothing() -> None:
    drops, widths = follow(np.array([2.0, 1.0])).drops(TEN)
    assert FIRST == 3
    assert drops[0] == widths[0] == 0.0


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 0.1])
def test_the_interval_holds_about_as_often_as_it_says(noise: float) -> None:
    rng = np.random.default_rng(11)
    hits = []
    for _ in range(5):
        curve = 1.0 / (0.1 * K + 1.0) + 0.3 + noise * rng.standard_normal(len(K))
        track = Track()
        for k, loss in enumerate(curve.tolist(), start=1):
            track.observe(loss)
            if 6 <= k <= len(K) - 10:
                drops, widths = track.drops(TEN)
                hits.append(abs(curve[k - 1] - curve[k + 9] - drops[0]) <= widths[0])
    assert 0.65 <= float(np.mean(hits)) <= 0.92


def test_errors_tell_good_predictions_from_useless_ones() -> None:
    rng = np.random.default_rng(2)
    smooth = follow(1.0 / K + 0.3)
    wild = follow(1.0 + rng.standard_normal(200))
    assert smooth.error < 0.05
    assert wild.error > 0.4


def test_units_do_not_matter() -> None:
    curve = 1.0 / (0.1 * K[:40] + 1.0) + 0.3
    assert drop(1e6 * curve) == pytest.approx(1e6 * drop(curve), rel=1e-6)
    assert drop(1e-6 * curve) == pytest.approx(1e-6 * drop(curve), rel=1e-6)


@settings(max_examples=150, deadline=None)
@given(
    losses=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=60),
    floor=st.none() | st.floats(-1e6, 1e6),
)
def test_no_losses_whatever_give_something_that_is_not_a_number(
    losses: list[float], floor: float | None
) -> None:
    track = Track(floor)
    for loss in losses:
        track.observe(loss)
        drops, widths = track.drops(np.array([0.5, 1.0, 10.0, 1e5]))
        assert np.isfinite(drops).all() and np.isfinite(widths).all()
        assert (widths >= 0.0).all()
        assert 0.0 <= track.error <= 1.0


def test_on_a_mix_of_curves_the_weighted_drop_error_is_below_slaqs() -> None:
    """Noise in proportion to the drops, as in recorded losses; both see the same."""
    rng = np.random.default_rng(7)

    ours = theirs = total = 0.0
    for _ in range(6):
        k = np.arange(1.0, 91.0)
        drops = rng.uniform(0.02, 0.2) * (1.0 + k / rng.uniform(2, 10)) ** -rng.uniform(1.2, 2.5)
        curve = 2.0 - np.cumsum(drops * np.exp(0.3 * rng.standard_normal(90)))
        track = Track()
        for num in range(1, 81):
            track.observe(float(curve[num - 1]))
            if num < 10 or num % 5:
                continue
            true = float(curve[num - 1] - curve[num + 9])
            fit = fit_curve(Convergence.SUBLINEAR, k[:num], curve[:num])
            assert fit is not None
            said = max(float(curve[num - 1]) - float(fit(num + 10.0)), 0.0)
            ours += abs(max(float(track.drops(TEN)[0][0]), 0.0) - true)
            theirs += abs(said - true)
            total += true
    assert math.isfinite(ours) and ours < theirs
    assert ours < 0.25 * total
