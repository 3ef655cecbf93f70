"""`hpcslaq bench`: how fast this machine decides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import click

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.policies.bench import SyntheticRun
from hpcslaq.policies.registry import make_policy, policy_names
from hpcslaq.report.build import percentile

#: What one timed decision consists of, and what it leaves out.
_INCLUDED = (
    "view of all jobs",
    "predictions from up-to-date state",
    "allocation",
    "check of the allocation",
    "placement: ranks of each job that changes, and its order",
)
_NOT_INCLUDED = ("taking in the loss reports, once per report", "sending the orders")


def _counted(num_rounds: int) -> Iterator[int]:
    """The numbers of the rounds, with a progress line on a terminal, drawn in between."""
    console = terminal(is_error=True)
    for number in range(num_rounds):
        if console.is_terminal:
            console.print(f"round {number + 1} of {num_rounds}", end="\r")
        yield number


@click.group("bench")
def command() -> None:
    """Measure what scheduling costs on this machine."""


@command.command("decision")
@click.option("--jobs", "num_jobs", type=click.IntRange(1), default=4000, help="Running jobs.")
@click.option("--workers", "num_workers", type=click.IntRange(1), default=16_384)
@click.option("--policy", default="quality", help=f"One of {', '.join(policy_names())}.")
@click.option("--rounds", "num_rounds", type=click.IntRange(1), default=20, help="Decisions.")
@click.option("--seed", type=int, default=0)
@json_option
@reports_errors
def decision(
    num_jobs: int, num_workers: int, policy: str, num_rounds: int, seed: int, as_json: bool
) -> None:
    """Time whole decisions of the real coordinator on a made-up run.

    Between the decisions, and not timed, all jobs report losses and the orders are carried out.
    """
    try:
        chosen = make_policy(policy)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    times_s, cpu_s, orders = [], [], []
    run = SyntheticRun(chosen, num_jobs, num_workers, seed=seed)
    # No thread of its own may draw the bar while a decision is timed.
    for _ in _counted(num_rounds):
        run.advance()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        orders.append(run.decide())
        times_s.append(time.perf_counter() - begin)
        cpu_s.append(time.process_time() - cpu_begin)
    value: dict[str, Any] = {
        "jobs": num_jobs,
        "workers": num_workers,
        "policy": policy,
        "rounds": num_rounds,
        "median_s": statistics.median(times_s),
        "p99_s": percentile(times_s, 0.99),
        "min_s": min(times_s),
        # On a machine that others use too, this is what a decision costs.
        "cpu_median_s": statistics.median(cpu_s),
        "median_orders": statistics.median(orders),
        "included": list(_INCLUDED),
        "not_included": list(_NOT_INCLUDED),
    }
    if as_json:
        emit_json(value)
        return
    click.echo(
        f"{policy}: {num_jobs} jobs on {num_workers} workers, {num_rounds} decisions with "
        f"{value['median_orders']:.0f} orders each (median)\n"
        f"  {1e3 * value['median_s']:.1f} ms median, {1e3 * value['p99_s']:.1f} ms p99, "
        f"{1e3 * value['min_s']:.1f} ms at best; {1e3 * value['cpu_median_s']:.1f} ms of CPU\n"
        f"  included: {', '.join(_INCLUDED)}\n"
        f"  not included: {', '.join(_NOT_INCLUDED)}"
    )
