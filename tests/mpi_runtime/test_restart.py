"""A run that was killed goes on: restarts, `hpcslaq resume`, and a launcher that dies."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from hpcslaq.core import events as ev
from hpcslaq.mpi.launch import LAUNCHER_VARIABLE, is_launcher_gone, this_launcher
from hpcslaq.record.journal import read_journal

#: How often the long test kills a run; 50 by hand, see docs/faults.md.
KILLS = int(os.environ.get("HPCSLAQ_TEST_KILLS", "8"))


def events(place: Any, kind: type) -> list[Any]:
    return [e.item for e in read_journal(place.out / "journal.jsonl") if type(e.item) is kind]


def digests(place: Any) -> dict[str, tuple[str, str]]:
    return {f.job: (f.loss_digest, f.model_digest) for f in events(place, ev.JobFinished)}


def call(command: Callable[..., Any], mpi: Any, arguments: list[str]) -> tuple[int, Any, str]:
    done = command(mpi, arguments)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.launch
def test_a_run_whose_ranks_die_is_started_again(mpi, place, command):
    mercy = str(place.path / "mercy")
    # It dies once: the second start finds the file that the first has left.
    deadly = {"where": "statistics", "deed": "touch and kill", "unless": mercy, "sleep_s": 0.01}
    file = place.job_file(deadly, {"sleep_s": 0.01}, run='checkpoint_every = "0.1s"')
    arguments = [*place.arguments(file), "--ft", "off", "--max-restarts", "2"]
    code, report, said = call(command, mpi, arguments)
    assert (code, {job["state"] for job in report["jobs"]}) == (0, {"done"})
    assert said.count("restart 1 of 2: the ranks ended without a result") == 1
    assert "restart 2" not in said
    assert len(events(place, ev.RunStarted)) == 2
    assert place.processes() == {}


@pytest.mark.launch
@pytest.mark.long
def test_a_run_is_not_started_again_without_end(any_mpi, place, command):
    file = place.job_file({"where": "statistics", "deed": "kill"})
    arguments = [*place.arguments(file), "--ft", "off", "--max-restarts", "1"]
    code, value, said = call(command, any_mpi, arguments)
    assert code == 75
    assert "the same command goes on" in value["error"]["message"]
    assert said.count("restart") == 1


@pytest.mark.launch
def test_a_run_that_was_killed_with_all_it_had_is_resumed_by_its_directory(mpi, place, command):
    file = place.job_file({"sleep_s": 0.02}, {"sleep_s": 0.02}, epochs=80)
    process = place.start(mpi, file)
    place.wait_for("ProgressReported")
    process.kill()
    process.communicate()
    place.kill_all()
    with (place.out / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"torn": ')
    code, report, said = call(command, mpi, ["resume", str(place.out), "--json"])
    assert (code, {job["state"] for job in report["jobs"]}) == (0, {"done"})
    assert "the last line is torn and left out" in said
    # On as many ranks as it had.
    assert [len(start.hosts) for start in events(place, ev.RunStarted)] == [2, 2]


@pytest.mark.launch
def test_ranks_whose_launcher_is_killed_checkpoint_and_end(mpi, place, command):
    file = place.job_file({"sleep_s": 0.02}, {"sleep_s": 0.02}, epochs=400)
    process = place.start(mpi, file)
    place.wait_for("ProgressReported")
    process.kill()
    process.communicate()
    place.wait_until_empty()
    (stop,) = events(place, ev.StopRequested)
    assert stop.reason == "the launcher has died"
    assert {paused.job for paused in events(place, ev.JobPaused)} == {"job0", "job1"}
    assert json.loads((place.out / "result.json").read_text())["exit_code"] == 75


@pytest.mark.launch
def test_what_cannot_be_resumed_is_said(any_mpi, place, command, tmp_path):
    code, value, _ = call(command, any_mpi, ["resume", str(tmp_path / "none"), "--json"])
    assert (code, value["error"]["kind"]) == (3, "NotFoundError")


@pytest.mark.launch
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_kills_at_any_moment_lose_nothing_that_was_finished(any_mpi, place, command, tmp_path):
    rng = random.Random(8)
    jobs = [{"sleep_s": 0.01, "name": f"job{n}"} for n in range(4)]
    file = place.job_file(*jobs, run='checkpoint_every = "0.2s"', epochs=150)
    finished: dict[str, tuple[str, str]] = {}
    kills = 0
    process = place.start(any_mpi, file, more=("--quiet",))
    while kills < KILLS:
        until = time.monotonic() + rng.uniform(0.2, 4.0)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        place.kill_all()
        kills += 1
        if (place.out / "journal.jsonl").exists():
            now = digests(place)
            assert finished.items() <= now.items()
            finished = now
        process = place.start(any_mpi, file, more=("--quiet",))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert kills >= min(KILLS, 5)
    assert finished.items() <= digests(place).items()
    # As without a fault: the jobs are alike, so are their digests.
    assert len(digests(place)) == 4
    assert len({model for _, model in digests(place).values()}) == 1
    names = [submitted.spec.name for submitted in events(place, ev.JobSubmitted)]
    assert sorted(names) == ["job0", "job1", "job2", "job3"]


def test_a_launcher_is_known_to_be_gone_only_when_it_is():
    assert not is_launcher_gone({})
    assert not is_launcher_gone({LAUNCHER_VARIABLE: "nonsense"})
    assert not is_launcher_gone({LAUNCHER_VARIABLE: this_launcher()})
    host, pid, started = this_launcher().rsplit(":", 2)
    # Another process got its number.
    assert is_launcher_gone({LAUNCHER_VARIABLE: f"{host}:{pid}:{int(started) + 1}"})
    assert not is_launcher_gone({LAUNCHER_VARIABLE: f"elsewhere:{pid}:{int(started) + 1}"})
    program = "from hpcslaq.mpi.launch import this_launcher; print(this_launcher())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert is_launcher_gone({LAUNCHER_VARIABLE: done.stdout.strip()})


def test_a_launcher_that_has_ended_and_is_not_waited_for_is_gone():
    program = "from hpcslaq.mpi.launch import this_launcher; print(this_launcher(), flush=True)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    launcher = process.stdout.readline().strip()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_launcher_gone({LAUNCHER_VARIABLE: launcher})
    process.communicate()
    assert process.returncode == 0
