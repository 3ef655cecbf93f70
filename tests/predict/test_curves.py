"""SLAQ's curves: exact recovery, bounds, weights, resampling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core.jobs import Convergence
from hpcslaq.predict.curves import DENSE_POINTS, Fit, evaluate, fit_curve, resample

SUB, SUPER = Convergence.SUBLINEAR, Convergence.SUPERLINEAR
K = np.arange(1.0, 61.0)


@pytest.mark.parametrize("params", [(0.0, 0.1, 1.0, 0.3), (0.01, 0.0, 0.5, 0.0), (1e-4, 0.2, 2, 5)])
def test_a_sublinear_curve_is_recovered_from_its_own_points(params: tuple[float, ...]) -> None:
    fit = fit_curve(SUB, K, evaluate(SUB, params, K))
    assert fit is not None
    ahead = np.arange(61.0, 91.0)
    true_drop = evaluate(SUB, params, K[-1:]) - evaluate(SUB, params, ahead)
    assert float(fit(60.0)) - fit(ahead) == pytest.approx(true_drop, rel=0.01)


@pytest.mark.parametrize("params", [(0.9, 3.0, 0.2), (0.5, 8.0, 0.0), (0.99, 100.0, 4.0)])
def test_a_geometric_curve_is_recovered_from_its_own_points(params: tuple[float, ...]) -> None:
    k = K[:25]
    fit = fit_curve(SUPER, k, evaluate(SUPER, params, k))
    assert fit is not None
    now, ahead = evaluate(SUPER, params, np.array([25.0])), np.arange(26.0, 36.0)
    true_drop = now - evaluate(SUPER, params, ahead)
    assert now - fit(ahead) == pytest.approx(true_drop, rel=0.02, abs=1e-9)


@pytest.mark.parametrize("family", [SUB, SUPER])
@settings(max_examples=60, deadline=None)
@given(
    losses=st.lists(st.just(0.0) | st.floats(1e-9, 1e6), min_size=5, max_size=120),
    decay=st.sampled_from([0.8, 1.0]),
)
def test_parameters_stay_within_the_bounds_and_curves_never_rise(
    family: Convergence, losses: list[float], decay: float
) -> None:
    k = np.arange(1.0, len(losses) + 1.0)
    fit = fit_curve(family, k, np.array(losses), decay=decay)
    assert fit is not None
    assert all(value >= 0.0 for value in fit.params)
    if family is SUPER:
        assert fit.params[0] <= 1.0
    ahead = fit(np.arange(1.0, 400.0) + len(losses))
    assert np.isfinite(ahead).all()
    assert (np.diff(ahead) <= 0.0).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_random_parameters_fit_better_than_the_least_squares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loss = 1.0 / (0.3 * K + 1.0) + 0.5 + 0.01 * rng.standard_normal(len(K))
    weight = 0.8 ** (2.0 * np.arange(len(K) - 1.0, -1.0, -1.0))

    def cost(fit: Fit) -> float:
        return float(weight @ (fit(K) - loss) ** 2)

    found = fit_curve(SUB, K, loss)
    assert found is not None
    for _ in range(200):
        a, b, c, d = found.params
        nudge = 1.0 + 0.2 * rng.standard_normal(4)
        other = tuple(np.abs(np.array([a, b + 1e-3, c, d]) * nudge).tolist())
        assert cost(Fit(SUB, other)) >= cost(found) * (1.0 - 1e-3)


def test_newer_points_weigh_more() -> None:
    loss = np.where(K < 40, 5.0 / K + 1.0, 5.0 / K + 0.9)
    weighted, even = fit_curve(SUB, K, loss), fit_curve(SUB, K, loss, decay=1.0)
    assert weighted is not None and even is not None
    assert abs(float(weighted(60.0)) - loss[-1]) < 0.1 * abs(float(even(60.0)) - loss[-1])


def test_a_short_history_is_resampled_to_at_least_fifty_points() -> None:
    for num in (2, 5, 26, 49):
        k = np.arange(1.0, num + 1.0)
        dense_k, dense = resample(k, 1.0 / k)
        assert len(dense_k) == len(dense) >= DENSE_POINTS
        assert dense_k[0] == 1.0
        assert dense_k[-1] < num


def test_losses_that_are_not_finite_give_no_curve() -> None:
    loss = np.append(1.0 / K[:-1], np.inf)
    assert fit_curve(SUB, K, loss) is None
