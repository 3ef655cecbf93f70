"""Pollux' tables: how fast its applications train on n GPUs, and how their metric falls.

`Application.read(DIRECTORY)` takes one application's `placements.csv`, `scalability.csv` and
`validation-BATCH.csv` files; `Application.job` makes a job of the simulator for one batch size.

Source: Pollux, OSDI 2021, and the tables of its artifact (throughput measured on up to 16
nodes of 4 GPUs; convergence recorded by real runs at several batch sizes). A job trains a
fixed number of epochs at a fixed global batch; a step on n GPUs takes the measured step time
at the local batch, with gradient accumulation where that exceeds what fits on a GPU; larger
batches need fewer steps per epoch's worth of progress, by the gain that the gradient noise
allows (their equation 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import NotFoundError
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.traces.base import Lines, Row, TraceError, rows

Floats = NDArray[np.float64]

#: GPUs of a node in the tables, and most nodes that were measured.
GPUS_PER_NODE, MAX_NODES = 4, 16
#: Steps that one iteration of the simulator stands for take about this long on one GPU.
_GRAIN_S = 20.0
_MAX_POINTS = 100_000

#: Epochs that a job of each application trains, and the largest local batch where it is not
#: that of the tables. Source: the artifact's list of applications.
EPOCHS: Mapping[str, int] = {
    "bert": 2,
    "cifar10": 100,
    "ncf": 10,
    "imagenet": 90,
    "deepspeech2": 80,
    "yolov3": 50,
}
MAX_LOCAL: Mapping[str, int] = {"yolov3": 8}


@dataclass(frozen=True, slots=True)
class Convergence:
    """One `validation-BATCH.csv`: a row per epoch."""

    #: (epochs,) progress in steps of the smallest batch at the epoch's end, ascending.
    progress: Floats
    #: (epochs,) the validation metric.
    metric: Floats
    #: (epochs,) squared norm and variance of the gradient.
    grad_sqr: Floats
    grad_var: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Application:
    """One application of the tables; make it with `read`."""

    name: str
    num_epochs: int
    max_local: int
    min_local: int
    #: By batch size, ascending.
    runs: Mapping[int, Convergence]
    #: Per placement (GPUs on each node, smallest rotation): (m, 3) local batch, step, sync s.
    placed: Mapping[tuple[int, ...], Floats]
    #: (m, 5) nodes, replicas, local batch, step and sync seconds: all that was measured.
    points: Floats
    _memo: dict[tuple[tuple[int, ...], int], tuple[float, float]] = field(default_factory=dict)
    _surface: list[LinearNDInterpolator] = field(default_factory=list)

    @classmethod
    def read(cls, directory: Path, validation: Path | None = None) -> Application:
        """Read one application; its convergence from `validation` where that is elsewhere.

        Raises NotFoundError or TraceError, naming the line.
        """
        name = directory.name
        placed, points = _read_placements(directory / "placements.csv")
        points += list(_read_scalability(directory / "scalability.csv"))
        runs = _read_runs(validation or directory)
        local = np.array([point[2] for point in points[: sum(map(len, placed.values()))]])
        shortest = min(run.progress.size for run in runs.values())
        return cls(
            name=name,
            num_epochs=min(EPOCHS.get(name, shortest), shortest),
            max_local=MAX_LOCAL.get(name, int(local.max())),
            min_local=int(local.min()),
            runs=runs,
            placed=placed,
            points=np.array(points),
        )

    @property
    def smallest_batch(self) -> int:
        """The batch size in whose steps progress is counted."""
        return min(self.runs)

    @property
    def largest_batch(self) -> int:
        """The largest batch size that was recorded."""
        return max(self.runs)

    def throughput(self, per_node: tuple[int, ...], local: int) -> tuple[float, float]:
        """Step and synchronisation seconds with these GPUs on each node, at this local batch.

        Linear in the local batch where the placement was measured, else linear between the
        measured (nodes, replicas, local batch); nearest point where that is outside.
        """
        turns = [per_node[i:] + per_node[:i] for i in range(len(per_node))]
        key = (min(turns), local)
        if key not in self._memo:
            self._memo[key] = self._look_up(*key)
        return self._memo[key]

    def step_s(self, per_node: tuple[int, ...], batch: int) -> float:
        """Seconds of one step at about this global batch, accumulation included."""
        atomic, accumulations = self.local_batch(sum(per_node), batch)
        step, sync = self.throughput(per_node, atomic)
        return step + accumulations * (step - sync)

    def local_batch(self, num_replicas: int, batch: int) -> tuple[int, int]:
        """Samples per GPU and pass, and passes beside the last one of a step."""
        local = math.ceil(batch / num_replicas - 1e-8)
        accumulations = math.ceil(local / self.max_local - 1e-8) - 1
        if num_replicas == 1 and batch > self.smallest_batch:
            accumulations = max(1, accumulations)
        atomic = math.ceil(local / (accumulations + 1) - 1e-8)
        count = num_replicas * (accumulations + 1)
        return min(atomic, self.largest_batch // count), accumulations

    def steps(self, batch: int) -> Floats:
        """(epochs,) steps of each epoch at this batch: progress over the gain of a step."""
        progress = np.min([run.progress[: self.num_epochs] for run in self.runs.values()], axis=0)
        gain = self._gains(batch)
        return np.asarray(np.diff(np.concatenate([[0.0], progress])) / gain)

    def losses(self, batch: int) -> Floats:
        """(epochs,) the metric as a loss: as it is where it falls, else its distance from 1.

        Interpolated between the recorded batch sizes.
        """
        low, high, share = self._between(batch)
        metric = (1.0 - share) * self.runs[low].metric + share * self.runs[high].metric
        metric = metric[: self.num_epochs]
        if metric[-1] > metric[0]:
            top = 1.0 if metric.max() <= 1.0 else 100.0
            return np.asarray(top - metric)
        return np.asarray(metric)

    def job(
        self,
        name: str,
        arrival_s: float,
        batch: int,
        *,
        num_replicas: int | None = None,
        max_replicas: int | None = None,
    ) -> SimJob:
        """A job at this global batch: on exactly `num_replicas` GPUs, or on 1 to as many as fit.

        An iteration of the simulator is a share of an epoch that takes some seconds on one GPU.
        Where the number of GPUs is open, `max_replicas` bounds it, and the batch that the
        rounding of local batches really gives counts as progress in proportion.
        """
        most = min(64, max(1, batch // self.min_local))
        if max_replicas is not None:
            most = min(most, max_replicas)
        replicas = num_replicas or most
        steps = self.steps(self.real_batch(replicas, batch) if num_replicas else batch)
        is_fixed = num_replicas is not None
        one_step = _PolluxStepTime(self, batch, 1.0, is_fixed)
        total_s = float(steps.sum()) * one_step.seconds(replicas if is_fixed else 1)
        per_epoch = max(1, round(total_s / self.num_epochs / _GRAIN_S))
        per_epoch = max(1, min(per_epoch, _MAX_POINTS // self.num_epochs))
        mean_steps = float(steps.mean()) / per_epoch
        spec = JobSpec(
            name=name,
            model=self.name,
            data="pollux",
            num_chunks=replicas,
            max_epochs=self.num_epochs * per_epoch,
            min_workers=num_replicas or 1,
            max_workers=replicas,
            arrival_s=arrival_s,
        )
        losses = self.losses(batch)
        knots = np.arange(1, self.num_epochs + 1) * per_epoch
        every = np.arange(1, self.num_epochs * per_epoch + 1)
        return SimJob(
            spec,
            np.interp(every, knots, losses),
            _PolluxStepTime(self, batch, mean_steps, is_fixed),
            efforts=np.repeat(steps / steps.mean(), per_epoch),
        )

    def real_batch(self, num_replicas: int, batch: int) -> int:
        """The batch that whole samples per GPU and pass give."""
        atomic, accumulations = self.local_batch(num_replicas, batch)
        return num_replicas * atomic * (accumulations + 1)

    def _gains(self, batch: int) -> Floats:
        """(epochs,) progress of a step at this batch, in steps of the smallest one."""
        low, high, share = self._between(batch)
        sqr, var = (
            ((1.0 - share) * getattr(self.runs[low], key) + share * getattr(self.runs[high], key))[
                : self.num_epochs
            ]
            for key in ("grad_sqr", "grad_var")
        )
        scale = batch / self.smallest_batch
        return np.asarray((var + sqr) / (var / scale + sqr))

    def _between(self, batch: int) -> tuple[int, int, float]:
        sizes = sorted(self.runs)
        clipped = min(max(batch, sizes[0]), sizes[-1])
        high = next(size for size in sizes if size >= clipped)
        low = max(size for size in sizes if size <= clipped)
        return low, high, 0.0 if low == high else (clipped - low) / (high - low)

    def _look_up(self, per_node: tuple[int, ...], local: int) -> tuple[float, float]:
        table = self.placed.get(per_node)
        if table is not None:
            step, sync = (float(np.interp(local, table[:, 0], table[:, c])) for c in (1, 2))
            return step, sync
        wanted = np.array([min(len(per_node), MAX_NODES), sum(per_node), local], dtype=float)
        if not self._surface:
            self._surface.append(LinearNDInterpolator(self.points[:, :3], self.points[:, 3:]))
        found = self._surface[0](wanted)[0]
        if not np.isfinite(found).all():
            scale = self.points[:, :3].max(axis=0)
            nearest = np.abs((self.points[:, :3] - wanted) / scale).sum(axis=1).argmin()
            found = self.points[nearest, 3:]
        return float(found[0]), float(found[1])


@dataclass(frozen=True, slots=True)
class _PolluxStepTime:
    """Seconds of `num_steps` steps; where the GPUs may vary, steps' worth of the asked batch."""

    application: Application
    batch: int
    num_steps: float
    is_fixed: bool

    def seconds(self, num_workers: int) -> float:
        """On as few nodes as hold them."""
        return self.seconds_on(packed(num_workers))

    def seconds_on(self, per_host: tuple[int, ...]) -> float:
        """On these nodes."""
        step = self.num_steps * self.application.step_s(per_host, self.batch)
        if self.is_fixed:
            return step
        return step * self.batch / self.application.real_batch(sum(per_host), self.batch)


