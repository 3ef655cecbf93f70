"""Policies that are told the truth of the simulated jobs: how far prediction could get one.

`foretold(policy, jobs)` is the same policy with another forecaster. The oracles get loss
curves and step times; policies that learn step times (`optimus`, `srtf`, `elasticflow`, ...)
get the true step time on every number of workers and the true iterations to the end, and go on
predicting losses by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.policy import Admission, Allocation, ClusterView, Forecaster, Planner, Policy
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.oracle import OracleForecaster
from hpcslaq.predict.outlook import Outlook
from hpcslaq.predict.steptime import shape_of
from hpcslaq.predict.table import Rows
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import ScalingModel, StepTime, TableStepTime

Floats = NDArray[np.float64]
Table = NDArray[np.float64]

#: What a policy's name ends in when it was told the truth.
SUFFIX = "+oracle"


@dataclass(frozen=True, slots=True)
class Foretold:
    """A policy whose forecaster knows the truth; decides as the policy does."""

    policy: Policy
    truths: Mapping[str, SimJob]
    name: str

    def forecaster(self) -> Forecaster:
        """The policy's own kind of forecaster, told the truth; others are left as they are."""
        own = self.policy.forecaster()
        if isinstance(own, OracleForecaster):
            return _ToldOracle(self.truths)
        if isinstance(own, DropForecaster):
            return _ToldStepTimes(self.truths)
        return own

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        """As the policy does."""
        return self.policy.admit(spec, view)

    def allocate(self, view: ClusterView) -> Allocation:
        """As the policy does."""
        return self.policy.allocate(view)


@dataclass(frozen=True, slots=True)
class ForetoldPlanner(Foretold):
    """`Foretold` for a policy that plans ahead."""

    def revise(self, view: ClusterView) -> Mapping[str, Admission]:
        """As the policy does."""
        assert isinstance(self.policy, Planner)
        return self.policy.revise(view)


def foretold(policy: Policy, jobs: Iterable[SimJob]) -> Foretold:
    """The policy, told the truth of these jobs."""
    kind = ForetoldPlanner if isinstance(policy, Planner) else Foretold
    is_oracle = isinstance(policy.forecaster(), OracleForecaster)
    name = policy.name if is_oracle else policy.name + SUFFIX
    return kind(policy, {job.name: job for job in jobs}, name)


class _ToldOracle(OracleForecaster):
    def __init__(self, truths: Mapping[str, SimJob]) -> None:
        super().__init__()
        self._truths = truths

    def add(self, spec: JobSpec) -> None:
        super().add(spec)
        truth = self._truths[spec.name]
        losses = np.asarray(truth.losses[: truth.num_iterations], dtype=np.float64)
        self.reveal(spec.name, losses, fit_timing(truth.step_time, spec))


class _ToldStepTimes(DropForecaster):
    def __init__(self, truths: Mapping[str, SimJob]) -> None:
        super().__init__()
        self._truths = truths
        #: True seconds on 0 (unused), 1, 2, ... ranks; rows of equal step times are shared.
        self._seconds: dict[tuple[object, ...], Table] = {}
        #: Mean iterations to the end after 0, 1, 2, ... iterations.
        self._efforts: dict[str, Floats] = {}

    def expected(self, spec: JobSpec) -> tuple[float, Floats] | None:
        return self._left(spec.name, 0), self._row(spec.name)[1:]

    def predict(self, jobs: tuple[str, ...]) -> Outlook:
        outlook = super().predict(jobs)
        rows = [self._row(job) for job in jobs]
        table = np.ones((len(rows), max(map(len, rows), default=1)))
        for index, row in enumerate(rows):
            table[index, : len(row)], table[index, len(row) :] = row, row[-1]
        values = {field.name: getattr(outlook, field.name) for field in fields(Outlook)}
        values["is_timed"] = np.ones(len(jobs), dtype=bool)
        left = [
            self._left(job, int(done)) for job, done in zip(jobs, outlook.iterations, strict=True)
        ]
        return _TrueOutlook(**values, table=table, left=np.array(left, dtype=np.float64))

    def _left(self, job: str, done: int) -> float:
        """Iterations to the job's end after `done`, in mean ones where they differ; >= 1."""
        if job not in self._efforts:
            truth = self._truths[job]
            efforts = truth.efforts
            if efforts is None:
                efforts = np.ones(truth.num_iterations)
            ends = np.cumsum(efforts[: truth.num_iterations])
            self._efforts[job] = ends[-1] - np.concatenate([[0.0], ends])
        return max(float(self._efforts[job][done]), 1.0)

    def _row(self, job: str) -> Table:
        truth = self._truths[job]
        spec = truth.spec
        key = (truth.step_time, spec.rank_limit, *shape_of(spec))
        if key not in self._seconds:
            counts = [spec.workers_among(ranks) for ranks in range(1, spec.rank_limit + 1)]
            times = [truth.step_time.seconds(count) for count in counts]
            self._seconds[key] = np.array([times[0], *times])
        return self._seconds[key]


