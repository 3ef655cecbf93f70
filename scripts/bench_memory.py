#!/usr/bin/env python
"""Peak memory of a rank beside its share of the data and the model.

    python scripts/bench_memory.py [--workers 2] [--only MODEL]...

Each model trains for some passes on the chunks of one worker, in a process of its own that is
otherwise what a rank is: one that joined, and one that also made the initial state (some
models sample up to 50,000 rows for it). Counted is the most resident memory beyond what the
process held before it opened the data; memory-mapped rows count once they have been read.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bench_models import CASES
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.cache import default_cache_root, prepare
from hpcslaq.data.source import DataSource
from hpcslaq.data.store import open_dataset
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.reducer import Solo
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import Trainer, chunk_share

_MB = 1e6


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", choices=tuple(CASES))
    parser.add_argument("--one", choices=tuple(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(arguments.one, arguments.workers, arguments.state))
        return
    print(f"{'model':10} {'share, MB':>10} {'joined, MB':>10} {'ratio':>6}", end="")
    print(f" {'first, MB':>10} {'ratio':>6}")
    for name in arguments.only or CASES:
        line = [sys.executable, __file__, "--one", name, "--workers", str(arguments.workers)]
        with tempfile.TemporaryDirectory() as folder:
            found = []
            for _ in range(2):  # the first makes the state, the second finds it
                line += ["--state", f"{folder}/state.npz"]
                done = subprocess.run(line, check=True, capture_output=True, text=True)
                found.append([float(word) for word in done.stdout.split()])
        (share, first), (_, joined) = found
        print(f"{name:10} {share / _MB:10.1f} {joined / _MB:10.1f} {joined / share:6.2f}", end="")
        print(f" {first / _MB:10.1f} {first / share:6.2f}", flush=True)


def measure(name: str, workers: int, stored: Path) -> str:
    """Share and peak in bytes of one model in this process."""
    data_name, data_options, num_chunks, options, passes = CASES[name]
    path = Path(prepare(DataSource(data_name, data_options), default_cache_root()))
    model = build_model(name, options)
    before = _peak()
    data = open_dataset(path)
    spec = JobSpec("bench", name, data_name, num_chunks, 10**6, options=options)
    if stored.exists():
        with np.load(stored) as packed:
            state = TrainState.unpack(dict(packed))
    else:
        state = initial_state(spec, model, data)
        np.savez(stored, **state.pack())
    own = chunk_share(num_chunks, workers, 0)
    trainer = Trainer(spec, model, data, state, Solo(), chunks=own)
    for _ in range(4 * passes):
        assert trainer.step().failure is None
    chunks = [data.chunk(index, num_chunks) for index in own]
    share = sum(_size(batch.X) + _size(batch.y) for batch in chunks)
    share += sum(array.nbytes for array in trainer.state.arrays.values())
    peak = _peak() - before
    return f"{share} {peak}"


def _size(array: Any) -> int:
    if array is None:
        return 0
    if sparse.issparse(array):
        return sum(int(part.nbytes) for part in (array.data, array.indices, array.indptr))
    return int(np.asarray(array).nbytes)


def _peak() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
