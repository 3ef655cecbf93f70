"""Our forecaster: scales, columns, repeated iterations, step times."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.history import LossHistory
from hpcslaq.predict.oracle import OracleForecaster
from hpcslaq.predict.outlook import KNOTS, interpolate, invert

ONE = np.array([0])


def report(job: str, first: int, losses: np.ndarray, *, seconds: float = 1.0) -> ProgressReported:
    return ProgressReported(job, 1, first, tuple(losses.tolist()), 0, seconds, 1)


def followed(losses: np.ndarray, size: int = 5) -> DropForecaster:
    forecaster = DropForecaster()
    forecaster.add(JobSpec("a", "m", "d", 8, 100))
    for start in range(0, len(losses), size):
        forecaster.observe(report("a", start + 1, losses[start : start + size]))
    return forecaster


@pytest.mark.parametrize("size", [1, 7, 50])
def test_long_horizons_are_answered_from_means_of_blocks(size: int) -> None:
    k = np.arange(1.0, 4001.0)
    rng = np.random.default_rng(1)
    curve = (k / 20.0 + 1.0) ** -0.5 + 0.2
    noisy = curve[:2000] + 0.002 * rng.standard_normal(2000)
    outlook = followed(noisy, size).predict(("a",))
    true = curve[1999] - curve[2999]
    assert outlook.drop_after(ONE, np.array([1000.0]))[0] == pytest.approx(true, rel=0.3)


def test_a_drop_grows_with_the_iterations_ahead() -> None:
    k = np.arange(1.0, 700.0)
    outlook = followed(1.0 / k + 0.1).predict(("a",))
    drops = outlook.drop_after(np.zeros(400, dtype=np.int64), np.linspace(0.0, 3e5, 400))
    assert drops[0] == 0.0
    assert (np.diff(drops) >= 0.0).all()


def test_repeated_iterations_count_once() -> None:
    curve = 1.0 / np.arange(1.0, 41.0)
    once, twice = followed(curve), followed(curve)
    twice.observe(report("a", 21, curve[20:]))
    assert once.predict(("a",)).drops.tolist() == twice.predict(("a",)).drops.tolist()
    assert twice.predict(("a",)).iterations[0] == 40


def test_losses_that_are_not_finite_are_passed_over() -> None:
    curve = 1.0 / np.arange(1.0, 41.0)
    curve[[10, 20]] = [math.nan, math.inf]
    outlook = followed(curve).predict(("a",))
    assert outlook.is_known[0]
    assert np.isfinite(outlook.drops).all()
    assert outlook.last_loss[0] == curve[-1]


def test_a_discarded_job_is_unknown_and_its_row_serves_the_next() -> None:
    forecaster = followed(1.0 / np.arange(1.0, 41.0))
    forecaster.discard("a")
    with pytest.raises(KeyError):
        forecaster.predict(("a",))
    forecaster.add(JobSpec("b", "m", "d", 4, 9))
    outlook = forecaster.predict(("b",))
    assert not outlook.is_known[0] and not outlook.is_timed[0]
    assert outlook.timing[0, 3] == 4
    assert not outlook.drops.any()


def test_a_job_added_like_another_is_predicted_like_it_until_it_reports() -> None:
    forecaster = followed(1.0 / np.arange(1.0, 41.0))
    forecaster.add_like(JobSpec("b", "m", "d", 8, 100), "a")
    outlook = forecaster.predict(("a", "b"))
    assert outlook.drops[0].tolist() == outlook.drops[1].tolist()


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(0, 100), min_size=len(KNOTS), max_size=len(KNOTS)),
    at=st.floats(0.0, float(KNOTS[-1])),
)
def test_the_inverse_of_the_drop_leads_back(values: list[float], at: float) -> None:
    table = np.cumsum(np.array([values]) + 1e-3, axis=1)
    drop = interpolate(table, ONE, np.array([at]))
    assert invert(table, ONE, drop)[0] == pytest.approx(at, rel=1e-6, abs=1e-6)
    assert invert(table, ONE, table[:, -1] * 1.01)[0] == math.inf


def test_a_history_is_known_after_three_losses() -> None:
    history = LossHistory(KNOTS)
    history.observe((3.0, 2.0))
    assert not history.answer().is_known[0]
    history.observe((1.5,))
    assert history.answer().is_known[0]


def test_the_oracle_predicts_what_was_revealed() -> None:
    losses = 1.0 / np.arange(1.0, 101.0)
    forecaster = OracleForecaster()
    forecaster.add(JobSpec("a", "m", "d", 8, 100))
    forecaster.reveal("a", losses, (0.1, 0.2, 0.0))
    forecaster.observe(report("a", 1, losses[:10]))
    outlook = forecaster.predict(("a",))
    assert outlook.drop_after(ONE, np.array([16.0]))[0] == pytest.approx(1 / 10 - 1 / 26)
    assert outlook.drop_after(ONE, np.array([1e5]))[0] == pytest.approx(1 / 10 - 1 / 100)
    assert outlook.seconds(ONE, np.array([4.0]))[0] == pytest.approx(0.1 + 0.2 * 2)
    with pytest.raises(ValueError, match="losses"):
        forecaster.reveal("a", np.array([1.0, np.nan]), (0.1, 0.2, 0.0))
