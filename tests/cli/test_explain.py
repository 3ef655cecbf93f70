"""`hpcslaq explain`: the right story for jobs in every state, from the journal alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.journal import JournalWriter
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import ScalingModel
from hpcslaq.sim.simulator import Simulator

Invoke = Callable[..., Result]

#: A fast job, one that has nothing to gain soon, a late and a too large one.
SPECS = (
    JobSpec("fast", "m", "d", 8, 60),
    JobSpec("flat", "m", "d", 8, 60, arrival_s=2.0),
    JobSpec("late", "m", "d", 8, 20, arrival_s=14.0),
    JobSpec("huge", "m", "d", 8, 20, arrival_s=3.0, min_workers=8),
)
LOSSES = {
    "fast": 0.95 ** np.arange(60.0),
    "flat": 1.0 + 0.9 ** np.arange(60.0) * 1e-9,
    "late": 0.8 ** np.arange(20.0),
    "huge": 0.8 ** np.arange(20.0),
}


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., RunDirectory]:
    """The run directory of a simulated run on four ranks, as it was at `until` (s)."""

    def simulate(
        until: float, policy: str = "quality", happenings: Sequence[tuple[float, ev.Event]] = ()
    ) -> RunDirectory:
        jobs = [SimJob(spec, LOSSES[spec.name], ScalingModel(8, chunk_s=0.1)) for spec in SPECS]
        result = Simulator(
            make_policy(policy), jobs, 4, 1.0, happenings=happenings, max_s=until
        ).run()
        run = RunDirectory.create(tmp_path / f"run-{until:g}-{policy}")
        RunPlan(policy, SPECS, {"d": "/d"}, round_s=1.0).write(run)
        with JournalWriter(run.journal) as journal:
            for now, event, orders in result.journal:
                journal.append(now, event, *orders)
        return run

    return simulate


def told(invoke: Invoke, run: RunDirectory, job: str) -> dict[str, Any]:
    result = invoke("explain", run.path, job, "--json")
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_a_running_job_learns_its_gain_and_who_is_next(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    value = told(invoke, simulated(8.0), "fast")
    assert value["state"] in ("running", "regrouping")
    last = value["decisions"][0]["explanation"]
    assert last["given"] == 3 and last["gain"] > 0.0
    assert last["rate"] == pytest.approx(last["gain"] / 3)
    assert last["next_worker_to"] == "fast" and last["next_rate"] > 0.0
    text = invoke("explain", simulated(8.5).path, "fast").stdout
    assert "per worker" in text and "would get the next worker" in text


def test_a_shrunk_job_learns_who_got_its_workers(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    value = told(invoke, simulated(10.0), "flat")
    change = value["decisions"][-1]
    assert change["what"] == "last change"
    told_then = change["explanation"]
    assert told_then["given"] < told_then["held"]
    assert told_then["taken_by"] == [["fast", told_then["held"] - told_then["given"]]]
    assert any("gained workers: fast (+" in text for text in told_then["sentences"])


def test_a_job_too_large_for_the_cluster_is_rejected_and_says_so(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    value = told(invoke, simulated(10.0), "huge")
    assert value["state"] == "rejected" and value["decisions"] == []
    assert value["summary"] == ("huge was not admitted at 3s: needs 8 workers, the run has 4.")


def test_a_job_that_is_to_arrive_says_when(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    value = told(invoke, simulated(10.0), "late")
    assert value["state"] == "not submitted"
    assert value["summary"].startswith("late was not submitted yet: it arrives at 14s")


def test_a_finished_job_tells_its_last_decision(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    value = told(invoke, simulated(1e6), "fast")
    assert value["state"] == "done" and value["workers"] == 0
    assert "finished at" in value["summary"] and value["summary"].endswith("epochs.")
    record_end = value["now"]
    assert value["decisions"] and all(d["at"] <= record_end for d in value["decisions"])


def test_a_waiting_job_learns_what_it_waits_for(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    value = told(invoke, simulated(4.0, "fifo"), "flat")
    assert value["state"] == "waiting"
    assert value["summary"] == "flat waits without workers since it arrived at 2s."
    assert any("waits:" in text for text in value["decisions"][0]["explanation"]["sentences"])


def test_a_cancelled_and_a_stopped_job_say_so(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    cancel = (5.0, ev.JobCancelled("flat", "not needed"))
    value = told(invoke, simulated(9.0, happenings=[cancel]), "flat")
    assert value["state"] == "cancelled" and "cancelled" in value["summary"]
    assert "not needed" in value["summary"]
    stop = (6.0, ev.StopRequested("SIGUSR1"))
    value = told(invoke, simulated(1e5, happenings=[stop]), "fast")
    assert "the run ended early" in value["summary"]


def test_the_slaq_policy_tells_gains_too(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    last = told(invoke, simulated(8.0, "slaq"), "fast")["decisions"][0]["explanation"]
    assert last["policy"] == "slaq" and last["gain"] > 0.0 and last["price"] is None


def test_a_torn_last_line_is_left_out(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    run = simulated(8.0)
    with run.journal.open("a") as file:
        file.write('{"now": 9')
    assert told(invoke, run, "fast")["now"] <= 8.0


def test_an_unknown_job_is_not_found_and_the_jobs_are_listed(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    result = invoke("explain", simulated(3.0).path, "nobody", "--json")
    assert result.exit_code == 3
    assert "jobs: fast, flat, late, huge" in json.loads(result.stdout)["error"]["message"]


def test_a_journal_that_does_not_replay_is_refused(
    invoke: Invoke, simulated: Callable[..., RunDirectory]
) -> None:
    run = simulated(3.0)
    with JournalWriter(run.journal) as journal:
        journal.append(4.0, ev.JobPaused("fast", 99, 1))
    result = invoke("explain", run.path, "fast", "--json")
    assert result.exit_code == 2
    assert "does not replay" in json.loads(result.stdout)["error"]["message"]
