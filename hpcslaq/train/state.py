"""The state of a training job: all that a checkpoint stores and a joiner is sent.

A flat set of named arrays (`pack`, `unpack`), so that nothing is ever pickled.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import CheckpointError, TrainingError
from hpcslaq.train.model import Array, Model, State, TrainingData, data_info, keyed_rng

_ARRAY_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TYPES = (np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_))
_COUNTERS = ("iterations", "epochs", "step", "passes", "redos", "num_slow")


@dataclass(slots=True)
class TrainState:
    """Everything that decides how a job goes on; the same on every member at every pass."""

    #: The model's own state.
    arrays: State
    #: Iterations that reported a loss = `len(losses)`.
    iterations: int = 0
    #: Completed passes over the data.
    epochs: int = 0
    #: Passes done in the present epoch; 0 at a boundary.
    step: int = 0
    #: Updates in total.
    passes: int = 0
    #: How often a pass was computed again with another grid.
    redos: int = 0
    #: Iterations in a row whose loss improved too little (the tolerance rule).
    num_slow: int = 0
    #: Exponent bound of each segment of the statistics (see `exact`).
    bounds: dict[str, int] = field(default_factory=dict)
    #: Losses with room to grow; the first `iterations` count.
    _losses: Array = field(default_factory=lambda: np.zeros(64))

    @property
    def losses(self) -> Array:
        """The losses of all iterations so far: (iterations,) float64, a view."""
        return self._losses[: self.iterations]

    @property
    def last_loss(self) -> float | None:
        """The newest loss, None before the first."""
        return float(self._losses[self.iterations - 1]) if self.iterations else None

    def append_loss(self, loss: float) -> None:
        """Count an iteration with this loss."""
        if self.iterations == self._losses.size:
            self._losses = np.concatenate([self._losses, np.zeros(self._losses.size)])
        self._losses[self.iterations] = loss
        self.iterations += 1

    def pack(self) -> dict[str, NDArray[Any]]:
        """The state as named arrays, names like "model/weights"; may share memory with it."""
        packed: dict[str, NDArray[Any]] = {f"model/{k}": a for k, a in self.arrays.items()}
        for name, bound in self.bounds.items():
            packed[f"bound/{name}"] = np.array(bound, dtype=np.int64)
        packed["losses"] = self.losses
        packed["counters"] = np.array([getattr(self, c) for c in _COUNTERS], dtype=np.int64)
        return packed

    @classmethod
    def unpack(cls, packed: Mapping[str, NDArray[Any]]) -> TrainState:
        """The state that `pack` gave; copies. Raises CheckpointError if something is missing."""
        for name in ("losses", "counters"):
            if name not in packed:
                raise CheckpointError(f"training state: no {name!r} among {sorted(packed)}")
        counters, losses = packed["counters"], packed["losses"]
        if counters.shape != (len(_COUNTERS),) or losses.shape != (int(counters[0]),):
            raise CheckpointError(
                f"training state: {counters.shape} counters and {losses.shape} losses do not fit"
            )
        state = cls({})
        for name, value in packed.items():
            kind, _, key = name.partition("/")
            if kind == "model":
                state.arrays[key] = np.array(value)
            elif kind == "bound":
                state.bounds[key] = int(value)
        for name, count in zip(_COUNTERS, counters.tolist(), strict=True):
            setattr(state, name, count)
        state._losses = np.zeros(max(64, 2 * losses.size))
        state._losses[: losses.size] = losses
        return state

    def loss_digest(self) -> str:
        """SHA-256 (hex) over the little-endian float64 bytes of the losses."""
        return hashlib.sha256(self.losses.astype("<f8").tobytes()).hexdigest()

    def model_digest(self, model: Model) -> str:
        """SHA-256 (hex) over the little-endian float64 bytes of the parameters."""
        return hashlib.sha256(model.parameters(self.arrays).astype("<f8").tobytes()).hexdigest()

    def checksum(self, model: Model) -> float:
        """CRC-32 of parameters, counters and the last loss: members compare it at boundaries.

        Raises TrainingError where a parameter is NaN.
        """
        parameters = np.ascontiguousarray(model.parameters(self.arrays), dtype=np.float64)
        num_bad = int(np.count_nonzero(np.isnan(parameters)))
        if num_bad:
            raise TrainingError(f"{num_bad} of {parameters.size} parameters are NaN")
        crc = zlib.crc32(repr((self.iterations, self.epochs, self.last_loss)).encode())
        return float(zlib.crc32(parameters.data, crc))


def initial_state(spec: JobSpec, model: Model, data: TrainingData) -> TrainState:
    """The state of a job before its first pass; made on one rank, then sent to the others.

    Raises DataError if the model cannot use the data, TrainingError if its state is unusable.
    """
    model.check_data(data_info(data))
    arrays = model.initial_state(data, keyed_rng(spec.seed, 1 << 42))
    return TrainState(checked_arrays(arrays))


def checked_arrays(arrays: Mapping[str, Any]) -> State:
    """A model's state as contiguous arrays of the allowed types. Raises TrainingError if not."""
    checked: State = {}
    for name, value in arrays.items():
        array = np.array(value, order="C")
        if not _ARRAY_NAME.fullmatch(name):
            raise TrainingError(f"state: {name!r} is no name for an array (letters, digits, ._-)")
        if array.dtype not in _TYPES:
            raise TrainingError(
                f"state: {name!r} has type {array.dtype} (valid: float64, int64, bool)"
            )
        checked[name] = array
    return checked
