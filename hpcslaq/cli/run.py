"""`hpcslaq run`: prepare, start the ranks (or be one of them), watch, report."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from hpcslaq.cli.live import preparing
from hpcslaq.cli.output import emit_json, json_option, octal_mode, reports_errors
from hpcslaq.cli.prepare import default_run_directory, prepare_run, read_checked
from hpcslaq.cli.ranks import keep_running
from hpcslaq.cli.report import show
from hpcslaq.core.coordinator import EXIT_STOPPED_EARLY
from hpcslaq.core.events import RunStarted
from hpcslaq.data.store import open_dataset
from hpcslaq.errors import DataError, HpcslaqError, LaunchError
from hpcslaq.mpi.launch import (
    FAMILIES,
    Mpi,
    find_mpi,
    launched_size,
    mpi_command,
    mpi_environment,
)
from hpcslaq.record.journal import read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.times import parse_duration
from hpcslaq.report.build import RunReader
from hpcslaq.report.html import write_html
from hpcslaq.report.text import headline
from hpcslaq.slurm.allocation import EndWatch, find_allocation

#: How long the ranks of a launch may take to find each other, s.
_MEETING_S = 300.0


Function = TypeVar("Function", bound=Callable[..., object])


def _launch_options(command: Function) -> Function:
    """The options of commands that start ranks: `Launch` takes their values."""
    for option in reversed(
        (
            click.option("--ranks", type=click.IntRange(2), help="Ranks, with the coordinator."),
            click.option("--mpi", "family", type=click.Choice(["auto", *FAMILIES]), default="auto"),
            click.option(
                "--ft",
                type=click.Choice(["auto", "on", "off"]),
                default="auto",
                help="Go on when a worker rank dies (on), where the MPI can (auto: default).",
            ),
            click.option(
                "--max-restarts",
                type=click.IntRange(0),
                default=0,
                help="Start again so many times where ranks were lost; default: 0.",
            ),
            click.option(
                "--stop-before",
                default="60s",
                help="In an allocation: checkpoint and end this long before its end; "
                "default: 60s; 0: do not.",
            ),
            click.option("--quiet", is_flag=True, help="No progress display."),
            json_option,
        )
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Launch:
    """How ranks are to be started."""

    ranks: int | None
    family: str
    ft: str
    max_restarts: int
    stop_before: str
    quiet: bool
    as_json: bool

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is shown on the way."""
        return self.quiet or self.as_json


@click.command("run")
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--policy", help="Policy in place of the job file's.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory; default: runs/...")
@click.option("--serve", is_flag=True, help="Stay open for `hpcslaq submit` until it is closed.")
@click.option(
    "--mode", callback=octal_mode, help="Permissions of a new run directory, octal; default: 700."
)
@_launch_options
@reports_errors
def command(
    job_file: Path,
    policy: str | None,
    out: Path | None,
    serve: bool,
    mode: int | None,
    **options: Any,
) -> int:
    """Train the jobs of JOB_FILE on shared ranks.

    Starts mpirun by itself, or joins the ranks where mpirun or srun started this command.
    The same --out again resumes a run that was stopped early (exit code 75).
    """
    launch = Launch(**options)
    if launched_size(os.environ) is not None:

        def prepare(num_ranks: int) -> RunDirectory:
            _check_ranks(launch, num_ranks)
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

        return _run_as_rank(prepare, launch)
    mpi = find_mpi(launch.family)
    checked = read_checked(job_file, policy, is_serving=serve)
    num_ranks = launch.ranks or checked.run.ranks or _default_ranks()
    where = out or default_run_directory(job_file)
    with preparing(launch.is_quiet) as progress:
        run = prepare_run(job_file, checked, where, progress, num_workers=num_ranks - 1, mode=mode)
    # Within an allocation this command again, as ranks: they watch its end.
    again = ["run", str(job_file), "--out", str(run.path), *(["--serve"] if serve else [])]
    again += ["--policy", policy] if policy else []
    return _launch(run, mpi, num_ranks, launch, again)


