"""Linear regression with l1 and l2 penalties (LASSO, ridge, elastic net) by proximal gradient.

    minimise  F(w, b) = 1/(2n) |y - X w - b|^2 + l1 |w|_1 + l2/2 |w|^2

A pass evaluates loss and gradient at the extrapolated point y and the loss at the candidate
x in one go, so that the step can be checked and F(x) reported without passes of their own.

Source: FISTA with backtracking from Beck and Teboulle (2009), section 4; restart of the
momentum when it points uphill from O'Donoghue and Candes (2015), section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from scipy import sparse

from hpcslaq.core.jobs import Convergence
from hpcslaq.train import metrics
from hpcslaq.train.blocks import row_blocks, rows_per_block, transposed
from hpcslaq.train.exact import Statistics
from hpcslaq.train.model import (
    Array,
    Batch,
    Chunk,
    Context,
    DataInfo,
    Draw,
    Features,
    Model,
    State,
    Step,
    Totals,
    TrainingData,
    as_features,
    require_regression,
    targets,
)
from hpcslaq.train.options import Option

#: Relative noise of a loss: smaller differences say nothing about the step.
_NOISE = 1e-13
#: Rows of a CSR block.
_SPARSE_ROWS = 1 << 16
# Places in `numbers`: step, momentum parameter t of FISTA, F and smooth part f at y.
_STEP, _MOMENTUM, _LOSS_AT_Y = range(3)


class LinearRegression(Model):
    """Least squares with optional l1 and l2 penalties; the intercept is not penalised."""

    convergence: ClassVar[Convergence] = Convergence.SUBLINEAR
    options: ClassVar[Mapping[str, Option]] = {
        "l1": Option(float, 0.0, "weight of the penalty |w|_1 (LASSO)", at_least=0.0),
        "l2": Option(float, 0.0, "weight of the penalty |w|^2 / 2 (ridge)", at_least=0.0),
        "intercept": Option(bool, True, "fit an intercept; it is not penalised"),
        "accelerated": Option(bool, True, "FISTA with restart; false: plain proximal gradient"),
        "step": Option(float, None, "fixed step; none: found by backtracking", above=0.0),
        "gradient_tolerance": Option(
            float, 1e-8, "ends when no element of (y - x) / step is larger", at_least=0.0
        ),
    }

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless the targets are real numbers."""
        require_regression(info, "linear")

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """All parameters 0."""
        size = data.num_features + 1
        return {
            "x": np.zeros(size),  # the last accepted point: w, then b
            "candidate": np.zeros(size),
            "y": np.zeros(size),  # where the gradient is wanted
            "y_before": np.zeros(size),  # the point that the candidate was reached from
            "gradient_before": np.zeros(size),
            "numbers": np.array([self.settings["step"] or 0.0, 1.0, 0.0]),
        }

    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Half squared errors at y and at the candidate, gradient at y; at first also sum x^2."""
        points = np.stack([state["y"], state["candidate"]])
        is_same = bool(np.array_equal(points[0], points[1]))
        losses, gradient, square = np.zeros(2), np.zeros(points.shape[1]), 0.0
        y = targets(chunk)
        is_sparse = sparse.issparse(chunk.X)
        num_rows = _SPARSE_ROWS if is_sparse else rows_per_block(chunk.X.shape[1])
        for start, stop, X in row_blocks(chunk.X, chunk.cache, num_rows):
            turned = transposed(X, chunk.cache.setdefault(f"rows from {start}", {}))
            errors = X @ points[0, :-1]
            errors += points[0, -1]
            errors -= y[start:stop]
            losses[0] += 0.5 * float(errors @ errors)
            gradient[:-1] += turned @ errors
            gradient[-1] += errors.sum()
            if not is_same:
                errors = X @ points[1, :-1]
                errors += points[1, -1]
                errors -= y[start:stop]
                losses[1] += 0.5 * float(errors @ errors)
            if not state["numbers"][_STEP]:
                values = X.data if is_sparse else X.ravel()
                square += float(values @ values)
        if is_same:
            losses[1] = losses[0]
        sums: dict[str, Array | float] = {"losses": losses, "gradient": gradient}
        return sums | ({} if state["numbers"][_STEP] else {"square": square})

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """Accept or shorten the last step, then make the next."""
        n, numbers = context.info.num_rows, state["numbers"]
        at_y, at_candidate = (float(v) / n for v in totals["losses"])
        gradient = totals["gradient"] / n
        if not self.settings["intercept"]:
            gradient[-1] = 0.0
        if "square" in totals:  # first pass: y = candidate = x = 0
            # The largest eigenvalue is between the mean and the sum of all; start at the mean.
            mean_eigenvalue = (totals["square"] / n + 1.0) / context.info.num_features
            numbers[_STEP] = 1.0 / (mean_eigenvalue + self.settings["l2"])
            self._advance(state, gradient, at_y)
            return Step(self._objective(state["x"], at_candidate))
        if (
            not self.settings["step"]
            and context.iteration
            and self._is_too_long(state, at_candidate)
        ):
            numbers[_STEP] *= 0.5
            self._set_candidate(state)
            state["y"] = state["candidate"]
            numbers[_MOMENTUM] = 1.0
            return Step(None)
        candidate, before = state["candidate"], state["y_before"]
        mapping = float(np.abs(candidate - before).max()) / numbers[_STEP]
        loss = self._objective(candidate, at_candidate)
        is_converged = context.iteration > 0 and mapping <= self.settings["gradient_tolerance"]
        state["x"] = candidate
        self._advance(state, gradient, at_y)
        return Step(loss, is_converged=bool(is_converged))

    def _is_too_long(self, state: State, at_candidate: float) -> bool:
        """Whether the quadratic bound that the step stands for fails at the candidate."""
        move = state["candidate"] - state["y_before"]
        before, step = float(state["numbers"][_LOSS_AT_Y]), float(state["numbers"][_STEP])
        # The l2 penalty is part of the smooth function.
        l2 = self.settings["l2"]
        curved = at_candidate - before - float(state["gradient_before"] @ move)
        curved += 0.5 * l2 * float(move[:-1] @ move[:-1])
        return bool(curved > 0.5 / step * float(move @ move) + _NOISE * abs(before))

    def _advance(self, state: State, gradient: Array, at_y: float) -> None:
        """Make the next candidate from y, and extrapolate."""
        state["y_before"], state["gradient_before"] = state["y"], gradient
        state["numbers"][_LOSS_AT_Y] = at_y
        self._set_candidate(state)
        candidate, x = state["candidate"], state["x"]
        if not self.settings["accelerated"]:
            state["y"] = candidate
            return
        t = float(state["numbers"][_MOMENTUM])
        if float((state["y_before"] - candidate) @ (candidate - x)) > 0:  # uphill: restart
            t = 1.0
        following = 0.5 * (1.0 + (1.0 + 4.0 * t * t) ** 0.5)
        state["y"] = candidate + (t - 1.0) / following * (candidate - x)
        state["numbers"][_MOMENTUM] = following

    def _set_candidate(self, state: State) -> None:
        """The proximal step from `y_before`."""
        step, l1, l2 = state["numbers"][_STEP], self.settings["l1"], self.settings["l2"]
        start = state["y_before"]
        gradient = state["gradient_before"].copy()
        gradient[:-1] += l2 * start[:-1]
        point = start - step * gradient
        if l1:
            weights = point[:-1]
            point[:-1] = np.sign(weights) * np.maximum(np.abs(weights) - step * l1, 0.0)
        state["candidate"] = point

    def _objective(self, x: Array, smooth: float) -> float:
        weights = x[:-1]
        penalty = self.settings["l1"] * float(np.abs(weights).sum())
        return float(smooth + penalty + 0.5 * self.settings["l2"] * float(weights @ weights))

    def parameters(self, state: State) -> Array:
        """(d + 1,): the weights, then the intercept."""
        return state["x"]

    def predict(self, state: State, X: Features) -> Array:
        """Predicted targets: (n,)."""
        return np.asarray(as_features(X) @ state["x"][:-1] + state["x"][-1])

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """R2 and root mean squared error."""
        predicted, y = self.predict(state, batch.X), targets(batch)
        return {"r2": metrics.r2(y, predicted), "rmse": metrics.rmse(y, predicted)}


class Lasso(LinearRegression):
    """Least squares with an l1 penalty."""

    options: ClassVar[Mapping[str, Option]] = {
        **LinearRegression.options,
        "l1": Option(float, 0.01, "weight of the penalty |w|_1", at_least=0.0),
    }
