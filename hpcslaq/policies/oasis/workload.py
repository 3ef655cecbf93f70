"""The admissions that a speed measurement times: a partly reserved cluster and jobs to offer.

Measure the seconds of each `oasis.offer(job)` in the order given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcslaq.policies.oasis.algorithm import Oasis
from hpcslaq.policies.oasis.instances import JobRanges, draw_instance
from hpcslaq.policies.oasis.model import Cluster, Constant, Instance, Job
from hpcslaq.policies.oasis.prices import density_bounds

#: Resources that are drawn: GPUs, vCPUs, memory, bandwidth. Every job needs the last three.
_ORDER = (1, 2, 3, 0)


@dataclass(frozen=True, slots=True)
class AdmissionLoad:
    """What is offered to what: T slots, H and K hosts, R resources, worker-slots per job.

    Raises ValueError, naming the field, where a number is below 1 or a share is not one.
    """

    num_jobs: int = 300
    #: Jobs offered before, which are not timed.
    num_reserved: int = 100
    horizon: int = 300
    worker_hosts: int = 50
    server_hosts: int = 50
    num_resources: int = 4
    most_worker_slots: int = 1200
    allreduce_share: float = 0.0
    #: Every timed job has between half of and all the worker-slots, may use all slots (it
    #: arrives in slot 0), does not mind when it ends and is worth as much per worker-slot as
    #: it was: no deadline is ruled out by its utility.
    is_hard: bool = False

    def __post_init__(self) -> None:
        for key in ("num_jobs", "horizon", "worker_hosts", "server_hosts", "num_resources"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} < 1")
        if self.most_worker_slots < 24:
            raise ValueError(f"most_worker_slots: {self.most_worker_slots} < 24")
        if self.num_reserved < 0:
            raise ValueError(f"num_reserved: {self.num_reserved} < 0")
        if not 0.0 <= self.allreduce_share <= 1.0:
            raise ValueError(f"allreduce_share: {self.allreduce_share} is not in [0, 1]")


def admission_workload(
    rng: np.random.Generator, load: AdmissionLoad | None = None
) -> tuple[Oasis, tuple[Job, ...]]:
    """An OASiS that was offered `num_reserved` jobs, and the `num_jobs` to time."""
    load = AdmissionLoad() if load is None else load
    # Worker-slots are at most chunks times the shortest duration of 12 slots.
    chunks = max(2, load.most_worker_slots // 12)
    ranges = JobRanges(chunks=(max(1, chunks // 20), chunks), allreduce_share=load.allreduce_share)
    instance = draw_instance(
        rng,
        num_jobs=load.num_reserved + load.num_jobs,
        horizon=load.horizon,
        num_workers=load.worker_hosts,
        num_servers=load.server_hosts,
        ranges=ranges,
    )
    instance = _with_resources(instance, load.num_resources)
    bounds = density_bounds(instance.jobs, instance.cluster, load.horizon)
    oasis = Oasis(instance.cluster, load.horizon, bounds)
    # Every few jobs one is reserved, so that all slots are in use, not the first ones only.
    order = rng.permutation(len(instance.jobs))
    for number in order[: load.num_reserved]:
        oasis.offer(instance.jobs[number])
    timed = [instance.jobs[number] for number in np.sort(order[load.num_reserved :])]
    if load.is_hard:
        timed = [_harden(rng, job, load.most_worker_slots) for job in timed]
    return oasis, tuple(timed)


def _with_resources(instance: Instance, num: int) -> Instance:
    """The first `num` resources, those that every job needs first; further ones repeat them."""
    columns = [_ORDER[index % len(_ORDER)] for index in range(num)]
    cluster = instance.cluster
    jobs = tuple(
        replace(
            job,
            worker_demand=job.worker_demand[columns],
            server_demand=job.server_demand[columns],
        )
        for job in instance.jobs
    )
    picked = Cluster(cluster.worker_capacity[:, columns], cluster.server_capacity[:, columns])
    return Instance(picked, instance.horizon, jobs)


def _harden(rng: np.random.Generator, job: Job, most: int) -> Job:
    density = job.utility_at(job.arrival) / job.worker_slot_range[0]
    if job.bandwidth_ratio == 0:
        value = density * job.worker_slot_range[0]
        return replace(job, arrival=0, utility=Constant(value))
    work = int(rng.integers(most // 2, most + 1))
    limit = int(rng.integers(max(2, most // 24), max(3, most // 12 + 1)))
    return replace(
        job,
        arrival=0,
        work=work,
        rates=np.arange(limit + 1),
        utility=Constant(density * work),
    )
