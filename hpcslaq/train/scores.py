"""Models with linear scores X W + b and a loss per row: shared by logistic, softmax and SVM.

    minimise  1/n sum_i loss(x_i W + b, y_i) + l2/2 |W|^2

A subclass says what a row's loss is. Solvers: `lbfgs` and `gd` pass over all rows, `sgd`,
`momentum` and `adam` take mini-batches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from hpcslaq.core.jobs import Convergence
from hpcslaq.train import descent, lbfgs, stochastic
from hpcslaq.train.blocks import BLOCK_BYTES, row_blocks, rows_per_block, transposed
from hpcslaq.train.exact import Statistics
from hpcslaq.train.model import (
    Array,
    Chunk,
    Context,
    DataInfo,
    Draw,
    Features,
    Model,
    Slices,
    State,
    Step,
    Totals,
    TrainingData,
    batch_rows,
    data_info,
    steps_for_batches,
    targets,
)
from hpcslaq.train.options import Option

OPTIONS: Mapping[str, Option] = {
    "solver": Option(str, "lbfgs", "how to minimise", choices=("lbfgs", "gd", *stochastic.NAMES)),
    "l2": Option(float, 0.0, "weight of the penalty l2/2 |W|^2 on the mean loss", at_least=0.0),
    "intercept": Option(bool, True, "fit an intercept; it is not penalised"),
    "memory": Option(int, 10, "pairs that lbfgs remembers", at_least=1, at_most=100),
    "gradient_tolerance": Option(
        float, 1e-7, "lbfgs and gd end when no element of the gradient is larger", at_least=0.0
    ),
    "step": Option(float, None, "fixed step of gd; none: adaptive", above=0.0),
    **stochastic.OPTIONS,
}


class ScoreModel(Model):
    """Base class; the parameters are W (d, K) row by row, then b (K,), in one vector."""

    #: With the default solver.
    convergence: ClassVar[Convergence] = Convergence.SUPERLINEAR
    options: ClassVar[Mapping[str, Option]] = OPTIONS

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.solver: str = self.settings["solver"]
        self.is_stochastic = self.solver in stochastic.NAMES

    @classmethod
    def convergence_of(cls, settings: Mapping[str, Any]) -> Convergence:
        """Superlinear with `lbfgs`; gradient descent and mini-batches are first-order methods."""
        is_newton = settings["solver"] == "lbfgs"
        return Convergence.SUPERLINEAR if is_newton else Convergence.SUBLINEAR

    @abstractmethod
    def row_losses(
        self, state: State, scores: Array, y: Array, cache: dict[str, Any]
    ) -> tuple[float, Array]:
        """Sum of the rows' losses and their derivatives by the scores, (n,) or (n, K).

        `scores` may be overwritten; `cache` is for what depends on y only.
        """

    def num_outputs(self, info: DataInfo) -> int:
        """K: scores of a row; 1 here."""
        return 1

    def num_inputs(self, info: DataInfo) -> int:
        """Weights of an output; one per feature here."""
        return info.num_features

    def steps_per_epoch(self, info: DataInfo) -> int:
        """Mini-batches per epoch, 1 for the full-batch solvers."""
        if not self.is_stochastic:
            return 1
        return steps_for_batches(info, self.settings["batch_size"])

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """All parameters 0."""
        info = data_info(data)
        return self.start(np.zeros((self.num_inputs(info) + 1) * self.num_outputs(info)))

    def start(self, x: Array) -> State:
        """The solver's state before its first pass, at x (P,)."""
        if self.solver == "lbfgs":
            return lbfgs.start(x, self.settings["memory"])
        if self.solver == "gd":
            return descent.start(x, self.settings["step"])
        return stochastic.start(x, self.solver)

    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Sums of loss and gradient (P,) over the chunk's rows (of this mini-batch)."""
        if not self.is_stochastic:
            return self._sums(state, chunk.X, targets(chunk), chunk.cache)
        rows = batch_rows(chunk, draw)
        sums = self._sums(state, chunk.X[rows], targets(chunk)[rows], {})
        return sums | {"rows": float(rows.size)}

    def _sums(
        self, state: State, X: Features, y: Array, cache: dict[str, Any]
    ) -> dict[str, Array | float]:
        if sparse.issparse(X) or X.nbytes <= 2 * BLOCK_BYTES:
            return self._block_sums(state, X, y, cache)
        # The rows come from the cache, not from memory, when the gradient needs them again.
        loss, gradient = 0.0, np.zeros(state["x"].size)
        for start, stop, rows in row_blocks(X, cache, rows_per_block(X.shape[1])):
            own_cache = cache.setdefault(f"rows from {start}", {})
            sums = self._block_sums(state, rows, y[start:stop], own_cache)
            loss += sums["loss"]
            gradient += sums["gradient"]
        return {"loss": loss, "gradient": gradient}

    def _block_sums(
        self, state: State, X: Features, y: Array, cache: dict[str, Any]
    ) -> dict[str, Any]:
        x = self._evaluated(state)
        num_outputs = x.size // (X.shape[1] + 1)
        weights, intercept = _split(x, num_outputs)
        scores = X @ weights
        scores += intercept
        loss, slopes = self.row_losses(state, scores, y, cache)
        gradient = np.empty(x.size)
        gradient[:-num_outputs] = (transposed(X, cache) @ slopes).ravel()
        gradient[-num_outputs:] = slopes.sum(axis=0) if self.settings["intercept"] else 0.0
        return {"loss": float(loss), "gradient": gradient}

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """One evaluation of the solver."""
        if self.is_stochastic:
            done = self.observe(state, totals, context)
            self.move(state, totals, context, 0)
            return done
        x, num_rows = state["trial"], context.info.num_rows
        loss = self._mean_loss(x, totals["loss"], num_rows, context)
        gradient = self._mean_gradient(x, totals["gradient"], num_rows, context, 0)
        advance = lbfgs.advance if self.solver == "lbfgs" else descent.advance
        return advance(state, loss, gradient, self.gradient_tolerance(state))

    @classmethod
    def sync_problem(cls, settings: Mapping[str, Any]) -> str:
        """Those solvers go that take mini-batches."""
        return stochastic.sync_problem(settings["solver"])

    def slices(self) -> Slices | None:
        """Those of the optimiser, where it takes mini-batches."""
        return stochastic.slices(self.solver) if self.is_stochastic else None

    def observe(self, state: State, totals: Totals, context: Context) -> Step:
        """The loss of a mini-batch, and whether one is due."""
        num_rows, per_epoch = totals["rows"], self.settings["losses_per_epoch"]
        loss = self._mean_loss(state["x"], totals["loss"], num_rows, context)
        state["count"] += 1
        return Step(stochastic.report(state, loss, num_rows, context, per_epoch))

    def move(self, state: State, totals: Totals, context: Context, start: int) -> None:
        """One step of the optimiser, for an interval of the parameters."""
        gradient = self._mean_gradient(
            state["x"], totals["gradient"], totals["rows"], context, start
        )
        stochastic.move(state, gradient, self.solver, self.settings, context.epoch)

    def _mean_loss(self, x: Array, loss: float, num_rows: float, context: Context) -> float:
        """Mean over the rows, and the penalty at x (P,)."""
        loss /= max(num_rows, 1.0)
        l2 = self.settings["l2"]
        if l2:
            weights = x[: -self.num_outputs(context.info)]
            loss += 0.5 * l2 * float(weights @ weights)
        return loss

    def _mean_gradient(
        self, x: Array, gradient: Array, num_rows: float, context: Context, start: int
    ) -> Array:
        """The same for an interval of the gradient, which is overwritten; x from there, too."""
        gradient /= max(num_rows, 1.0)
        l2 = self.settings["l2"]
        if l2:
            info = context.info
            num_weights = max(self.num_inputs(info) * self.num_outputs(info) - start, 0)
            gradient[:num_weights] += l2 * x[:num_weights]
        return gradient

    def gradient_tolerance(self, state: State) -> float:
        """What the largest element of the gradient must reach."""
        return float(self.settings["gradient_tolerance"])

    def _evaluated(self, state: State) -> Array:
        """Where this pass evaluates loss and gradient."""
        return state["x"] if self.is_stochastic else state["trial"]

    def parameters(self, state: State) -> Array:
        """(P,): W row by row, then b."""
        return state["x"]

    def scores(self, state: State, X: Features) -> Array:
        """X W + b: (n,), or (n, K) if a row has several scores."""
        weights, intercept = _split(state["x"], state["x"].size // (X.shape[1] + 1))
        return np.asarray(X @ weights + intercept)


def _split(x: Array, num_outputs: int) -> tuple[Array, Any]:
    """W as (d,) and b as a float for one output, else (d, K) and (K,)."""
    if num_outputs == 1:
        return x[:-1], x[-1]
    return x[:-num_outputs].reshape(-1, num_outputs), x[-num_outputs:]
