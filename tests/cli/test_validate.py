"""`hpcslaq validate`: the jobs that would run, and what is wrong before any starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCSLAQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_job_of_a_sweep_is_listed(invoke: Invoke, job_file: Path, own_cache: Path) -> None:
    result = invoke("validate", job_file, "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert [job["name"] for job in value["jobs"]] == ["a-l2=0.1", "a-l2=1.0"]
    assert [job["options"]["l2"] for job in value["jobs"]] == [0.1, 1.0]
    assert (value["run"]["policy"], value["run"]["round_s"]) == ("fair", 2.0)
    assert not own_cache.exists()


def test_data_are_prepared_where_asked(invoke: Invoke, job_file: Path, own_cache: Path) -> None:
    value = json.loads(invoke("validate", job_file, "--data", "--json").stdout)
    (data,) = value["data"]
    assert (data["num_rows"] + data["num_holdout_rows"], data["num_features"]) == (40, 2)
    assert Path(data["directory"]).parent == own_cache


def test_the_list_for_people_shows_what_differs_from_the_defaults(
    invoke: Invoke, job_file: Path
) -> None:
    text = invoke("validate", job_file).stdout
    assert "valid; 2 jobs under fair, rounds of 2s, seed 0" in text
    assert "a-l2=0.1  logistic  own   4       3       0s       1-4      l2=0.1" in text


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ("servers = 2", "1-4 + 2 servers"),
        ("workers_per_server = 2.5\nstaleness = 3", "1-4 + 1 server per 2.5, staleness 3"),
        ('staleness = "unbounded"', "1-4 + 1 server, staleness unbounded"),
    ],
)
def test_parameter_servers_are_shown_beside_the_workers(
    invoke: Invoke, job_file: Path, lines: str, shown: str
) -> None:
    text = job_file.read_text().replace("[[job]]", f'[[job]]\nsync = "ps"\n{lines}', 1)
    job_file.write_text(text)
    refused = invoke("validate", job_file)
    assert refused.exit_code == 2
    assert "the solver lbfgs does not work element by element" in refused.stderr
    job_file.write_text(text.replace("[job.sweep]", 'options.solver = "adam"\n[job.sweep]'))
    assert shown in " ".join(invoke("validate", job_file).stdout.split())


def test_another_policy_is_checked_too(invoke: Invoke, job_file: Path) -> None:
    assert invoke("validate", job_file, "--policy", "fifo").exit_code == 0
    result = invoke("validate", job_file, "--policy", "nothing")
    assert result.exit_code == 2
    assert "slaq" in result.stderr


def test_a_missing_file_is_named(invoke: Invoke, job_file: Path) -> None:
    (job_file.parent / "own.csv").unlink()
    result = invoke("validate", job_file)
    assert result.exit_code == 2
    assert "data.own.path" in result.stderr and len(result.stderr.splitlines()) == 1


def test_rows_that_cannot_be_used_are_found_with_data_only(invoke: Invoke, job_file: Path) -> None:
    with (job_file.parent / "own.csv").open("a") as file:
        file.write("nan,1,0\n")
    assert invoke("validate", job_file).exit_code == 0
    result = invoke("validate", job_file, "--data")
    assert result.exit_code == 2
    assert "own.csv" in result.stderr and "42" in result.stderr
