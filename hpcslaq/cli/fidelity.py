"""`hpcslaq fidelity`: a finished live run beside its own simulation."""

from __future__ import annotations

from pathlib import Path

import click

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.cli.report import rich_table
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.text import TextTable
from hpcslaq.sim.fidelity import Fidelity, measure_fidelity
from hpcslaq.sim.liverun import LiveRun


@click.command("fidelity")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--decisions",
    type=click.Choice(["policy", "recorded"]),
    default="policy",
    show_default=True,
    help="Let the policy decide again, or repeat the run's decisions at their times.",
)
@json_option
@reports_errors
def command(run: Path, decisions: str, as_json: bool) -> None:
    """Simulate the jobs of the finished run in RUN, and print the error of each.

    Losses are the recorded ones; seconds per pass, loading, regrouping and finishing are fitted
    from the run's own journal.
    """
    live = LiveRun.read(RunDirectory.open_existing(run))
    fidelity = measure_fidelity(live, is_recorded=decisions == "recorded")
    if as_json:
        emit_json(fidelity.to_json())
        return
    click.echo(
        f"{run}: {len(fidelity.jobs)} jobs under {fidelity.policy}; "
        f"decisions: {fidelity.decisions}\n"
    )
    terminal().print(rich_table(_table(fidelity)))
    figures = fidelity.figures()
    click.echo(
        f"\nmean JCT {figures['mean_jct_live_s']:.2f} s live, "
        f"{figures['mean_jct_simulated_s']:.2f} s simulated ({figures['mean_jct_error']:+.1%}); "
        f"error of a job's JCT {figures['mean_abs_jct_error']:.1%} in the mean, "
        f"{figures['max_abs_jct_error']:.1%} at most; makespan {figures['makespan_error']:+.1%}"
    )
    for name, reason in fidelity.left_out.items():
        click.echo(f"left out: {name}: {reason}")


def _table(fidelity: Fidelity) -> TextTable:
    columns = ("job", "JCT live", "simulated", "error", "t 90 % live", "simulated", "error")
    rows = tuple(
        (
            job.name,
            f"{job.jct_live_s:.2f}",
            f"{job.jct_simulated_s:.2f}",
            f"{job.jct_error:+.1%}",
            f"{job.time_to_live_s:.2f}",
            f"{job.time_to_simulated_s:.2f}",
            f"{job.time_to_error:+.1%}",
        )
        for job in fidelity.jobs
    )
    return TextTable(columns, (False, *[True] * 6), rows)
