#!/usr/bin/env python3
"""Pollux' workload-6 with its tables under our policies, beside the published mean JCTs.

    python scripts/check_pollux.py TRACES/pollux-osdi21 [--policies las,optimus] [--out DIR]

64 GPUs on 16 nodes, rounds of 60 s. What is done as Pollux' simulator does it: jobs are noticed
and served at rounds only (`--eager` decides at once), every start and change of the GPUs costs
30 s, batch sizes are those of the workload. A policy named with "@fixed" serves each job on the
GPUs that its user asked for, others may use 1 GPU to as many as the batch fills. `las@fixed` has
one queue limit at 16 GPU hours and no end to waiting, as their Tiresias.

Published: Tiresias 3,470 s, Optimus with oracle 5,302 s, Pollux itself (which also adapts the
batch sizes) 2,446 s.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcslaq.core.jobs import JobRecord, JobSpec
from hpcslaq.core.policy import (
    Admission,
    Allocation,
    ClusterView,
    Forecaster,
    NoForecast,
    Policy,
)
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.runner import PolicyChoice
from hpcslaq.sim.scaling import Delays
from hpcslaq.sim.simulator import Simulator
from hpcslaq.sim.traces import read_trace
from hpcslaq.sim.traces.pollux import Application, read_applications

ROUND_S, RESCALE_S, NODES, GPUS = 60.0, 30.0, 16, 4
PUBLISHED = {"las@fixed": 3470.0, "optimus+oracle": 5302.0, "optimus-greedy": 5302.0}
#: What a name on the command line stands for, where it is more than the policy's own.
MEANINGS = {"las": "las:quantum_s=57600:num_queues=2:patience_rounds=1e9"}


@dataclass(frozen=True)
class AtRounds:
    """A policy that is asked at rounds only; in between everybody keeps what was given."""

    policy: Policy
    name: str

    def forecaster(self) -> Forecaster:
        return self.policy.forecaster()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        return self.policy.admit(spec, view)

    def allocate(self, view: ClusterView) -> Allocation:
        if view.now % ROUND_S == 0.0:
            return self.policy.allocate(view)
        return {job.name: job.target for job in view.jobs if job.target}


@dataclass(frozen=True)
class GreedyOptimus:
    """Optimus' rule as published: one GPU after the other to the largest fall of remaining time.

    It knows step times and remaining steps, serves jobs by arrival while GPUs last, and leaves
    idle what shortens nobody's time. Named `optimus-greedy`; it tells deviations of the simulator
    from those of our own `optimus` (minima by remaining time, concave hulls, idle GPUs shared).
    """

    jobs: Mapping[str, SimJob]
    name: str = "optimus-greedy"

    def forecaster(self) -> Forecaster:
        return NoForecast()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        return Admission(True)

    def allocate(self, view: ClusterView) -> Allocation:
        counts = {record.name: 1 for record in view.jobs[: view.num_ranks]}
        records = {record.name: record for record in view.jobs}
        gains = {name: self._gain(records[name], 1) for name in counts}
        for _ in range(view.num_ranks - len(counts)):
            best = max(gains, key=lambda name: gains[name], default=None)
            if best is None or gains[best] <= 0.0:
                break
            counts[best] += 1
            gains[best] = self._gain(records[best], counts[best])
        return counts

    def _gain(self, record: JobRecord, count: int) -> float:
        job = self.jobs[record.name]
        if count + 1 > record.spec.worker_limit:
            return 0.0
        faster_s = job.step_time.seconds(count) - job.step_time.seconds(count + 1)
        return faster_s * float(job.efforts[record.iterations :].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--workload", type=Path)
    parser.add_argument(
        "--policies",
        default="las@fixed,optimus-greedy,optimus+oracle,srtf+oracle@fixed,quality@fixed,quality",
    )
    parser.add_argument("--eager", action="store_true", help="decide at arrivals and ends too")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    trace = read_trace(asked.workload or asked.traces / "workloads" / "workload-6.csv", "pollux")
    # The trace is shifted to begin at 0; rounds are counted from the simulation's own start.
    with trace.path.open() as file:
        origin = min(float(row["time"]) for row in csv.DictReader(file))
    applications = read_applications(asked.traces)
    rows = []
    for text in asked.policies.split(","):
        began_at = time.process_time()
        jcts = run(text, trace.jobs, origin, applications, asked.eager)
        rows.append(
            {
                "policy": text,
                "mean_jct_s": statistics.fmean(jcts),
                "median_jct_s": statistics.median(jcts),
                "num_done": len(jcts),
                "published_s": PUBLISHED.get(text),
                "cpu_s": time.process_time() - began_at,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        with (asked.out / "pollux.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        (asked.out / "pollux.json").write_text(json.dumps(rows, indent=1))


def run(text: str, trace_jobs, origin: float, applications, is_eager: bool) -> list[float]:
    """JCTs of all jobs that ended, s."""
    name, _, mode = text.partition("@")
    submitted, jobs = {}, []
    for job in trace_jobs:
        at = job.submit_s + origin
        submitted[job.name] = at
        noticed = at if is_eager else math.ceil(at / ROUND_S) * ROUND_S
        jobs.append(make_job(applications[job.model], job, noticed, is_fixed=mode == "fixed"))
    if name == GreedyOptimus.name:
        policy: Policy = GreedyOptimus({job.name: job for job in jobs})
    else:
        policy = PolicyChoice.parse(MEANINGS.get(name, name)).make(jobs)
    if not is_eager:
        policy = AtRounds(policy, policy.name)
    result = Simulator(
        policy,
        jobs,
        NODES * GPUS,
        ROUND_S,
        delays=Delays(0.0, RESCALE_S, 0.0, 0.0, 0.0, 0.0),
        hosts={rank: f"n{(rank - 1) // GPUS:02d}" for rank in range(1, NODES * GPUS + 1)},
        keep_journal=False,
    ).run()
    if result.exit_code != 0:
        sys.exit(f"{text}: exit code {result.exit_code}")
    return [
        record.finished_at - submitted[name]
        for name, record in result.records.items()
        if record.finished_at is not None
    ]


def make_job(application: Application, job, noticed: float, *, is_fixed: bool) -> SimJob:
    most = 1 if application.name == "ncf" else None  # as Pollux' simulator bounds it
    return application.job(
        job.name,
        noticed,
        job.batch_size,
        num_replicas=job.num_workers if is_fixed else None,
        max_replicas=most,
    )


if __name__ == "__main__":
    main()
