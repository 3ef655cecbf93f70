"""Estimates of what is left, on figures that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hpcslaq.report.outlook import job_eta_s, run_eta_s


def job(**changes: object) -> dict[str, Any]:
    """A job that took 2 rank-seconds for each of its 5 epochs and has 5 to go."""
    return {
        "state": "running",
        "workers": 2,
        "epochs": 5,
        "max_epochs": 10,
        "rank_seconds": 10.0,
        "max_ranks": 8,
        "arrival_s": 0.0,
        "submitted_at": 0.0,
        **changes,
    }


def report(*jobs: dict[str, Any], workers: int = 4) -> dict[str, Any]:
    return {"run": {"workers": workers}, "jobs": list(jobs)}


def test_a_job_needs_its_rank_seconds_divided_by_its_workers() -> None:
    assert job_eta_s(job()) == 5.0


@pytest.mark.parametrize("changes", [{"epochs": 0}, {"workers": 0}, {"state": "done"}])
def test_nothing_is_said_of_a_job_that_has_not_trained_or_does_not(changes: dict[str, Any]) -> None:
    assert job_eta_s(job(**changes)) is None


def test_the_run_shares_what_is_left_among_all_workers() -> None:
    assert run_eta_s(report(job(), job()), 3.0) == 5.0


def test_a_job_that_has_not_begun_costs_as_much_as_the_others() -> None:
    new = job(state="waiting", workers=0, epochs=0, rank_seconds=0.0)
    # 10 rank-seconds left of the first, and 20 of the second.
    assert run_eta_s(report(job(), new), 3.0) == 30.0 / 4


def test_a_job_with_few_workers_holds_up_the_end() -> None:
    assert run_eta_s(report(job(max_ranks=1)), 3.0) == 10.0


def test_the_run_does_not_end_before_the_last_arrival() -> None:
    late = job(state="not submitted", workers=0, epochs=0, submitted_at=None, arrival_s=100.0)
    assert run_eta_s(report(job(), late), 3.0) == 97.0


def test_a_run_whose_jobs_have_ended_has_nothing_left() -> None:
    assert run_eta_s(report(job(state="done"), job(state="failed")), 3.0) == 0.0


def test_before_any_epoch_nothing_is_known() -> None:
    assert run_eta_s(report(job(epochs=0)), 3.0) is None
