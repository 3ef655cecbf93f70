"""`hpcslaq bench decision`: what it reports; how fast it is, is no test's business."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from hpcslaq.policies.registry import policy_names

Invoke = Callable[..., Result]
SMALL = ("--jobs", 20, "--workers", 60, "--rounds", 3)


@pytest.mark.parametrize("policy", policy_names())
def test_the_decisions_of_every_policy_are_timed(invoke: Invoke, policy: str) -> None:
    result = invoke("bench", "decision", *SMALL, "--policy", policy, "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert (value["jobs"], value["workers"], value["rounds"]) == (20, 60, 3)
    assert 0.0 < value["min_s"] <= value["median_s"] <= value["p99_s"]
    assert any("placement" in part for part in value["included"])


def test_for_people_it_says_what_is_included(invoke: Invoke) -> None:
    text = invoke("bench", "decision", *SMALL).stdout
    assert text.startswith("quality: 20 jobs on 60 workers, 3 decisions")
    assert "not included: taking in the loss reports" in text


def test_an_unknown_policy_is_a_usage_error(invoke: Invoke) -> None:
    result = invoke("bench", "decision", "--policy", "best")
    assert result.exit_code == 2 and "valid: edf" in result.stderr


ADMISSION = ("--jobs", 8, "--reserved", 4, "--slots", 30, "--worker-hosts", 5)


def test_admissions_of_oasis_are_timed(invoke: Invoke) -> None:
    result = invoke("bench", "admission", *ADMISSION, "--server-hosts", 4, "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert (value["jobs"], value["slots"], value["worker_hosts"]) == (8, 30, 5)
    assert 0.0 < value["median_s"] <= value["p99_s"] <= value["max_s"]
    assert 0 < value["num_accepted"] <= value["num_planned"] <= 8
    assert value["most_worker_slots"] <= 1200
    assert any("algorithm 2" in part for part in value["included"])


def test_admissions_for_people_say_what_is_included(invoke: Invoke) -> None:
    text = invoke("bench", "admission", *ADMISSION, "--hard").stdout
    assert text.startswith("oasis: 8 admissions at T = 30, H = 5")
    assert "not included: estimating the job's step times" in text


def test_an_impossible_admission_benchmark_is_a_usage_error(invoke: Invoke) -> None:
    assert invoke("bench", "admission", "--allreduce", 2).exit_code == 2
