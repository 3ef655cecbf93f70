"""The minimisers on functions with known minima, told one evaluation at a time."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.train import descent, lbfgs


def minimise(module, function, x, *args, tolerance=1e-8, most=2000):
    """Evaluations and accepted losses until convergence, and the last state."""
    state, losses = module.start(np.asarray(x, dtype=float), *args), []
    for count in range(1, most):
        loss, gradient = function(state["trial"])
        step = module.advance(state, loss, gradient, tolerance)
        if step.loss is not None:
            losses.append(step.loss)
        if step.is_converged:
            return count, np.array(losses), state
    raise AssertionError("not converged")


def rosenbrock(x):
    value = np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    gradient = np.zeros_like(x)
    gradient[:-1] = -400 * x[:-1] * (x[1:] - x[:-1] ** 2) - 2 * (1 - x[:-1])
    gradient[1:] += 200 * (x[1:] - x[:-1] ** 2)
    return value, gradient


def quadratic(scales):
    return lambda x: (0.5 * np.sum(scales * x * x), scales * x)


@pytest.mark.parametrize("dim", [2, 10, 50])
def test_lbfgs_minimises_the_rosenbrock_function_like_scipy(dim):
    optimize = pytest.importorskip("scipy.optimize")
    start = np.tile([-1.2, 1.0], dim // 2)
    count, losses, state = minimise(lbfgs, rosenbrock, start, 10)
    options = {"gtol": 1e-8, "ftol": 0, "maxiter": 5000}
    found = optimize.minimize(rosenbrock, start, jac=True, method="L-BFGS-B", options=options)
    np.testing.assert_allclose(state["x"], found.x, atol=1e-6)
    assert np.all(np.diff(losses) <= 0)
    assert count <= 1.5 * found.nfev + 5


def test_the_direction_is_that_of_the_two_loop_recursion():
    rng = np.random.default_rng(0)
    state = lbfgs.start(np.zeros(20), 5)
    matrix = rng.standard_normal((20, 20))
    matrix = matrix @ matrix.T + np.eye(20)
    pairs = []
    for _ in range(8):  # more than the memory
        step = rng.standard_normal(20)
        lbfgs._remember(state, step, matrix @ step)
        pairs.append((step, matrix @ step))
    state["gradient"] = rng.standard_normal(20)
    q, alphas = state["gradient"].copy(), []
    for s, y in reversed(pairs[-5:]):
        alphas.append(s @ q / (s @ y))
        q -= alphas[-1] * y
    s, y = pairs[-1]
    q *= s @ y / (y @ y)
    for (s, y), alpha in zip(pairs[-5:], reversed(alphas), strict=True):
        q += (alpha - y @ q / (s @ y)) * s
    np.testing.assert_allclose(lbfgs._direction(state), -q, rtol=1e-9)


def test_a_pair_without_curvature_is_not_kept():
    state = lbfgs.start(np.zeros(2), 5)
    lbfgs._remember(state, np.ones(2), -np.ones(2))
    assert state["counts"][0] == 0


def test_lbfgs_minimises_a_function_with_kinks():
    def function(x):
        return np.abs(x).sum() + 0.5 * x @ x, np.sign(x) + x

    state = lbfgs.start(np.arange(1, 6) / 3, 10)
    for _ in range(200):
        lbfgs.advance(state, *function(state["trial"]), 1e-8)
    assert state["loss"][0] < 1e-3


@pytest.mark.parametrize("memory", [1, 3, 20])
def test_any_memory_solves_an_ill_conditioned_quadratic(memory):
    scales = np.logspace(0, 4, 10)
    _, _, state = minimise(lbfgs, quadratic(scales), np.ones(10), memory)
    assert np.abs(state["x"]).max() < 1e-7


def test_starting_at_the_minimum_converges_at_once():
    for module, args in ((lbfgs, (5,)), (descent, (None,))):
        count, losses, _ = minimise(module, quadratic(np.ones(3)), np.zeros(3), *args)
        assert count == 1
        assert losses.tolist() == [0]


def test_a_loss_that_is_flat_but_has_a_slope_ends():
    # A wrong gradient: no step decreases the loss.
    for module, args in ((lbfgs, (5,)), (descent, (None,))):
        _, _, state = minimise(module, lambda x: (1.0, np.ones(2)), np.zeros(2), *args)
        np.testing.assert_array_equal(state["x"], [0, 0])


def test_an_interrupted_minimisation_goes_on_alike():
    _, _, whole = minimise(lbfgs, rosenbrock, [-1.2, 1.0], 4)
    state = lbfgs.start(np.array([-1.2, 1.0]), 4)
    while not lbfgs.advance(state, *rosenbrock(state["trial"]), 1e-8).is_converged:
        state = {name: array.copy() for name, array in state.items()}
    np.testing.assert_array_equal(state["x"], whole["x"])


def test_gradient_descent_adapts_its_step():
    _, losses, state = minimise(descent, quadratic(np.array([1.0, 50.0])), np.ones(2), None)
    assert np.all(np.diff(losses) <= 0)
    assert np.abs(state["x"]).max() < 1e-7
    assert 0.005 < state["rate"][0] < 0.1


def test_gradient_descent_with_a_fixed_step_worked_by_hand():
    state = descent.start(np.array([4.0]), 0.25)
    for expected in (4.0, 3.0, 2.25):
        assert state["trial"][0] == expected
        descent.advance(state, *quadratic(np.ones(1))(state["trial"]), 0.0)
