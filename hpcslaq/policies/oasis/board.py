"""Free capacity in one slot, from which schedulers without prices take placements."""

from __future__ import annotations

import numpy as np

from hpcslaq.policies.oasis.model import (
    Cluster,
    FloatArray,
    IntArray,
    Job,
    SlotPlan,
    rate_of,
    room,
)


class Board:
    """What is free on every host; placing takes it. Workers go round-robin over the hosts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        #: (H, R) and (K, R) free capacity, >= 0 up to rounding.
        self.free_workers = cluster.worker_capacity.copy()
        self.free_servers = cluster.server_capacity.copy()
        #: Host with which the next round-robin placement begins.
        self._next = 0

    def take(self, job: Job, plan: SlotPlan) -> None:
        """Hold what a plan holds."""
        for host, count in plan.workers:
            self.free_workers[host] -= count * job.worker_demand
        for host, count in plan.servers:
            self.free_servers[host] -= count * job.server_demand

    def give(self, job: Job, plan: SlotPlan) -> None:
        """Give back what a plan holds."""
        for host, count in plan.workers:
            self.free_workers[host] += count * job.worker_demand
        for host, count in plan.servers:
            self.free_servers[host] += count * job.server_demand

    def worker_room(self, job: Job) -> IntArray:
        """(H,) workers that fit on each host."""
        return room(self.free_workers, self.cluster.worker_capacity, job.worker_demand)

    def server_room(self, job: Job) -> IntArray:
        """(K,) servers that fit on each host."""
        return room(self.free_servers, self.cluster.server_capacity, job.server_demand)

    def most_workers(self, job: Job, limit: int) -> int:
        """Most workers, up to `limit`, that fit together with their servers."""
        limit = min(limit, job.max_workers, int(self.worker_room(job).sum()))
        if limit < 1:
            return 0
        if job.bandwidth_ratio:
            servers = int(np.minimum(self.server_room(job), job.max_workers).sum())
            limit = min(limit, int(np.searchsorted(job.servers, servers, side="right")) - 1)
        return limit

    def place(
        self, job: Job, slot: int, workers: int, servers: int | None = None
    ) -> SlotPlan | None:
        """Take exactly these numbers (default: the servers needed); None if they do not fit."""
        num_servers = int(job.servers[workers]) if servers is None else servers
        held = self._spread(self.worker_room(job), workers)
        shards: tuple[tuple[int, int], ...] | None = ()
        if num_servers:
            shards = self._spread(self.server_room(job), num_servers)
        if held is None or shards is None or workers < 1:
            return None
        rate = rate_of(job, workers, len(held) == 1)
        plan = SlotPlan(slot, held, shards, rate)
        self._next += 1
        self.take(job, plan)
        return plan

    def _spread(self, rooms: IntArray, count: int) -> tuple[tuple[int, int], ...] | None:
        """Round-robin: (host, count) pairs, or None where they do not fit."""
        num_hosts = len(rooms)
        rooms = np.minimum(rooms, count)
        if int(rooms.sum()) < count:
            return None
        taken = np.zeros(num_hosts, dtype=np.int64)
        order = (np.arange(num_hosts) + self._next) % num_hosts
        while count:
            active = order[(rooms - taken)[order] > 0]
            each = count // len(active)
            if each:
                step = min(each, int((rooms - taken)[active].min()))
                taken[active] += step
                count -= step * len(active)
            else:
                taken[active[:count]] += 1
                count = 0
        return tuple((int(host), int(taken[host])) for host in np.flatnonzero(taken))


def dominant_share(job: Job, capacity: tuple[FloatArray, FloatArray], workers: int) -> float:
    """Largest share of any resource of a side that `workers` and their servers hold.

    capacity : (R,) of all worker hosts and of all server hosts
    """
    share = 0.0
    for total, demand, count in (
        (capacity[0], job.worker_demand, workers),
        (capacity[1], job.server_demand, int(job.servers[workers])),
    ):
        used = total > 0
        if used.any():
            share = max(share, float((count * demand[used] / total[used]).max()))
    return share
