"""Random instances in the paper's ranges: clusters, jobs and arrivals.

Drawn independently and uniformly, the ranges give jobs whose shortest duration exceeds
the horizon (E M tau is about 344 slots at the means), so the step time is drawn such that
E M (tau + 2 e / b) falls into `duration_slots`, and the draw is repeated where that would
leave tau's own range.

Source: OASiS, section V (simulation set-up). The P2/G3 and C4 host types are assigned to
workers and servers the other way round than printed: C4 has no GPU. Disk is left out, as
those hosts have network disks only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcslaq.policies.oasis.board import Board
from hpcslaq.policies.oasis.model import (
    Cluster,
    Constant,
    FloatArray,
    Instance,
    IntArray,
    Job,
    Sigmoid,
    Utility,
)
from hpcslaq.policies.oasis.training import RingModel, Training, allreduce_job, ps_job

#: GPUs, vCPUs, GiB of memory. Source: the EC2 instance types P2 and G3, and C4.
GPU_HOSTS = (
    (1, 4, 61),
    (8, 32, 488),
    (16, 64, 732),
    (1, 16, 122),
    (2, 32, 244),
    (4, 64, 488),
)
#: c4.8xlarge: a server may ask for 10 vCPUs and 32 GiB, which no smaller C4 has.
CPU_HOSTS = ((0, 36, 60),)

_GBPS = 1e9 / 8  # bytes per second


@dataclass(frozen=True, slots=True)
class JobRanges:
    """Ranges of the paper; pairs are inclusive. Source: OASiS, section V."""

    epochs: tuple[int, int] = (50, 200)
    chunks: tuple[int, int] = (5, 100)
    batches: tuple[int, int] = (10, 100)
    batch_slots: tuple[float, float] = (0.0001, 0.1)
    gradient_bytes: tuple[float, float] = (30e6, 575e6)
    worker_gbps: tuple[float, float] = (0.1, 5.0)
    server_gbps: tuple[float, float] = (5.0, 20.0)
    #: Shortest duration E M (tau + 2 e / b) of a job, in slots, log-uniform.
    duration_slots: tuple[float, float] = (0.5, 12.0)
    peak: tuple[float, float] = (1.0, 100.0)
    target_delay: tuple[float, float] = (1.0, 15.0)
    #: Shares of time-insensitive, time-sensitive and time-critical jobs.
    sensitivity: tuple[float, float, float] = (0.10, 0.55, 0.35)
    #: Share of all-reduce jobs; the paper has none.
    allreduce_share: float = 0.0
    slot_s: float = 3600.0


def draw_cluster(rng: np.random.Generator, num_workers: int, num_servers: int) -> Cluster:
    """H worker hosts and K server hosts of random types, 20-50 Gbit/s each; not normalised.

    Resources: GPUs, vCPUs, GiB of memory, Gbit/s.
    """

    def hosts(types: tuple[tuple[float, ...], ...], count: int) -> FloatArray:
        chosen = np.array(types, dtype=np.float64)[rng.integers(len(types), size=count)]
        return np.column_stack([chosen, rng.uniform(20, 50, size=count)])

    return Cluster(hosts(GPU_HOSTS, num_workers), hosts(CPU_HOSTS, num_servers))


def bursty_arrivals(rng: np.random.Generator, num_jobs: int, horizon: int) -> IntArray:
    """(num_jobs,) sorted arrival slots like those of the Google cluster trace.

    Counts per slot are log-normal, and one early slot has a burst of about 20 times the
    mean. Source: the shape of the counts in the authors' later simulator (DL2).
    """
    last = max(1, int(0.9 * horizon))
    weights = rng.lognormal(0.0, 1.0, size=last)
    weights[min(2, last - 1)] += 20 * weights.mean() * min(1.0, last / 75)
    return np.sort(rng.choice(last, size=num_jobs, p=weights / weights.sum())).astype(np.int64)


def poisson_arrivals(rng: np.random.Generator, num_jobs: int, horizon: int) -> IntArray:
    """(num_jobs,) sorted arrival slots of a Poisson process, given its number of arrivals."""
    last = max(1, int(0.9 * horizon))
    return np.sort(rng.integers(last, size=num_jobs)).astype(np.int64)


def draw_job(
    rng: np.random.Generator, name: str, arrival: int, unit: FloatArray, ranges: JobRanges
) -> Job:
    """One job; demands are divided by `unit` (R,), the cluster's reference capacity."""
    training, gbps = _draw_training(rng, ranges)
    server_gbps = max(gbps, rng.uniform(*ranges.server_gbps))
    worker = np.array([rng.integers(0, 5), rng.integers(1, 11), rng.uniform(2, 32), gbps])
    server = np.array([0, rng.integers(1, 11), rng.uniform(2, 32), server_gbps])
    utility = _draw_utility(rng, ranges)
    if rng.random() < ranges.allreduce_share:
        ring = RingModel(
            spread_bytes_per_s=gbps * _GBPS,
            packed_bytes_per_s=4 * gbps * _GBPS,
            spread_latency_s=1e-4,
            packed_latency_s=1e-5,
        )
        return allreduce_job(
            name,
            arrival,
            training,
            worker_demand=worker / unit,
            ring=ring,
            slot_s=ranges.slot_s,
            utility=utility,
        )
    return ps_job(
        name,
        arrival,
        training,
        worker_demand=worker / unit,
        server_demand=server / unit,
        worker_bytes_per_s=gbps * _GBPS,
        server_bytes_per_s=server_gbps * _GBPS,
        slot_s=ranges.slot_s,
        utility=utility,
    )


