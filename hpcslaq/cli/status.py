"""`hpcslaq status`: how a run stands, read from its directory only."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from hpcslaq.cli.live import PAUSE_PER_WORK, draw
from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.cli.queue import QueueView
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.build import RunReader
from hpcslaq.report.outlook import job_eta_s, run_eta_s
from hpcslaq.report.text import checkpoint_problems, seconds

#: How often `--watch` looks, s.
_LOOK_S = 1.0
#: A live run writes to its journal at least every round; so much later it counts as silent, s.
_SILENCE_S = 15.0
_SILENT_ROUNDS = 5.0
#: How much of a batch job's output is shown where the run did not start.
_LOG_LINES = 6
_MAX_LOG_BYTES = 4000
#: Most jobs of which it is said that their checkpoints cannot be written.
_MAX_WARNINGS = 3


@click.command("status")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Go on until the run has ended.")
@click.option(
    "--slurm", "asks_slurm", is_flag=True, help="Ask Slurm too (with --watch every 30 s)."
)
@json_option
@reports_errors
def command(run: Path, watch: bool, asks_slurm: bool, as_json: bool) -> None:
    """Show how the run in directory RUN stands, also from another machine."""
    if watch and as_json:
        raise click.UsageError("--watch and --json do not go together")
    queue = QueueView(RunDirectory(run.absolute()), is_asking=asks_slurm)
    if not RunDirectory.is_run(run) and queue.submissions:
        _show_submitted(run, queue, as_json)
        if not watch:
            return
        while not RunDirectory.is_run(run):
            state = queue.state()
            if state is not None and state.is_over:
                click.echo("\n".join([*queue.lines(), *_why_not_started(RunDirectory(run))]))
                return
            time.sleep(_LOOK_S)
    reader = RunReader(RunDirectory.open_existing(run))
    if watch:
        _watch(reader, queue)
        return
    reader.poll()
    status = describe_status(reader)
    if as_json:
        emit_json({**status, "slurm": queue.describe()})
        return
    terminal().print(_draw(reader, status, queue, max_rows=10**6))


def _why_not_started(run: RunDirectory) -> list[str]:
    """What a job that ended without a run wrote last, as far as there is anything."""
    try:
        logs = [file for file in run.logs.glob("slurm-*.out") if file.stat().st_size]
        newest = max(logs, key=lambda file: file.stat().st_mtime, default=None)
        if newest is None:
            return [f"the run did not start; see {run.logs}"]
        with newest.open("rb") as file:
            file.seek(max(0, newest.stat().st_size - _MAX_LOG_BYTES))
            lines = file.read(_MAX_LOG_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        return [f"the run did not start; {run.logs} cannot be read: {error.strerror}"]
    end = [
        "  " + "".join(letter if letter.isprintable() else "?" for letter in line)
        for line in lines[-_LOG_LINES:]
    ]
    return [f"the run did not start; the end of {newest}:", *end]


def _show_submitted(run: Path, queue: QueueView, as_json: bool) -> None:
    """Say of a run whose job has not started what there is to say."""
    if as_json:
        activity = {"directory": str(run), "activity": "not started"}
        emit_json({"run": activity, "jobs": [], "slurm": queue.describe()})
        return
    click.echo(f"{run}: not started")
    for line in queue.lines() or [f"Slurm job {queue.submissions[-1].job_id} was submitted"]:
        click.echo(line)


def describe_status(reader: RunReader) -> dict[str, Any]:
    """The report, and `activity`: "running", "silent", "ended", "ended without a result", ..."""
    report = reader.report()
    age_s = _age_s(reader.run.journal)
    now = reader.summary.now
    report["run"] |= {
        "activity": _activity(reader, report["run"], age_s),
        "last_event_age_s": age_s,
        "eta_s": None if report["run"]["has_result"] else run_eta_s(report, now),
    }
    for job in report["jobs"]:
        job["eta_s"] = job_eta_s(job)
    return report


def _activity(reader: RunReader, run: dict[str, Any], age_s: float | None) -> str:
    if run["has_result"]:
        return "ended"
    if age_s is None:
        return "not started"
    silence_s = max(_SILENCE_S, _SILENT_ROUNDS * reader.plan.round_s)
    if age_s <= silence_s:
        return "running"
    # Waiting for an arrival far off, a run has nothing to say.
    arrivals = [spec.arrival_s for spec in reader.plan.jobs]
    unsubmitted = len(reader.plan.jobs) > len(reader.summary.jobs)
    if unsubmitted and max(arrivals) > reader.summary.now + age_s - silence_s:
        return "running"
    return "ended without a result" if run["state"] == "ended" else "silent"


def _age_s(path: Path) -> float | None:
    """Seconds since a file was last written to; None where there is none."""
    try:
        return max(0.0, time.time() - os.stat(path).st_mtime)
    except FileNotFoundError:
        return None


def _advice(run: dict[str, Any]) -> str | None:
    """What a person should know about the run's end, if anything."""
    age = seconds(run["last_event_age_s"])
    again = f"start it again with the same --out to go on: hpcslaq run ... --out {run['directory']}"
    if run["activity"] == "not started":
        return "no rank has started yet"
    if run["activity"] in ("silent", "ended without a result"):
        return f"no result, and the last event is {age} old: the run was killed or hangs; {again}"
    if run["activity"] == "ended" and not run["is_finished"]:
        return f"stopped early; {again}"
    if run["activity"] == "running":
        return f"last event {age} ago"
    return None


def _draw(
    reader: RunReader, status: dict[str, Any], queue: QueueView, *, max_rows: int
) -> RenderableType:
    run = status["run"]
    lines = [Text(f"{run['directory']}: {run['activity']} ({run['state']})")]
    advice = _advice(run)
    if advice is not None:
        lines.append(Text(advice))
    lines += [Text(line) for line in queue.lines()]
    warnings = checkpoint_problems(status)[:_MAX_WARNINGS]
    lines += [Text(f"{job}: {why}", style="red") for job, why in warnings]
    return Group(*lines, draw(reader, status, max_rows=max_rows))


def _watch(reader: RunReader, queue: QueueView) -> None:
    """Redraw until the run has ended; without a terminal once for each look that has news."""
    console = terminal()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            begin = time.perf_counter()
            num_new = reader.poll()
            status = describe_status(reader)
            drawn = _draw(reader, status, queue, max_rows=max(4, console.height - 8))
            if console.is_terminal:
                live.update(drawn, refresh=True)
            elif num_new:
                console.print(drawn)
            if status["run"]["activity"] not in ("running", "not started"):
                return
            # Of thousands of jobs a look takes time, which the ranks beside it need.
            time.sleep(max(_LOOK_S, PAUSE_PER_WORK * (time.perf_counter() - begin)))
