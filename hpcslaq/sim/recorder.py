"""Runs a job alone on one worker, and notes loss, CPU and wall time of every iteration.

With a fixed global batch the losses are those of any number of workers (design, section 5), so
what is recorded here can be replayed under any allocation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import TrainingError
from hpcslaq.sim.curves import Curve
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import TrainingData
from hpcslaq.train.reducer import Solo
from hpcslaq.train.state import initial_state
from hpcslaq.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Limits:
    """When a recording ends beside the job's own stop rules; None: not by this."""

    max_iterations: int | None = None
    max_cpu_s: float | None = None

    def are_reached(self, num_iterations: int, cpu_s: float) -> bool:
        """Whether to stop now."""
        is_long = self.max_iterations is not None and num_iterations >= self.max_iterations
        return is_long or (self.max_cpu_s is not None and cpu_s >= self.max_cpu_s)


def record_job(
    spec: JobSpec,
    data: TrainingData,
    limits: Limits | None = None,
    *,
    on_iteration: Callable[[int, float], None] = lambda number, loss: None,
) -> Curve:
    """Train the job to its end or to the limits; raises TrainingError where it fails.

    An iteration that needs several passes (a line search) takes the time of all of them. The
    initial state is not part of the first iteration's time.
    """
    limits = limits or Limits()
    model = build_model(spec.model, spec.options)
    trainer = Trainer(spec, model, data, initial_state(spec, model, data), Solo())
    losses: list[float] = []
    cpu: list[float] = []
    wall: list[float] = []
    began_at = cpu_at = time.process_time()
    wall_at = time.perf_counter()
    while True:
        report = trainer.step()
        if report.failure is not None:
            raise TrainingError(report.failure.message)
        if report.loss is not None:
            cpu_now, wall_now = time.process_time(), time.perf_counter()
            losses.append(report.loss)
            cpu.append(cpu_now - cpu_at)
            wall.append(wall_now - wall_at)
            cpu_at, wall_at = cpu_now, wall_now
            on_iteration(len(losses), report.loss)
        if report.is_final or limits.are_reached(len(losses), time.process_time() - began_at):
            break
    if not losses:
        raise TrainingError(f"job {spec.name}: gave no loss")
    epochs = max(trainer.state.epochs, 1)
    facts = {
        "model": spec.model,
        "data": spec.data,
        "options": ", ".join(f"{key}={value}" for key, value in sorted(spec.options.items())),
        "chunks": str(spec.num_chunks),
        "seed": str(spec.seed),
        "epochs": str(trainer.state.epochs),
        "ended": "cut off" if report.stop is None else report.stop.value,
    }
    return Curve(
        spec.name,
        np.array(losses),
        np.array(cpu),
        np.array(wall),
        max(1, round(len(losses) / epochs)),
        spec.convergence,
        facts,
    )
