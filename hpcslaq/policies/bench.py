"""A made-up cluster state of any size, on which the time of a decision can be measured.

Behind `hpcslaq bench decision`; the clock is the caller's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import Convergence, JobRecord, JobSpec, JobState
from hpcslaq.core.policy import ClusterView, Policy
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.slaq import SlaqForecaster

#: Jobs whose losses are really observed; the others go on like one of them.
NUM_DISTINCT = 256
_ROUND_S = 10.0
_NUM_CHUNKS = 64


def synthetic_view(
    policy: Policy, num_jobs: int, num_workers: int, *, seed: int = 0
) -> ClusterView:
    """A view of `num_jobs` running jobs on `num_workers` ranks, with an up-to-date forecaster.

    Jobs of both convergence classes with 5 to 60 losses, noise of a thousandth, step times
    over a factor of 40, 64 chunks, holding an even share now. `policy.allocate` on it is the
    whole of a decision but for placement. Raises ValueError where a number is below 1.
    """
    for key, value in (("num_jobs", num_jobs), ("num_workers", num_workers)):
        if value < 1:
            raise ValueError(f"{key}: {value} < 1")
    rng = np.random.default_rng(seed)
    forecaster = policy.forecaster()
    held = min(num_workers // num_jobs, _NUM_CHUNKS)
    records: list[JobRecord] = []
    for index in range(num_jobs):
        spec = JobSpec(
            f"job{index}",
            "model",
            "data",
            _NUM_CHUNKS,
            200,
            convergence=Convergence.SUBLINEAR if index % 2 else Convergence.SUPERLINEAR,
        )
        like = f"job{index % NUM_DISTINCT}"
        if index >= NUM_DISTINCT and isinstance(forecaster, DropForecaster | SlaqForecaster):
            forecaster.add_like(spec, like)
            record = records[index % NUM_DISTINCT]
            num_losses, first, last = record.iterations, record.first_loss, record.last_loss
        else:
            forecaster.add(spec)
            losses = _losses(spec.convergence, rng)
            seconds = float(rng.uniform(0.5, 20.0))
            for start in range(0, len(losses), 5):
                part = tuple(losses[start : start + 5].tolist())
                workers = int(rng.integers(1, 9))
                step = seconds * (0.05 + 0.95 / workers)
                forecaster.observe(
                    ProgressReported(
                        spec.name, 1, start + 1, part, start + 5, step * len(part), workers
                    )
                )
            num_losses, first, last = len(losses), float(losses[0]), float(losses[-1])
        records.append(
            JobRecord(
                spec,
                JobState.RUNNING if held else JobState.WAITING,
                submitted_at=float(index % 100),
                members=tuple(range(held)),
                target=held,
                iterations=num_losses,
                epochs=num_losses,
                first_loss=first,
                last_loss=last,
            )
        )
    return ClusterView(1000.0, _ROUND_S, num_workers, tuple(records), forecaster)


def _losses(convergence: Convergence, rng: np.random.Generator) -> NDArray[np.float64]:
    k = np.arange(1.0, float(rng.integers(6, 61)))
    if convergence is Convergence.SUBLINEAR:
        curve = 1.0 / (rng.uniform(0.02, 0.5) * k + 1.0) + 0.3
    else:
        curve = rng.uniform(0.8, 0.99) ** k + 0.2
    noisy = curve + 1e-3 * rng.standard_normal(len(k))
    return np.asarray(rng.uniform(0.5, 2.0) * noisy)
