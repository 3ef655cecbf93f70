"""`hpcslaq run`: prepare, start the ranks (or be one of them), watch, report."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hpcslaq.cli.live import preparing
from hpcslaq.cli.output import emit_json, json_option, octal_mode, reports_errors
from hpcslaq.cli.prepare import default_run_directory, prepare_run, read_checked
from hpcslaq.cli.ranks import start_ranks
from hpcslaq.cli.report import show
from hpcslaq.core.coordinator import EXIT_STOPPED_EARLY
from hpcslaq.errors import LaunchError
from hpcslaq.mpi.launch import (
    FAMILIES,
    find_mpi,
    launched_size,
    mpi_command,
    mpi_environment,
)
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.times import parse_duration
from hpcslaq.report.build import RunReader
from hpcslaq.report.html import write_html
from hpcslaq.report.text import headline
from hpcslaq.slurm.allocation import EndWatch, find_allocation

#: How long the ranks of a launch may take to find each other, s.
_MEETING_S = 300.0


@click.command("run")
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--ranks", type=click.IntRange(2), help="Ranks, the coordinator's included.")
@click.option("--policy", help="Policy in place of the job file's.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory; default: runs/...")
@click.option("--mpi", "family", type=click.Choice(["auto", *FAMILIES]), default="auto")
@click.option("--serve", is_flag=True, help="Stay open for `hpcslaq submit` until it is closed.")
@click.option(
    "--stop-before",
    default="60s",
    help="In an allocation: checkpoint and end this long before its end; default: 60s; 0: do not.",
)
@click.option(
    "--mode", callback=octal_mode, help="Permissions of a new run directory, octal; default: 700."
)
@click.option("--quiet", is_flag=True, help="No progress display.")
@json_option
@reports_errors
def command(
    job_file: Path,
    ranks: int | None,
    policy: str | None,
    out: Path | None,
    family: str,
    serve: bool,
    stop_before: str,
    mode: int | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Train the jobs of JOB_FILE on shared ranks.

    Starts mpirun by itself, or joins the ranks where mpirun or srun started this command.
    The same --out again resumes a run that was stopped early (exit code 75).
    """
    if launched_size(os.environ) is not None:

        def prepare(num_ranks: int) -> RunDirectory:
            if ranks is not None and ranks != num_ranks:
                raise LaunchError(f"--ranks {ranks}, but the launcher started {num_ranks} ranks")
            checked = read_checked(job_file, policy, is_serving=serve)
            where = out or default_run_directory(job_file)
            return prepare_run(
                job_file,
                checked,
                where,
                lambda what, share: None,
                num_workers=num_ranks - 1,
                mode=mode,
            )

        return _run_as_rank(prepare, _early_end(stop_before), as_json=as_json)
    mpi = find_mpi(family)
    allocation = find_allocation(os.environ)
    is_one_machine = allocation is None or allocation.num_nodes == 1
    cores = len(os.sched_getaffinity(0)) if allocation is None else allocation.num_tasks
    checked = read_checked(job_file, policy, is_serving=serve)
    num_ranks = ranks or checked.run.ranks or cores + 1
    where = out or default_run_directory(job_file)
    with preparing(quiet or as_json) as progress:
        run = prepare_run(job_file, checked, where, progress, num_workers=num_ranks - 1, mode=mode)
    if allocation is None:
        program = ["-m", "hpcslaq.mpi", str(run.path)]
    else:
        # This command again, as ranks: they watch the end of the allocation.
        program = ["-m", "hpcslaq", "run", str(job_file), "--out", str(run.path)]
        program += ["--stop-before", stop_before, *(["--policy", policy] if policy else [])]
        program += ["--serve"] if serve else []
    line = mpi_command(mpi, num_ranks, program, is_one_machine=is_one_machine)
    env = mpi_environment(mpi, os.environ, num_ranks, cores, is_one_machine=is_one_machine)
    code = start_ranks(line, env, run, is_quiet=quiet or as_json)
    report = _report(run, is_page_wanted=code != EXIT_STOPPED_EARLY)
    if as_json:
        emit_json(report)
    elif not quiet:
        show(report)
        click.echo(f"\nrun directory: {run.path}")
        if code == EXIT_STOPPED_EARLY:
            click.echo(f"stopped early: the same command with --out {run.path} goes on")
        else:
            click.echo(f"page: {run.report_html}")
    return code


def _report(run: RunDirectory, *, is_page_wanted: bool) -> dict[str, Any]:
    """The report; the page is written too, unless the time may be short (preemption)."""
    reader = RunReader(run)
    reader.poll()
    if is_page_wanted:
        try:
            write_html(reader)
        except OSError as error:
            # The run itself is fine: a full disk must not change its exit code.
            click.echo(f"warning: {run.report_html} was not written: {error}", err=True)
    return reader.report()


def _run_as_rank(
    prepare: Callable[[int], RunDirectory], early_end: Callable[[], str], *, as_json: bool
) -> int:
    """Be one rank of a launch that somebody else started; `prepare` gets the number of ranks."""
    # Should the ranks not find each other (a lost message of PMI), nobody waits until the time
    # limit: launcher and batch script then see that there is no result.
    faulthandler.dump_traceback_later(_MEETING_S, exit=True)
    # Imported here: it loads MPI.
    from hpcslaq.mpi.main import run_ranks

    # Both are called on rank 0 only; the other ranks learn the directory from it.
    def prepare_path() -> Path:
        return prepare(launched_size(os.environ) or 0).path

    def conclude(run: RunDirectory, code: int) -> None:
        report = _report(run, is_page_wanted=code != EXIT_STOPPED_EARLY)
        if as_json:
            emit_json(report)
        else:
            click.echo(f"{headline(report)}\nreport: hpcslaq report {run.path}")

    return run_ranks(prepare_path, early_end, conclude)


def _early_end(stop_before: str) -> Callable[[], str]:
    """Why to end now, because the allocation in which this process runs will; see `EndWatch`."""
    try:
        before_s = parse_duration(stop_before)
    except ValueError as error:
        raise click.UsageError(f"--stop-before: {error}, got {stop_before!r}") from None
    allocation = find_allocation(os.environ)
    if allocation is None or before_s == 0:
        return lambda: ""
    return EndWatch(allocation, before_s)
