"""The base class of all models: training in summation form.

This is also the interface for models of your own. Name yours in a job file as
`model = "package.module:Class"` or `model = "path/to/file.py:Class"`. A model says what it
needs of each chunk of the rows, as sums; hpcslaq distributes the chunks, adds the sums, and
hands the totals back:

    class Mean(Model):
        '''Learns the mean of each feature by damped steps.'''

        options = {"rate": Option(float, 0.5, "step size", above=0.0, at_most=1.0)}

        def initial_state(self, data, rng):
            return {"mean": np.zeros(data.num_features)}

        def statistics(self, state, chunk, draw):
            return {"sum": chunk.X.sum(axis=0), "square": float(np.sum(np.square(chunk.X)))}

        def update(self, state, totals, context):
            n, old = context.info.num_rows, state["mean"]
            loss = totals["square"] / n - 2 * old @ totals["sum"] / n + old @ old
            state["mean"] = old + self.settings["rate"] * (totals["sum"] / n - old)
            return Step(loss)

The same bits come out on any number of workers if `statistics` depends on nothing but its
arguments (random draws from `draw.rng` only) and `update` on nothing but its own. Nothing
but the state survives a regroup or a restart: keep everything that is learnt in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError
from hpcslaq.train.exact import Statistics
from hpcslaq.train.options import Option

Array = NDArray[np.float64]
#: Rows of features: dense float64 (n, d), or a scipy.sparse.csr_array of that shape.
Features = Any
#: The state of a model: arrays of float64, int64 or bool by name.
State = dict[str, NDArray[Any]]
#: Statistics summed over all chunks: arrays, or floats where the statistic was a scalar.
Totals = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DataInfo:
    """What a model may know of its data before it sees a row."""

    num_rows: int
    num_features: int
    is_sparse: bool = False
    #: "classification", "regression", or another word where rows have no target.
    task: str = ""
    #: Number of classes (targets are 0, 1, ..., num_classes - 1); 0 if not classification.
    num_classes: int = 0


class Batch(Protocol):
    """Some rows of a data set."""

    @property
    def X(self) -> Features:
        """The features: float64 (n, d), dense or CSR; possibly read-only."""

    @property
    def y(self) -> Array | None:
        """The targets: (n,) float64, or None."""


class TrainingData(Protocol):
    """A data set as the trainer sees it. Row numbers count from 0."""

    @property
    def name(self) -> str: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_features(self) -> int: ...
    @property
    def is_sparse(self) -> bool: ...
    @property
    def task(self) -> str: ...
    @property
    def num_classes(self) -> int: ...

    def rows(self, start: int, stop: int) -> Batch:
        """Rows start, ..., stop - 1."""

    def chunk(self, index: int, num_chunks: int) -> Batch:
        """Chunk `index` of `num_chunks`: always the same rows."""

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """The rows with these numbers, in this order."""

    def holdout(self) -> Batch | None:
        """Rows kept aside for evaluation, or None."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of the rows, as `Model.statistics` sees it."""

    index: int
    #: (n, d) float64, dense or CSR. Never write to it.
    X: Features
    #: (n,) float64 or None. Never write to it.
    y: Array | None
    #: For what can be computed again from the chunk and the state: kept while this rank holds
    #: the chunk, dropped at will. Results must not depend on whether it is filled.
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows of the chunk."""
        return int(self.X.shape[0])


@dataclass(frozen=True, slots=True)
class Draw:
    """Where a chunk's statistics are wanted for: the place in the run that keys random draws."""

    seed: int
    #: Completed passes over the data.
    epoch: int
    #: Steps done in this epoch, and steps that an epoch has.
    step: int
    steps_per_epoch: int
    chunk: int
    #: Chunks that the job has.
    num_chunks: int = 1

    def rng(self, *keys: int) -> np.random.Generator:
        """A generator keyed by (seed, epoch, step, chunk, *keys): the same on any rank."""
        return keyed_rng(self.seed, self.epoch, self.step, self.chunk, *keys)


