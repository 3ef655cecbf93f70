"""What a person sees while a run is prepared and while it is on.

In a terminal a table that is redrawn once a second; elsewhere a plain line every
ten seconds. Both go to standard error and read the journal only.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from hpcslaq.cli.output import terminal
from hpcslaq.cli.prepare import Progress as Report
from hpcslaq.cli.report import STATE_STYLES
from hpcslaq.errors import HpcslaqError
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.build import NOT_SUBMITTED, RunReader
from hpcslaq.report.outlook import job_eta_s, run_eta_s
from hpcslaq.report.text import number, seconds

_log = logging.getLogger(__name__)

#: Shortest time between two drawings, and between two lines where there is no terminal, s.
_REDRAW_S = 1.0
_LINE_S = 10.0
#: Whoever watches rests so many times as long as a look took: it costs a tenth of a core at most.
PAUSE_PER_WORK = 9.0
#: Lines of the terminal that are left to other things than rows of jobs.
_MARGIN = 6
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_CELLS = 12

#: Which jobs are shown first where there is no room for all.
_ORDER = {
    **dict.fromkeys(("running", "regrouping", "pausing", "stopping", "starting", "finishing"), 0),
    "failed": 1,
    "waiting": 2,
    NOT_SUBMITTED: 4,
}


class Display:
    """Shows a run that is on: a context manager with `update`. Silent if `is_quiet`."""

    def __init__(self, run: RunDirectory, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._console = terminal(is_error=True)
        self._reader = None if is_quiet else RunReader(run)
        self._live: Live | None = None
        self._shown_at = time.monotonic()
        #: How long the last look took.
        self._took_s = 0.0
        #: The newest line, where there is no terminal.
        self._line = ""

    def __enter__(self) -> Display:
        if not self._is_quiet and self._console.is_terminal:
            # Drawn by `update` only: a thread of its own would cost the ranks a core's share.
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.update(is_last=True)
        if self._live is not None:
            # Gives the cursor back; the terminal itself may have gone.
            with suppress(OSError):
                self._live.stop()

    def update(self, *, is_last: bool = False) -> None:
        """Show what is new, if it is time to.

        Never raises for what it cannot read or write (a closed terminal): the run goes on unseen.
        """
        if self._reader is None:
            return
        pause_s = _LINE_S if self._live is None else _REDRAW_S
        pause_s = max(pause_s, PAUSE_PER_WORK * self._took_s)
        if not is_last and time.monotonic() - self._shown_at < pause_s:
            return
        self._shown_at = time.monotonic()
        try:
            self._show(self._reader, is_last)
            self._took_s = time.monotonic() - self._shown_at
        except (OSError, HpcslaqError) as error:
            self._reader = None
            _log.warning("the display ends, the run goes on: %s", error)

    def _show(self, reader: RunReader, is_last: bool) -> None:
        reader.poll()
        report = reader.report()
        if self._live is None:
            line = status_line(report, reader.summary.now)
            if not (is_last and line == self._line):  # that was the last word already
                click.echo(line, err=True)
            self._line = line
            return
        rows = max(4, self._console.height - _MARGIN)
        self._live.update(draw(reader, report, max_rows=rows), refresh=True)


@contextmanager
def preparing(is_quiet: bool) -> Iterator[Report]:
    """Yields the function to which preparation tells what it does and how far it is (0 to 1).

    In a terminal each such thing gets a bar, which goes when all is prepared; elsewhere a line.
    """
    console = terminal(is_error=True)
    if is_quiet:
        yield lambda what, share: None
    elif not console.is_terminal:
        yield _lines()
    else:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
        progress = Progress(*columns, TaskProgressColumn(), console=console, transient=True)
        with progress:
            yield _bars(progress)


def draw(reader: RunReader, report: dict[str, Any], *, max_rows: int) -> Group:
    """The live table of at most `max_rows` jobs, under one line on the run."""
    now = reader.summary.now
    jobs = sorted(report["jobs"], key=lambda job: _ORDER.get(job["state"], 3))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("job", overflow="ellipsis", no_wrap=True, max_width=36)
    table.add_column("state", no_wrap=True)
    for name in ("workers", "epoch", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    for job in jobs[:max_rows]:
        eta_s = job_eta_s(job)
        state = Text(job["state"], style=STATE_STYLES.get(job["state"], ""))
        curve = reader.history.curves.get(job["name"])
        losses = [] if curve is None else [loss for _, _, loss in curve.shown()]
        table.add_row(
            escape(job["name"]),
            state,
            str(job["workers"] or ""),
            f"{job['epochs']}/{job['max_epochs']}",
            "" if job["last_loss"] is None else number(job["last_loss"]),
            sparkline(losses),
            "" if eta_s is None else f"~{seconds(eta_s)}",
        )
    parts: list[Any] = [Text(status_line(report, now), style="bold"), table]
    hidden = Counter(job["state"] for job in jobs[max_rows:])
    if hidden:
        rest = ", ".join(f"{num} {state}" for state, num in hidden.items())
        parts.append(Text(f"and {sum(hidden.values())} more: {rest}"))
    return Group(*parts)


def status_line(report: dict[str, Any], now: float) -> str:
    """The run in one line: time, jobs by state, busy workers, what is left."""
    run, jobs = report["run"], report["jobs"]
    states = Counter(_coarse(job["state"]) for job in jobs)
    busy = sum(job["workers"] for job in jobs)
    text = f"{now:.1f}s: " + ", ".join(f"{num} {state}" for state, num in sorted(states.items()))
    text += f"; {busy} of {run['workers']} workers busy"
    eta_s = run_eta_s(report, now)
    if run["stop_reason"] and not run["has_result"]:
        return f"{text}; stopping early ({run['stop_reason']}): writing checkpoints"
    if eta_s:
        text += f"; about {seconds(eta_s)} left"
    return text


def sparkline(losses: Sequence[float], cells: int = _SPARK_CELLS) -> str:
    """The losses as a row of at most `cells` bars, from the largest (full) to the least."""
    chosen = [losses[i * (len(losses) - 1) // (cells - 1)] for i in range(cells)] if losses else []
    if len(losses) <= cells:
        chosen = list(losses)
    chosen = [loss for loss in chosen if loss - loss == 0]  # finite
    if len(chosen) < 2:
        return ""
    least, span = min(chosen), max(chosen) - min(chosen)
    if not span > 0:
        return _SPARKS[0] * len(chosen)
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round(top * (loss - least) / span)] for loss in chosen)


def _coarse(state: str) -> str:
    """States among which people do not care to distinguish at a glance."""
    return "running" if state in ("regrouping", "pausing", "finishing") else state


def _lines() -> Report:
    """Reports to standard error: one line when something begins."""
    seen: set[str] = set()

    def report(what: str, share: float) -> None:
        if what not in seen:
            seen.add(what)
            click.echo(f"preparing {what}", err=True)
            sys.stderr.flush()

    return report


def _bars(progress: Progress) -> Report:
    """Reports to a bar for each thing."""
    tasks: dict[str, TaskID] = {}

    def report(what: str, share: float) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(escape(what), total=1.0)
        progress.update(tasks[what], completed=share)

    return report
