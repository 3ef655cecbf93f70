"""Limited-memory BFGS as a state machine: it is told f and f' at `trial` and sets the next.

Everything lives in named arrays, so that a run can be interrupted between any two
evaluations. An accepted point is an iteration; the evaluations of one line search are not.

Source: Nocedal and Wright, Numerical Optimization (2nd ed.), sections 3.5 and 7.2;
bracketing for the weak Wolfe conditions from Lewis and Overton, Nonsmooth optimization via
quasi-Newton methods (2013), algorithm 4.6, with cubic steps in place of bisection; the
approximate Wolfe test from Hager and Zhang (2005), section 2.
"""

from __future__ import annotations

import math

import numpy as np

from hpcslaq.train.model import Array, State, Step

#: Sufficient decrease and curvature constants (Nocedal and Wright, section 3.1).
_DECREASE, _CURVATURE = 1e-4, 0.9
#: Relative noise of a loss: differences below it say nothing (approximate Wolfe test).
_NOISE = 1e-13
_MAX_TRIALS = 30
#: Smallest curvature s'y / y'y of a pair that is kept.
_LEAST_CURVATURE = 1e-12

# Places in `search`: the step t, the bracket (low: decrease and still descending; high: too
# far), losses and slopes at its ends, and the slope at 0.
_T, _LOW, _LOW_F, _LOW_SLOPE, _HIGH, _HIGH_F, _HIGH_SLOPE, _SLOPE = range(8)
# Places in `counts`: pairs kept, oldest first; trials of this line search (-1: before the first
# evaluation).
_KEPT, _TRIALS = range(2)


def start(x: Array, memory: int) -> State:
    """The state before the first evaluation, which is to be made at `trial` = x (P,)."""
    return {
        "x": np.array(x),
        "trial": np.array(x),
        "loss": np.zeros(1),
        "gradient": np.zeros(x.size),
        "direction": np.zeros(x.size),
        "steps": np.zeros((memory, x.size)),
        "changes": np.zeros((memory, x.size)),
        "step_change": np.zeros((memory, memory)),
        "change_change": np.zeros((memory, memory)),
        "search": np.zeros(8),
        "counts": np.array([0, -1], dtype=np.int64),
    }


def advance(state: State, loss: float, gradient: Array, gradient_tolerance: float) -> Step:
    """Take in loss and gradient (P,) at `trial`, choose the next `trial`.

    Converged: the largest gradient element is at most `gradient_tolerance`, or no step along
    the steepest descent decreases the loss.
    """
    counts = state["counts"]
    if counts[_TRIALS] < 0:
        return _accept(state, loss, gradient, gradient_tolerance)
    counts[_TRIALS] += 1
    search = state["search"]
    t, slope0 = search[_T], search[_SLOPE]
    loss0 = float(state["loss"][0])
    slope = float(gradient @ state["direction"])
    has_decrease = loss <= loss0 + _DECREASE * t * slope0 or (
        loss <= loss0 + _NOISE * abs(loss0) and slope <= (2 * _DECREASE - 1) * slope0
    )
    if has_decrease and slope >= _CURVATURE * slope0:
        return _accept(state, loss, gradient, gradient_tolerance)
    if counts[_TRIALS] >= _MAX_TRIALS:
        return _give_up(state)
    if has_decrease:
        search[_LOW], search[_LOW_F], search[_LOW_SLOPE] = t, loss, slope
    else:
        search[_HIGH], search[_HIGH_F], search[_HIGH_SLOPE] = t, loss, slope
    _set_trial(state, _next_step(search))
    return Step(None)


def _accept(state: State, loss: float, gradient: Array, gradient_tolerance: float) -> Step:
    """Make `trial` the new point and start the next line search."""
    if state["counts"][_TRIALS] >= 0:
        _remember(state, state["trial"] - state["x"], gradient - state["gradient"])
    state["x"] = state["trial"]
    state["loss"][0] = loss
    state["gradient"] = gradient
    if np.abs(gradient).max() <= gradient_tolerance:
        return Step(loss, is_converged=True)
    _start_search(state)
    return Step(loss)


def _give_up(state: State) -> Step:
    """No acceptable step: forget the curvature; without any, the minimum is reached."""
    if state["counts"][_KEPT] == 0:
        state["trial"] = state["x"]
        return Step(None, is_converged=True)
    state["counts"][_KEPT] = 0
    _start_search(state)
    return Step(None)


