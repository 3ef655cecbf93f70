"""Tables of text of a hand-made run, word for word."""

from __future__ import annotations

import pytest

from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.build import build_report
from hpcslaq.report.html import render_page
from hpcslaq.report.text import (
    TextTable,
    facts,
    headline,
    job_table,
    percent,
    problems,
    rank_time_table,
    result_table,
    seconds,
)


def test_the_headline_says_how_it_ended(ended_run: RunDirectory, open_run: RunDirectory) -> None:
    assert headline(build_report(ended_run)) == (
        "ended: finished, jobs failed; 1 of 2 jobs done in 6.5s on 1 + 2 ranks under slaq"
    )
    assert headline(build_report(open_run)) == (
        "open: running; 0 of 3 jobs done in 3s on 1 + 2 ranks under slaq"
    )


def test_the_facts_of_an_ended_run(ended_run: RunDirectory) -> None:
    assert facts(build_report(ended_run)) == [
        ("makespan", "6s"),
        ("regroups of running jobs", "1 (500ms p50, 500ms longest)"),
        ("rank-time lost outside training", "26.32 %"),
        ("idle rank-time", "16.7 %"),
        ("coordinator's tick", "0.1ms (p50), 2ms (p99)"),
        ("job communicators", "5 made, at most 1 at once on a rank, 0 left"),
    ]


def test_the_table_of_jobs(ended_run: RunDirectory) -> None:
    table = job_table(build_report(ended_run))
    assert len(table.columns) == len(table.is_number)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert rows[0] == {
        "job": "alpha",
        "model": "logistic",
        "state": "done",
        "epochs": "4/4",
        "loss": "0.12500",
        "held-out": "auc 0.75",
        "regroups": "1",
        "rank-s": "7.0",
        "queued": "1s",
        "JCT": "6s",
        "lost": "23.5 %",
    }
    assert (rows[1]["state"], rows[1]["loss"], rows[1]["held-out"]) == ("failed", "-", "-")


def test_all_metrics_are_shown_where_there_is_room(ended_run: RunDirectory) -> None:
    rows = job_table(build_report(ended_run), all_metrics=True).rows
    assert "auc 0.75, nan 1.5" in rows[0]


@pytest.mark.parametrize(("num", "said"), [(0, ""), (1, "; 1 pause"), (2, "; 2 pauses")])
def test_pauses_are_told_beside_the_regroups(ended_run: RunDirectory, num: int, said: str) -> None:
    report = build_report(ended_run)
    report["run"]["pauses"] = num
    assert dict(facts(report))["regroups of running jobs"] == f"1 (500ms p50, 500ms longest){said}"


def test_references_stand_beside_what_is_compared_with_them(ended_run: RunDirectory) -> None:
    report = build_report(ended_run)
    assert "reference" not in job_table(report).columns
    report["jobs"][0]["reference"] = {"nan": 1.25}
    table = job_table(report)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert (rows[0]["held-out"], rows[0]["reference"]) == ("nan 1.5", "nan 1.25")
    assert (rows[1]["held-out"], rows[1]["reference"]) == ("-", "-")
    full = job_table(report, all_metrics=True).rows
    assert "nan 1.5, auc 0.75" in full[0]


def test_the_table_of_results_has_whole_digests(ended_run: RunDirectory) -> None:
    rows = result_table(build_report(ended_run)).rows
    assert rows[0] == ("alpha", "digits", "4", "epochs", "ab" * 32, "cd" * 32)
    assert rows[1] == ("beta", "digits", "0", "loss is <nan>", "-", "-")


def test_the_table_of_rank_time_marks_what_is_lost(ended_run: RunDirectory) -> None:
    rows = {row[0]: row[1:] for row in rank_time_table(build_report(ended_run)).rows}
    assert rows["computing"] == ("", "6.50", "54.17 %")
    assert rows["regrouping"] == ("lost", "1.25", "10.42 %")


def test_problems_are_the_jobs_that_did_not_end_well(ended_run: RunDirectory) -> None:
    assert problems(build_report(ended_run)) == [("beta", "loss is <nan>")]


def test_a_run_that_has_not_started_has_all_tables(open_run: RunDirectory) -> None:
    open_run.journal.unlink()
    report = build_report(open_run)
    assert facts(report)[0] == ("makespan", "-")
    assert all(row[2] == "not submitted" for row in job_table(report).rows)
    assert rank_time_table(report).rows[0][2:] == ("0.00", "-")


def test_numbers_for_people_have_three_digits() -> None:
    assert [seconds(value) for value in (None, 0.0, 0.292711, 1.234, 3723.0)] == [
        "-",
        "0s",
        "293ms",
        "1.23s",
        "1h2m",
    ]
    assert percent(0.12345, 1) == "12.3 %"


def test_a_narrow_table_does_without_its_spare_columns_in_their_order() -> None:
    table = TextTable(("a", "bb", "ccc"), (False, True, False), (("1234", "1", "1"),))
    assert table.widths == (4, 2, 3)
    spare = ("bb", "ccc")
    assert table.fitted(13, spare) == table
    assert table.fitted(12, spare) == TextTable(("a", "ccc"), (False, False), (("1234", "1"),))
    assert table.fitted(1, spare) == TextTable(("a",), (False,), (("1234",),))


def test_no_digest_is_shown_where_none_could_be_expected_again(ended_run: RunDirectory) -> None:
    report = build_report(ended_run)
    report["jobs"][0]["staleness"] = "unbounded"
    row = result_table(report).rows[0]
    assert row[-2:] == ("none: staleness unbounded",) * 2
    html = render_page(report, None, "")
    assert "Not so for jobs with staleness" in html
    report["jobs"][0]["staleness"] = 0
    assert "Not so for jobs" not in render_page(report, None, "")
