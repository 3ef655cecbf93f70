"""`hpcslaq bench`: how fast this machine decides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import click
import numpy as np

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.policies.bench import SyntheticRun
from hpcslaq.policies.oasis.workload import AdmissionLoad, admission_workload
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
#: The same for one admission of OASiS.
_ADMISSION_INCLUDED = (
    "prices and room of all slots and hosts",
    "the best schedule over all deadlines (algorithm 2)",
    "the reservation and the new prices",
    "the check of constraints (2) to (7)",
)
_ADMISSION_NOT_INCLUDED = ("estimating the job's step times", "writing the journal")
_NOT_INCLUDED = ("taking in the loss reports, once per report", "sending the orders")


#: A job that costs more than it is worth at the lowest price is refused within this time.
_PRICED_OUT_S = 2e-4


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


@command.command("admission")
@click.option("--jobs", "num_jobs", type=click.IntRange(1), default=300, help="Admissions timed.")
@click.option("--reserved", type=click.IntRange(0), default=100, help="Jobs offered before.")
@click.option("--slots", type=click.IntRange(1), default=300, help="Horizon T.")
@click.option("--worker-hosts", type=click.IntRange(1), default=50, help="Hosts of workers, H.")
@click.option("--server-hosts", type=click.IntRange(1), default=50, help="Hosts of servers, K.")
@click.option("--resources", type=click.IntRange(1, 64), default=4, help="Resource types, R.")
@click.option("--worker-slots", type=click.IntRange(24), default=1200, help="Most per job.")
@click.option("--allreduce", type=click.FloatRange(0, 1), default=0.5, help="Share of such jobs.")
@click.option("--hard", is_flag=True, help="All jobs large, from slot 0, with all slots open.")
@click.option("--seed", type=int, default=0)
@json_option
@reports_errors
def admission(
    num_jobs: int,
    reserved: int,
    slots: int,
    worker_hosts: int,
    server_hosts: int,
    resources: int,
    worker_slots: int,
    allreduce: float,
    hard: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Time admissions of OASiS: each job is offered to a partly reserved cluster.

    Jobs that are priced out at once count too, as they do in a run; see `num_planned`.
    """
    load = AdmissionLoad(
        num_jobs, reserved, slots, worker_hosts, server_hosts, resources, worker_slots,
        allreduce, hard,
    )  # fmt: skip
    try:
        oasis, jobs = admission_workload(np.random.default_rng(seed), load)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    times_s, cpu_s, planned_s, num_accepted = [], [], [], 0
    for number in _counted(len(jobs)):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        decision = oasis.offer(jobs[number])
        times_s.append(time.perf_counter() - begin)
        cpu_s.append(time.process_time() - cpu_begin)
        num_accepted += decision.schedule is not None
        if decision.schedule is not None or times_s[-1] > _PRICED_OUT_S:
            planned_s.append(times_s[-1])
    value: dict[str, Any] = {
        "jobs": num_jobs,
        "reserved": reserved,
        "slots": slots,
        "worker_hosts": worker_hosts,
        "server_hosts": server_hosts,
        "resources": resources,
        "most_worker_slots": max(job.worker_slot_range[1] for job in jobs),
        "allreduce": allreduce,
        "is_hard": hard,
        "num_accepted": num_accepted,
        "num_planned": len(planned_s),
        "median_s": statistics.median(times_s),
        "p99_s": percentile(times_s, 0.99),
        "max_s": max(times_s),
        "median_planned_s": statistics.median(planned_s) if planned_s else None,
        "cpu_median_s": statistics.median(cpu_s),
        "cpu_p99_s": percentile(cpu_s, 0.99),
        "included": list(_ADMISSION_INCLUDED),
        "not_included": list(_ADMISSION_NOT_INCLUDED),
    }
    if as_json:
        emit_json(value)
        return
    click.echo(
        f"oasis: {num_jobs} admissions at T = {slots}, H = {worker_hosts}, K = {server_hosts}, "
        f"R = {resources}, up to {value['most_worker_slots']} worker-slots, "
        f"{num_accepted} accepted\n"
        f"  {1e3 * value['median_s']:.2f} ms median, {1e3 * value['p99_s']:.1f} ms p99, "
        f"{1e3 * value['max_s']:.1f} ms at most; {1e3 * value['cpu_median_s']:.2f} ms of CPU\n"
        f"  included: {', '.join(_ADMISSION_INCLUDED)}\n"
        f"  not included: {', '.join(_ADMISSION_NOT_INCLUDED)}"
    )
