"""Dorm's integer programme: most utilisation within bounds on unfairness and on changes.

Source: Sun, Wen, Duong, Yan: Towards Distributed Machine Learning in Shared Clusters: A
Dynamically-Partitioned Approach (2017), on pooled capacity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from hpcslaq.policies.oasis.board import dominant_share
from hpcslaq.policies.oasis.model import Cluster, Job


@dataclass(frozen=True, slots=True)
class DormProblem:
    """One event: the live jobs, their fair counts of workers and their counts now."""

    jobs: list[Job]
    cluster: Cluster
    fair: list[int]
    now: list[int]


def dorm_counts(
    problem: DormProblem, *, fairness_loss: float, adjusted: float, time_limit_s: float
) -> list[int]:
    """Workers of each job; the fair counts where the programme has no solution in time.

    Variables per job: n workers, m servers, u unfairness (in dominant share), a adjusted.
    """
    num = len(problem.jobs)
    if num == 0:
        return []
    matrix, low, high = _constraints(problem, fairness_loss, adjusted)
    limits = np.array([job.max_workers for job in problem.jobs])
    shards = np.array([int(job.servers[-1]) for job in problem.jobs])
    result = milp(
        -_utilisation(problem),
        integrality=np.repeat([1, 1, 0, 1], num),
        bounds=Bounds(0, np.concatenate([limits, shards, np.full(num, np.inf), np.ones(num)])),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.02},
    )
    if result.x is None:
        return list(problem.fair)
    return [round(float(count)) for count in result.x[:num]]


def _utilisation(problem: DormProblem) -> np.ndarray:
    """(4 I,) share of all resources that one worker or server of each job uses, summed."""
    capacity, server_capacity = problem.cluster.pooled
    num = len(problem.jobs)
    gain = np.zeros(4 * num)
    for i, job in enumerate(problem.jobs):
        gain[i] = np.sum(job.worker_demand[capacity > 0] / capacity[capacity > 0])
        has = server_capacity > 0
        gain[num + i] = np.sum(job.server_demand[has] / server_capacity[has])
    return gain


def _constraints(
    problem: DormProblem, fairness_loss: float, adjusted: float
) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    jobs, num = problem.jobs, len(problem.jobs)
    eye, none = sparse.identity(num), sparse.csr_array((num, num))
    ratio = sparse.diags([job.bandwidth_ratio for job in jobs])
    cluster = problem.cluster
    totals = cluster.pooled
    unit = np.array([dominant_share(job, totals, 1) for job in jobs])
    fair = np.array(
        [dominant_share(job, totals, n) for job, n in zip(jobs, problem.fair, strict=True)]
    )
    now = np.array(problem.now, dtype=np.float64)
    limits = np.array([job.max_workers for job in jobs], dtype=np.float64)
    running = now > 0
    share, change = sparse.diags(unit), sparse.diags(np.where(running, limits, 0.0))
    pick = sparse.diags(running.astype(np.float64))
    worker = np.array([job.worker_demand for job in jobs]).T
    server = np.array([job.server_demand for job in jobs]).T
    zeros = np.zeros((len(totals[0]), num))
    rows = [
        (np.hstack([worker, zeros, zeros, zeros]), -np.inf, totals[0]),
        (np.hstack([zeros, server, zeros, zeros]), -np.inf, totals[1]),
        (sparse.hstack([ratio, -eye, none, none]), -np.inf, np.full(num, 1e-6)),
        (sparse.hstack([-eye, eye, none, none]), -np.inf, np.zeros(num)),
        (sparse.hstack([share, none, -eye, none]), -np.inf, fair),
        (sparse.hstack([-share, none, -eye, none]), -np.inf, -fair),
        (sparse.hstack([pick, none, none, -change]), -np.inf, np.where(running, now, 0.0)),
        (sparse.hstack([-pick, none, none, -change]), -np.inf, np.where(running, -now, 0.0)),
        (
            np.repeat([0.0, 0.0, 1.0, 0.0], num)[None],
            -np.inf,
            np.array([fairness_loss * fair.sum()]),
        ),
        (
            np.concatenate([np.zeros(3 * num), running.astype(float)])[None],
            -np.inf,
            np.array([np.ceil(adjusted * running.sum())]),
        ),
    ]
    matrix = sparse.vstack([sparse.csr_array(block) for block, _, _ in rows]).tocsr()
    high = np.concatenate([limit for _, _, limit in rows])
    return matrix, np.full(len(high), -np.inf), high
