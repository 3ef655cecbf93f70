"""The live display: cheap, quiet where asked, and never in the way of the run."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from rich.console import Console

from hpcslaq.cli import live
from hpcslaq.cli.live import Display, draw, preparing, sparkline
from hpcslaq.core.events import RoundElapsed
from hpcslaq.record.journal import JournalWriter
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.build import RunReader

MakeRun = Callable[..., RunDirectory]


@pytest.mark.parametrize(
    ("losses", "bars"),
    [
        ([], ""),
        ([1.0], ""),
        ([2.0, 2.0, 2.0], "▁▁▁"),
        ([8.0, 4.0, 1.0], "█▄▁"),
        ([math.nan, 2.0, 1.0], "█▁"),
        (list(range(700, -1, -1)), "█▇▇▆▅▅▄▄▃▂▂▁"),
    ],
)
def test_a_sparkline_goes_from_the_largest_loss_to_the_least(
    losses: list[float], bars: str
) -> None:
    assert sparkline(losses) == bars


def test_a_quiet_display_says_nothing(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with Display(make_run(), is_quiet=True) as display:
        display.update()
    with preparing(True) as progress:
        progress("data", 0.5)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_the_display_is_a_line_on_standard_error_now_and_then(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    with Display(make_run(), is_quiet=False) as display:
        for _ in range(50):
            now[0] += 0.25
            display.update()
    out, err = capsys.readouterr()
    assert out == ""
    # One after ten seconds; the same is not said again at the end.
    assert err.splitlines() == ["3.0s: 1 running; 2 of 2 workers busy; about 2s left"]


def test_the_last_line_tells_what_is_new_since_the_one_before(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    run = make_run()
    with Display(run, is_quiet=False) as display:
        now[0] += 11.0
        display.update()
        with JournalWriter(run.journal) as journal:
            journal.append(7.0, RoundElapsed())
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("3.0s: ") and last.startswith("7.0s: ")


def test_the_table_leaves_out_what_the_terminal_has_no_room_for(make_run: MakeRun) -> None:
    reader = RunReader(make_run())
    reader.poll()
    report = reader.report()
    report["jobs"] = [{**report["jobs"][0], "name": f"job-{n}"} for n in range(30)]
    console = Console(width=100, record=True)
    with console.capture() as capture:
        console.print(draw(reader, report, max_rows=4))
    text = capture.get()
    assert "job-3" in text and "job-4" not in text
    assert "and 26 more: 26 running" in text


def test_running_jobs_come_before_waiting_and_ended_ones(make_run: MakeRun) -> None:
    reader = RunReader(make_run())
    reader.poll()
    report = reader.report()
    states = ("done", "not submitted", "waiting", "failed", "running")
    report["jobs"] = [{**report["jobs"][0], "name": s, "state": s} for s in states]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(draw(reader, report, max_rows=9))
    names = [line.split()[0] for line in capture.get().splitlines()[2:]]
    assert names == ["running", "failed", "waiting", "done", "not"]


def test_names_are_shown_as_they_are_and_not_as_markup(make_run: MakeRun) -> None:
    reader = RunReader(make_run())
    reader.poll()
    report = reader.report()
    report["jobs"][0]["name"] = "[red]x[/red]"
    console = Console(width=100)
    with console.capture() as capture:
        console.print(draw(reader, report, max_rows=9))
    assert "[red]x[/red]" in capture.get()


def test_a_damaged_journal_ends_the_display_and_not_the_run(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run()
    with run.journal.open("ab") as file:
        file.write(b"{}\n")
    with Display(run, is_quiet=False) as display:
        display.update(is_last=True)
        display.update(is_last=True)
    assert capsys.readouterr().err == ""
    assert caplog.text.count("the display ends, the run goes on") == 1


def test_preparation_is_told_line_by_line_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with preparing(False) as progress:
        for share in (0.0, 0.5, 1.0):
            progress("data census: write", share)
        progress("data wine: write", 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "preparing data census: write",
        "preparing data wine: write",
    ]
