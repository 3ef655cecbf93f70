"""The keys of a job that say how its ranks agree: all-reduce or parameter servers.

`jobfile` reads and writes them with the others; what they mean is in `core.jobs.JobSpec`.
"""

from __future__ import annotations

import math
from typing import Any

from hpcslaq.core.jobs import JobSpec, Sync
from hpcslaq.record.schema import Field, FieldType, Place

#: The staleness of workers that wait for nobody.
UNBOUNDED = "unbounded"

SYNC_FIELDS = {
    "sync": Field(FieldType.TEXT, choices=tuple(kind.value for kind in Sync)),
    "servers": Field(FieldType.INTEGER, least=1, most=10**6),
    "workers_per_server": Field(FieldType.NUMBER, least=1, most=10**6),
    "staleness": Field(FieldType.INTEGER, least=0, most=10**9, word=UNBOUNDED),
}


def read_sync(values: dict[str, Any], problem: str, place: Place) -> None:
    """Bring the (checked) values of a job's keys into the form of JobSpec's fields.

    problem : why parameter servers cannot train the job's model; "" where they can.
    Raises JobFileError where they are asked for all the same, or in two ways.
    """
    values["sync"] = Sync(values.get("sync", Sync.ALLREDUCE.value))
    if values.get("staleness") == UNBOUNDED:
        values["staleness"] = math.inf
    if values["sync"] is not Sync.PS:
        return
    if "workers_per_server" not in values:
        values.setdefault("servers", 1)
    elif "servers" in values:
        raise place.at("servers").error(
            "a job has either so many servers or so many workers_per_server",
            value=values["servers"],
        )
    if problem:
        raise place.at("sync").error(problem, value=Sync.PS.value)


def sync_document(spec: JobSpec) -> dict[str, object]:
    """The same keys with the values of a job, as `read_sync` takes them; None: not written."""
    return {
        "sync": spec.sync.value,
        "servers": spec.num_servers or None,
        "workers_per_server": spec.workers_per_server,
        "staleness": UNBOUNDED if math.isinf(spec.staleness) else int(spec.staleness),
    }
