"""Mini-batch optimisers on one flat vector: SGD, momentum and Adam; and the loss they report.

Source: Adam from Kingma and Ba (2015), algorithm 1, with bias correction; momentum as
v = m v - r g, x += v (Polyak), optionally Nesterov's x += m v - r g.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcslaq.train.model import Array, Context, Slices, State
from hpcslaq.train.options import Option

NAMES = ("sgd", "momentum", "adam")
OPTIONS: Mapping[str, Option] = {
    "batch_size": Option(int, 256, "rows of a mini-batch, over all workers", at_least=1),
    "rate": Option(float, 0.01, "learning rate of sgd, momentum and adam", above=0.0),
    "rate_decay": Option(
        float, 0.0, "the rate of epoch e is rate / (1 + rate_decay * e)", at_least=0.0
    ),
    "momentum": Option(float, 0.9, "of the solver momentum", at_least=0.0, below=1.0),
    "beta1": Option(float, 0.9, "Adam's decay of the mean", at_least=0.0, below=1.0),
    "beta2": Option(float, 0.999, "Adam's decay of the square", at_least=0.0, below=1.0),
    "losses_per_epoch": Option(
        int, 10, "iterations of an epoch: each reports the mean loss of its steps", at_least=1
    ),
}
_EPSILON = 1e-8


def start(x: Array, solver: str) -> State:
    """The state of the named optimiser at x (P,)."""
    state = {"x": np.array(x), "progress": np.zeros(2), "count": np.zeros(1, dtype=np.int64)}
    if solver in ("momentum", "adam"):
        state["mean"] = np.zeros(x.size)
    if solver == "adam":
        state["square"] = np.zeros(x.size)
    return state


def slices(solver: str) -> Slices:
    """How the state that `start` gave is cut."""
    return Slices("x", {"momentum": ("mean",), "adam": ("mean", "square")}.get(solver, ()))


def sync_problem(solver: str) -> str:
    """Why parameter servers cannot run the named solver; "": they can."""
    if solver in NAMES:
        return ""
    return f"the solver {solver} does not work element by element (valid: {', '.join(NAMES)})"


def move(
    state: State, gradient: Array, solver: str, settings: Mapping[str, Any], epoch: int
) -> None:
    """One step of the optimiser down a gradient (P,); the gradient may be overwritten.

    Element by element, so it may be given an interval of the arrays. `state["count"]` counts
    the step already.
    """
    rate = settings["rate"] / (1.0 + settings["rate_decay"] * epoch)
    x = state["x"]
    if solver == "sgd":
        gradient *= rate
        x -= gradient
    elif solver == "momentum":
        velocity = state["mean"]
        velocity *= settings["momentum"]
        gradient *= rate
        velocity -= gradient
        x += velocity
    else:
        beta1, beta2 = settings["beta1"], settings["beta2"]
        mean, square, count = state["mean"], state["square"], int(state["count"][0])
        mean *= beta1
        mean += (1 - beta1) * gradient
        gradient *= gradient
        gradient *= 1 - beta2
        square *= beta2
        square += gradient
        # Both bias corrections as factors of the rate and of epsilon: two passes less.
        correction = math.sqrt(1 - beta2**count)
        np.sqrt(square, out=gradient)
        gradient += _EPSILON * correction
        np.divide(mean, gradient, out=gradient)
        gradient *= rate * correction / (1 - beta1**count)
        x -= gradient


def report(
    state: State, loss: float, num_rows: float, context: Context, losses_per_epoch: int
) -> float | None:
    """The mean loss of the rows since the last report if one is due after this step, else None.

    loss : mean over the step's rows
    """
    progress = state["progress"]
    progress += (loss * num_rows, num_rows)
    steps = context.steps_per_epoch
    number = min(losses_per_epoch, steps)
    is_due = (context.step + 1) * number // steps != context.step * number // steps
    if not is_due or progress[1] == 0:
        return None
    mean = float(progress[0] / progress[1])
    progress[:] = 0.0
    return mean
