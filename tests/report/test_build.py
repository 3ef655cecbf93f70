"""The report of a hand-made run: every figure is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import NotFoundError
from hpcslaq.record.jobsummary import JobSummary
from hpcslaq.record.journal import JournalError, JournalWriter
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.build import RunReader, build_report, lost_share, percentile
from hpcslaq.report.text import problems


def test_the_run_is_described_by_its_result_and_its_journal(ended_run: RunDirectory) -> None:
    run = build_report(ended_run)["run"]
    assert run["directory"] == str(ended_run.path)
    assert (run["policy"], run["ranks"], run["workers"], run["starts"]) == ("slaq", 3, 2, 1)
    assert (run["exit_code"], run["is_finished"], run["has_result"]) == (1, True, True)
    assert run["state"] == "finished, jobs failed"
    assert (run["wall_s"], run["makespan_s"]) == (6.5, 6.0)
    assert (run["mpi"], run["hosts"]) == ("Some MPI 1.0", ["n0"])
    assert run["versions"]["numpy"] == "9.9" and "python" in run["versions"]
    assert (run["tick_p50_s"], run["communicators_alive"]) == (0.0001, 0)


def test_regroups_of_running_jobs_are_timed_and_first_groups_are_not(
    ended_run: RunDirectory,
) -> None:
    run = build_report(ended_run)["run"]
    assert run["regroups"] == 1
    assert (run["regroup_p50_s"], run["regroup_max_s"]) == (0.5, 0.5)


def test_rank_time_adds_up_to_the_time_that_the_workers_were_there(ended_run: RunDirectory) -> None:
    run = build_report(ended_run)["run"]
    assert run["rank_seconds"] == 2 * 6.0
    seconds = run["rank_time_s"]
    assert sum(seconds.values()) == pytest.approx(12.0)
    assert (seconds["compute"], seconds["reduce"], seconds["regroup"]) == (6.5, 0.5, 1.25)
    # Rank 2 was promised to nobody from 4 s to 6 s.
    assert seconds["idle"] == pytest.approx(2.0)
    assert sum(run["rank_time_share"].values()) == pytest.approx(1.0)


def test_the_lost_share_is_what_the_groups_spent_outside_training(ended_run: RunDirectory) -> None:
    report = build_report(ended_run)
    lost = 1.25 + 0.5 + 0.25 + 0.5
    assert report["run"]["lost_share"] == pytest.approx(lost / (lost + 7.0))
    assert report["jobs"][0]["lost_share"] == pytest.approx(2.0 / 8.5)


def test_a_finished_job_is_reported_with_its_results(ended_run: RunDirectory) -> None:
    job = build_report(ended_run)["jobs"][0]
    assert (job["name"], job["state"], job["reason"]) == ("alpha", "done", "epochs")
    assert (job["epochs"], job["iterations"], job["final_loss"]) == (4, 4, 0.125)
    assert (job["loss_digest"], job["model_digest"]) == ("ab" * 32, "cd" * 32)
    assert (job["regroups"], job["rank_seconds"]) == (1, 2 * 2.0 + 1 * 3.0)
    assert (job["jct_s"], job["queue_s"], job["is_deadline_met"]) == (6.0, 1.0, True)
    assert job["metrics"] == {"auc": 0.75, "nan": 1.5}
    assert (job["options"], job["max_workers"], job["model_file"]) == ({"l2": 0.5}, 4, None)


def test_a_failed_job_is_reported_with_its_traceback_and_without_results(
    ended_run: RunDirectory,
) -> None:
    job = build_report(ended_run)["jobs"][1]
    assert (job["state"], job["reason"]) == ("failed", "loss is <nan>")
    assert job["details"].startswith("Traceback")
    assert job["final_loss"] is job["loss_digest"] is job["is_deadline_met"] is None


def test_events_and_commands_are_counted(ended_run: RunDirectory) -> None:
    report = build_report(ended_run)
    assert report["events"]["GroupFormed"] == 3
    assert report["events"]["RankReleased"] == 3
    assert report["commands"] == {"Regroup": 1, "Shutdown": 1, "Start": 2}


def test_the_report_is_json_and_has_the_same_keys_at_any_time(
    ended_run: RunDirectory, open_run: RunDirectory
) -> None:
    ended, open_ = build_report(ended_run), build_report(open_run)
    assert json.loads(json.dumps(ended, allow_nan=False)) == ended
    assert ended["run"].keys() == open_["run"].keys()
    for job in open_["jobs"]:
        assert job.keys() == ended["jobs"][0].keys()


def test_a_run_without_a_result_is_reported_as_far_as_it_came(open_run: RunDirectory) -> None:
    report = build_report(open_run)
    run, (alpha, beta, late) = report["run"], report["jobs"]
    assert (run["state"], run["is_finished"], run["has_result"]) == ("running", False, False)
    assert run["exit_code"] is run["tick_p50_s"] is None
    assert (alpha["state"], alpha["workers"], alpha["last_loss"]) == ("running", 1, 0.5)
    assert alpha["final_loss"] is None
    assert beta["state"] == "starting"
    assert (late["state"], late["submitted_at"], late["epochs"]) == ("not submitted", None, 0)


def test_a_reader_goes_on_where_it_stopped(open_run: RunDirectory) -> None:
    reader = RunReader(open_run)
    num = reader.poll()
    assert num > 5 and reader.poll() == 0
    with open_run.journal.open("ab") as file:
        file.write(open_run.journal.read_bytes().splitlines(keepends=True)[-1])
    assert reader.poll() == 1


def test_before_any_rank_has_started_all_jobs_are_not_submitted(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    RunPlan("fair", (JobSpec("a", "m", "d", 1, 1),), {"d": "/d"}).write(run)
    report = build_report(run)
    assert report["run"]["state"] == "waiting"
    assert report["run"]["lost_share"] is report["run"]["rank_time_share"]["idle"] is None
    assert [job["state"] for job in report["jobs"]] == ["not submitted"]


def test_a_damaged_journal_is_an_error_that_names_the_line(open_run: RunDirectory) -> None:
    with open_run.journal.open("ab") as file:
        file.write(b"{}\n")
    num_lines = open_run.journal.read_bytes().count(b"\n")
    with pytest.raises(JournalError, match=rf"journal.jsonl:{num_lines}: "):
        build_report(open_run)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"run\.toml"):
        build_report(RunDirectory(tmp_path))


def test_the_lost_share_of_nothing_is_unknown() -> None:
    assert lost_share({}) is None
    assert lost_share({"compute": 3.0, "load": 1.0}) == 0.25


def test_percentiles_of_few_values() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_a_job_that_has_ended_is_described_anew_only_when_something_is_heard_of_it(
    ended_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RunReader(ended_run)
    reader.poll()
    first = reader.report()
    described: list[str] = []
    to_json = JobSummary.to_json

    def counted(job: JobSummary, now: float, **options: bool) -> dict[str, Any]:
        described.append(job.spec.name)
        return to_json(job, now, **options)

    monkeypatch.setattr(JobSummary, "to_json", counted)
    assert reader.report() == first
    assert described == []
    with JournalWriter(ended_run.journal) as journal:
        journal.append(7.0, ev.RankReleased(2, "beta", 3, {"compute": 5.0}))
    reader.poll()
    beta = reader.report()["jobs"][1]
    assert described == ["beta"]
    assert beta["usage_s"]["compute"] == 5.5


def test_what_a_reader_does_to_a_report_is_not_in_the_next(ended_run: RunDirectory) -> None:
    reader = RunReader(ended_run)
    reader.poll()
    reader.report()["jobs"][0]["eta_s"] = 5.0
    assert "eta_s" not in reader.report()["jobs"][0]


def test_the_age_of_the_last_good_checkpoint_is_said_where_none_can_be_written(
    open_run: RunDirectory,
) -> None:
    def told() -> dict[str, str]:
        return dict(problems(build_report(open_run)))

    def add(now: float, item: ev.Event) -> None:
        with JournalWriter(open_run.journal) as journal:
            journal.append(now, item)

    assert told() == {}
    add(4.0, ev.CheckpointFailed("alpha", 4, "No space left on device"))
    assert told() == {
        "alpha": "no checkpoint can be written (No space left on device); there is no earlier one"
    }
    add(5.0, ev.CheckpointWritten("alpha", 6, 6, 100, 0.1))
    assert told() == {}
    add(6.0, ev.CheckpointFailed("alpha", 8, "Disk quota exceeded"))
    add(65.0, ev.RoundElapsed())
    problem = told()["alpha"]
    assert problem.startswith("no checkpoint can be written (Disk quota exceeded)")
    assert problem.endswith("the last good one, of iteration 6, is 1m old")
    job = build_report(open_run)["jobs"][0]
    assert (job["checkpoint_age_s"], job["checkpoint_iterations"]) == (60.0, 6)