@dataclass(frozen=True, slots=True)
class Context:
    """What `Model.update` may know besides the totals."""

    info: DataInfo
    seed: int
    epoch: int
    step: int
    steps_per_epoch: int
    #: Iterations completed before this pass.
    iteration: int
    #: The last iteration's loss, or None before the first.
    last_loss: float | None = None

    @property
    def is_last_step(self) -> bool:
        """Whether this pass ends the epoch."""
        return self.step == self.steps_per_epoch - 1

    def rng(self, *keys: int) -> np.random.Generator:
        """A generator keyed by (seed, epoch, step, *keys): the same on all members."""
        return keyed_rng(self.seed, self.epoch, self.step, 1 << 40, *keys)


@dataclass(frozen=True, slots=True)
class Step:
    """What an update did."""

    #: Loss of the iteration that this pass completed; None: it completed none (a trial step of
    #: a line search, or a mini-batch between two reported losses).
    loss: float | None
    #: The algorithm has arrived: no further pass would improve the model.
    is_converged: bool = False


@dataclass(frozen=True, slots=True)
class Slices:
    """How the state of a model is cut whose update works element by element.

    All arrays are (P,) float64; a parameter server holds the same interval of each.
    """

    #: The parameters that `statistics` needs: all members have all of them.
    values: str
    #: What only the update needs, an optimiser's memory: its server alone has an element.
    memory: tuple[str, ...] = ()
    #: The statistic that is cut with them; all members get the totals of the others.
    gradient: str = "gradient"


class Model(ABC):
    """A model in summation form. Subclass it; see the module's docstring for an example."""

    #: Convergence class, for the prediction of losses (see also `convergence_of`).
    convergence: ClassVar[Convergence] = Convergence.SUBLINEAR
    #: Scores of `predict` above this mean class 1, where there is one score a row.
    decision_threshold: ClassVar[float] = 0.5
    #: The hyperparameters that a job may set.
    options: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Keep the validated hyperparameters (see `options.validate_options`)."""
        self.settings: dict[str, Any] = dict(settings)

    @classmethod
    def convergence_of(cls, settings: Mapping[str, Any]) -> Convergence:
        """The convergence class with these (validated) hyperparameters; that of the class here."""
        return cls.convergence

    @classmethod
    def sync_problem(cls, settings: Mapping[str, Any]) -> str:
        """Why parameter servers cannot train it with these (validated) options; "": they can."""
        return f"{cls.__name__} does not update its parameters element by element"

    def slices(self) -> Slices | None:
        """How parameter servers share its state; None: they cannot.

        A model that returns something also has `observe` and `move`, and its `update` does what
        `observe` and then `move` of the whole state do, bit by bit.
        """
        return None

    def observe(self, state: State, totals: Totals, context: Context) -> Step:
        """The part of an update that is not element by element: the loss, counters.

        Runs on every member, before anything moves. `totals` lacks what is cut.
        """
        raise NotImplementedError(f"{type(self).__name__} has no slices")

    def move(self, state: State, totals: Totals, context: Context, start: int) -> None:
        """Update, in `state`, an interval of what is cut: elements `start`, `start` + 1, ...

        The arrays that `slices` names hold just that interval, in `totals` too; do not change
        the others. Each element must depend on nothing but the same element of these, and on the
        rest of `state` and `totals`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no slices")

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError if the model cannot be trained on such data. Any rows will do here."""
        if info.num_rows < 1 or info.num_features < 1:
            raise DataError(
                f"{info.num_rows} rows of {info.num_features} features: nothing to learn"
            )

    def steps_per_epoch(self, info: DataInfo) -> int:
        """Passes (statistics, update) of one epoch: 1 if each pass visits all rows."""
        return 1

    @abstractmethod
    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """The state before the first pass. Runs on one rank only; may read any rows.

        Arrays keep their names and types for ever; shapes may change in `update`.
        """

    @abstractmethod
    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Sums over the chunk's rows by name: float64 arrays, or floats.

        Every chunk returns the same names and shapes. Must not change the state, and must
        give the same result when called again.
        """

    @abstractmethod
    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """Change the state in place, given the statistics summed over all chunks.

        Runs on every member with the same bits. The arrays in `totals` are yours to keep.
        """

    def parameters(self, state: State) -> Array:
        """(P,) float64: the learnt model without the optimiser's memory; all float arrays here.

        The digest of a model covers exactly these.
        """
        parts = [a.ravel() for _, a in sorted(state.items()) if a.dtype == np.float64]
        return np.concatenate(parts) if parts else np.zeros(0)

    def predict(self, state: State, X: Features) -> NDArray[Any]:
        """Predictions for rows of features (n, d): what they are is up to the model."""
        raise NotImplementedError(f"{type(self).__name__} does not predict")

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """Measures on rows that were not trained on, by name; none here."""
        return {}


