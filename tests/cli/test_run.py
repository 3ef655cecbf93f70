"""`hpcslaq run` from the job file to the report, on ranks of this machine's MPI."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcslaq.errors import LaunchError
from hpcslaq.mpi.launch import find_mpi

Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.launch


@pytest.fixture(autouse=True, scope="module")
def need_mpi() -> None:
    try:
        find_mpi()
    except LaunchError as error:
        pytest.skip(str(error))


def test_a_run_trains_reports_and_leaves_a_page_and_models(hpcslaq: Cli, job_file: Path) -> None:
    done = hpcslaq("run", job_file, "--ranks", 3, "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["run"]["state"], report["run"]["workers"]) == ("finished", 2)
    for job in report["jobs"]:
        assert job["state"] == "done" and len(job["loss_digest"]) == 64
        assert Path(job["model_file"]).is_file()
    assert (job_file.parent / "run" / "report.html").is_file()
    # Read again from the directory, the results are the same.
    again = json.loads(hpcslaq("report", "run", "--json").stdout)
    assert [job["model_digest"] for job in again["jobs"]] == [
        job["model_digest"] for job in report["jobs"]
    ]


def test_people_get_progress_on_one_stream_and_tables_on_the_other(
    hpcslaq: Cli, job_file: Path
) -> None:
    done = hpcslaq("run", job_file, "--ranks", 2, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith("preparing data own")
    assert "2 done; 0 of 1 workers busy" in done.stderr.splitlines()[-1]
    assert done.stdout.startswith("run: finished; 2 of 2 jobs done")
    assert "page: " in done.stdout


def test_a_directory_that_holds_another_run_is_not_touched(hpcslaq: Cli, job_file: Path) -> None:
    assert hpcslaq("run", job_file, "--ranks", 2, "--out", "run", "--quiet").returncode == 0
    done = hpcslaq("run", job_file, "--ranks", 2, "--out", "run", "--policy", "fifo", "--json")
    assert done.returncode == 2
    assert "choose another --out" in json.loads(done.stdout)["error"]["message"]
