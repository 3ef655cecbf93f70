"""Multilayer perceptrons: fully connected layers, mini-batches, classifier and regressor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from hpcslaq.core.jobs import Convergence
from hpcslaq.train import metrics, stochastic
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
    Slices,
    State,
    Step,
    Totals,
    TrainingData,
    as_features,
    batch_rows,
    data_info,
    require_classes,
    require_regression,
    steps_for_batches,
    targets,
)
from hpcslaq.train.options import Option


class Perceptron(Model):
    """Base of classifier and regressor; parameters are W (in, out), b (out,) layer by layer."""

    convergence: ClassVar[Convergence] = Convergence.SUBLINEAR
    options: ClassVar[Mapping[str, Option]] = {
        "hidden": Option(int, (64,), "sizes of the hidden layers", at_least=1, is_list=True),
        "activation": Option(str, "relu", "of hidden units", choices=("relu", "tanh")),
        "solver": Option(str, "adam", "optimiser", choices=stochastic.NAMES),
        "l2": Option(float, 0.0, "weight of the penalty l2/2 |W|^2 on the mean loss", at_least=0),
        **stochastic.OPTIONS,
        "rate": Option(float, 0.001, "learning rate", above=0.0),
    }

    @abstractmethod
    def num_outputs(self, info: DataInfo) -> int:
        """Units of the last layer."""

    @abstractmethod
    def output_losses(self, state: State, outputs: Array, y: Array) -> tuple[float, Array]:
        """Sum of the rows' losses and derivatives by the outputs (n, k), which may be reused."""

    def steps_per_epoch(self, info: DataInfo) -> int:
        """Mini-batches per epoch."""
        return steps_for_batches(info, self.settings["batch_size"])

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """Weights drawn by He et al. (relu) or Glorot and Bengio (tanh); biases 0."""
        info = data_info(data)
        sizes = (info.num_features, *self.settings["hidden"], self.num_outputs(info))
        x = np.zeros(sum((a + 1) * b for a, b in pairwise(sizes)))
        for weights, _ in _layers(x, sizes):
            fan_in, fan_out = weights.shape
            is_relu = self.settings["activation"] == "relu"
            scale = np.sqrt(2.0 / fan_in if is_relu else 2.0 / (fan_in + fan_out))
            weights[:] = scale * rng.standard_normal(weights.shape)
        state = stochastic.start(x, self.settings["solver"])
        return state | {"sizes": np.array(sizes, dtype=np.int64)}

    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Sums of loss and gradient (P,) over the chunk's rows of this mini-batch."""
        rows = batch_rows(chunk, draw)
        gradient, loss = np.empty(state["x"].size), 0.0
        if not rows.size:
            gradient[:] = 0.0
        else:
            loss = self._backward(state, chunk.X[rows], targets(chunk)[rows], gradient)
        return {"loss": loss, "gradient": gradient, "rows": float(rows.size)}

    def _backward(self, state: State, X: Features, y: Array, gradient: Array) -> float:
        """The loss; writes the gradient."""
        sizes = state["sizes"].tolist()
        layers, slopes = _layers(state["x"], sizes), _layers(gradient, sizes)
        inputs = self._forward(layers, X)
        loss, delta = self.output_losses(state, inputs.pop(), y)
        for i in range(len(layers) - 1, -1, -1):
            source = inputs[i]
            weight_slopes, bias_slopes = slopes[i]
            if sparse.issparse(source):
                weight_slopes[:] = source.T @ delta
            else:
                np.matmul(source.T, delta, out=weight_slopes)
            delta.sum(axis=0, out=bias_slopes)
            if i == 0:
                break
            delta = delta @ layers[i][0].T
            if self.settings["activation"] == "relu":
                delta *= source > 0
            else:
                delta *= 1.0 - source * source
        return loss

    def _forward(self, layers: list[tuple[Array, Array]], X: Features) -> list[Any]:
        """Inputs of each layer, then the outputs of the last."""
        values = [X]
        for i, (weights, biases) in enumerate(layers):
            outputs = values[-1] @ weights
            outputs += biases
            if i < len(layers) - 1:
                if self.settings["activation"] == "relu":
                    np.maximum(outputs, 0.0, out=outputs)
                else:
                    np.tanh(outputs, out=outputs)
            values.append(outputs)
        return values

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """One step of the optimiser."""
        done = self.observe(state, totals, context)
        self.move(state, totals, context, 0)
        return done

    @classmethod
    def sync_problem(cls, settings: Mapping[str, Any]) -> str:
        """All its solvers go."""
        return stochastic.sync_problem(settings["solver"])

    def slices(self) -> Slices | None:
        """Those of the optimiser."""
        return stochastic.slices(self.settings["solver"])

    def observe(self, state: State, totals: Totals, context: Context) -> Step:
        """The loss of a mini-batch, and whether one is due."""
        num_rows, l2 = totals["rows"], self.settings["l2"]
        loss = totals["loss"] / max(num_rows, 1.0)
        if l2:
            for weights, _ in _layers(state["x"], state["sizes"].tolist()):
                loss += 0.5 * l2 * float(np.vdot(weights, weights))
        per_epoch = self.settings["losses_per_epoch"]
        state["count"] += 1
        return Step(stochastic.report(state, loss, num_rows, context, per_epoch))

    def move(self, state: State, totals: Totals, context: Context, start: int) -> None:
        """One step of the optimiser, for an interval of the parameters."""
        x, gradient, l2 = state["x"], totals["gradient"], self.settings["l2"]
        gradient /= max(totals["rows"], 1.0)
        if l2:
            for first, last in _weight_intervals(state["sizes"].tolist()):
                inside = slice(max(first - start, 0), max(last - start, 0))
                gradient[inside] += l2 * x[inside]
        stochastic.move(state, gradient, self.settings["solver"], self.settings, context.epoch)

    def parameters(self, state: State) -> Array:
        """(P,): W row by row, then b, layer by layer."""
        return state["x"]

    def outputs(self, state: State, X: Features) -> Array:
        """Outputs of the last layer: (n, k)."""
        layers = _layers(state["x"], state["sizes"].tolist())
        return np.asarray(self._forward(layers, as_features(X))[-1])


