"""Random small cases for the OASiS tests: one cluster with some use, one job of each kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hpcslaq.policies.oasis.model import (
    Cluster,
    Constant,
    Job,
    JobKind,
    LinearToDeadline,
    Sigmoid,
    Step,
    Utility,
)
from hpcslaq.policies.oasis.prices import Ledger, PriceBounds

Case = tuple[Job, Ledger]
CaseMaker = Callable[[int, JobKind], Case]
JobMaker = Callable[[np.random.Generator, JobKind, int], Job]


def _utility(rng: np.random.Generator) -> Utility:
    peak = float(rng.uniform(5, 20))
    return [
        Constant(peak),
        Sigmoid(peak, float(rng.uniform(0.1, 5)), float(rng.uniform(1, 4))),
        LinearToDeadline(peak, float(rng.uniform(2, 6))),
        Step(peak, float(rng.integers(1, 5))),
    ][int(rng.integers(4))]


def draw_small_job(rng: np.random.Generator, kind: JobKind, arrival: int) -> Job:
    most = int(rng.integers(1, 6))
    worker = np.array([rng.integers(0, 3), rng.integers(1, 4)], dtype=float)
    if kind is JobKind.PS:
        return Job(
            f"job{rng.integers(10**9)}",
            arrival,
            kind,
            int(rng.integers(1, 2 * most + 2)),
            np.arange(most + 1),
            worker,
            np.array([rng.integers(0, 2), rng.integers(1, 3)], dtype=float),
            _utility(rng),
            None,
            float(rng.uniform(0.1, 1.0)),
        )
    speed = rng.integers(3, 9, size=most)
    rates = np.concatenate([[0], np.maximum.accumulate(np.cumsum(speed) - 2 * np.arange(most))])
    packed = rates + np.concatenate([[0, 0], rng.integers(0, 4, size=most - 1)])
    return Job(
        f"job{rng.integers(10**9)}",
        arrival,
        kind,
        int(rng.integers(3, 30)),
        rates,
        worker,
        np.zeros(2),
        _utility(rng),
        packed if rng.random() < 0.7 else None,
    )


@pytest.fixture
def small_job() -> JobMaker:
    return draw_small_job


@pytest.fixture
def small_case() -> CaseMaker:
    """(seed, kind) -> a job and a ledger in which part of every host is taken."""

    def make(seed: int, kind: JobKind) -> Case:
        rng = np.random.default_rng(seed)
        cluster = Cluster(
            rng.integers(2, 9, size=(rng.integers(1, 4), 2)).astype(float),
            rng.integers(2, 6, size=(rng.integers(1, 3), 2)).astype(float),
        )
        horizon = int(rng.integers(3, 7))
        high = rng.uniform(3, 9, size=2)
        ledger = Ledger(cluster, horizon, PriceBounds(0.05, high, 0.03, high / 2))
        for used, capacity in (
            (ledger.worker_used, cluster.worker_capacity),
            (ledger.server_used, cluster.server_capacity),
        ):
            used += np.floor(capacity * rng.uniform(0, 0.8, size=used.shape))
        ledger.rebase(ledger.bounds)
        return draw_small_job(rng, kind, int(rng.integers(0, 2))), ledger

    return make
