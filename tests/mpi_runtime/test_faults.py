"""`hpcslaq run` when things go wrong: user code, kills, signals, disks, two runs at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpcslaq.mpi.launch import Mpi, mpi_command, mpi_environment
from hpcslaq.record.journal import JournalWriter

pytestmark = pytest.mark.launch

ROOT = Path(__file__).resolve().parents[2]


def states(report: Any) -> dict[str, str]:
    return {job["name"]: job["state"] for job in report["jobs"]}


def test_user_code_that_ends_its_process_fails_its_job_only(mpi, place, run):
    deeds = {
        "statistics": "exit",
        "update": "interrupt",
        "initial_state": "raise",
        "steps_per_epoch": "exit",
        "evaluate": "interrupt",
    }
    jobs = [
        {"name": f"{where}-{deed}", "where": where, "deed": deed, "chunk": 3}
        for where, deed in deeds.items()
    ]
    code, report = run(mpi, place.job_file(*jobs, {"name": "good"}))
    assert code == 1
    assert states(report) == {**{job: "failed" for job in states(report)}, "good": "done"}
    reasons = {job["name"]: job["reason"] for job in report["jobs"]}
    assert "statistics of chunk 3: SystemExit" in reasons["statistics-exit"]
    assert "update: KeyboardInterrupt" in reasons["update-interrupt"]
    assert "a bug \\udc80" in reasons["initial_state-raise"]


@pytest.mark.parametrize("deed", ["raise", "exit"])
def test_user_code_that_refuses_to_look_at_its_data_starts_nothing(any_mpi, place, run, deed):
    code, value = run(any_mpi, place.job_file({"where": "check_data", "deed": deed}))
    assert code == 2
    assert 'job "job0".model' in value["error"]["message"]
    assert not place.out.exists()


@pytest.mark.long
def test_a_killed_rank_ends_the_run_which_the_same_command_resumes(mpi, place, run):
    mercy = str(place.path / "mercy")
    file = place.job_file({"where": "statistics", "deed": "kill", "unless": mercy}, {})
    code, value = run(mpi, file, more=("--ft", "off"))
    assert code == 75
    assert "the same command goes on" in value["error"]["message"]
    assert place.processes() == {}
    (place.path / "mercy").touch()
    code, report = run(mpi, file)
    assert (code, set(states(report).values())) == (0, {"done"})


def test_more_workers_than_the_run_has_are_refused_before_it_starts(any_mpi, place, run):
    code, value = run(any_mpi, place.job_file({"min_workers": 3}))
    assert code == 2
    assert 'job "job0".min_workers: this run has 2' in value["error"]["message"]
    assert not place.out.exists()


@pytest.mark.long
def test_a_second_run_in_the_same_directory_is_refused_and_the_first_goes_on(mpi, place, run):
    file = place.job_file({"sleep_s": 0.0})
    assert run(mpi, file)[0] == 0
    with JournalWriter(place.out / "journal.jsonl"):
        code, value = run(mpi, file)
    assert code == 1
    assert "another run is writing it" in value["error"]["message"]
    assert (place.out / "result.json").exists()


@pytest.mark.long
def test_a_time_limit_stops_each_start_and_the_run_goes_on_after_it(any_mpi, place, run):
    file = place.job_file({"sleep_s": 0.1}, {"sleep_s": 0.1}, run='time_limit = "1s"', epochs=12)
    codes = []
    while not codes or (codes[-1] == 75 and len(codes) < 8):
        code, report = run(any_mpi, file)
        codes.append(code)
        if code == 75:
            assert report["run"]["stop_reason"] == "the run's time limit of 1 s"
    assert codes[0] == 75
    assert codes[-1] == 0


@pytest.mark.long
def test_a_job_that_is_stopped_on_a_full_disk_is_not_lost(any_mpi, place, run):
    mercy = str(place.path / "mercy")
    full = {"where": "statistics", "deed": "fill", "unless": mercy, "sleep_s": 0.2}
    file = place.job_file(full, run='time_limit = "3s"', epochs=20)
    code, report = run(any_mpi, file, ranks=2)
    assert (code, states(report)) == (75, {"job0": "waiting"})
    (place.path / "mercy").touch()
    while code == 75:
        code, report = run(any_mpi, file, ranks=2)
    assert (code, states(report)) == (0, {"job0": "done"})


def test_a_signal_while_the_ranks_start_stops_them_when_they_are_ready(mpi, place):
    process = place.start(mpi, place.job_file({"sleep_s": 0.05}, {"sleep_s": 0.05}, epochs=300))
    while not (place.out / "run.toml").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert json.loads(out)["run"]["stop_reason"] == "SIGUSR1"
    assert place.processes() == {}


def inside(mpi: Mpi, place: Any, file: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """`mpirun -n 3 python -m mpi4py -m hpcslaq run ...`, as on a cluster."""
    program = ["-m", "hpcslaq", "run", str(file), "--out", str(place.out), "--json", *more]
    return subprocess.run(
        mpi_command(mpi, 3, program),
        env=mpi_environment(mpi, place.environment(), 3, os.cpu_count() or 1),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_inside_a_launch_rank_0_alone_prints_one_value_and_writes_the_page(mpi, place):
    done = inside(mpi, place, place.job_file({"where": "update"}, {"name": "good"}))
    assert done.returncode == 1
    assert states(json.loads(done.stdout)) == {"job0": "failed", "good": "done"}
    assert (place.out / "report.html").exists()


@pytest.mark.parametrize(
    ("options", "more", "code", "text"),
    [
        ({"where": "check_data", "deed": "exit"}, [], 2, "cannot be asked about its data"),
        ({}, ["--ranks", "7"], 4, "--ranks 7, but the launcher started 3"),
        ({"min_workers": 4}, [], 2, "min_workers"),
    ],
)
def test_inside_a_launch_what_keeps_a_run_from_starting_is_said_once(
    mpi, place, options, more, code, text
):
    done = inside(mpi, place, place.job_file(options), *more)
    assert done.returncode == code
    assert text in json.loads(done.stdout)["error"]["message"]


def test_inside_a_launch_a_cache_that_cannot_be_made_hangs_nobody(any_mpi, place):
    (place.path / "cache").write_text("in the way")
    done = inside(any_mpi, place, place.job_file({}))
    assert done.returncode in (1, 2)
    assert "error" in json.loads(done.stdout)
