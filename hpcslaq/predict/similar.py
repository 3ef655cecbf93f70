"""A forecaster that remembers earlier jobs, so that it knows something of one that arrives.

Two jobs are alike if they train the same model on the same data in as many chunks, with as many
servers, and differ in nothing but options that are no whole numbers (rates, penalties): these
change the losses, not the work of a step.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.steptime import StepTime

Floats = NDArray[np.float64]


class SimilarForecaster(DropForecaster):
    """`DropForecaster` that also expects of a job what jobs like it have shown."""

    def __init__(self) -> None:
        super().__init__()
        #: Jobs that are followed.
        self._specs: dict[str, JobSpec] = {}
        #: By likeness: step times and iterations per epoch of the job that reported last.
        self._alike: dict[Hashable, tuple[StepTime, float]] = {}

    def add(self, spec: JobSpec) -> None:
        """Begin to follow a job, with the step times of one that is like it."""
        is_new = spec.name not in self._specs
        super().add(spec)
        self._specs[spec.name] = spec
        known = self._alike.get(likeness(spec))
        if is_new and known is not None:
            self._timing[spec.name] = copy.copy(known[0])
            self._table["timing"][self._table.row(spec.name), :3] = known[0].params

    def observe(self, report: ProgressReported) -> None:
        """Take in a report, and remember it for jobs that are like this one."""
        super().observe(report)
        if report.epochs > 0:
            done = report.first_iteration + len(report.losses) - 1
            spec = self._specs[report.job]
            self._alike[likeness(spec)] = (self._timing[report.job], done / report.epochs)

    def discard(self, job: str) -> None:
        """Forget a job, but not what it has taught."""
        super().discard(job)
        self._specs.pop(job, None)

    def expected(self, spec: JobSpec) -> tuple[float, Floats] | None:
        """Iterations to the last epoch and their seconds on 1, 2, ... ranks, or None."""
        known = self._alike.get(likeness(spec))
        if known is None:
            return None
        timing, per_epoch = known
        counts = range(1, spec.rank_limit + 1)
        seconds = np.array([timing.seconds(count) for count in counts])
        return spec.max_epochs * per_epoch, np.maximum(seconds, 1e-9)


def likeness(spec: JobSpec) -> Hashable:
    """Equal for jobs whose steps take equally long."""
    options = sorted(
        (key, repr(value)) for key, value in spec.options.items() if not isinstance(value, float)
    )
    servers = (spec.sync, spec.num_servers, spec.workers_per_server, spec.staleness)
    return spec.model, spec.data, spec.num_chunks, servers, tuple(options)