def keyed_rng(*keys: int) -> np.random.Generator:
    """A generator that depends on the keys (integers) only."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([k % 2**63 for k in keys])))


def data_info(data: TrainingData) -> DataInfo:
    """The facts about a data set that a model may ask for."""
    return DataInfo(
        int(data.num_rows),
        int(data.num_features),
        bool(data.is_sparse),
        str(data.task),
        int(data.num_classes or 0),
    )


def steps_for_batches(info: DataInfo, batch_size: int) -> int:
    """Steps per epoch with about `batch_size` rows in each, over all chunks together."""
    return max(1, -(-info.num_rows // batch_size))


def batch_rows(chunk: Chunk, draw: Draw) -> NDArray[np.int64]:
    """The chunk's share of this step's mini-batch: row numbers within the chunk, ascending.

    The rows are shuffled once per epoch, keyed by (seed, epoch, chunk), and cut into
    `steps_per_epoch` parts whose sizes differ by at most one: in an epoch every row comes
    once, and the global batch of a step does not depend on the number of workers.
    """
    kept = chunk.cache.get("permutation")
    if kept is None or kept[0] != draw.epoch:
        rng = keyed_rng(draw.seed, draw.epoch, 1 << 41, draw.chunk)
        kept = (draw.epoch, rng.permutation(chunk.num_rows))
        chunk.cache["permutation"] = kept
    n, steps = chunk.num_rows, draw.steps_per_epoch
    # Chunks take their larger parts at different steps, which evens out the global batch.
    step = (draw.step + draw.chunk) % steps
    part = kept[1][step * n // steps : (step + 1) * n // steps]
    return np.sort(part)


def require_classes(info: DataInfo, model: str, least: int = 2, most: int | None = None) -> None:
    """Raises DataError unless the data have labels of `least` to `most` classes."""
    if info.num_classes < least or (most is not None and info.num_classes > most):
        span = (
            f"{least}"
            if most == least
            else f"{least} or more"
            if most is None
            else (f"{least} to {most}")
        )
        have = f"{info.num_classes} classes" if info.num_classes else "no class labels"
        raise DataError(f"{model} needs labels of {span} classes, the data have {have}")


def require_regression(info: DataInfo, model: str) -> None:
    """Raises DataError unless the data have real-valued targets."""
    if info.task != "regression":
        raise DataError(
            f"{model} needs real-valued targets (task regression), the data have task "
            f"{info.task or 'none'!r}"
        )


def targets(batch: Batch) -> Array:
    """The targets of a batch. Raises DataError if it has none."""
    if batch.y is None:
        raise DataError("the data have no targets")
    return batch.y


def as_features(X: ArrayLike | Features) -> Features:
    """Rows of features as float64, dense (n, d) or CSR."""
    if sparse.issparse(X):
        is_ready = isinstance(X, sparse.csr_array) and X.dtype == np.float64
        return X if is_ready else sparse.csr_array(X, dtype=np.float64)
    return np.atleast_2d(np.asarray(X, dtype=np.float64))
