"""`hpcslaq simulate`: a workload in virtual time, under one policy after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.cli.report import rich_table
from hpcslaq.report.text import TextTable
from hpcslaq.sim.runner import PolicyChoice, Task, compare, run_tasks
from hpcslaq.sim.workload_file import read_workload, with_changes

#: Shown columns: figure, title, digits.
_SHOWN = (
    ("mean_normalised_loss", "loss", 4),
    ("mean_time_to_90", "t 90 %", 1),
    ("mean_time_to_95", "t 95 %", 1),
    ("mean_jct_s", "JCT", 1),
    ("p95_jct_s", "p95 JCT", 1),
    ("makespan_s", "makespan", 0),
    ("num_regroups", "regroups", 0),
)


@click.command("simulate")
@click.argument("workload", type=click.Path(path_type=Path))
@click.option("--policy", "policies", default="fair,slaq,quality", show_default=True)
@click.option("--seeds", type=click.IntRange(1, 100_000), default=1, show_default=True)
@click.option("--workers", type=click.IntRange(1, 10**6), help="In place of the file's.")
@click.option("--load", type=click.FloatRange(0, min_open=True), help="In place of the file's.")
@click.option(
    "--curves",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Curves in place of the file's.",
)
@click.option("--number", type=click.IntRange(1), help="Jobs, in place of the file's number.")
@click.option("--processes", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Keep results here; goes on where it stopped."
)
@json_option
@reports_errors
def command(
    workload: Path,
    policies: str,
    seeds: int,
    workers: int | None,
    load: float | None,
    curves: tuple[Path, ...],
    number: int | None,
    processes: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Simulate the jobs of WORKLOAD under each of the policies, for each seed.

    Policies are separated by commas, parameters follow a colon (las:quantum_s=3600), and
    "+oracle" tells a policy the true step times.
    """
    asked = with_changes(
        read_workload(workload), workers=workers, load=load, curves=curves, number=number
    )
    choices = [PolicyChoice.parse(text.strip()) for text in policies.split(",")]
    tasks = [Task(choice.text, seed) for choice in choices for seed in range(seeds)]
    began_at = time.perf_counter()
    try:
        with _progress(len(tasks), is_quiet=as_json) as on_done:
            results = run_tasks(asked, tasks, processes=processes, keep_in=out, on_done=on_done)
    except KeyboardInterrupt:
        if out is not None and not as_json:
            click.echo(f"interrupted: the same command goes on with what is in {out}", err=True)
        raise
    table = compare(results)
    if as_json:
        emit_json(
            {
                "workload": asked.name,
                "workers": asked.shape.workers,
                "seeds": seeds,
                "wall_s": time.perf_counter() - began_at,
                "policies": table,
                "runs": results,
            }
        )
        return
    click.echo(f"{asked.name}: {asked.shape.workers} workers, {seeds} seeds; times in seconds\n")
    terminal().print(rich_table(_text_table(table)))
    click.echo(
        "\nloss: mean normalised loss of all arrived jobs; in brackets: change, 95 % interval"
    )


def _text_table(table: dict[str, dict[str, Any]]) -> TextTable:
    shown: tuple[tuple[str, str, int], ...] = _SHOWN
    if all("utility" in cells for cells in table.values()):
        shown = (("utility", "utility", 1), *_SHOWN)
    rows = tuple(
        (policy, *(_cell(cells[key], digits) for key, _, digits in shown))
        for policy, cells in table.items()
    )
    columns = ("policy", *(title for _, title, _ in shown))
    return TextTable(columns, (False, *[True] * len(shown)), rows)


def _cell(cell: dict[str, float], digits: int) -> str:
    text = f"{cell['mean']:.{digits}f}"
    if "change" not in cell:
        return text
    text += f" ({100 * cell['change']:+.0f} %"
    if cell["change_low"] == cell["change_low"]:
        low, high = sorted((100 * cell["change_low"], 100 * cell["change_high"]))
        text += f", {low:+.0f} to {high:+.0f}"
    return text + ")"


@contextmanager
def _progress(total: int, *, is_quiet: bool) -> Iterator[Callable[[Task], None]]:
    """Yields what to call for each finished simulation; a bar where there is a terminal."""
    console = terminal(is_error=True)
    if is_quiet or not console.is_terminal:
        yield lambda task: None
        return
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=total)
        yield lambda task: progress.update(bar, advance=1)
