"""From what is trained to a job in the common form of `model`, for both kinds of job.

Source: OASiS, section III and Table I (parameter servers); the all-reduce step time
follows Yu, Ji, Rajan, Liu (MobiHoc 2022), equation 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcslaq.policies.oasis.model import (
    FloatArray,
    IntArray,
    Job,
    JobKind,
    Utility,
    check_non_negative,
)


@dataclass(frozen=True, slots=True)
class Training:
    """What training a job means, before it is tied to a kind. Raises ValueError.

    Source: OASiS, Table I: E, N, M, tau, e.
    """

    epochs: int
    chunks: int
    #: Mini-batches per chunk.
    batches: int
    #: Compute time of a mini-batch, in slots.
    batch_slots: float
    #: Size of the gradients, which is that of the parameters.
    gradient_bytes: float

    def __post_init__(self) -> None:
        for key in ("epochs", "chunks", "batches"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} < 1")
        check_non_negative("batch_slots", self.batch_slots)
        check_non_negative("gradient_bytes", self.gradient_bytes)


@dataclass(frozen=True, slots=True)
class RingModel:
    """Time of a ring all-reduce. Source: MobiHoc 2022, eq. 8, with a latency per hop added.

    T(n) = 2 (n-1)/n e/bandwidth + 2 (n-1) latency + (n-1)/n e/reduce_rate + (n-1) overhead
    """

    #: Bytes per second between two workers on different hosts, and on one host.
    spread_bytes_per_s: float
    packed_bytes_per_s: float
    spread_latency_s: float = 0.0
    packed_latency_s: float = 0.0
    #: Bytes per second that a worker adds up; infinite: free.
    reduce_bytes_per_s: float = math.inf
    #: Seconds per further worker that is on a host of its own (spread only, an upper bound).
    host_overhead_s: float = 0.0

    def seconds(self, gradient_bytes: float, num_workers: IntArray, packed: bool) -> FloatArray:
        """Seconds of one all-reduce by number of workers (any shape, each >= 1)."""
        bandwidth = self.packed_bytes_per_s if packed else self.spread_bytes_per_s
        latency = self.packed_latency_s if packed else self.spread_latency_s
        others = np.asarray(num_workers, dtype=np.float64) - 1.0
        share = others / (others + 1.0) * gradient_bytes
        overhead = 0.0 if packed else self.host_overhead_s
        return share * (2.0 / bandwidth + 1.0 / self.reduce_bytes_per_s) + others * (
            2.0 * latency + overhead
        )


def ps_job(
    name: str,
    arrival: int,
    training: Training,
    *,
    worker_demand: Sequence[float] | FloatArray,
    server_demand: Sequence[float] | FloatArray,
    worker_bytes_per_s: float,
    server_bytes_per_s: float,
    slot_s: float,
    utility: Utility,
) -> Job:
    """A job with parameter servers: speed linear in the workers, W = ceil(E N rho) units.

    A mini-batch takes tau + 2 e / b, rho is the time of a chunk. Source: OASiS, section III.
    """
    batch = training.batch_slots + 2 * training.gradient_bytes / worker_bytes_per_s / slot_s
    work = math.ceil(training.epochs * training.chunks * training.batches * batch - 1e-9)
    return Job(
        name=name,
        arrival=arrival,
        kind=JobKind.PS,
        work=max(1, work),
        rates=np.arange(training.chunks + 1),
        worker_demand=np.asarray(worker_demand, dtype=np.float64),
        server_demand=np.asarray(server_demand, dtype=np.float64),
        utility=utility,
        bandwidth_ratio=worker_bytes_per_s / server_bytes_per_s,
    )


def allreduce_job(
    name: str,
    arrival: int,
    training: Training,
    *,
    worker_demand: Sequence[float] | FloatArray,
    ring: RingModel,
    slot_s: float,
    utility: Utility,
    grains: int = 2000,
) -> Job:
    """A synchronous job: n workers do n / (tau + T(n)) mini-batches per slot, rounded down.

    Work is counted in at most `grains` grains of whole mini-batches; rounding the speed
    down to grains keeps every plan feasible and costs a little payoff (the coarser, the
    more). Raises ValueError where even one grain does not fit into a slot.
    """
    total = training.epochs * training.chunks * training.batches
    grain = -(-total // grains)
    work = -(-total // grain)
    counts = np.arange(1, training.chunks + 1)

    def rates(packed: bool) -> IntArray:
        reduce_slots = ring.seconds(training.gradient_bytes, counts, packed) / slot_s
        step = np.maximum(training.batch_slots + reduce_slots, 1e-300)
        done = np.minimum(counts / step / grain + 1e-9, work)
        return np.concatenate([[0], np.floor(done).astype(np.int64)])

    spread, packed = rates(False), rates(True)
    return Job(
        name=name,
        arrival=arrival,
        kind=JobKind.ALLREDUCE,
        work=work,
        rates=spread,
        packed_rates=None if np.array_equal(spread, packed) else packed,
        worker_demand=np.asarray(worker_demand, dtype=np.float64),
        server_demand=np.zeros(len(worker_demand)),
        utility=utility,
    )
