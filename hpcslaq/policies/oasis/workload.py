"""The admissions that a speed measurement times: a partly reserved cluster and jobs to offer.

Measure the seconds of each `oasis.offer(job)` in the order given.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hpcslaq.policies.oasis.algorithm import Oasis
from hpcslaq.policies.oasis.instances import JobRanges, draw_instance
from hpcslaq.policies.oasis.model import Constant, Job
from hpcslaq.policies.oasis.prices import density_bounds


def admission_workload(
    rng: np.random.Generator,
    *,
    num_jobs: int = 300,
    num_reserved: int = 100,
    horizon: int = 300,
    num_hosts: int = 50,
    allreduce_share: float = 0.0,
    is_hard: bool = False,
) -> tuple[Oasis, tuple[Job, ...]]:
    """An OASiS that was offered `num_reserved` jobs, and the `num_jobs` to time.

    Four resources, `num_hosts` hosts on either side, up to 1,200 worker-slots per job.
    is_hard : every timed job has 600-1,200 worker-slots, may use all slots (it arrives in
    slot 0) and does not mind when it ends, so that no deadline is ruled out by its utility
    """
    ranges = JobRanges(allreduce_share=allreduce_share)
    instance = draw_instance(
        rng,
        num_jobs=num_reserved + num_jobs,
        horizon=horizon,
        num_workers=num_hosts,
        num_servers=num_hosts,
        ranges=ranges,
    )
    bounds = density_bounds(instance.jobs, instance.cluster, horizon)
    oasis = Oasis(instance.cluster, horizon, bounds)
    # Every few jobs one is reserved, so that all slots are in use, not the first ones only.
    order = rng.permutation(len(instance.jobs))
    for number in order[:num_reserved]:
        oasis.offer(instance.jobs[number])
    timed = [instance.jobs[number] for number in np.sort(order[num_reserved:])]
    if is_hard:
        timed = [_harden(rng, job) for job in timed]
    return oasis, tuple(timed)


def _harden(rng: np.random.Generator, job: Job) -> Job:
    most = int(rng.integers(50, 101))
    work = int(rng.integers(600, 1201))
    if job.bandwidth_ratio == 0:
        return dataclasses.replace(job, arrival=0, utility=Constant(job.utility_at(job.arrival)))
    return dataclasses.replace(
        job,
        arrival=0,
        work=work,
        rates=np.arange(most + 1),
        utility=Constant(job.utility_at(job.arrival)),
    )
