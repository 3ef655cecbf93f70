"""PyTorch modules as models in summation form: any `nn.Module`, loss and optimiser.

    class Net(TorchModel):
        options = {**TorchModel.options, "rate": Option(float, 0.01, "learning rate", above=0)}

        def build(self, info):
            return nn.Sequential(nn.Linear(info.num_features, 32), nn.ReLU(), nn.Linear(32, 10))

        def loss(self, outputs, y):
            return nn.functional.cross_entropy(outputs, y, reduction="none")

        def optimiser(self, parameters):
            return torch.optim.Adam(parameters, lr=self.settings["rate"])

Each chunk computes the gradient of its share of the mini-batch; the exact sum of all is what
the optimiser sees, on every member alike. Parameters, buffers and the optimiser's state live in
the job's state as flat float64 (int64) vectors, in which float32 values are exact; they are
never pickled. Needs the extra `torch`; runs on the CPU with one thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hpcslaq.errors import LaunchError, TrainingError
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

try:
    import torch
except ImportError as _error:
    raise LaunchError('models of PyTorch need it: pip install "hpcslaq[torch]"') from _error

#: Rows that are predicted at a time.
_PREDICTED_ROWS = 4096


@dataclass(slots=True)
class _Parts:
    """The module and optimiser of one model on this rank, and what they hold at present."""

    module: Any
    optimiser: Any
    parameters: list[Any]
    #: Those that the optimiser moves.
    trained: list[Any]
    #: Buffers of floating point, and others (counters and masks).
    buffers: list[Any]
    counters: list[Any]
    #: For each trained parameter the optimiser's entries: name -> value after a first step.
    entries: list[dict[str, Any]]
    #: The state's arrays whose values module and optimiser hold (compared by identity).
    loaded: Any = None
    optimiser_loaded: Any = None


class TorchModel(Model):
    """A PyTorch module trained on mini-batches; subclass it with `build`, `loss`, `optimiser`."""

    options: ClassVar[Mapping[str, Option]] = {
        name: stochastic.OPTIONS[name] for name in ("batch_size", "losses_per_epoch")
    }

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._parts: _Parts | None = None

    @abstractmethod
    def build(self, info: DataInfo) -> Any:
        """A new `nn.Module` for such data; its initial values may be random."""

    @abstractmethod
    def loss(self, outputs: Any, y: Any) -> Any:
        """The loss of each row: (n,), so `reduction="none"`.

        outputs : what the module returns; y : (n,) int64 labels, or floats in regression.
        """

    @abstractmethod
    def optimiser(self, parameters: Iterable[Any]) -> Any:
        """A new `torch.optim.Optimizer` of these parameters, one that needs no closure."""

    def before_step(self, optimiser: Any, context: Context) -> None:
        """Called when the gradients are set: clip them, or set the learning rate by the epoch."""

    def inputs(self, X: Features) -> Any:
        """Rows (n, d) as the tensor that the module takes: float32 here."""
        dense = X.toarray() if sparse.issparse(X) else np.asarray(X)
        return torch.from_numpy(np.array(dense, dtype=np.float32))

    # -- the interface of all models --------------------------------------------------------

    def steps_per_epoch(self, info: DataInfo) -> int:
        """Mini-batches per epoch."""
        return steps_for_batches(info, self.settings["batch_size"])

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """The module as it is built with a keyed seed; the optimiser has not begun."""
        info = data_info(data)
        facts = [info.num_rows, info.num_features, info.is_sparse, info.num_classes]
        parts = self._make(info, int(rng.integers(2**62)))
        return {
            "parameters": _flat(parts.parameters),
            "buffers": _flat(parts.buffers),
            "counters": np.array(_flat(parts.counters), dtype=np.int64),
            "optimiser": np.zeros(sum(_size(v) for e in parts.entries for v in e.values())),
            "has_begun": np.zeros(1, dtype=np.bool_),
            "progress": np.zeros(2),
            "data": np.array(facts, dtype=np.int64),
            "task": np.frombuffer(info.task.encode(), dtype=np.uint8).astype(np.int64),
        }

    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Sums over the chunk's rows of this mini-batch: loss, gradient (P,), rows, buffers."""
        parts = self._ready(state)
        rows = batch_rows(chunk, draw)
        loss, gradient = 0.0, np.zeros(sum(p.numel() for p in parts.trained))
        if rows.size:
            y = _labels(targets(chunk)[rows], _info(state))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(draw.rng(1).integers(2**62)))
                loss = self._backward(parts, self.inputs(chunk.X[rows]), y)
            gradient = _flat(p.grad for p in parts.trained)
        sums: dict[str, Array | float] = {
            "loss": loss,
            "gradient": gradient,
            "rows": float(rows.size),
        }
        # Running means and the like differ between chunks after a pass: their mean counts.
        for name, tensors in (("buffers", parts.buffers), ("counters", parts.counters)):
            if tensors:
                sums[name] = rows.size * _flat(tensors)
        return {name: value for name, value in sums.items() if np.size(value)}

    def _backward(self, parts: _Parts, X: Any, y: Any) -> float:
        parts.module.train()
        for parameter in parts.trained:
            parameter.grad = None
        losses = self.loss(parts.module(X), y)
        if losses.shape != y.shape:
            raise TrainingError(
                f"loss: shape {tuple(losses.shape)}, expected one loss a row {tuple(y.shape)} "
                '(reduction="none")'
            )
        total = losses.sum()
        total.backward()
        for parameter in parts.trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return float(total.detach())

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """One step of the optimiser with the mean gradient of the mini-batch."""
        parts = self._ready(state)
        num_rows = max(totals["rows"], 1.0)
        if state["has_begun"][0] and parts.optimiser_loaded is not state["optimiser"]:
            _load_optimiser(parts, state["optimiser"])
        if "gradient" in totals:
            _set([p.grad for p in _with_gradients(parts.trained)], totals["gradient"] / num_rows)
        self.before_step(parts.optimiser, context)
        parts.optimiser.step()
        state["parameters"] = parts.loaded = _flat(parts.parameters)
        state["optimiser"] = parts.optimiser_loaded = _optimiser_values(parts)
        state["has_begun"] = np.ones(1, dtype=np.bool_)
        if "buffers" in totals and totals["rows"]:
            _set(parts.buffers, totals["buffers"] / num_rows)
            state["buffers"] = _flat(parts.buffers)
        if "counters" in totals and totals["rows"]:
            state["counters"] = np.rint(totals["counters"] / num_rows).astype(np.int64)
        loss = totals["loss"] / num_rows
        per_epoch = self.settings["losses_per_epoch"]
        return Step(stochastic.report(state, loss, num_rows, context, per_epoch))

    def parameters(self, state: State) -> Array:
        """(P + B,): the module's parameters in their order, then its buffers of floating point."""
        return np.concatenate([state["parameters"], state["buffers"]])

    def module(self, state: State) -> Any:
        """The module with the values of a state, ready to evaluate; the next call reuses it."""
        module = self._ready(state).module
        module.eval()
        return module

    def outputs(self, state: State, X: Features) -> NDArray[Any]:
        """What the module returns for rows of features, as float64."""
        module = self.module(state)
        starts = range(0, max(X.shape[0], 1), _PREDICTED_ROWS)
        with torch.no_grad():
            found = [
                module(self.inputs(X[start : start + _PREDICTED_ROWS])).double().numpy()
                for start in starts
            ]
        return np.concatenate(found)

    def predict(self, state: State, X: Features) -> NDArray[Any]:
        """Probabilities (n, K) from K outputs or (n,) from one; outputs where not labels."""
        outputs = self.outputs(state, X)
        if _info(state).task != "classification":
            return outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
        if outputs.ndim == 2 and outputs.shape[1] > 1:
            return metrics.softmax(outputs)
        return metrics.sigmoid(outputs.reshape(len(outputs)))

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """Accuracy and log-loss, or R2 and root mean squared error."""
        predicted, y = self.predict(state, batch.X), targets(batch)
        if _info(state).task != "classification":
            return {"r2": metrics.r2(y, predicted), "rmse": metrics.rmse(y, predicted)}
        labels = predicted > 0.5 if predicted.ndim == 1 else predicted.argmax(axis=1)
        return {
            "accuracy": metrics.accuracy(y, labels),
            "log_loss": metrics.log_loss(y, predicted),
        }

    # -- between the state and torch ----------------------------------------------------------

    def _ready(self, state: State) -> _Parts:
        """Module and optimiser, with this state's parameters and buffers."""
        if self._parts is None:
            self._parts = self._make(_info(state), 0)
        parts = self._parts
        if parts.loaded is not state["parameters"]:
            _set(parts.parameters, state["parameters"])
            parts.loaded = state["parameters"]
        # A forward pass changes them: they are set each time.
        _set(parts.buffers, state["buffers"])
        _set(parts.counters, state["counters"])
        return parts

    def _make(self, info: DataInfo, seed: int) -> _Parts:
        """A new module, and what its optimiser remembers after a step (which is undone)."""
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build(info)
        parameters = list(module.parameters())
        buffers = list(module.buffers())
        for tensor in (*parameters, *buffers):
            if tensor.is_complex():
                raise TrainingError(f"{type(self).__name__}: complex tensors are not supported")
        trained = [p for p in parameters if p.requires_grad]
        before = _flat(parameters)
        optimiser = self.optimiser(trained)
        _with_gradients(trained)
        try:
            optimiser.step()
        except TypeError as error:
            raise TrainingError(
                f"{type(self).__name__}: {type(optimiser).__name__} does not step without a "
                f"closure: {error}"
            ) from error
        entries = [dict(optimiser.state.get(parameter, {})) for parameter in trained]
        _set(parameters, before)
        return _Parts(
            module,
            # A new one, which has not made that step.
            self.optimiser(trained),
            parameters,
            trained,
            [b for b in buffers if b.is_floating_point()],
            [b for b in buffers if not b.is_floating_point()],
            [{k: v for k, v in entry.items() if v is not None} for entry in entries],
        )


