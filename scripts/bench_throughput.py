#!/usr/bin/env python3
"""Throughput of one logistic regression: through hpcslaq, and by a hand-written MPI loop.

Both train the census data (299,285 x 510, sparse) by L-BFGS on the same number of worker
ranks, in turn (A B A B ...), so that the ratio holds when the machine's speed drifts. What
is compared is full evaluations of loss and gradient per second, start-up left out. The
hand-written loop is what a careful user would write: scipy's L-BFGS-B on every rank, rows
split evenly, one in-place all-reduce per evaluation.

    python scripts/bench_throughput.py [--workers 2] [--pairs 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.cache import default_cache_root, prepare
from hpcslaq.data.source import DataSource
from hpcslaq.mpi.launch import find_mpi, mpi_command, mpi_environment
from hpcslaq.record.journal import read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

L2 = 1e-4
HAND_WRITTEN = """
import sys, time
import numpy as np
from mpi4py import MPI
from scipy.optimize import minimize
from scipy.special import expit
from pathlib import Path
from hpcslaq.data.store import open_dataset

comm = MPI.COMM_WORLD
data = open_dataset(Path(sys.argv[1]))
l2, evaluations, n = float(sys.argv[2]), int(sys.argv[3]), data.num_rows
mine = data.chunk(comm.rank, comm.size)
X, Xt, sign = mine.X, mine.X.T.tocsr(), 2.0 * mine.y - 1.0
buffer = np.empty(data.num_features + 2)

def loss_and_gradient(w):
    margin = sign * (X @ w[:-1] + w[-1])
    residual = -sign * expit(-margin)
    buffer[:-2] = Xt @ residual
    buffer[-2] = residual.sum()
    buffer[-1] = np.logaddexp(0.0, -margin).sum()
    comm.Allreduce(MPI.IN_PLACE, buffer, MPI.SUM)
    gradient = buffer[:-1] / n
    gradient[:-1] += l2 * w[:-1]
    return buffer[-1] / n + 0.5 * l2 * w[:-1] @ w[:-1], gradient

w = np.zeros(data.num_features + 1)
loss_and_gradient(w)
comm.Barrier()
begin = time.perf_counter()
done = minimize(loss_and_gradient, w, jac=True, method="L-BFGS-B",
                options={"maxfun": evaluations, "maxiter": evaluations, "ftol": 0, "gtol": 0})
seconds = time.perf_counter() - begin
if comm.rank == 0:
    print(done.nfev / seconds, done.fun)
"""


def main() -> None:
    """Measure in turn and print the medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    data = str(prepare(DataSource("census"), default_cache_root()))
    ours, theirs, ratios = [], [], []
    for _ in range(asked.pairs):
        a = _through_hpcslaq(data, asked.workers, asked.chunks, asked.evaluations)
        b = _by_hand(data, asked.workers, asked.evaluations)
        ours.append(a)
        theirs.append(b)
        ratios.append(a / b)
        if not asked.json:
            print(f"hpcslaq {a:7.2f}/s   by hand {b:7.2f}/s   ratio {a / b:.3f}", flush=True)
    result = {
        "workers": asked.workers,
        "chunks": asked.chunks,
        "pairs": asked.pairs,
        "hpcslaq_evaluations_per_s": statistics.median(ours),
        "by_hand_evaluations_per_s": statistics.median(theirs),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }
    if asked.json:
        print(json.dumps(result))
    else:
        print(f"median ratio {result['ratio_median']:.3f} (target >= 0.95)")


def _through_hpcslaq(data: str, workers: int, chunks: int, evaluations: int) -> float:
    """Evaluations per second of a live run; the first report, with its start-up, left out."""
    job = JobSpec(
        "census",
        "logistic",
        "census",
        num_chunks=chunks,
        max_epochs=evaluations,
        options={"l2": L2, "solver": "lbfgs", "gradient_tolerance": 1e-300},
    )
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run")
        RunPlan("fair", (job,), {"census": data}).write(run)
        _launch(workers + 1, ["-m", "hpcslaq.mpi", str(run.path)])
        entries = read_journal(run.journal)
        reports = [e.item for e in entries if isinstance(e.item, ProgressReported)]
    epochs = reports[-1].epochs - reports[0].epochs
    return epochs / sum(report.seconds for report in reports[1:])


def _by_hand(data: str, workers: int, evaluations: int) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(HAND_WRITTEN)
        program.flush()
        text = _launch(workers, [program.name, data, str(L2), str(evaluations)])
    return float(text.split()[0])


def _launch(ranks: int, program: list[str]) -> str:
    mpi = find_mpi()
    env = mpi_environment(mpi, os.environ, ranks, os.cpu_count() or 1)
    done = subprocess.run(
        mpi_command(mpi, ranks, program), env=env, capture_output=True, text=True, timeout=600
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
