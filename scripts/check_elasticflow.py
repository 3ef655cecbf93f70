#!/usr/bin/env python3
"""ElasticFlow's trace elasticVpollux_e: promises made, promises kept, deadlines met.

    python scripts/check_elasticflow.py TRACES [--policies elasticflow+oracle,edf] [--start-s 0]

64 GPUs on 16 nodes, rounds of 60 s. A step on n GPUs takes what Pollux' tables say for the
job's application and batch size, scaled so that it agrees with the trace's duration on the
trace's GPUs. `--start-s` is charged for every start and change of the GPUs. Published
(ElasticFlow, ASPLOS 2023, figure 8a): 145 of 195 jobs admitted, 142 in time (72.8 %), so 3
promises broken; EDF 11.8 %.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcslaq.core.jobs import JobSpec, JobState
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.runner import PolicyChoice
from hpcslaq.sim.scaling import Delays
from hpcslaq.sim.simulator import Simulator
from hpcslaq.sim.traces import TraceJob, read_trace
from hpcslaq.sim.traces.pollux import Application, packed, read_applications

ROUND_S, NODES, GPUS = 60.0, 16, 4
#: Iterations of a simulated job: its steps are put together to so many.
ITERATIONS = 500


@dataclass(frozen=True)
class ScaledStepTime:
    """Pollux' step time times a factor."""

    application: Application
    batch: int
    factor: float

    def seconds(self, num_workers: int) -> float:
        return self.factor * self.application.step_s(packed(num_workers), self.batch)


def make_job(application: Application, job: TraceJob) -> SimJob:
    """A job of the trace: 1 to as many GPUs as its batch fills."""
    most = max(job.num_workers, min(NODES * GPUS, job.batch_size // application.min_local))
    num = min(ITERATIONS, round(job.iterations))
    table = application.step_s(packed(job.num_workers), job.batch_size)
    factor = job.duration_s / num / table
    spec = JobSpec(
        f"job-{job.name}",
        application.name,
        "trace",
        num_chunks=most,
        max_epochs=num,
        max_workers=most,
        arrival_s=job.submit_s,
        deadline_s=job.deadline_s,
    )
    losses = np.linspace(1.0, 0.0, num + 1)[1:]
    step_time = ScaledStepTime(application, job.batch_size, factor)
    return SimJob(spec, losses, step_time, is_divisible=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--policies", default="elasticflow+oracle,edf")
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    trace = read_trace(asked.traces / "philly-elasticflow" / "elasticVpollux_e.csv")
    applications = read_applications(asked.traces / "pollux-osdi21")
    jobs = [make_job(applications[job.model], job) for job in trace.jobs]
    rows = []
    for text in asked.policies.split(","):
        result = Simulator(
            PolicyChoice.parse(text).make(jobs),
            jobs,
            NODES * GPUS,
            ROUND_S,
            delays=Delays(0.0, asked.start_s, 0.0, 0.0, 0.0, 0.0),
            hosts={rank: f"n{(rank - 1) // GPUS:02d}" for rank in range(1, NODES * GPUS + 1)},
            keep_journal=False,
        ).run()
        records = result.records.values()
        admitted = [r for r in records if r.state is not JobState.REJECTED]
        met = [
            r
            for r in admitted
            if r.finished_at is not None and r.finished_at - r.submitted_at <= r.spec.deadline_s
        ]
        rows.append(
            {
                "policy": text,
                "jobs": len(records),
                "admitted": len(admitted),
                "in_time": len(met),
                "share_in_time": len(met) / len(records),
                "promises_broken": len(admitted) - len(met),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "elasticflow.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
