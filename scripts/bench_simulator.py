#!/usr/bin/env python3
"""Speed of the simulator: many jobs of a Philly-like trace, and the paper's 160 on 640 workers.

    python scripts/bench_simulator.py [--jobs 20000] [--policies fifo,quality] [--elastic]

The trace is made up after Philly's published figures (ATC 2019): log-normal run times with a
median of 13 minutes and a long tail, 84 % of the jobs on one GPU, the rest on 2 to 32, arrivals
at random, 90 % load on 512 GPUs; rounds of 5 minutes. Prints CPU seconds of the simulation alone,
trace and jobs ready. Peers, on their machines: Tiresias' simulator 2,000 jobs in 1.1 s, Lucid's
20,000 in 142 s.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from hpcslaq.sim.metrics import summarise
from hpcslaq.sim.runner import PolicyChoice
from hpcslaq.sim.simulator import Simulator
from hpcslaq.sim.traces import Trace, TraceJob
from hpcslaq.sim.traces.jobs import Guesses, sim_jobs
from hpcslaq.sim.workload_file import read_workload

GPUS, LOAD, ROUND_S = 512, 0.9, 300.0


def philly_like(number: int, seed: int = 0) -> Trace:
    """A trace with Philly's shape; see the module."""
    rng = np.random.default_rng(seed)
    workers = rng.choice([1, 2, 4, 8, 16, 32], number, p=[0.84, 0.04, 0.05, 0.04, 0.02, 0.01])
    durations = np.clip(rng.lognormal(np.log(780.0), 1.7, number), 60.0, 7 * 86400.0)
    span = float((workers * durations).sum()) / (GPUS * LOAD)
    arrivals = np.sort(rng.uniform(0.0, span, number))
    arrivals -= arrivals[0]
    jobs = tuple(
        TraceJob(f"job-{i:06d}", float(at), int(num), float(seconds))
        for i, (at, num, seconds) in enumerate(zip(arrivals, workers, durations, strict=True))
    )
    return Trace("made up", Path("philly-like"), jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--policies", default="fifo,quality")
    parser.add_argument("--elastic", action="store_true", help="jobs may shrink and grow")
    parser.add_argument("--iteration", type=float, default=60.0, help="seconds of an iteration")
    parser.add_argument("--workload", type=Path, help="time this workload in place of the trace")
    asked = parser.parse_args()
    if asked.workload:
        workload = read_workload(asked.workload)
        jobs, workers, round_s = workload.jobs(0), workload.shape.workers, workload.shape.round_s
    else:
        guesses = Guesses(iteration_s=asked.iteration, is_elastic=asked.elastic)
        jobs, workers, round_s = sim_jobs(philly_like(asked.jobs), guesses), GPUS, ROUND_S
    for text in asked.policies.split(","):
        policy = PolicyChoice.parse(text).make(jobs)
        began_at = time.process_time()
        simulator = Simulator(policy, jobs, workers, round_s, keep_journal=False)
        result = simulator.run()
        seconds = time.process_time() - began_at
        summary = summarise(result.records.values(), result.tracks)
        line = {
            "policy": text,
            "jobs": len(jobs),
            "workers": workers,
            "cpu_s": round(seconds, 2),
            "events": result.num_events,
            "mean_jct_s": summary.mean_jct_s,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
