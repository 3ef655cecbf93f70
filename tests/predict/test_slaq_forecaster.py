"""SLAQ's forecaster: what it takes in, falls back to, and forgets."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import Convergence, JobSpec
from hpcslaq.predict.curves import MIN_POINTS
from hpcslaq.predict.slaq import SlaqForecaster, predict_curve


def spec(name: str, convergence: Convergence = Convergence.SUBLINEAR) -> JobSpec:
    return JobSpec(name, "m", "d", 16, 100, convergence=convergence)


def report(
    job: str, first: int, losses: tuple[float, ...], *, seconds: float = 1.0, workers: int = 1
) -> ProgressReported:
    return ProgressReported(job, 1, first, losses, 0, seconds, workers)


def loss_after(forecaster: SlaqForecaster, job: str, iterations: float) -> float:
    prediction = forecaster.predict((job,))
    return float(prediction.loss_after(np.array([0]), np.array([iterations]))[0])


def test_fewer_than_two_losses_give_no_prediction() -> None:
    forecaster = SlaqForecaster()
    forecaster.add(spec("a"))
    assert not forecaster.predict(("a",)).is_known[0]
    forecaster.observe(report("a", 1, (1.0,)))
    assert not forecaster.predict(("a",)).is_known[0]


def test_two_to_four_losses_are_extrapolated_by_their_ratio() -> None:
    forecaster = SlaqForecaster()
    forecaster.add(spec("a"))
    forecaster.observe(report("a", 1, (2.0, 1.0)))
    assert forecaster.predict(("a",)).is_known[0]
    assert loss_after(forecaster, "a", 3.0) == pytest.approx(0.125)


@pytest.mark.parametrize("convergence", list(Convergence))
def test_a_curve_of_the_jobs_family_predicts_its_future(convergence: Convergence) -> None:
    k = np.arange(1, 41)
    curve = 1.0 / (0.2 * k + 1.0) + 0.4
    if convergence is Convergence.SUPERLINEAR:
        curve = 3.0 * 0.9**k + 0.4
    forecaster = SlaqForecaster(refit_share=0.0)
    forecaster.add(spec("a", convergence))
    for i in range(30):
        forecaster.observe(report("a", i + 1, (float(curve[i]),)))
    assert loss_after(forecaster, "a", 10.0) == pytest.approx(curve[39], rel=1e-2)


def test_work_is_the_mean_of_worker_seconds_per_iteration() -> None:
    forecaster = SlaqForecaster()
    forecaster.add(spec("a"))
    forecaster.observe(report("a", 1, (3.0, 2.0), seconds=4.0, workers=2))
    forecaster.observe(report("a", 3, (1.5, 1.2), seconds=1.0, workers=8))
    assert forecaster.predict(("a",)).work[0] == pytest.approx((8.0 + 8.0) / 4)


def test_iterations_that_are_repeated_after_a_fault_count_once_as_losses() -> None:
    once, twice = SlaqForecaster(), SlaqForecaster()
    losses = tuple((1.0 / np.arange(1, 21)).tolist())
    for forecaster in (once, twice):
        forecaster.add(spec("a"))
        forecaster.observe(report("a", 1, losses))
    twice.observe(report("a", 11, losses[10:]))
    assert loss_after(once, "a", 10.0) == loss_after(twice, "a", 10.0)


def test_an_upward_outlier_does_not_fix_the_scale() -> None:
    forecaster = SlaqForecaster()
    forecaster.add(spec("a"))
    forecaster.observe(report("a", 1, (1.0, 100.0, 0.9, 0.8)))
    assert forecaster.predict(("a",)).scale[0] == pytest.approx(1.0 - 0.8)


def test_a_job_that_never_improved_is_known_to_gain_nothing() -> None:
    forecaster = SlaqForecaster()
    forecaster.add(spec("a"))
    forecaster.observe(report("a", 1, (1.0,) * 20))
    prediction = forecaster.predict(("a",))
    assert prediction.is_known[0]
    assert prediction.scale[0] > 0.0
    assert math.isnan(loss_after(forecaster, "a", 10.0))


def test_losses_below_zero_are_predicted_to_fall_on() -> None:
    forecaster = SlaqForecaster()
    forecaster.add(spec("a"))
    forecaster.observe(report("a", 1, tuple((10.0 / np.arange(1.0, 31.0) - 100.0).tolist())))
    true_drop = 10.0 / 30 - 10.0 / 40
    drop = 10.0 / 30 - 100.0 - loss_after(forecaster, "a", 10.0)
    assert drop == pytest.approx(true_drop, rel=0.02)


def test_a_rising_end_of_the_window_falls_back_to_even_weights() -> None:
    k = np.arange(1.0, 61.0)
    loss = 1.0 / k + 0.2
    loss[-3:] += np.array([0.001, 0.002, 0.004])
    fit = predict_curve(Convergence.SUBLINEAR, k, loss)
    assert fit is not None
    assert float(fit(60.0)) - float(fit(70.0)) > 1e-3


def test_a_window_without_a_fall_is_doubled() -> None:
    k = np.arange(1.0, 301.0)
    loss = 1.0 / k + 0.2
    loss[-100:] = np.linspace(0.205, 0.206, 100)
    fit = predict_curve(Convergence.SUBLINEAR, k, loss)
    assert fit is not None
    assert float(fit(300.0)) - float(fit(310.0)) > 0.0


def test_a_refit_waits_until_the_history_has_grown_by_the_share() -> None:
    forecaster = SlaqForecaster(refit_share=0.5)
    forecaster.add(spec("a"))
    values = (1.0 / np.arange(1.0, 40.0) + 0.1).tolist()
    seen = set()
    for i, value in enumerate(values):
        forecaster.observe(report("a", i + 1, (value,)))
        if i + 1 >= MIN_POINTS:
            seen.add(tuple(forecaster.predict(("a",)).params[0].tolist()))
    assert len(seen) == 5  # after 5, 8, 12, 18 and 27 losses; the next would be after 41


def test_rows_of_ended_jobs_are_reused_and_start_afresh() -> None:
    forecaster = SlaqForecaster()
    forecaster.add(spec("a"))
    forecaster.observe(report("a", 1, (2.0, 1.0, 0.5)))
    forecaster.discard("a")
    forecaster.add(spec("b"))
    assert not forecaster.predict(("b",)).is_known[0]
    with pytest.raises(KeyError):
        forecaster.predict(("a",))


@settings(max_examples=80, deadline=None)
@given(
    losses=st.lists(st.floats(-1e12, 1e12) | st.just(math.nan) | st.just(math.inf), max_size=70),
    convergence=st.sampled_from(Convergence),
    size=st.integers(1, 7),
)
def test_no_losses_whatever_give_a_prediction_that_is_not_a_number(
    losses: list[float], convergence: Convergence, size: int
) -> None:
    forecaster = SlaqForecaster()
    forecaster.add(spec("a", convergence))
    for i in range(0, len(losses), size):
        forecaster.observe(report("a", i + 1, tuple(losses[i : i + size])))
    prediction = forecaster.predict(("a",))
    assert prediction.scale[0] > 0.0
    if prediction.kind[0]:
        assert math.isfinite(loss_after(forecaster, "a", 10.0))
