"""`hpcslaq status`: what it says of runs that are on, ended, or silent."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import pytest
from click.testing import Result

from hpcslaq.record.rundir import RunDirectory

Invoke = Callable[..., Result]
MakeRun = Callable[..., RunDirectory]


def age(run: RunDirectory, seconds: float) -> None:
    """Make the last event as old as this."""
    then = time.time() - seconds
    os.utime(run.journal, (then, then))


def activity(invoke: Invoke, run: RunDirectory) -> str:
    result = invoke("status", run.path, "--json")
    assert result.exit_code == 0
    text: str = json.loads(result.stdout)["run"]["activity"]
    return text


def test_a_run_with_recent_events_is_running(invoke: Invoke, make_run: MakeRun) -> None:
    run = make_run()
    assert activity(invoke, run) == "running"
    text = invoke("status", run.path).stdout
    assert "last event" in text
    assert "3.0s: 1 running; 2 of 2 workers busy; about 2s left" in text
    assert "only  running        2    2/4  0.50000  █▁   ~2s" in text


def test_a_run_that_ended_says_so(invoke: Invoke, make_run: MakeRun) -> None:
    run = make_run(0)
    age(run, 1e6)
    assert activity(invoke, run) == "ended"
    assert "ended (finished)" in invoke("status", run.path).stdout


def test_a_silent_run_is_told_from_a_running_one(invoke: Invoke, make_run: MakeRun) -> None:
    run = make_run()
    age(run, 3600)
    assert activity(invoke, run) == "silent"
    text = invoke("status", run.path).stdout
    assert "no result, and the last event is 1h old" in text
    assert f"--out {run.path}" in text


def test_a_run_that_stopped_early_says_how_to_go_on(invoke: Invoke, make_run: MakeRun) -> None:
    text = invoke("status", make_run(75).path).stdout
    assert "stopped early; start it again with the same --out" in text


def test_a_run_without_a_journal_has_not_started(invoke: Invoke, make_run: MakeRun) -> None:
    run = make_run()
    run.journal.unlink()
    assert activity(invoke, run) == "not started"
    assert "no rank has started yet" in invoke("status", run.path).stdout


def test_watching_ends_with_the_run(invoke: Invoke, make_run: MakeRun) -> None:
    result = invoke("status", make_run(0).path, "--watch")
    assert result.exit_code == 0
    assert result.stdout.count("ended (finished)") == 1


def test_the_json_value_is_the_report_with_estimates(invoke: Invoke, make_run: MakeRun) -> None:
    value = json.loads(invoke("status", make_run().path, "--json").stdout)
    assert value["run"]["last_event_age_s"] < 60
    assert value["run"]["eta_s"] == pytest.approx(2.0)
    assert value["jobs"][0]["eta_s"] == pytest.approx(2.0)
