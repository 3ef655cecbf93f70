#!/usr/bin/env python3
"""How long does one decision take, by number of jobs and of workers?

    python scripts/evaluation/decision_time.py [--sizes 64x1024,512x4096,2048x8192,4000x16000]

Jobs with real histories of losses, forecaster up to date; CPU time of `policy.allocate`, best
and median of several. Peers: Gavel's max-min programme 57 ms for 2,048 jobs; SLAQ's own claim is
hundreds of milliseconds to a few seconds for 4,000 jobs on 16,000 cores.
"""

from __future__ import annotations

import statistics
import time

import common

from hpcslaq.policies.bench import synthetic_view
from hpcslaq.policies.registry import make_policy


def main() -> None:
    parser = common.arguments(__doc__, policies="fair,fifo,las,srtf,slaq,quality,optimus,maxmin")
    parser.add_argument("--sizes", default="64x1024,512x4096,2048x8192,4000x16000")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    rows = []
    for policy in asked.policies.split(","):
        for size in asked.sizes.split(","):
            jobs, workers = map(int, size.split("x"))
            chosen = make_policy(policy)
            view = synthetic_view(chosen, jobs, workers)
            times = []
            for _ in range(asked.repeats):
                began_at = time.process_time()
                chosen.allocate(view)
                times.append(time.process_time() - began_at)
            best, middle = min(times), statistics.median(times)
            rows.append(
                {
                    "policy": policy,
                    "jobs": jobs,
                    "workers": workers,
                    "best_ms": 1e3 * best,
                    "median_ms": 1e3 * middle,
                }
            )
            print(rows[-1], flush=True)
    common.write(asked, "decision_time", rows)
    with common.figure(asked, "decision_time", "CPU time of a decision", "jobs", "ms") as axes:
        for policy in dict.fromkeys(row["policy"] for row in rows):
            mine = [row for row in rows if row["policy"] == policy]
            times = [row["median_ms"] for row in mine]
            axes.plot([row["jobs"] for row in mine], times, marker="o", label=policy)
        axes.set_xscale("log")
        axes.set_yscale("log")


if __name__ == "__main__":
    main()
