"""Made-up workloads: when jobs arrive, and how their losses fall.

Pure functions of a generator. Recorded curves and other people's traces are read elsewhere
and become the same `SimJob`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import Convergence, JobSpec
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import ScalingModel

Floats = NDArray[np.float64]
Rng = np.random.Generator

# -- arrivals: (num,) s since run start, ascending, the first at 0 ---------------------


def poisson_arrivals(rng: Rng, num: int, mean_gap_s: float) -> Floats:
    """A Poisson process: exponential gaps."""
    return _from_gaps(rng.exponential(mean_gap_s, max(num - 1, 0)), num)


def poisson_gap_arrivals(rng: Rng, num: int, mean_gap_s: float) -> Floats:
    """Whole-second gaps from a Poisson distribution; far smoother than a Poisson process.

    Source: the SLAQ authors' experiment script (mean 15 s).
    """
    return _from_gaps(rng.poisson(mean_gap_s, max(num - 1, 0)).astype(np.float64), num)


def burst_arrivals(rng: Rng, num: int, mean_gap_s: float, burst_size: int) -> Floats:
    """Bursts of `burst_size` jobs at once, at exponential gaps; `mean_gap_s` is per job."""
    num_bursts = -(-num // burst_size)
    return np.repeat(poisson_arrivals(rng, num_bursts, mean_gap_s * burst_size), burst_size)[:num]


def replayed_arrivals(times: Sequence[float]) -> Floats:
    """Recorded arrival times in any order and from any origin."""
    ascending = np.sort(np.asarray(times, dtype=np.float64))
    return ascending - ascending[0] if ascending.size else ascending


def _from_gaps(gaps: Floats, num: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(gaps)])[:num]


# -- losses: (num,) of iterations 1 to num, from about 1 down to a floor in [0, 0.2] ---


def sublinear_losses(rng: Rng, num: int) -> Floats:
    """f(k) = 1 / (a k^2 + b k + c) + d. Source: SLAQ, section 3.2, first-order methods."""
    a, b = rng.uniform(0.0, 0.01), rng.uniform(0.05, 0.5)
    k = np.arange(float(num))
    return 1.0 / (a * k * k + b * k + 1.0) + _floor(rng)


def linear_losses(rng: Rng, num: int) -> Floats:
    """f(k) = mu^k + c. Source: SLAQ, section 3.2, (quasi-)Newton and EM-like methods."""
    return np.asarray(rng.uniform(0.8, 0.98) ** np.arange(float(num)) + _floor(rng))


def power_losses(rng: Rng, num: int) -> Floats:
    """f(k) = (k + 1)^-p + c: a long tail."""
    return np.asarray(np.arange(1.0, num + 1.0) ** -rng.uniform(0.3, 1.5) + _floor(rng))


def late_losses(rng: Rng, num: int) -> Floats:
    """A sigmoid: nearly flat at first, then a fall, as with a bad start."""
    middle, width = rng.uniform(0.1, 0.4) * num, rng.uniform(0.03, 0.08) * num
    k = np.arange(float(num))
    fall = 1.0 / (1.0 + np.exp(np.clip((k - middle) / width, -50.0, 50.0)))
    return np.asarray(fall / fall[0] + _floor(rng))


def rough_losses(rng: Rng, num: int) -> Floats:
    """A sublinear curve with noise that falls with it, as of stochastic gradients."""
    smooth = sublinear_losses(rng, num)
    noise: Floats = 0.05 * (smooth - smooth[-1]) * rng.standard_normal(num)
    return smooth + noise


def _floor(rng: Rng) -> float:
    return float(rng.uniform(0.0, 0.2))


#: Families of curves by name, each with the class that its user would state.
FAMILIES: Mapping[str, tuple[Callable[[Rng, int], Floats], Convergence]] = {
    "sublinear": (sublinear_losses, Convergence.SUBLINEAR),
    "linear": (linear_losses, Convergence.SUPERLINEAR),
    "power": (power_losses, Convergence.SUBLINEAR),
    "late": (late_losses, Convergence.SUBLINEAR),
    "rough": (rough_losses, Convergence.SUBLINEAR),
}


def synthetic_jobs(
    rng: Rng,
    arrivals: Floats,
    *,
    families: Sequence[str] = tuple(FAMILIES),
    num_iterations: tuple[int, int] = (50, 400),
    iterations_per_epoch: int = 1,
    num_chunks: int = 32,
    iteration_s: tuple[float, float] = (4.0, 40.0),
    max_workers: int | None = None,
) -> list[SimJob]:
    """One job per arrival, round-robin over the families.

    `iteration_s` bounds the seconds of one iteration on one worker, `num_iterations` the
    iterations; both are drawn log-uniformly. Two per cent of an iteration are serial.
    """
    jobs = []
    for index, arrival in enumerate(arrivals):
        family = families[index % len(families)]
        make, convergence = FAMILIES[family]
        num_epochs = max(1, int(_log_uniform(rng, *num_iterations)) // iterations_per_epoch)
        alone_s = _log_uniform(rng, *iteration_s)
        spec = JobSpec(
            name=f"{family}-{index:05d}",
            model=family,
            data="synthetic",
            num_chunks=num_chunks,
            max_epochs=num_epochs,
            max_workers=max_workers,
            arrival_s=float(arrival),
            convergence=convergence,
        )
        step_time = ScalingModel(
            num_chunks,
            serial_s=0.02 * alone_s,
            chunk_s=0.98 * alone_s / num_chunks,
            latency_s=1e-4,
            transfer_s=2e-4,
        )
        losses = make(rng, num_epochs * iterations_per_epoch)
        jobs.append(SimJob(spec, losses, step_time, iterations_per_epoch))
    return jobs


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
