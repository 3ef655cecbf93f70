"""How long a run and its jobs will still take, from what they took so far. Rough by nature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: States in which a job will not train any more.
_ENDED = ("done", "failed", "cancelled", "rejected", "finishing")


def job_eta_s(job: Mapping[str, Any]) -> float | None:
    """Seconds until a job that holds workers has made its last epoch with as many as now.

    `job` : its entry in the report. Takes the job's mean rank-seconds per epoch and perfect
    scaling. None where nothing can be said yet.
    """
    left = _rank_seconds_left(job)
    if left is None or not job["workers"] or job["state"] in _ENDED:
        return None
    return left / float(job["workers"])


def run_eta_s(report: Mapping[str, Any], now: float) -> float | None:
    """Seconds until the last job has ended, if all workers are kept busy.

    `now` : s since run start. Jobs that have not trained yet are taken to cost as much as the
    mean of the others. None before any has trained; stop rules may end jobs earlier.
    """
    jobs = [job for job in report["jobs"] if job["state"] not in _ENDED]
    begun = [job for job in report["jobs"] if job["epochs"] > 0]
    workers = report["run"]["workers"]
    if not jobs:
        return 0.0
    if not begun or not workers:
        return None
    costs = [job["rank_seconds"] / job["epochs"] * job["max_epochs"] for job in begun]
    mean = math.fsum(costs) / len(costs)
    # Rank-seconds, and the most workers that a job can use, however many are idle.
    left = [(_rank_seconds_left(job), min(workers, job["max_ranks"])) for job in jobs]
    total = math.fsum(mean if cost is None else cost for cost, _ in left)
    longest = max((cost / most for cost, most in left if cost is not None), default=0.0)
    arrivals = [job["arrival_s"] - now for job in jobs if job["submitted_at"] is None]
    return float(max(total / workers, longest, *arrivals))


def _rank_seconds_left(job: Mapping[str, Any]) -> float | None:
    """Rank-seconds until the last epoch, at the cost of the past ones."""
    if job["epochs"] <= 0:
        return None
    per_epoch = job["rank_seconds"] / job["epochs"]
    return float(per_epoch * max(0, job["max_epochs"] - job["epochs"]))
