"""Data sets in memory, and members of a job that train in lock-step as threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import Model
from hpcslaq.train.reducer import Solo
from hpcslaq.train.stale import trainer_class
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import Flag, StepReport, Trainer


@dataclass
class ArrayData:
    """A data set in memory; every row trains, `held_out` evaluates."""

    X: Any
    y: np.ndarray | None = None
    task: str = "classification"
    held_out: Any = None
    name: str = "arrays"

    def __post_init__(self) -> None:
        self.is_sparse = sparse.issparse(self.X)
        self.num_rows, self.num_features = self.X.shape
        self.num_classes = int(self.y.max()) + 1 if self.task == "classification" else 0

    def rows(self, start: int, stop: int) -> Any:
        y = None if self.y is None else self.y[start:stop]
        return SimpleNamespace(X=self.X[start:stop], y=y)

    def chunk(self, index: int, num_chunks: int) -> Any:
        n = self.num_rows
        return self.rows(index * n // num_chunks, (index + 1) * n // num_chunks)

    def take(self, indices: np.ndarray) -> Any:
        return SimpleNamespace(X=self.X[indices], y=None if self.y is None else self.y[indices])

    def holdout(self) -> Any:
        return self.held_out


class ThreadReducer:
    """Reduces over threads; each member adds in another order, which must not matter."""

    def __init__(
        self,
        barrier: threading.Barrier,
        slots: list[Any],
        member: int,
        boxes: Sequence[queue.Queue[tuple[int, bytes]]] = (),
    ) -> None:
        self.barrier, self.slots, self.member = barrier, slots, member
        self.num_members = len(slots)
        #: What was posted to each member and has not been received.
        self.boxes = boxes

    def _reduce(self, buffer: np.ndarray, function: Callable[..., Any]) -> None:
        self.slots[self.member] = buffer.copy()
        self.barrier.wait(30)
        order = np.random.default_rng(self.member).permutation(self.num_members)
        result = self.slots[order[0]].copy()
        for i in order[1:]:
            assert self.slots[i].shape == result.shape
            result = function(result, self.slots[i])
        self.barrier.wait(30)
        buffer[:] = result

    def maximum(self, buffer: np.ndarray) -> None:
        self._reduce(buffer, np.maximum)

    def add(self, buffer: np.ndarray) -> None:
        self._reduce(buffer, np.add)

    def _post(self, item: Any) -> list[Any]:
        """What each member hands in."""
        self.slots[self.member] = item
        self.barrier.wait(30)
        posted = list(self.slots)
        self.barrier.wait(30)
        return posted

    def add_slices(self, vector: np.ndarray, offsets: Any, first: int) -> None:
        total = vector.copy()
        self._reduce(total, np.add)
        own = self.member - first
        vector[: offsets[-1]] = np.nan  # undefined but on the server
        vector[offsets[-1] :] = total[offsets[-1] :]
        if own >= 0:
            vector[offsets[own] : offsets[own + 1]] = total[offsets[own] : offsets[own + 1]]

    def spread_slices(self, vector: np.ndarray, offsets: Any, first: int) -> None:
        posted = self._post(vector.copy())
        for k in range(len(offsets) - 1):
            part = slice(offsets[k], offsets[k + 1])
            vector[part] = posted[first + k][part]

    def collect_slices(self, vector: np.ndarray, offsets: Any, first: int) -> None:
        before = vector.copy()
        self.spread_slices(vector, offsets, first)
        if self.member:
            vector[:] = before

    def post(self, member: int, payload: bytes) -> None:
        self.boxes[member].put((self.member, payload))

    def receive(self) -> tuple[int, bytes]:
        return self.boxes[self.member].get(timeout=30)

    def broadcast(self, payload: bytes | None, root: int = 0) -> bytes:
        assert (payload is not None) == (self.member == root)
        return self._post(payload)[root]


@dataclass
class Outcome:
    """How a job ended, and all reports of member 0."""

    state: TrainState
    model: Model
    reports: list[StepReport] = field(default_factory=list)
    regroups: int = 0

    @property
    def digests(self) -> tuple[str, str]:
        return self.state.loss_digest(), self.state.model_digest(self.model)


def run_members(num_members: int, body: Callable[[int, ThreadReducer], Any]) -> list[Any]:
    """`body(member, reducer)` of each member as a thread; their results, or the first error."""
    barrier, slots = threading.Barrier(num_members), [None] * num_members
    boxes: list[queue.Queue[tuple[int, bytes]]] = [queue.Queue() for _ in slots]
    results: list[Any] = [None] * num_members
    errors: list[BaseException] = []

    def run(member: int) -> None:
        try:
            results[member] = body(member, ThreadReducer(barrier, slots, member, boxes))
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(m,)) for m in range(num_members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    assert all(box.empty() for box in boxes), "a message was never received"
    return results


def train(
    spec: JobSpec, data: Any, groups: Iterator[int] | Sequence[int] = (1,), model: Any = None
) -> Outcome:
    """Train a job; with more than one group, change to the next at every epoch boundary.

    The state passes from group to group as `pack` gives it; chunks are dealt at random.
    """
    model = model or build_model(spec.model, spec.options)
    outcome = Outcome(initial_state(spec, model, data), model)
    sizes, deal = iter(groups), np.random.default_rng(0)
    size: int | None = next(sizes)
    while size is not None:
        following = next(sizes, None)
        order = deal.permutation(spec.num_chunks)
        packed = {k: a.copy() for k, a in outcome.state.pack().items()}

        def member_body(member: int, reducer: ThreadReducer) -> Any:
            state = TrainState.unpack(packed)  # noqa: B023
            num_workers = spec.workers_among(reducer.num_members)
            chunks = order[member::num_workers].tolist()  # noqa: B023
            cls = trainer_class(spec)
            trainer = cls(spec, model, data, state, reducer, member=member, chunks=chunks)
            reports = []
            leave = {Flag.LEAVE: 1.0} if following and member == 0 else {}  # noqa: B023
            while not reports or not reports[-1].is_final:
                reports.append(trainer.step(leave))
                assert not reports[-1].is_diverged
                leave = {}
            return trainer.state, reports

        results = run_members(size, member_body)
        same = [{k: a.tobytes() for k, a in s.pack().items()} for s, _ in results]
        assert all(s == same[0] for s in same)
        # A server with staleness makes one step an epoch.
        alike = [
            [_without_details(r) for r in reports if r.is_epoch_end or not spec.staleness]
            for _, reports in results
        ]
        assert all(a == alike[0] for a in alike)
        outcome.state, reports = results[0]
        outcome.reports += reports
        if not reports[-1].is_leaving or reports[-1].stop:
            break
        outcome.regroups += 1
        size = following
    return outcome


def _without_details(report: StepReport) -> StepReport:
    failure = report.failure and replace(report.failure, details="", message="")
    return replace(report, failure=failure, compute_s=0.0, reduce_s=0.0)


def assert_allocation_does_not_matter(spec: JobSpec, data: Any, model: Any = None) -> Outcome:
    """The same digests on 1, 2, 3 and 5 members and with random groups; the outcome on 1."""
    alone = train(spec, data, [1], model)
    assert alone.reports[-1].failure is None
    for size in (2, 3, 5):
        assert train(spec, data, [size], model).digests == alone.digests
    sizes = np.random.default_rng(1).integers(1, 6, size=5000)
    moved = train(spec, data, sizes.tolist(), model)
    assert moved.digests == alone.digests
    assert moved.regroups >= min(spec.max_epochs, alone.state.epochs) - 1
    return alone


def fit(spec: JobSpec, data: Any) -> Outcome:
    """Train alone to the stop rule; the job must not fail."""
    outcome = train(spec, data)
    failure = outcome.reports[-1].failure
    assert failure is None, failure
    return outcome


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The helpers of this file, for tests in other files."""
    return SimpleNamespace(
        ArrayData=ArrayData,
        ThreadReducer=ThreadReducer,
        Solo=Solo,
        Trainer=Trainer,
        run_members=run_members,
        train=train,
        fit=fit,
        assert_allocation_does_not_matter=assert_allocation_does_not_matter,
    )


def _standardised(X: np.ndarray) -> np.ndarray:
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)


@pytest.fixture(scope="session")
def cancer() -> ArrayData:
    """breast_cancer, standardised: 569 x 30, 2 classes."""
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_breast_cancer(return_X_y=True)
    return ArrayData(_standardised(X), y.astype(np.float64))


@pytest.fixture(scope="session")
def digits() -> ArrayData:
    """digits scaled to 0..1: 1797 x 64, 10 classes."""
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_digits(return_X_y=True)
    return ArrayData(X / 16.0, y.astype(np.float64))


@pytest.fixture(scope="session")
def diabetes() -> ArrayData:
    """diabetes, standardised features: 442 x 10, targets around 150."""
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_diabetes(return_X_y=True)
    return ArrayData(_standardised(X), y.astype(np.float64), "regression")
