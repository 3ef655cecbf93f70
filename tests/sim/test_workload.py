"""Made-up arrivals and curves."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.core.jobs import Convergence
from hpcslaq.sim.workload import (
    FAMILIES,
    burst_arrivals,
    poisson_arrivals,
    poisson_gap_arrivals,
    replayed_arrivals,
    synthetic_jobs,
)


def rng_of(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("num", [0, 1, 2, 100])
@pytest.mark.parametrize(
    "make",
    [poisson_arrivals, poisson_gap_arrivals, lambda *args: burst_arrivals(*args, burst_size=7)],
)
def test_arrivals_begin_at_0_and_never_go_back(make, num: int) -> None:
    arrivals = make(rng_of(), num, 15.0)
    assert arrivals.shape == (num,)
    assert (np.diff(arrivals) >= 0).all() and (arrivals[:1] == 0).all()


def test_both_kinds_of_poisson_gaps_have_the_mean_but_not_the_spread() -> None:
    process = np.diff(poisson_arrivals(rng_of(), 20_000, 15.0))
    gaps = np.diff(poisson_gap_arrivals(rng_of(), 20_000, 15.0))
    assert process.mean() == pytest.approx(15.0, rel=0.03)
    assert gaps.mean() == pytest.approx(15.0, rel=0.03)
    assert process.std() == pytest.approx(15.0, rel=0.03)
    assert gaps.std() == pytest.approx(15.0**0.5, rel=0.03)
    assert (gaps == np.round(gaps)).all()


def test_bursts_keep_the_mean_gap_per_job() -> None:
    arrivals = burst_arrivals(rng_of(), 20_000, 15.0, burst_size=10)
    assert len(np.unique(arrivals)) == 2_000
    assert arrivals[-1] / 20_000 == pytest.approx(15.0, rel=0.05)


def test_replayed_arrivals_are_sorted_and_begin_at_0() -> None:
    assert replayed_arrivals([30.0, 10.0, 10.0, 25.0]).tolist() == [0.0, 0.0, 15.0, 20.0]
    assert replayed_arrivals([]).tolist() == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(5))
def test_curves_are_finite_and_fall_from_about_1_to_a_floor(family: str, seed: int) -> None:
    make, convergence = FAMILIES[family]
    losses = make(rng_of(seed), 300)
    assert losses.shape == (300,) and np.isfinite(losses).all()
    assert 0.9 < losses[0] < 1.4 and losses[-1] < losses[0] - 0.7
    if family != "rough":
        assert (np.diff(losses) <= 0).all()
    assert isinstance(convergence, Convergence)


def test_late_curves_fall_late_and_linear_ones_early() -> None:
    def share_at_tenth(family: str) -> float:
        losses = FAMILIES[family][0](rng_of(1), 300)
        return (losses[0] - losses[30]) / (losses[0] - losses[-1])

    assert share_at_tenth("late") < 0.3 < share_at_tenth("sublinear") < share_at_tenth("linear")


def test_synthetic_jobs_cycle_through_the_families_and_depend_on_the_seed_only() -> None:
    def make(seed: int):
        rng = rng_of(seed)
        return synthetic_jobs(rng, poisson_arrivals(rng, 10, 5.0), iterations_per_epoch=4)

    jobs = make(3)
    assert [job.spec.model for job in jobs] == [*FAMILIES, *FAMILIES]
    assert len({job.name for job in jobs}) == 10
    for job, again, other in zip(jobs, make(3), make(4), strict=True):
        assert job.spec == again.spec and np.array_equal(job.losses, again.losses)
        assert not np.array_equal(job.losses, other.losses)
        assert job.num_iterations % 4 == 0 and 46 <= job.num_iterations <= 400
        assert 4.0 <= job.step_time.seconds(1) <= 40.0
