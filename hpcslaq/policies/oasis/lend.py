"""Who gets which ranks in the present slot: reservations first, then what is idle is lent."""

from __future__ import annotations

import numpy as np

from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.policy import Allocation, ClusterView
from hpcslaq.policies.demand import share_evenly
from hpcslaq.policies.oasis.present import JobPlan, Present, Standing, plan_of, utility_of


def lend(view: ClusterView, present: Present) -> Allocation:
    """Reservations of the present slot first, then what is idle is lent, in this order.

    Jobs that reserved ranks get them; those to be profiled their fewest. Accepted jobs then get
    all that they can use, by what an end in this slot instead of the planned one would earn
    per unit of work. What is left is shared evenly: by the jobs to be profiled, then by the
    retry queue.
    """
    demand = present.demand
    if not len(demand):
        return {}
    plans = [plan_of(job, view.round_s) for job in demand.jobs]
    reserved = [plan.reserved(present.slot) for plan in plans]
    by_standing = {
        standing: [index for index, plan in enumerate(plans) if plan.standing is standing]
        for standing in Standing
    }
    accepted = by_standing[Standing.ACCEPTED]
    counts = np.zeros(len(plans), dtype=np.int64)
    left = view.num_ranks

    def give(index: int, wanted: int) -> None:
        """Raise a job to as many as there are, if that is enough for it."""
        nonlocal left
        count = int(min(np.clip(wanted, demand.least[index], demand.limit[index]), left))
        count = min(count, int(counts[index]) + left)
        if count > counts[index] and count >= demand.least[index]:
            left -= count - int(counts[index])
            counts[index] = count

    for index in accepted:
        if reserved[index]:
            give(index, reserved[index])
    for index in by_standing[Standing.OPEN]:
        give(index, 1)
    gains = {index: _gain(demand.specs[index], plans[index], present) for index in accepted}
    for index in sorted(accepted, key=lambda i: (-gains[i], i)):
        give(index, int(counts[index]) + left)
    for standing in (Standing.OPEN, Standing.WAITING):
        for index in by_standing[standing]:
            give(index, 1)
        upper = counts.copy()
        running = [index for index in by_standing[standing] if counts[index]]
        upper[running] = demand.limit[running]
        counts = share_evenly(counts, upper, demand.weight, int(counts.sum()) + left)
        left = view.num_ranks - int(counts.sum())
    return demand.allocation(counts)


def _gain(spec: JobSpec, plan: JobPlan, present: Present) -> float:
    """Utility per rank-second that an accepted job gains by ending in this slot."""
    effort = present.efforts.get(spec.name)
    if effort is None or not plan.slots:
        return 0.0
    curve = utility_of(spec)
    now, end = present.slot - plan.arrival, plan.slots[-1].slot - plan.arrival
    sooner = curve.at(now * present.slot_s) - curve.at(max(now, end) * present.slot_s)
    return sooner / (effort.iterations * float(effort.seconds[0]))
