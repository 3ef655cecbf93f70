"""`hpcslaq slurm` and `status --slurm` with pretended commands of Slurm."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from hpcslaq.cli.main import cli
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.slurm.submit import read_submissions

JOBS = """\
[run]
policy = "fair"

[data.rows]
path = "rows.npy"
label = 2

[[job]]
name = "a"
model = "logistic"
data = "rows"
chunks = 4
min_workers = 3
epochs = 5
"""
SIZE = ["--nodes", "2", "--ntasks-per-node", "2", "--time", "30", "--template", "mpich-pmi2"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a job file, and a folder for pretended commands in PATH."""
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.arange(60.0).reshape(20, 3) % 2)
    (tmp_path / "jobs.toml").write_text(JOBS)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def pretend(here, name, script):
    file = here / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def call(*arguments, code=0):
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_the_script_names_files_absolutely_and_the_present_interpreter(here):
    text = call("slurm", "script", "jobs.toml", *SIZE, "--out", "runs/a", "--requeue", "2")
    assert f"JOB_FILE={here}/jobs.toml " in text
    assert f"RUN_DIR={here}/runs/a " in text
    assert f"PYTHON={sys.executable} " in text
    assert "#SBATCH --time=00:30:00" in text
    assert "MAX_RESTARTS=2 " in text
    assert not (here / "runs").exists()


def test_the_warning_comes_two_minutes_before_the_end_or_at_half_of_a_short_limit(here):
    line = ("slurm", "script", "jobs.toml", "--ntasks-per-node", "2", "--template", "mpirun")
    assert "#SBATCH --signal=B:USR1@120\n" in call(*line, "--time", "30m")
    assert "#SBATCH --signal=B:USR1@30\n" in call(*line, "--time", "1m")
    assert "#SBATCH --signal=B:USR1@50\n" in call(*line, "--time", "1m", "--warn", "50s")


def test_the_sites_file_is_sourced_where_there_is_one(here):
    assert "site.sh" not in call("slurm", "script", "jobs.toml", *SIZE)
    (here / "slurm").mkdir()
    (here / "slurm" / "site.sh").write_text("")
    assert f". {here}/slurm/site.sh" in call("slurm", "script", "jobs.toml", *SIZE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--warn", "soon"], "--warn: not a duration"),
        (["--time", "never"], "--time: not a duration"),
        (["--mem", "much"], "--mem: must be a size"),
        (["--policy", "a,b"], "--policy: several need an --array"),
    ],
)
def test_an_impossible_option_ends_with_2_and_one_line(here, options, message):
    output = call("slurm", "script", "jobs.toml", *SIZE, *options, code=2)
    assert message in output
    assert output.count("\n") == 1


def test_a_submission_is_recorded_and_its_status_is_known_before_it_starts(here):
    pretend(here, "sbatch", "echo 41")
    told = json.loads(call("slurm", "submit", "jobs.toml", *SIZE, "--out", "runs/a", "--json"))
    assert told["job_id"] == "41"
    run = RunDirectory(here / "runs" / "a")
    assert [job.job_id for job in read_submissions(run)] == ["41"]
    assert f"--output={run.logs}/slurm-%j.out" in run.batch_script.read_text()
    assert "Slurm job 41 was submitted" in call("status", "runs/a")
    pretend(here, "squeue", "echo '41|PENDING|30:00|(Priority)'")
    assert "job 41: PENDING (Priority)\n" in call("status", "runs/a", "--slurm")
    assert "the run has not started" in call("report", "runs/a", code=3)
    pretend(here, "squeue", "echo 'slurm_load_jobs error: Invalid job id' >&2; exit 1")
    status = json.loads(call("status", "runs/a", "--slurm", "--json"))
    assert status["slurm"]["state"] is None
    assert "it ended" in status["slurm"]["problem"]


def test_a_second_submission_goes_to_the_same_directory(here):
    pretend(here, "sbatch", "echo 41")
    call("slurm", "submit", "jobs.toml", *SIZE, "--out", "runs/a")
    pretend(here, "sbatch", "echo 42")
    call("slurm", "submit", "jobs.toml", *SIZE, "--out", "runs/a")
    jobs = read_submissions(RunDirectory(here / "runs" / "a"))
    assert [job.job_id for job in jobs] == ["41", "42"]


def test_an_array_has_one_directory_above_its_runs(here):
    pretend(here, "sbatch", "echo 41")
    call("slurm", "submit", "jobs.toml", *SIZE, "--out", "runs/a", "--array", "0-3")
    text = RunDirectory(here / "runs" / "a").batch_script.read_text()
    assert f'RUN_DIR={here}/runs/a/"$SLURM_ARRAY_TASK_ID"' in text
    assert f"--output={here}/runs/a/logs/slurm-%A_%a.out" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("epochs = 5", "epochs = -5"), "must be >= 1"),
        (("rows.npy", "columns.npy"), "there is no such file"),
        (("min_workers = 3", "min_workers = 4\nmax_workers = 4"), None),
        (("chunks = 4\nmin_workers = 3", "chunks = 9\nmin_workers = 5"), "more than the 4 workers"),
    ],
)
def test_a_wrong_job_file_is_found_before_anything_is_submitted(here, change, message):
    pretend(here, "sbatch", "echo 41")
    (here / "jobs.toml").write_text(JOBS.replace(*change))
    line = ("slurm", "submit", "jobs.toml", *SIZE, "--out", "runs/a")
    if message is None:
        call(*line)
        return
    assert message in call(*line, code=2)
    assert not (here / "runs").exists()


def test_without_slurm_a_submission_says_so(here, monkeypatch):
    monkeypatch.setenv("PATH", str(here / "bin"))
    line = ("slurm", "submit", "jobs.toml", *SIZE, "--out", "runs/a")
    assert "sbatch is not here" in call(*line, code=4)


def test_watching_ends_when_the_job_did_without_a_run(here):
    pretend(here, "sbatch", "echo 41")
    call("slurm", "submit", "jobs.toml", *SIZE, "--out", "runs/a")
    pretend(here, "squeue", "echo '41|FAILED|9:57|(NonZeroExitCode)'")
    output = call("status", "runs/a", "--watch", "--slurm")
    assert "job 41: FAILED (NonZeroExitCode)\n" in output
    assert "the run did not start; see runs/a/logs" in output
    log = here / "runs" / "a" / "logs" / "slurm-41.out"
    log.write_bytes(b"early\n" * 2000 + b"error: no \x1b[2J such \xff module\n")
    output = call("status", "runs/a", "--watch", "--slurm")
    assert "the run did not start; the end of runs/a/logs/slurm-41.out:\n  early\n" in output
    assert output.endswith("\n  error: no ?[2J such \ufffd module\n")
    assert output.count("early") < 10


def test_a_run_without_a_submission_says_so(here):
    pretend(here, "sbatch", "echo 41")
    call("status", "runs/none", "--slurm", code=3)
    # The job file instead of the run.
    assert "there is no such run directory" in call("status", "jobs.toml", "--slurm", code=3)
