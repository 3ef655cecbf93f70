#!/usr/bin/env python3
"""How much does quality suffer when losses are reported wrongly, hence predicted wrongly?

The losses that the jobs report (not those by which they are judged) are multiplied by
log-normal noise of growing spread, relative to what is left of the reduction.

    python scripts/evaluation/misprediction.py [--spreads 0,0.02,0.1,0.3]
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import common
import numpy as np

from hpcslaq.sim.metrics import summarise
from hpcslaq.sim.runner import PolicyChoice, figures
from hpcslaq.sim.simulator import Simulator


def main() -> None:
    parser = common.arguments(__doc__, policies="fair,slaq,quality", seeds=5)
    parser.add_argument("--spreads", default="0,0.02,0.1,0.3")
    asked = parser.parse_args()
    workload = common.workload_of(asked)
    rows = []
    for spread in map(float, asked.spreads.split(",")):
        for policy in asked.policies.split(","):
            found = [simulate(workload, policy, seed, spread) for seed in range(asked.seeds)]
            row = {"spread": spread, "policy": policy}
            for key in ("mean_normalised_loss", "mean_time_to_90"):
                row[key] = float(np.mean([one[key] for one in found]))
            rows.append(row)
            print(row, flush=True)
            common.write(asked, "misprediction", rows)
    title = "Mean normalised loss under noisy reports"
    with common.figure(asked, "misprediction", title, "spread of the noise", "loss") as axes:
        for policy in dict.fromkeys(row["policy"] for row in rows):
            mine = [row for row in rows if row["policy"] == policy]
            losses = [row["mean_normalised_loss"] for row in mine]
            axes.plot([row["spread"] for row in mine], losses, marker="o", label=policy)


def simulate(workload, policy: str, seed: int, spread: float) -> dict[str, float]:
    """Figures of one simulation, judged by the true losses."""
    jobs = workload.jobs(seed)
    noisy = [replace(job, losses=distorted(job, seed, spread)) for job in jobs]
    shape = workload.shape
    result = Simulator(
        PolicyChoice.parse(policy).make(noisy),
        noisy,
        shape.workers,
        shape.round_s,
        seed=seed,
        noise=shape.noise,
        delays=workload.delays,
        keep_journal=False,
    ).run()
    truth = {job.name: np.asarray(job.losses) for job in jobs}
    tracks = [
        replace(
            track,
            losses=truth[track.name][: track.times.size],
            best_loss=float(truth[track.name].min()),
        )
        for track in result.tracks
    ]
    horizon = workload.horizon_s(jobs)
    return figures(summarise(result.records.values(), tracks, horizon_s=horizon))


def distorted(job, seed: int, spread: float) -> np.ndarray:
    """The job's losses with noise on what is left of their reduction."""
    losses = np.asarray(job.losses, dtype=float)
    rng = np.random.default_rng([seed, zlib.crc32(job.name.encode())])
    left = losses - losses.min()
    return losses.min() + left * np.exp(rng.normal(0.0, spread, losses.size))


if __name__ == "__main__":
    main()
