"""`hpcslaq whatif`: what another policy or another size would have given."""

from __future__ import annotations

from pathlib import Path

import click

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.cli.report import rich_table
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.text import TextTable
from hpcslaq.sim.fidelity import Outcome, live_outcome, measure_fidelity, what_if
from hpcslaq.sim.liverun import LiveRun
from hpcslaq.sim.runner import PolicyChoice


@click.command("whatif")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--policy", "policies", help="Policies, separated by commas; default: the run's.")
@click.option(
    "--workers",
    multiple=True,
    type=click.IntRange(1, 10**6),
    help="Number of workers; may be given several times. Default: the run's.",
)
@json_option
@reports_errors
def command(run: Path, policies: str | None, workers: tuple[int, ...], as_json: bool) -> None:
    """Re-simulate the finished run in RUN under other policies or on other numbers of workers.

    The first lines are the run itself and its own simulation: how far they differ is how far
    the others are to be trusted.
    """
    live = LiveRun.read(RunDirectory.open_existing(run))
    own = live.plan.policy
    fidelity = measure_fidelity(live).figures()
    outcomes = [live_outcome(live), what_if(live, live.policy())]
    for text in (policies or own).split(","):
        name = text.strip()
        policy = live.policy() if name == own else PolicyChoice.parse(name).make(live.jobs)
        for number in workers or (None,):
            if name != own or number is not None:
                outcomes.append(what_if(live, policy, number))
    if as_json:
        errors = {key: value for key, value in fidelity.items() if key.endswith("error")}
        rows = [outcome.to_json() for outcome in outcomes]
        emit_json({"run": str(run), "simulation_error": errors, "outcomes": rows})
        return
    terminal().print(rich_table(_table(outcomes)))
    click.echo(
        f"\nthe simulation's own error on this run: mean JCT {fidelity['mean_jct_error']:+.1%}, "
        f"makespan {fidelity['makespan_error']:+.1%}, a job's JCT "
        f"{fidelity['mean_abs_jct_error']:.1%} in the mean, its time to 90 % "
        f"{fidelity['mean_abs_time_to_90_error']:.1%}"
    )


def _table(outcomes: list[Outcome]) -> TextTable:
    columns = ("policy", "workers", "", "t 90 %", "mean JCT", "makespan", "utility", "done")
    rows = tuple(
        (
            one.policy,
            str(one.workers),
            "live" if one.is_live else "simulated",
            f"{one.mean_time_to_90_s:.2f}",
            f"{one.mean_jct_s:.2f}",
            f"{one.makespan_s:.2f}",
            f"{one.utility:g}",
            str(one.num_done),
        )
        for one in outcomes
    )
    return TextTable(columns, (False, True, False, *[True] * 5), rows)
