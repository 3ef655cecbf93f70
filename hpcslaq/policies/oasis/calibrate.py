"""U and L from hindsight on an earlier workload: the ratio U / L that would have earned most.

Which ratio is best depends on the load: prices that ration a crowded cluster turn jobs
away from an idle one. The paper estimates U and L from earlier workloads, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcslaq.policies.oasis.algorithm import Oasis
from hpcslaq.policies.oasis.model import Cluster, Instance, Job
from hpcslaq.policies.oasis.prices import PriceBounds, density_bounds

LOG_RATIOS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)


@dataclass(frozen=True, slots=True)
class CalibratedBounds:
    """`density_bounds` with the given parameters, as a rule for a scheduler."""

    log_ratio: float
    quantile: float = 0.9

    def __call__(self, jobs: Sequence[Job], cluster: Cluster, horizon: int) -> PriceBounds:
        """The bounds for these jobs."""
        return density_bounds(
            jobs, cluster, horizon, log_ratio=self.log_ratio, quantile=self.quantile
        )


def calibrate(
    past: Sequence[Instance],
    log_ratios: Sequence[float] = LOG_RATIOS,
    quantile: float = 0.9,
) -> CalibratedBounds:
    """The rule under which OASiS would have earned most on the past instances in total."""

    def earned(rule: CalibratedBounds) -> float:
        total = 0.0
        for instance in past:
            bounds = rule(instance.jobs, instance.cluster, instance.horizon)
            run = Oasis(instance.cluster, instance.horizon, bounds)
            for job in instance.jobs:
                run.offer(job)
            total += run.utility
        return total

    rules = [CalibratedBounds(log_ratio, quantile) for log_ratio in log_ratios]
    return max(rules, key=earned)
