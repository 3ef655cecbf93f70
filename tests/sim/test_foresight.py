"""Policies that are told the truth."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.policies.registry import make_policy
from hpcslaq.sim.foresight import fit_timing, foretold
from hpcslaq.sim.scaling import ScalingModel, TableStepTime
from hpcslaq.sim.simulator import Simulator
from hpcslaq.sim.workload import poisson_arrivals, synthetic_jobs
from tests.sim.pretend import job_of


def spec_of(chunks: int) -> JobSpec:
    return JobSpec("a", "m", "d", num_chunks=chunks, max_epochs=1)


def test_the_timing_of_a_scaling_model_is_exact_where_the_forms_agree() -> None:
    model = ScalingModel(32, serial_s=0.5, chunk_s=0.25, latency_s=0.125)
    assert fit_timing(model, spec_of(32)) == pytest.approx((0.5, 0.25, 0.125))


def test_the_timing_of_a_table_comes_near_it_and_is_never_negative() -> None:
    table = TableStepTime((1, 2, 4, 8, 16), (16.5, 8.6, 4.7, 2.8, 1.9))
    fixed, per_chunk, per_hop = fit_timing(table, spec_of(16))
    assert min(fixed, per_chunk, per_hop) >= 0.0
    for n, waves, hops in ((1, 16, 0), (4, 4, 2), (16, 1, 4)):
        expected = fixed + per_chunk * waves + per_hop * hops
        assert expected == pytest.approx(table.seconds(n), rel=0.05)


def test_a_told_outlook_gives_the_true_seconds_before_any_report() -> None:
    jobs = [job_of("a", chunks=8), job_of("b", chunks=2, chunk_s=3.0)]
    forecaster = foretold(make_policy("optimus"), jobs).forecaster()
    for job in jobs:
        forecaster.add(job.spec)
    outlook = forecaster.predict(("b", "a"))
    assert outlook.is_timed.all()
    seconds = outlook.seconds(np.arange(2), np.array([[1.0, 2.0, 2.0], [1.0, 4.0, 8.0]]))
    assert seconds.tolist() == [[6.0, 3.0, 3.0], [8.0, 2.0, 1.0]]
    assert outlook.remaining(np.full(2, np.inf)).tolist() == [10.0, 10.0]


def test_a_told_outlook_counts_what_is_left_in_mean_iterations() -> None:
    job = dataclasses.replace(job_of("a", num_iterations=3), efforts=np.array([1.5, 1.0, 0.5]))
    forecaster = foretold(make_policy("srtf"), [job]).forecaster()
    forecaster.add(job.spec)
    assert forecaster.predict(("a",)).remaining(np.ones(1)).tolist() == [3.0]
    forecaster.observe(ProgressReported("a", 1, 1, (1.0,), 1, 1.0, 1))
    assert forecaster.predict(("a",)).remaining(np.ones(1)).tolist() == [1.5]


@pytest.mark.parametrize("name", ["oracle-quality", "oracle-slaq", "optimus", "srtf", "maxmin"])
def test_a_told_policy_serves_all_jobs(name: str) -> None:
    rng = np.random.default_rng(3)
    jobs = synthetic_jobs(rng, poisson_arrivals(rng, 8, 5.0), num_iterations=(20, 40))
    policy = foretold(make_policy(name), jobs)
    result = Simulator(policy, jobs, 6, 3.0, keep_journal=False).run()
    assert result.exit_code == 0
    assert result.policy == (name if name.startswith("oracle") else f"{name}+oracle")


def test_a_policy_that_does_not_predict_stays_as_it_is() -> None:
    jobs = [job_of("a"), job_of("b")]
    plain = Simulator(make_policy("fair"), jobs, 3, 2.0).run()
    told = Simulator(foretold(make_policy("fair"), jobs), jobs, 3, 2.0).run()
    assert told.journal == plain.journal