@lru_cache(maxsize=256)
def packed(num_workers: int) -> tuple[int, ...]:
    """Workers on each node when all nodes but the last are full."""
    full, rest = divmod(num_workers, GPUS_PER_NODE)
    return (GPUS_PER_NODE,) * full + ((rest,) if rest else ())


def read_applications(root: Path) -> dict[str, Application]:
    """All applications of a directory; raises NotFoundError or TraceError.

    Either one folder per application with all files, or `throughput/APP` and `convergence/APP`.
    """
    throughput, convergence = root / "throughput", root / "convergence"
    is_split = throughput.is_dir()
    base = throughput if is_split else root
    if not base.is_dir():
        raise NotFoundError(f"{root}: there is no such directory of tables")
    folders = sorted(path for path in base.iterdir() if (path / "placements.csv").is_file())
    if not folders:
        raise NotFoundError(f"{base}: holds no APPLICATION/placements.csv")
    return {
        path.name: Application.read(path, convergence / path.name if is_split else None)
        for path in folders
    }


def _read_placements(
    path: Path,
) -> tuple[dict[tuple[int, ...], Floats], list[tuple[float, ...]]]:
    lines = Lines(path)
    by_placement: dict[tuple[int, ...], dict[int, tuple[float, float]]] = {}
    points: list[tuple[float, ...]] = []
    for row in rows(lines):
        digits = row.text("placement")
        if not digits.isdecimal() or "0" in digits or len(digits) > MAX_NODES:
            raise lines.error(f"placement: {digits[:40]!r} is not one digit per node")
        placement = tuple(map(int, digits))
        local, step, sync = _times(row)
        by_placement.setdefault(placement, {})[local] = (step, sync)
        points.append((float(len(placement)), float(sum(placement)), float(local), step, sync))
        _check_size(lines, len(points))
    if not points:
        raise TraceError(path, 0, "holds no measurement")
    tables = {
        placement: np.array([(local, *times) for local, times in sorted(found.items())])
        for placement, found in by_placement.items()
    }
    return tables, points