class MLPClassifier(Perceptron):
    """Multilayer perceptron with a softmax output and cross-entropy loss."""

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless there are at least two classes."""
        require_classes(info, "mlp")

    def num_outputs(self, info: DataInfo) -> int:
        """One output a class."""
        return info.num_classes

    def output_losses(self, state: State, outputs: Array, y: Array) -> tuple[float, Array]:
        """Sum of the cross-entropies, and softmax(outputs) - [k = y]."""
        rows, labels = np.arange(y.size), y.astype(np.int64)
        outputs -= outputs.max(axis=1, keepdims=True)
        of_truth = float(outputs[rows, labels].sum())
        exps = np.exp(outputs, out=outputs)
        sums = exps.sum(axis=1)
        exps /= sums[:, None]
        exps[rows, labels] -= 1.0
        return float(np.log(sums).sum()) - of_truth, exps

    def predict(self, state: State, X: Features) -> Array:
        """Probabilities of the classes: (n, K)."""
        return metrics.softmax(self.outputs(state, X))

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """Log-loss and accuracy."""
        probabilities, y = self.predict(state, batch.X), targets(batch)
        return {
            "log_loss": metrics.log_loss(y, probabilities),
            "accuracy": metrics.accuracy(y, probabilities.argmax(axis=1)),
        }


class MLPRegressor(Perceptron):
    """Multilayer perceptron with one linear output and half squared error.

    It learns the target less its mean, over its deviation (both from a sample); the loss is
    in these units.
    """

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless the targets are real numbers."""
        require_regression(info, "mlp_regressor")

    def num_outputs(self, info: DataInfo) -> int:
        """One output."""
        return 1

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """As for all perceptrons, and the scale of the target."""
        state = super().initial_state(data, rng)
        size = min(data.num_rows, 10_000)
        y = targets(data.take(np.sort(rng.choice(data.num_rows, size, replace=False))))
        return state | {"target": np.array([np.mean(y), np.std(y) or 1.0])}

    def output_losses(self, state: State, outputs: Array, y: Array) -> tuple[float, Array]:
        """Sum of half squared errors, and the errors."""
        mean, scale = state["target"].tolist()
        outputs -= ((y - mean) / scale)[:, None]
        return 0.5 * float(np.vdot(outputs, outputs)), outputs

    def parameters(self, state: State) -> Array:
        """(P + 2,): W and b layer by layer, then mean and deviation of the target."""
        return np.concatenate([state["x"], state["target"]])

    def predict(self, state: State, X: Features) -> Array:
        """Predicted targets: (n,)."""
        mean, scale = state["target"].tolist()
        return np.asarray(self.outputs(state, X)[:, 0] * scale + mean)

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """R2 and root mean squared error."""
        predicted, y = self.predict(state, batch.X), targets(batch)
        return {"r2": metrics.r2(y, predicted), "rmse": metrics.rmse(y, predicted)}


def _layers(x: Array, sizes: Any) -> list[tuple[Array, Array]]:
    """Views of the layers' weights (in, out) and biases (out,) in the flat vector."""
    layers, start = [], 0
    for num_in, num_out in pairwise(sizes):
        middle = start + num_in * num_out
        layers.append((x[start:middle].reshape(num_in, num_out), x[middle : middle + num_out]))
        start = middle + num_out
    return layers


def _weight_intervals(sizes: Any) -> list[tuple[int, int]]:
    """Where in the flat vector each layer's weights begin and end; its biases follow."""
    intervals, start = [], 0
    for num_in, num_out in pairwise(sizes):
        intervals.append((start, start + num_in * num_out))
        start += (num_in + 1) * num_out
    return intervals