def draw_instance(
    rng: np.random.Generator,
    *,
    num_jobs: int,
    horizon: int,
    num_workers: int = 50,
    num_servers: int = 50,
    arrivals: IntArray | None = None,
    ranges: JobRanges | None = None,
) -> Instance:
    """A random instance, normalised; arrivals are bursty unless given.

    Every job could end by the horizon if it had the cluster to itself. Raises ValueError
    where a thousand draws in a row bring no such job.
    """
    ranges = JobRanges() if ranges is None else ranges
    cluster = draw_cluster(rng, num_workers, num_servers)
    unit, normal = cluster.reference, cluster.normalised()
    if arrivals is None:
        arrivals = bursty_arrivals(rng, num_jobs, horizon)
    jobs = []
    for number, slot in enumerate(arrivals):
        for _ in range(1000):
            job = draw_job(rng, f"job{number:04d}", int(slot), unit, ranges)
            if is_feasible(job, normal, horizon):
                jobs.append(job)
                break
        else:
            raise ValueError(f"no job that arrives in slot {slot} can end by slot {horizon}")
    return Instance(normal, horizon, tuple(jobs))


def is_feasible(job: Job, cluster: Cluster, horizon: int) -> bool:
    """Whether the job can end by the horizon on the empty cluster."""
    workers = Board(cluster).most_workers(job, job.max_workers)
    top = int(job.rates[: workers + 1].max())
    return top * (horizon - job.arrival) >= job.work


def small_ranges() -> JobRanges:
    """Ranges for ten jobs on a few hosts in ten slots, where the offline optimum is known."""
    return JobRanges(chunks=(2, 8), duration_slots=(0.5, 4.0), target_delay=(1.0, 6.0))


def _draw_training(rng: np.random.Generator, ranges: JobRanges) -> tuple[Training, float]:
    """Training and worker bandwidth (Gbit/s) with a duration in its range."""
    low, high = ranges.batch_slots
    while True:
        epochs = int(rng.integers(ranges.epochs[0], ranges.epochs[1] + 1))
        batches = int(rng.integers(ranges.batches[0], ranges.batches[1] + 1))
        size = rng.uniform(*ranges.gradient_bytes)
        gbps = rng.uniform(*ranges.worker_gbps)
        duration = np.exp(rng.uniform(*np.log(ranges.duration_slots)))
        batch = duration / (epochs * batches) - 2 * size / (gbps * _GBPS) / ranges.slot_s
        if low <= batch <= high:
            chunks = int(rng.integers(ranges.chunks[0], ranges.chunks[1] + 1))
            return Training(epochs, chunks, batches, float(batch), float(size)), float(gbps)


def _draw_utility(rng: np.random.Generator, ranges: JobRanges) -> Utility:
    peak, target = rng.uniform(*ranges.peak), rng.uniform(*ranges.target_delay)
    kind = rng.choice(3, p=ranges.sensitivity)
    if kind == 0:
        return Constant(peak / 2)
    steepness = rng.uniform(0.01, 1.0) if kind == 1 else rng.uniform(4.0, 6.0)
    return Sigmoid(peak, steepness, target)
