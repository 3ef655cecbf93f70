"""A job as the simulator knows it: what was asked for, and what would come of it.

The loss sequence is the truth of a run to the end. With a fixed global batch it does not
depend on the workers (design, section 5), so a recorded curve can be replayed under any
allocation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import JobSpec
from hpcslaq.sim.scaling import StepTime

Floats = NDArray[np.float64]

#: `SimJob.reason` of a job that does not meet a stop rule, but fails.
FAILS = "fails"


@dataclass(frozen=True, slots=True)
class SimJob:
    """One job with its ground truth.

    Raises ValueError where the losses are empty or not finite, or a number is out of range.
    """

    spec: JobSpec
    #: `losses[k]` is the loss of iteration k + 1; what lies beyond the job's end is not used.
    losses: Sequence[float] | Floats
    #: Mean time of one iteration, by the number of workers.
    step_time: StepTime
    #: Iterations of one pass over the data; a job can be regrouped only between passes.
    iterations_per_epoch: int = 1
    #: Duration of each iteration as a multiple of `step_time`'s; None: all alike.
    efforts: Floats | None = None
    #: Seconds to load its data and state on its first group; None: as the delays say.
    load_s: float | None = None
    #: Seconds for which its leader evaluates and writes the model, after the others have left.
    finish_s: float = 0.0
    #: Whether its group can be changed during an iteration, of which the part that is done
    #: counts (SLAQ's Spark hands out an iteration's tasks one by one); else between epochs only.
    is_divisible: bool = False
    #: Iteration during which the user's code raises; None: it does not.
    fails_at: int | None = None
    #: Iterations until a stop rule is met, and which.
    num_iterations: int = field(init=False)
    reason: str = field(init=False)

    def __post_init__(self) -> None:
        if self.iterations_per_epoch < 1:
            raise ValueError(f"iterations_per_epoch: {self.iterations_per_epoch} < 1")
        most = self.spec.max_epochs * self.iterations_per_epoch
        losses = np.asarray(self.losses[:most], dtype=np.float64)
        if not losses.size or not np.isfinite(losses).all():
            raise ValueError(f"losses: {self.spec.name} has none, or some are not finite")
        num, reason = first_stop(self.spec, losses)
        if self.efforts is not None:
            efforts = np.asarray(self.efforts[:num], dtype=np.float64)
            if efforts.size < num or not (np.isfinite(efforts) & (efforts > 0)).all():
                raise ValueError(f"efforts: {self.spec.name} has too few, or some are not > 0")
        for key in ("load_s", "finish_s"):
            value = getattr(self, key)
            if value is not None and not 0.0 <= value < math.inf:
                raise ValueError(f"{key}: {value} is not a finite number >= 0")
        if self.fails_at is not None:
            if self.fails_at < 1:
                raise ValueError(f"fails_at: {self.fails_at} < 1")
            if self.fails_at <= num:
                num, reason = self.fails_at, FAILS
        object.__setattr__(self, "num_iterations", num)
        object.__setattr__(self, "reason", reason)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.spec.name

    @property
    def num_losses(self) -> int:
        """Iterations that give a loss: all but the one in which the job fails."""
        return self.num_iterations - (self.reason == FAILS)

    @property
    def final_loss(self) -> float:
        """Loss of the job's last iteration."""
        return float(self.losses[self.num_iterations - 1])


def first_stop(spec: JobSpec, losses: Floats) -> tuple[int, str]:
    """Iterations after which the job ends, and the name of the rule that ends it.

    losses : (n,) float64, n >= 1, of the iterations up to `max_epochs`.
    """
    num, reason = losses.size, "epochs"
    if spec.target_loss is not None:
        hits = np.flatnonzero(losses <= spec.target_loss)
        if hits.size:
            num, reason = int(hits[0]) + 1, "target_loss"
    if spec.tolerance is not None:
        floor = np.maximum(np.abs(losses[:-1]), np.finfo(np.float64).tiny)
        is_flat = (losses[:-1] - losses[1:]) / floor < spec.tolerance
        # Length of the spell of flat iterations that ends at each iteration.
        index = np.arange(1, is_flat.size + 1)
        spell = index - np.maximum.accumulate(np.where(is_flat, 0, index))
        hits = np.flatnonzero(spell >= spec.patience)
        if hits.size and int(hits[0]) + 2 < num:
            num, reason = int(hits[0]) + 2, "tolerance"
    return num, reason
