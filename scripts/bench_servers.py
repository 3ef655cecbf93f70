#!/usr/bin/env python
"""Time of an epoch with all-reduce and with parameter servers, on the same ranks and data.

    python scripts/bench_servers.py [--ranks 4] [--hidden 256] [--rounds 5]

A perceptron with Adam on 5,000 handwritten digits. The kinds follow one another in each round,
so that all see the same machine; the least time of each counts, by the slowest rank. Where
ranks outnumber cores, times say little about a cluster: look at what is sent.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hpcslaq.core.jobs import JobSpec, Sync
from hpcslaq.data.cache import default_cache_root, prepare
from hpcslaq.data.source import DataSource
from hpcslaq.data.store import open_dataset
from hpcslaq.mpi.launch import find_mpi, mpi_command, mpi_environment
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.stale import trainer_class
from hpcslaq.train.state import initial_state

#: Name -> parameter servers, staleness; None: all-reduce.
KINDS: dict[str, tuple[int, float] | None] = {
    "all-reduce": None,
    "1 server": (1, 0),
    "2 servers": (2, 0),
    "1 server, staleness 2": (1, 2),
    "1 server, unbounded": (1, math.inf),
}


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        measure(arguments)
        return
    prepare(DataSource("mnist"), default_cache_root())
    mpi = find_mpi("auto", sys.executable)
    command = mpi_command(mpi, arguments.ranks, [__file__, "--member", *sys.argv[1:]])
    env = mpi_environment(mpi, os.environ, arguments.ranks, os.cpu_count() or 1)
    sys.exit(subprocess.run(command, env=env, check=False).returncode)


def measure(arguments: argparse.Namespace) -> None:
    """One rank's part; rank 0 prints the table."""
    from mpi4py import MPI

    from hpcslaq.mpi.groups import GroupFactory

    world = MPI.COMM_WORLD
    # All ranks are workers here: world rank r of a run is rank r - 1 among its workers.
    factory = GroupFactory(world)
    members = range(1, world.Get_size() + 1)
    data = open_dataset(Path(prepare(DataSource("mnist"), default_cache_root())))
    trainers: dict[str, Any] = {}
    groups = [factory.form(list(members), number) for number in range(len(KINDS))]
    for group, (name, servers) in zip(groups, KINDS.items(), strict=True):
        if servers is not None and servers[0] >= world.Get_size():
            continue
        spec = _spec(arguments.hidden, servers)
        model = build_model(spec.model, spec.options)
        state = initial_state(spec, model, data)
        trainers[name] = trainer_class(spec)(
            spec, model, data, state, group, member=group.index, clock=time.perf_counter
        )
    least = dict.fromkeys(trainers, math.inf)
    for _ in range(arguments.rounds + 1):
        for name, trainer in trainers.items():
            world.Barrier()
            began_at = time.perf_counter()
            while not trainer.step().is_epoch_end:
                pass
            seconds = world.allreduce(time.perf_counter() - began_at, MPI.MAX)
            least[name] = min(least[name], seconds)
    size = next(iter(trainers.values())).state.arrays["x"].size
    for group in groups:
        group.free()
    if world.Get_rank() == 0:
        print(f"{size:,} parameters, {world.Get_size()} ranks; seconds of an epoch")
        for name, seconds in least.items():
            print(f"{name:24} {seconds:8.4f}")


def _spec(hidden: int, servers: tuple[int, float] | None) -> JobSpec:
    options = {"hidden": (hidden,), "batch_size": 256, "solver": "adam"}
    sync: dict[str, Any] = {}
    if servers is not None:
        sync = {"sync": Sync.PS, "num_servers": servers[0], "staleness": servers[1]}
    return JobSpec("bench", "mlp", "mnist", 12, 10**6, options=options, **sync)


if __name__ == "__main__":
    main()
