"""The commands in a process of their own: exit codes and one JSON value, also on errors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcslaq.record.rundir import RunDirectory

Cli = Callable[..., subprocess.CompletedProcess[str]]
MakeRun = Callable[..., RunDirectory]


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["report", "nowhere"], 3, "NotFoundError"),
        (["status", "nowhere"], 3, "NotFoundError"),
        (["validate", "nothing.toml"], 3, "NotFoundError"),
        (["models", "nothing"], 3, "NotFoundError"),
        (["run", "nothing.toml", "--ranks", "2"], 3, "NotFoundError"),
        (["run", "nothing.toml", "--ranks", "1"], 2, "UsageError"),
        (["report"], 2, "UsageError"),
        (["nothing"], 2, "UsageError"),
        (["doctor", "--mpi", "nothing"], 2, "UsageError"),
    ],
)
def test_an_error_is_one_value_on_standard_output(
    hpcslaq: Cli, arguments: list[str], code: int, kind: str
) -> None:
    done = hpcslaq(*arguments, "--json")
    assert done.returncode == code
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == (kind, code)
    assert error["message"] and "\n" not in error["message"].strip()


def test_without_json_an_error_is_one_line_on_standard_error(hpcslaq: Cli) -> None:
    done = hpcslaq("report", "nowhere")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error: nowhere: there is no such run directory\n"


def test_report_writes_the_page_and_prints_one_value(hpcslaq: Cli, make_run: MakeRun) -> None:
    run = make_run(0)
    done = hpcslaq("report", run.path, "--json")
    assert done.returncode == 0
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["name"], job["state"], job["loss_digest"]) == ("only", "done", "aa" * 32)
    assert run.report_html.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_watching_and_json_do_not_go_together(hpcslaq: Cli, make_run: MakeRun) -> None:
    done = hpcslaq("status", make_run(0).path, "--watch", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "UsageError"


def test_a_wrong_job_file_starts_nothing(hpcslaq: Cli, job_file: Path) -> None:
    job_file.write_text(job_file.read_text().replace("epochs", "epoch"))
    for command in (["validate"], ["run", "--ranks", "2", "--out", "run"]):
        done = hpcslaq(*command, job_file, "--json")
        assert done.returncode == 2
        message = json.loads(done.stdout)["error"]["message"]
        assert f"{job_file}: " in message and "did you mean 'epochs'?" in message
    assert not (job_file.parent / "run").exists()