def _remember(state: State, step: Array, change: Array) -> None:
    """Keep a pair as the last of at most `memory`, with the products that `_direction` needs."""
    counts, steps, changes = state["counts"], state["steps"], state["changes"]
    if float(step @ change) <= _LEAST_CURVATURE * float(change @ change):
        return
    kept, memory = int(counts[_KEPT]), steps.shape[0]
    if kept == memory:
        for array in (steps, changes):
            array[:-1] = array[1:]
        for name in ("step_change", "change_change"):
            state[name][:-1, :-1] = state[name][1:, 1:]
        kept -= 1
    steps[kept], changes[kept] = step, change
    kept += 1
    # R = [s_i'y_j] is needed for i <= j only; Y'Y is symmetric.
    state["step_change"][:kept, kept - 1] = steps[:kept] @ change
    products = changes[:kept] @ change
    state["change_change"][:kept, kept - 1] = products
    state["change_change"][kept - 1, :kept] = products
    counts[_KEPT] = kept


def _start_search(state: State) -> None:
    """Set direction and first trial from the present point."""
    gradient, counts, search = state["gradient"], state["counts"], state["search"]
    direction = _direction(state)
    slope = float(gradient @ direction)
    if slope >= 0:  # rounding destroyed the descent
        counts[_KEPT] = 0
        direction = -gradient
        slope = -float(gradient @ gradient)
    counts[_TRIALS] = 0
    loss = float(state["loss"][0])
    search[:] = (0.0, 0.0, loss, slope, math.inf, math.inf, 0.0, slope)
    state["direction"] = direction
    _set_trial(state, 1.0 if counts[_KEPT] else min(1.0, 1.0 / math.sqrt(-slope)))


def _set_trial(state: State, t: float) -> None:
    state["search"][_T] = t
    state["trial"] = state["x"] + t * state["direction"]


def _direction(state: State) -> Array:
    """-H g with the inverse Hessian in compact form: six products with (memory, P) in all.

    Source: Byrd, Nocedal and Schnabel (1994), theorem 2.2, with gamma = s'y / y'y of the
    newest pair; the same H as that of the two-loop recursion.
    """
    kept, gradient = int(state["counts"][_KEPT]), state["gradient"]
    if not kept:
        return -gradient
    steps, changes = state["steps"][:kept], state["changes"][:kept]
    triangle = np.triu(state["step_change"][:kept, :kept])
    squares = state["change_change"][:kept, :kept]
    diagonal = triangle.diagonal()
    gamma = float(diagonal[-1] / squares[-1, -1])
    u = np.linalg.solve(triangle, steps @ gradient)
    inner = diagonal * u + gamma * (squares @ u - changes @ gradient)
    v = np.linalg.solve(triangle.T, inner)
    direction = (gamma * u) @ changes
    direction -= v @ steps
    direction -= gamma * gradient
    return direction


def _next_step(search: Array) -> float:
    """The next step length: inside the bracket, or beyond `low` while nothing was too far."""
    t, low, low_f, low_slope, high, high_f, high_slope = map(float, search[:_SLOPE])
    if math.isinf(high):
        return 4.0 * t if t < 1 else 2.0 * t
    width = high - low
    step = _cubic_minimum(low, low_f, low_slope, high, high_f, high_slope)
    if not low + 0.1 * width <= step <= high - 0.1 * width:
        step = min(max(step, low + 0.1 * width), high - 0.1 * width)
        if math.isnan(step):
            step = low + 0.5 * width
    return step


def _cubic_minimum(
    a: float, f_a: float, slope_a: float, b: float, f_b: float, slope_b: float
) -> float:
    """The minimiser of the cubic through two values and slopes; NaN if there is none.

    Source: Nocedal and Wright, equation 3.59.
    """
    if not (math.isfinite(f_b) and math.isfinite(slope_b)):
        return math.nan
    d1 = slope_a + slope_b - 3 * (f_a - f_b) / (a - b)
    square = d1 * d1 - slope_a * slope_b
    if square < 0:
        return math.nan
    d2 = math.copysign(math.sqrt(square), b - a)
    denominator = slope_b - slope_a + 2 * d2
    return b - (b - a) * (slope_b + d2 - d1) / denominator if denominator else math.nan
