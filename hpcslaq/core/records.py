"""What a job's record tells, and what a report makes of it; used by the coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from hpcslaq.core import commands as cmd
from hpcslaq.core.jobs import JobRecord, JobState, changed


def order_under_way(record: JobRecord) -> cmd.Command:
    """The order that the job's record tells of."""
    name, generation, forming = record.name, record.generation, record.forming
    if record.state is JobState.STARTING:
        return cmd.Start(name, generation, forming, record.iterations, record.stored_iterations)
    if record.state is JobState.PAUSING:
        return cmd.Pause(name, generation, record.members[0])
    if record.state is JobState.STOPPING:
        return cmd.Stop(name, generation, record.members[0])
    members = record.members
    before, after = set(members), set(forming)
    joiners = tuple([rank for rank in forming if rank not in before])
    leavers = tuple([rank for rank in members if rank not in after])
    return cmd.Regroup(name, generation, forming, joiners, leavers)


def mean_cost(record: JobRecord, seconds: float) -> float:
    """The mean cost (s) of a change of the group, the newest one counting for a third."""
    return seconds if record.regroups == 0 else (2.0 * record.regroup_s + seconds) / 3.0


def advanced(record: JobRecord, losses: Iterable[float], epochs: int) -> JobRecord:
    """The record after these further losses."""
    first, last, drop, num = record.first_loss, record.last_loss, record.largest_drop, 0
    for loss in losses:
        if first is None:
            first = loss
        if last is not None:
            drop = max(drop, last - loss)
        last = loss
        num += 1
    return changed(
        record,
        first_loss=first,
        last_loss=last,
        largest_drop=drop,
        iterations=record.iterations + num,
        epochs=max(epochs, record.epochs),
    )