def _info(state: State) -> DataInfo:
    rows, features, is_sparse, classes = state["data"].tolist()
    task = state["task"].astype(np.uint8).tobytes().decode()
    return DataInfo(rows, features, bool(is_sparse), task, classes)


def _labels(y: Array, info: DataInfo) -> Any:
    return torch.from_numpy(y.astype(np.int64 if info.num_classes else np.float32))


def _with_gradients(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return parameters


def _size(value: Any) -> int:
    return int(value.numel()) if isinstance(value, torch.Tensor) else 1


def _flat(tensors: Iterable[Any]) -> Array:
    """All values in one float64 vector; exact for floats of up to 64 bits."""
    parts = [tensor.detach().reshape(-1).double() for tensor in tensors]
    return torch.cat(parts).numpy() if parts else np.zeros(0)


def _set(tensors: list[Any], values: NDArray[Any]) -> None:
    """The inverse of `_flat`, in place; rounds to the tensors' own types."""
    start = 0
    with torch.no_grad():
        for tensor in tensors:
            part = torch.from_numpy(values[start : start + tensor.numel()])
            tensor.copy_(part.reshape(tensor.shape))
            start += tensor.numel()


def _optimiser_values(parts: _Parts) -> Array:
    """What the optimiser remembers, in the order of `entries`: float64."""
    values = []
    for parameter, entry in zip(parts.trained, parts.entries, strict=True):
        own = parts.optimiser.state[parameter]
        for name in entry:
            value = own[name]
            is_tensor = isinstance(value, torch.Tensor)
            values.append(value if is_tensor else torch.tensor(float(value), dtype=torch.float64))
    return _flat(values)


def _load_optimiser(parts: _Parts, values: Array) -> None:
    """Give the optimiser the memory that `_optimiser_values` gave."""
    start = 0
    for parameter, entry in zip(parts.trained, parts.entries, strict=True):
        own = parts.optimiser.state[parameter]
        for name, example in entry.items():
            part = values[start : start + _size(example)]
            start += part.size
            if isinstance(example, torch.Tensor):
                own[name] = torch.empty_like(example)
                _set([own[name]], part)
            else:
                own[name] = type(example)(part[0])
    parts.optimiser_loaded = values
