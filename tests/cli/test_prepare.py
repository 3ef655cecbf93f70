"""From a job file to a run directory: made once, taken up again, never mistaken for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcslaq.cli.prepare import prepare_run, read_checked
from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError, JobFileError
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCSLAQ_CACHE", str(tmp_path / "cache"))


def prepared(path: Path, out: Path, policy: str | None = None) -> RunDirectory:
    return prepare_run(path, read_checked(path, policy), out, lambda what, share: None)


def test_the_plan_holds_the_jobs_and_the_prepared_data(job_file: Path, tmp_path: Path) -> None:
    plan = RunPlan.read(prepared(job_file, tmp_path / "run"))
    assert [job.name for job in plan.jobs] == ["a-l2=0.1", "a-l2=1.0"]
    assert (Path(plan.data_paths["own"]) / "meta.json").is_file()
    assert (plan.policy, plan.job_file) == ("fair", str(job_file))


def test_the_plan_holds_what_is_said_of_a_job_besides_its_spec(
    job_file: Path, tmp_path: Path
) -> None:
    text = job_file.read_text().replace("epochs = 3", "epochs = 3\nself_check = true")
    job_file.write_text(text.replace("[job.sweep]", "reference = { auc = 0.75 }\n[job.sweep]"))
    plan = RunPlan.read(prepared(job_file, tmp_path / "run"))
    assert plan.self_checks == ("a-l2=0.1", "a-l2=1.0")
    assert plan.references == {name: {"auc": 0.75} for name in plan.self_checks}


def test_the_solver_decides_the_convergence_class(job_file: Path) -> None:
    newton = read_checked(job_file).jobs[0]
    job_file.write_text(job_file.read_text().replace("[job.sweep]", '[job.sweep]\nsolver = ["gd"]'))
    descent = read_checked(job_file).jobs[0]
    assert newton.convergence is Convergence.SUPERLINEAR
    assert descent.convergence is Convergence.SUBLINEAR


def test_the_same_jobs_take_an_earlier_attempt_up_again(job_file: Path, tmp_path: Path) -> None:
    first = prepared(job_file, tmp_path / "run")
    before = first.run_toml.read_bytes()
    # One of logistic's options is None by default: it has no place in run.toml.
    assert "step" in read_checked(job_file).jobs[0].options
    assert prepared(job_file, tmp_path / "run") == first
    assert first.run_toml.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "key", "values"),
    [
        ("epochs = 3", "epochs = 4", 'job "a-l2=0.1".max_epochs', "4, and the run has 3"),
        ("1.0]", "2.0]", 'job "a-l2=2.0"', "the run has no such job"),
        ("0.1, 1.0]", "0.1]", 'job "a-l2=1.0"', "the run has it, and it is not in this file"),
        (
            "[job.sweep]",
            "options = { memory = 7 }\n[job.sweep]",
            'job "a-l2=0.1".options.memory',
            "7, and the run has 10",
        ),
    ],
)
def test_other_jobs_are_refused_by_the_key_that_differs(
    job_file: Path, tmp_path: Path, old: str, new: str, key: str, values: str
) -> None:
    prepared(job_file, tmp_path / "run")
    text = job_file.read_text()
    assert old in text
    job_file.write_text(text.replace(old, new))
    with pytest.raises(JobFileError, match="choose another --out") as refused:
        prepared(job_file, tmp_path / "run")
    assert refused.value.key == key and values in refused.value.problem


def test_another_policy_is_another_run(job_file: Path, tmp_path: Path) -> None:
    prepared(job_file, tmp_path / "run")
    with pytest.raises(JobFileError, match=r"policy: 'slaq', and the run has 'fair'; .* choose"):
        prepared(job_file, tmp_path / "run", "slaq")


def test_bad_data_leave_no_run_directory(job_file: Path, tmp_path: Path) -> None:
    with (tmp_path / "own.csv").open("a") as file:
        file.write("1,2\n")
    with pytest.raises(DataError, match=r"own\.csv"):
        prepared(job_file, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_does_not_fit_its_data_is_refused(job_file: Path, tmp_path: Path) -> None:
    job_file.write_text(job_file.read_text().replace("chunks = 4", "chunks = 400"))
    with pytest.raises(JobFileError, match="rows"):
        prepared(job_file, tmp_path / "run")
    assert not (tmp_path / "run").exists()
