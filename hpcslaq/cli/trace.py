"""`hpcslaq trace`: check, summarise or convert a trace of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.record.files import write_atomic
from hpcslaq.report.text import number, seconds
from hpcslaq.sim.traces import FORMATS, format_own, read_trace, summary_of

_format_option = click.option(
    "--format", "format_name", type=click.Choice(list(FORMATS)), help="Default: by its first line."
)
_file_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group("trace")
def command() -> None:
    """Check, summarise or convert a trace of jobs.

    Known formats: our own CSV (hpcslaq), ElasticFlow, Pollux, Helios, Alibaba (tasks of 2020 and
    pods of 2023), the Standard Workload Format, Gavel and Philly.
    """


@command.command("check")
@_file_argument
@_format_option
@json_option
@reports_errors
def check(file: Path, format_name: str | None, as_json: bool) -> None:
    """Say whether FILE can be read; if not, on which line and why (exit code 2)."""
    trace = read_trace(file, format_name)
    if as_json:
        skipped = dict(trace.skipped)
        emit_json({"format": trace.format, "num_jobs": len(trace.jobs), "skipped": skipped})
        return
    click.echo(f"{file}: {len(trace.jobs)} jobs, format {trace.format}")
    for reason, count in trace.skipped.items():
        click.echo(f"  {count} rows left out: {reason}")


@command.command("summary")
@_file_argument
@_format_option
@json_option
@reports_errors
def summary(file: Path, format_name: str | None, as_json: bool) -> None:
    """Print FILE's figures: jobs, span, workers, durations, load."""
    figures = summary_of(read_trace(file, format_name))
    if as_json:
        emit_json(figures)
        return
    console = terminal()
    for label, value in _lines(figures):
        console.print(escape(f"{label}: {value}"))


@command.command("convert")
@_file_argument
@_format_option
@click.option("--out", type=click.Path(path_type=Path), help="Default: standard output.")
@click.option("--number", type=click.IntRange(1), help="Only the first jobs.")
@json_option
@reports_errors
def convert(
    file: Path, format_name: str | None, out: Path | None, number: int | None, as_json: bool
) -> None:
    """Write FILE as our own CSV (its schema: `hpcslaq trace schema`)."""
    trace = read_trace(file, format_name)
    lines = list(format_own(trace))
    if number is not None:
        lines = lines[: number + 1]
    text = "\n".join(lines) + "\n"
    if out is not None:
        write_atomic(out, text.encode())
    if as_json:
        found = {"format": trace.format, "num_jobs": len(lines) - 1}
        emit_json({**found, "out": None if out is None else str(out)})
    elif out is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"{out}: {len(lines) - 1} jobs")


@command.command("schema")
@reports_errors
def schema() -> None:
    """Print what each format's reader takes, our own first."""
    for name, reader in FORMATS.items():
        text = (reader.__doc__ or "").strip()
        click.echo(f"{name}: " + "\n  ".join(line.strip() for line in text.splitlines()) + "\n")


def _lines(figures: dict[str, Any]) -> list[tuple[str, str]]:
    found = [
        ("file", figures["file"]),
        ("format", figures["format"]),
        ("jobs", f"{figures['num_jobs']} ({_counts(figures['skipped']) or 'none'} left out)"),
        ("span", seconds(figures["span_s"])),
        ("mean gap", seconds(figures["mean_gap_s"])),
        (
            "workers",
            f"{_counts(figures['workers'])} (workers: jobs), most {figures['max_workers']}",
        ),
    ]
    durations = figures["duration_s"]
    if durations is None:
        found.append(("durations", "not in this trace"))
    else:
        words = ", ".join(f"{key} {seconds(value)}" for key, value in durations.items())
        found.append(("durations", words))
        busy = figures["mean_busy_workers"]
        text = f"{number(figures['worker_seconds'])} worker-seconds"
        found.append(("work", text if busy is None else f"{text}; {number(busy)} workers busy"))
    found.append(("with a deadline", str(figures["num_with_deadline"])))
    for key in ("models", "states"):
        if figures[key]:
            found.append((key, _counts(figures[key])))
    return found


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in counts.items())
