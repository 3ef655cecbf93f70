"""One rank of a run in which ranks die at chosen places of the worker's life.

Arguments: JSON list of [rank, place, count] (at the count-th visit of the place), the run
directory. A place is the call of a method; "+place" is just after it; at "stop place" the rank
is stopped and does not die.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from pathlib import Path

import hpcslaq.mpi.groups as groups
import hpcslaq.mpi.worker as worker
from hpcslaq.mpi.entry import Entrance
from hpcslaq.mpi.launch import launched_rank
from hpcslaq.mpi.main import run_ranks
from hpcslaq.mpi.worker import Worker
from hpcslaq.record.store import CheckpointStore
from hpcslaq.train.trainer import Trainer

PLACES = {
    "load": (Worker, "_take_seat"),
    "collect": (Entrance, "collect"),
    "ready": (Entrance, "wait"),
    "call": (Entrance, "_call"),
    "enter": (Entrance, "_admit"),
    "form": (groups.GroupFactory, "try_to_form"),
    "create": (groups.GroupFactory, "_create_group"),
    "share": (groups.JobGroup, "broadcast_arrays"),
    "pass": (Trainer, "step"),
    "sum": (groups.JobGroup, "add"),
    "confirm": (Trainer, "_confirm"),
    "order": (Worker, "_share_order"),
    "agree": (Entrance, "agree"),
    "repair": (groups.JobGroup, "repaired"),
    "leave": (Worker, "_leave"),
    "close": (worker, "close_job"),
    "save": (CheckpointStore, "save"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def mark(place: str, count: int) -> None:
    """Die at this visit of this place; "idle": so many tenths of a second after the start."""
    if place == "idle":
        threading.Timer(count / 10, die).start()
        return
    is_stop = place.startswith("stop ")
    place = place.removeprefix("stop ")
    owner, name = PLACES[place.lstrip("+")]
    original, visits = getattr(owner, name), iter(range(1, 10**9))

    @functools.wraps(original)
    def mortal(*args, **kwargs):
        is_last = next(visits) == count
        if is_last and is_stop:
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_last and not is_stop and not place.startswith("+"):
            die()
        result = original(*args, **kwargs)
        if is_last and not is_stop:
            die()
        return result

    setattr(owner, name, mortal)


groups.FORMING_LIMIT_S = 2.0
for rank, place, count in json.loads(sys.argv[1]):
    if launched_rank(os.environ) == rank:
        mark(place, count)
sys.exit(run_ranks(lambda: Path(sys.argv[2])))