def _read_scalability(path: Path) -> Iterator[tuple[float, ...]]:
    lines = Lines(path)
    for number, row in enumerate(rows(lines)):
        _check_size(lines, number)
        nodes, replicas = row.integer("num_nodes", 1, 10**4), row.integer("num_replicas", 1, 10**5)
        local, step, sync = _times(row)
        yield float(nodes), float(replicas), float(local), step, sync


def _times(row: Row) -> tuple[int, float, float]:
    step = row.number("step_time", 1e-9)
    return row.integer("local_bsz", 1), step, row.number("sync_time", 0.0, step)


def _read_runs(directory: Path) -> dict[int, Convergence]:
    runs = {}
    for path in sorted(directory.glob("validation-*.csv")):
        size = path.stem.removeprefix("validation-")
        if not size.isdecimal():
            raise TraceError(path, 0, f"{size[:40]!r} is no batch size")
        runs[int(size)] = _read_run(path)
    if not runs:
        raise NotFoundError(f"{directory}: holds no validation-BATCH.csv")
    return dict(sorted(runs.items()))


def _read_run(path: Path) -> Convergence:
    lines = Lines(path)
    columns: list[tuple[float, ...]] = []
    for row in rows(lines):
        progress, metric = row.number("progress", 1e-9), row.number("metric", -1e9, 1e9)
        sqr, var = row.number("grad_sqr", 0.0, 1e30), row.number("grad_var", 0.0, 1e30)
        if columns and progress <= columns[-1][0]:
            raise lines.error(f"progress: {progress:g} does not grow")
        if sqr + var == 0.0:
            raise lines.error("grad_sqr and grad_var are both 0")
        columns.append((progress, metric, sqr, var))
        _check_size(lines, len(columns))
    if not columns:
        raise TraceError(path, 0, "holds no epoch")
    return Convergence(*np.array(columns).T)


def _check_size(lines: Lines, num_rows: int) -> None:
    if num_rows > _MAX_POINTS:
        raise lines.error(f"is row {num_rows}: more than {_MAX_POINTS}")
