"""U and L from hindsight on earlier workloads: the ratio U / L that would have earned most.

Which ratio is best depends on the load: prices that ration a crowded cluster turn jobs
away from an idle one. It depends on the policy, too: one that lends idle capacity may
reserve for the most valuable jobs only. The paper estimates U and L from earlier
workloads as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcslaq.policies.oasis.evaluate import Scheduler, simulate
from hpcslaq.policies.oasis.model import Cluster, Instance, Job
from hpcslaq.policies.oasis.online import OasisScheduler
from hpcslaq.policies.oasis.prices import PriceBounds, density_bounds

LOG_RATIOS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)


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


#: Makes the policy to calibrate from the jobs of the past and a rule.
PolicyMaker = Callable[[tuple[Job, ...], CalibratedBounds], Scheduler]


def calibrate(
    past: Sequence[Instance],
    *,
    make: PolicyMaker = OasisScheduler,
    log_ratios: Sequence[float] = LOG_RATIOS,
    quantiles: Sequence[float] = (0.9,),
) -> CalibratedBounds:
    """The rule under which the policy would have earned most on the past instances in total."""
    jobs = tuple(job for instance in past for job in instance.jobs)

    def earned(rule: CalibratedBounds) -> float:
        policy = make(jobs, rule)
        # No policy that has price bounds draws random numbers.
        rng = np.random.default_rng(0)
        return sum(simulate(instance, policy, rng).utility for instance in past)

    rules = [CalibratedBounds(k, quantile) for quantile in quantiles for k in log_ratios]
    return max(rules, key=earned)
