"""`hpcslaq report`: tables in the terminal and a page in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.build import RunReader
from hpcslaq.report.html import write_html
from hpcslaq.report.text import (
    TextTable,
    facts,
    headline,
    job_table,
    plan_table,
    problems,
    rank_time_table,
)

#: Colours of what a job's state is.
STATE_STYLES = {
    "done": "green",
    "failed": "red",
    "rejected": "red",
    "cancelled": "red",
    "running": "cyan",
    "regrouping": "cyan",
    "pausing": "cyan",
}
#: Columns that a narrow terminal does without, in this order.
_SPARE = ("lost", "queued", "model", "rank-s", "held-out", "regroups")
_SPARE_OF_PLANS = ("replanned", "decided", "peak", "planned utility", "arrived")


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--html/--no-html", default=True, help="Write RUN/report.html (default: yes).")
@json_option
@reports_errors
def command(run: Path, html: bool, as_json: bool) -> None:
    """Report on the run in directory RUN; while it is on, on what there is so far."""
    reader = RunReader(RunDirectory.open_existing(run))
    reader.poll()
    page = write_html(reader) if html else None
    report = reader.report()
    if as_json:
        emit_json(report)
        return
    show(report)
    if page is not None:
        click.echo(f"\npage: {page}")


def show(report: dict[str, Any]) -> None:
    """Print the report's tables for people."""
    console = terminal()
    console.print(escape(headline(report)), style="bold")
    for label, value in facts(report):
        console.print(escape(f"  {label}: {value}"))
    console.print()
    console.print(rich_table(job_table(report).fitted(console.width, _SPARE)))
    console.print()
    if report["oasis"] is not None:
        console.print(rich_table(plan_table(report).fitted(console.width, _SPARE_OF_PLANS)))
        console.print()
    console.print(rich_table(rank_time_table(report)))
    for name, reason in problems(report):
        console.print(escape(f"{name}: {reason}"), style="red")


def rich_table(table: TextTable) -> Table:
    """The table as rich draws it, without lines; states are coloured."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column, is_number in zip(table.columns, table.is_number, strict=True):
        is_name = column == "job"
        drawn.add_column(
            column,
            justify="right" if is_number else "left",
            overflow="fold" if is_name else "ellipsis",
            no_wrap=not is_name,
        )
    for row in table.rows:
        cells = [escape(text) for text in row]
        if "state" in table.columns:
            place = table.columns.index("state")
            style = STATE_STYLES.get(row[place])
            if style is not None:
                cells[place] = f"[{style}]{cells[place]}[/]"
        drawn.add_row(*cells)
    return drawn
