"""Lost ranks and failing jobs, drawn."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.policies.registry import make_policy
from hpcslaq.sim.faults import rank_losses, with_failures
from hpcslaq.sim.simulator import Simulator
from tests.sim.pretend import job_of


def test_ranks_live_as_long_as_they_are_told_on_average() -> None:
    losses = rank_losses(np.random.default_rng(0), 4000, 100.0, 1e9)
    assert np.mean([at for at, _ in losses]) == pytest.approx(100.0, rel=0.05)
    assert len(losses) == 3999  # one is spared
    assert [at for at, _ in losses] == sorted(at for at, _ in losses)


def test_more_ranks_leave_the_first_ones_alone() -> None:
    few = rank_losses(np.random.default_rng(1), 10, 10.0, 12.0)
    many = rank_losses(np.random.default_rng(1), 20, 10.0, 12.0)
    assert [one for one in many if one[1].rank <= 10] == few


def test_about_the_asked_share_of_the_jobs_fails_within_its_iterations() -> None:
    jobs = with_failures(np.random.default_rng(2), [job_of(f"j{i}") for i in range(1000)], 0.3)
    places = [job.fails_at for job in jobs if job.fails_at is not None]
    assert len(places) == pytest.approx(300, abs=50)
    assert {min(places), max(places)} == {1, 10}


def test_a_run_with_losses_and_failures_comes_to_its_end() -> None:
    rng = np.random.default_rng(3)
    jobs = with_failures(rng, [job_of(f"j{i}", arrival_s=2.0 * i) for i in range(20)], 0.5)
    losses = rank_losses(rng, 6, 60.0, 100.0)
    result = Simulator(make_policy("fair"), jobs, 6, 3.0, happenings=losses).run()
    assert result.exit_code == 1
    assert all(record.state.is_final for record in result.records.values())
