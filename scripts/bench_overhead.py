#!/usr/bin/env python3
"""Rank-time that a run loses outside training, on the mix of the quick start.

Runs the job file several times and prints, per run and as the median, the share of the
jobs' rank-time that went into coordination, regrouping, checkpoints, opening data and
waiting for a boundary, and how long regroups and ticks of the coordinator took.

    python scripts/bench_overhead.py [--ranks 3 5] [--repeats 3] [--job-file jobs/quickstart.toml]

With more workers than cores every figure also holds the time for which the operating
system let another rank run: measure with one worker per core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--job-file", default=str(ROOT / "jobs" / "quickstart.toml"))
    asked = parser.parse_args()
    for ranks in asked.ranks:
        shares = []
        for _ in range(asked.repeats):
            run = _run(asked.job_file, ranks)
            shares.append(run["lost_share"])
            print(
                f"1 + {ranks - 1} ranks: lost {100 * run['lost_share']:.2f} % of rank-time, "
                f"makespan {run['makespan_s']:.1f} s, tick p50 {1e3 * run['tick_p50_s']:.2f} ms, "
                f"p99 {1e3 * run['tick_p99_s']:.2f} ms",
                flush=True,
            )
        median = 100 * statistics.median(shares)
        print(f"1 + {ranks - 1} ranks: median lost {median:.2f} % (target < 2 %)")


def _run(job_file: str, ranks: int) -> dict[str, float]:
    """The `run` part of the report of one run."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        line = [sys.executable, "-m", "hpcslaq", "run", job_file, "--ranks", str(ranks)]
        done = subprocess.run([*line, "--out", out, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    report: dict[str, dict[str, float]] = json.loads(done.stdout)
    return report["run"]


if __name__ == "__main__":
    main()
