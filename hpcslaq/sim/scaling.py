"""Ground truth of the simulated cluster: how long iterations, regroups and messages take.

Policies never see this; they see what iterations took, as on real ranks.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class StepTime(Protocol):
    """Mean time of one iteration, by the number of workers."""

    def seconds(self, num_workers: int) -> float:
        """Seconds of one iteration on `num_workers` >= 1 workers."""


@runtime_checkable
class PlacedStepTime(StepTime, Protocol):
    """A step time that also depends on how the workers are spread over the hosts."""

    def seconds_on(self, per_host: tuple[int, ...]) -> float:
        """Seconds of one iteration with `per_host` workers on each host, largest first."""


@dataclass(frozen=True, slots=True)
class TableStepTime:
    """Measured step times: linear between the counts of a table, constant beyond its ends.

    `counts` ascend from >= 1; `times[i]` are the seconds of one iteration on `counts[i]`
    workers. Raises ValueError on an empty, unordered or not positive table.
    """

    counts: tuple[int, ...]
    times: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.counts or len(self.counts) != len(self.times):
            raise ValueError(f"table: {len(self.counts)} counts and {len(self.times)} times")
        if self.counts[0] < 1 or any(a >= b for a, b in pairwise(self.counts)):
            raise ValueError(f"counts: {self.counts} do not ascend from >= 1")
        if not all(math.isfinite(t) and t > 0 for t in self.times):
            raise ValueError(f"times: {self.times} are not all finite and > 0")

    def seconds(self, num_workers: int) -> float:
        """Seconds of one iteration on `num_workers` >= 1 workers."""
        right = bisect_left(self.counts, num_workers)
        if right == len(self.counts):
            return self.times[-1]
        if right == 0 or self.counts[right] == num_workers:
            return self.times[right]
        low, high = self.counts[right - 1], self.counts[right]
        share = (num_workers - low) / (high - low)
        return self.times[right - 1] * (1.0 - share) + self.times[right] * share


@dataclass(frozen=True, slots=True)
class ScalingModel:
    """Bulk-synchronous iteration: serial part, chunks in waves, an all-reduce.

    t(n) = serial_s + chunk_s * ceil(num_chunks / n) + latency_s * ceil(log2 n)
           + transfer_s * 2 (n - 1) / n

    A worker holds whole chunks, hence the staircase; the all-reduce is priced as reduce-scatter
    with all-gather.
    """

    num_chunks: int
    #: Seconds that do not depend on the number of workers.
    serial_s: float = 0.0
    #: Seconds that a worker computes on one chunk.
    chunk_s: float = 1.0
    #: Seconds of one step of the all-reduce for an empty buffer.
    latency_s: float = 0.0
    #: Seconds in which one worker sends its whole buffer.
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        if self.num_chunks < 1:
            raise ValueError(f"num_chunks: {self.num_chunks} < 1")
        for key in ("serial_s", "chunk_s", "latency_s", "transfer_s"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{key}: {value} is not a finite number >= 0")
        if self.serial_s + self.chunk_s <= 0:
            raise ValueError("serial_s, chunk_s: an iteration takes some time")

    def seconds(self, num_workers: int) -> float:
        """Seconds of one iteration on `num_workers` >= 1 workers."""
        waves = -(-self.num_chunks // num_workers)
        steps = (num_workers - 1).bit_length()
        share = 2.0 * (num_workers - 1) / num_workers
        return (
            self.serial_s + self.chunk_s * waves + self.latency_s * steps + self.transfer_s * share
        )


@dataclass(frozen=True, slots=True)
class Delays:
    """What messages, regroups and checkpoints cost, s."""

    #: From the coordinator to a rank, or back.
    message_s: float = 0.001
    #: To form a group, and in addition for each member.
    form_s: float = 0.005
    form_per_member_s: float = 0.0005
    #: To load a job's data and state on the ranks of its first group.
    load_s: float = 0.1
    #: To write a checkpoint before a pause.
    checkpoint_s: float = 0.05
    #: To repair a group after the loss of a member.
    repair_s: float = 1.0

    def __post_init__(self) -> None:
        for key in self.__dataclass_fields__:
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{key}: {value} is not a finite number >= 0")

    def regroup_s(self, num_members: int) -> float:
        """Seconds from the boundary until the new group trains."""
        return self.form_s + self.form_per_member_s * num_members

    def start_s(self, num_members: int, load_s: float | None = None) -> float:
        """Seconds from the order until the first group trains; `load_s` replaces our own."""
        load_s = self.load_s if load_s is None else load_s
        return self.message_s + load_s + self.regroup_s(num_members)


def noise_factors(seed: int, job: str, num_iterations: int, sigma: float) -> NDArray[np.float64]:
    """By what each iteration takes longer than its mean: (num_iterations,) float64, mean 1.

    Log-normal with spread `sigma`, keyed by (seed, job): iteration k of a job gets the same
    factor under every policy, so that runs can be compared in pairs.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(job.encode())]))
    return np.exp(rng.normal(-0.5 * sigma * sigma, sigma, num_iterations))
