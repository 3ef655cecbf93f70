"""Small jobs and policies for the simulator's tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.policy import Admission, ClusterView, NoForecast
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import Delays, ScalingModel

#: Nothing costs time but training.
PROMPT = Delays(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class EvenSplit:
    """Equal shares in order of arrival; whoever cannot have its minimum waits."""

    name: str = "even split"

    def forecaster(self) -> NoForecast:
        return NoForecast()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        return Admission(True)

    def allocate(self, view: ClusterView) -> Mapping[str, int]:
        given: dict[str, int] = {}
        left = view.num_ranks
        for index, record in enumerate(view.jobs):
            spec = record.spec
            share = max(left // (len(view.jobs) - index), spec.min_workers)
            share = min(share, spec.worker_limit)
            given[spec.name] = share if share <= left else 0
            left -= given[spec.name]
        return given


@dataclass(frozen=True)
class Listening(EvenSplit):
    """The same, but with a forecaster of its own: it wants to know the losses."""

    def forecaster(self) -> Ear:
        return Ear()


class Ear:
    """Hears everything, says nothing."""

    def add(self, spec: JobSpec) -> None: ...

    def observe(self, report: ProgressReported) -> None: ...

    def discard(self, job: str) -> None: ...


def job_of(
    name: str = "a",
    *,
    num_iterations: int = 10,
    per_epoch: int = 1,
    chunks: int = 4,
    chunk_s: float = 1.0,
    **fields,
) -> SimJob:
    """A job with loss 1 / k after iteration k, which takes chunk_s per wave of chunks."""
    spec = JobSpec(name, "m", "d", chunks, max_epochs=num_iterations // per_epoch, **fields)
    losses = 1.0 / np.arange(1.0, num_iterations + 1.0)
    return SimJob(spec, losses, ScalingModel(chunks, chunk_s=chunk_s), per_epoch)
