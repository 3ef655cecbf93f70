"""Gradient descent as a state machine, like `lbfgs`: with a fixed or an adaptive step.

The adaptive step halves until the loss falls by at least half of what its slope promises
(which the step 1/L always does), and grows by a quarter after each accepted step.
"""

from __future__ import annotations

import numpy as np

from hpcslaq.train.model import Array, State, Step

_SHRINK, _GROW = 0.5, 1.25
#: Relative noise of a loss: smaller differences say nothing.
_NOISE = 1e-14
_MAX_TRIALS = 60


def start(x: Array, step: float | None) -> State:
    """The state before the first evaluation, at `trial` = x (P,); step None: adaptive."""
    return {
        "x": np.array(x),
        "trial": np.array(x),
        "loss": np.zeros(1),
        "gradient": np.zeros(x.size),
        # The step; it starts long and is halved until it fits.
        "rate": np.array([step or 1.0]),
        "counts": np.array([step is None, -1], dtype=np.int64),  # is adaptive; trials
    }


def advance(state: State, loss: float, gradient: Array, gradient_tolerance: float) -> Step:
    """Take in loss and gradient (P,) at `trial`, choose the next `trial`.

    Converged: as for `lbfgs.advance`.
    """
    is_adaptive, trials = (int(c) for c in state["counts"])
    rate = float(state["rate"][0])
    if is_adaptive and trials >= 0:
        loss0, gradient0 = float(state["loss"][0]), state["gradient"]
        square = float(gradient0 @ gradient0)
        has_fallen = loss < loss0 and loss <= loss0 - 0.5 * rate * square
        # Near the minimum only the gradient still shows progress.
        is_level = loss <= loss0 + _NOISE * abs(loss0) and float(gradient @ gradient) < square
        if not (has_fallen or is_level):
            if trials >= _MAX_TRIALS:
                state["trial"] = state["x"]
                return Step(None, is_converged=True)
            state["rate"][0] = rate = _SHRINK * rate
            state["counts"][1] = trials + 1
            state["trial"] = state["x"] - rate * gradient0
            return Step(None)
        if trials == 0:
            state["rate"][0] = rate = _GROW * rate
    state["counts"][1] = 0
    state["x"] = state["trial"]
    state["loss"][0] = loss
    state["gradient"] = gradient
    if np.abs(gradient).max() <= gradient_tolerance:
        return Step(loss, is_converged=True)
    state["trial"] = state["x"] - rate * gradient
    return Step(loss)