@click.command("resume")
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@_launch_options
@reports_errors
def resume_command(path: Path, **options: Any) -> int:
    """Go on with a run that was stopped early, or whose ranks were killed.

    Replays its journal and takes up each job from its newest valid checkpoint, on as many ranks
    as it had last, or on --ranks. What has ended stays as it is.
    """
    launch = Launch(**options)
    if launched_size(os.environ) is not None:

        def prepare(num_ranks: int) -> RunDirectory:
            _check_ranks(launch, num_ranks)
            return _resumable(path)

        return _run_as_rank(prepare, launch)
    run = _resumable(path)
    mpi = find_mpi(launch.family)
    num_ranks = launch.ranks or _last_ranks(run) or _default_ranks()
    return _launch(run, mpi, num_ranks, launch, ["resume", str(run.path)])


def _resumable(path: Path) -> RunDirectory:
    """The run, whose data are still there. Raises NotFoundError or DataError."""
    run = RunDirectory.open_existing(path)
    plan = RunPlan.read(run)
    for key, directory in plan.data_paths.items():
        try:
            open_dataset(Path(directory))
        except (HpcslaqError, OSError) as error:
            raise DataError(
                f"the prepared data {key!r} of {path} cannot be used: {error}; "
                f"`hpcslaq run {plan.job_file} --out {path}` prepares them again and goes on"
            ) from None
    return run


def _last_ranks(run: RunDirectory) -> int | None:
    """Ranks of the last start of the run; None where it was never started."""
    last = None
    if run.journal.exists():
        for entry in read_journal(run.journal):
            if isinstance(entry.item, RunStarted):
                last = len(entry.item.hosts) + 1
    return last


def _default_ranks() -> int:
    allocation = find_allocation(os.environ)
    return allocation.num_tasks + 1 if allocation else len(os.sched_getaffinity(0)) + 1


def _check_ranks(launch: Launch, num_ranks: int) -> None:
    if launch.ranks is not None and launch.ranks != num_ranks:
        raise LaunchError(f"--ranks {launch.ranks}, but the launcher started {num_ranks} ranks")


def _launch(run: RunDirectory, mpi: Mpi, num_ranks: int, launch: Launch, again: list[str]) -> int:
    """Start the ranks of a run, stay with them, and report; the exit code.

    `again` : the command as which ranks within an allocation are started.
    """
    allocation = find_allocation(os.environ)
    is_one_machine = allocation is None or allocation.num_nodes == 1
    cores = len(os.sched_getaffinity(0)) if allocation is None else allocation.num_tasks
    program = ["-m", "hpcslaq.mpi", str(run.path)]
    if allocation is not None:
        program = ["-m", "hpcslaq", *again, "--stop-before", launch.stop_before]
    survives = _survives(mpi, launch.ft)
    line = mpi_command(mpi, num_ranks, program, is_one_machine=is_one_machine, survives=survives)
    env = mpi_environment(mpi, os.environ, num_ranks, cores, is_one_machine=is_one_machine)
    code = keep_running(line, env, run, is_quiet=launch.is_quiet, max_restarts=launch.max_restarts)
    report = _report(run, is_page_wanted=code != EXIT_STOPPED_EARLY)
    if launch.as_json:
        emit_json(report)
    elif not launch.quiet:
        show(report)
        click.echo(f"\nrun directory: {run.path}")
        if code == EXIT_STOPPED_EARLY:
            click.echo(f"stopped early: hpcslaq resume {run.path} goes on")
        else:
            click.echo(f"page: {run.report_html}")
    return code


def _survives(mpi: Mpi, ft: str) -> bool:
    """Whether the ranks are to go on when one dies. Raises LaunchError where they cannot."""
    if ft == "off" or mpi.is_fault_tolerant:
        return ft != "off"
    if ft == "on":
        raise LaunchError(
            f"--ft on: {mpi.version} cannot go on when a rank dies; "
            "Open MPI 5 with fault tolerance (ULFM) can"
        )
    return False


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


def _run_as_rank(prepare: Callable[[int], RunDirectory], launch: Launch) -> int:
    """Be one rank of a launch that somebody else started; `prepare` gets the number of ranks."""
    early_end = _early_end(launch.stop_before)
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
        if launch.as_json:
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
