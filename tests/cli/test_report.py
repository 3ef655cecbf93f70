"""`hpcslaq report` for people."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

from hpcslaq.record.rundir import RunDirectory

Invoke = Callable[..., Result]
MakeRun = Callable[..., RunDirectory]


def test_the_tables_name_every_job_and_the_page(invoke: Invoke, make_run: MakeRun) -> None:
    run = make_run(0)
    result = invoke("report", run.path)
    assert result.exit_code == 0
    assert result.stdout.startswith("run: finished; 1 of 1 jobs done in 5s on 1 + 2 ranks")
    (row,) = (line for line in result.stdout.splitlines() if line.startswith("only"))
    assert row.split()[:5] == ["only", "m", "done", "4/4", "0.25000"]
    assert f"page: {run.report_html}" in result.stdout


def test_no_page_is_written_where_none_is_wanted(invoke: Invoke, make_run: MakeRun) -> None:
    run = make_run(0)
    assert invoke("report", run.path, "--no-html").exit_code == 0
    assert not run.report_html.exists()


def test_a_run_that_was_stopped_early_is_reported_so(invoke: Invoke, make_run: MakeRun) -> None:
    assert invoke("report", make_run(75).path).stdout.startswith("run: stopped early; 0 of 1 jobs")
