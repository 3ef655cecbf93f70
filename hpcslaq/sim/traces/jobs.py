"""Jobs of the simulator from jobs of a trace.

A trace says when a job came and how long it ran on its workers; what it does not say is made
up in the open: how it scales (a serial part, whole chunks) and how its loss falls (one of the
synthetic families, drawn by the job's name and the seed).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import HpcslaqError
from hpcslaq.record.schema import Place
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import ScalingModel
from hpcslaq.sim.traces.base import Trace, TraceJob
from hpcslaq.sim.traces.reading import read_trace
from hpcslaq.sim.workload import FAMILIES

#: Iterations of a job at most: longer jobs get longer iterations.
MAX_ITERATIONS = 2000
#: An elastic job may grow to this many times the workers that the trace gave it.
GROWTH = 4


@dataclass(frozen=True, slots=True)
class Guesses:
    """What a trace does not say."""

    #: Seconds of an iteration on the job's own workers.
    iteration_s: float = 60.0
    #: Share of an iteration on one worker that does not divide.
    serial: float = 0.02
    #: Whether jobs may hold fewer or more workers than in the trace.
    is_elastic: bool = True
    #: Durations and gaps are divided by this.
    speed_up: float = 1.0


def sim_jobs(
    trace: Trace, guesses: Guesses | None = None, *, seed: int = 0, number: int | None = None
) -> list[SimJob]:
    """The first `number` jobs of the trace as jobs of the simulator, in order of arrival."""
    guesses = guesses or Guesses()
    return [sim_job(job, guesses, seed) for job in trace.jobs[:number]]


def sim_job(job: TraceJob, guesses: Guesses, seed: int) -> SimJob:
    """One job; on `job.num_workers` workers it takes its duration (and messages and regroups)."""
    duration = job.duration_s
    if duration is None:
        # Gavel's traces give steps only.
        duration = (job.iterations or 1.0) * guesses.iteration_s
    duration /= guesses.speed_up
    num = min(max(1, round(duration / guesses.iteration_s)), MAX_ITERATIONS)
    most = job.num_workers * GROWTH if guesses.is_elastic else job.num_workers
    chunks = most
    rng = np.random.default_rng([seed, zlib.crc32(job.name.encode())])
    family = tuple(FAMILIES)[int(rng.integers(len(FAMILIES)))]
    make, convergence = FAMILIES[family]
    spec = JobSpec(
        name=job.name,
        model=family,
        data="trace",
        num_chunks=chunks,
        max_epochs=num,
        min_workers=1 if guesses.is_elastic else job.num_workers,
        max_workers=most,
        weight=job.weight,
        arrival_s=job.submit_s / guesses.speed_up,
        deadline_s=None if job.deadline_s is None else job.deadline_s / guesses.speed_up,
        convergence=convergence,
    )
    # With serial share s of one worker's time t1: t(w) = t1 (s + (1 - s) waves(w) / chunks).
    waves = -(-chunks // job.num_workers)
    alone = duration / num / (guesses.serial + (1.0 - guesses.serial) * waves / chunks)
    step_time = ScalingModel(
        chunks, serial_s=guesses.serial * alone, chunk_s=(1.0 - guesses.serial) * alone / chunks
    )
    return SimJob(spec, make(rng, num), step_time)


def trace_source(
    table: Mapping[str, Any], directory: str, place: Place
) -> Callable[[int], Sequence[SimJob]]:
    """The maker of jobs that a [trace] table asks for; raises JobFileError."""
    if "file" not in table:
        raise place.at("file").error("is missing")
    path = Path(os.path.abspath(os.path.join(directory, table["file"])))
    defaults = Guesses()
    guesses = Guesses(
        iteration_s=table.get("iteration", defaults.iteration_s),
        serial=table.get("serial", defaults.serial),
        is_elastic=table.get("elastic", defaults.is_elastic),
        speed_up=table.get("speed_up", defaults.speed_up),
    )
    try:
        trace = read_trace(path, table.get("format"))
    except HpcslaqError as error:
        raise place.at("file").error(str(error)) from None
    if trace.format == "pollux":
        raise place.at("file").error(
            "has no durations: use scripts/check_pollux.py with its tables"
        )
    return lambda seed: sim_jobs(trace, guesses, seed=seed, number=table.get("number"))