@dataclass(frozen=True, slots=True)
class _TrueOutlook(Outlook):
    #: (n, most workers + 1): seconds of one iteration by number of workers.
    table: Table
    #: (n,) true iterations to the end.
    left: Floats

    def remaining(self, estimate: Floats) -> Floats:
        return self.left

    def seconds(self, which: Rows, workers: Floats) -> Floats:
        counts = np.clip(np.ceil(workers).astype(np.int64), 1, self.table.shape[1] - 1)
        rows = which[:, None] if counts.ndim == 2 else which
        return np.asarray(self.table[rows, counts])


def fit_timing(step_time: StepTime, spec: JobSpec) -> tuple[float, float, float]:
    """Seconds fixed, per chunk of the fullest worker and per hop that come nearest.

    Exact for the serial part and the staircase of a `ScalingModel`; its transfer term is spread
    over the hops by least squares of relative errors on 1, 2, 4, ... workers.
    """
    counts = [1]
    while counts[-1] * 2 <= spec.worker_limit:
        counts.append(counts[-1] * 2)
    if counts[-1] != spec.worker_limit:
        counts.append(spec.worker_limit)
    known_s = chunk_s = 0.0
    if isinstance(step_time, ScalingModel):
        known_s, chunk_s = step_time.serial_s, step_time.chunk_s
    n = np.array(counts, dtype=np.float64)
    seconds = np.array([step_time.seconds(count) for count in counts])
    waves = np.ceil(spec.num_chunks / n)
    if isinstance(step_time, ScalingModel):
        rest = seconds - known_s - chunk_s * waves
        hops = np.log2(n)
        weight = hops / seconds**2
        per_hop = float(weight @ rest / max(float(weight @ hops), 1e-300))
        return known_s, chunk_s, max(per_hop, 0.0)
    design = np.stack([np.ones_like(n), waves, np.log2(n)], axis=1) / seconds[:, None]
    return _non_negative(design, np.ones_like(n))


def fit_samples(
    samples: Sequence[tuple[int, float, float]], num_chunks: int, limit: int
) -> TableStepTime:
    """Seconds on 1 to `limit` workers from (workers, seconds, weight) samples, at least one.

    Counts that were seen get their weighted mean; the others lie on the fitted
    fixed + per_chunk * ceil(chunks / n) + per_hop * log2(n), scaled to agree with the nearest seen
    count. A weak prior (5 % fixed, 93 % divides, 2 % hops) decides what the samples leave open.
    """
    by_count: dict[int, tuple[float, float]] = {}
    for count, seconds, weight in samples:
        total, weights = by_count.get(count, (0.0, 0.0))
        by_count[count] = (total + weight * seconds, weights + weight)
    seen = {count: total / weights for count, (total, weights) in sorted(by_count.items())}
    n = np.array(list(seen), dtype=np.float64)
    means = np.array(list(seen.values()))
    features = _features(n, num_chunks)
    prior = np.array([0.05, 0.93, 0.02]) * means[0] / np.maximum(features[0], 1.0)
    prior *= means[0] / float(features[0] @ prior)
    weak = 0.1 * np.diag(1.0 / prior)
    design = np.concatenate([features / means[:, None], weak])
    target = np.concatenate([np.ones(len(n)), np.full(3, 0.1)])
    params = np.array(_non_negative(design, target))
    counts = tuple(range(1, limit + 1))
    fitted = _features(np.array(counts, dtype=np.float64), num_chunks) @ params
    known = np.array(list(seen))
    times = []
    for count, time in zip(counts, fitted.tolist(), strict=True):
        near = int(known[np.abs(np.log(known / count)).argmin()])
        scale = seen[near] / float(_features(np.array([float(near)]), num_chunks)[0] @ params)
        times.append(seen.get(count, time * scale))
    return TableStepTime(counts, tuple(times))


def _features(n: Floats, num_chunks: int) -> Floats:
    return np.stack([np.ones_like(n), np.ceil(num_chunks / n), np.log2(n)], axis=1)


def _non_negative(design: Floats, target: Floats) -> tuple[float, float, float]:
    """Least squares with three unknowns >= 0: the best of the eight faces."""
    best, found = math.inf, np.zeros(3)
    for mask in range(1, 8):
        columns = [i for i in range(3) if mask >> i & 1]
        part, *_ = np.linalg.lstsq(design[:, columns], target, rcond=None)
        if (part < 0).any():
            continue
        misfit = float(np.square(design[:, columns] @ part - target).sum())
        if misfit < best:
            best, found = misfit, np.zeros(3)
            found[columns] = part
    return float(found[0]), float(found[1]), float(found[2])
