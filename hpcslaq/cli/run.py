"""`hpcslaq run`: prepare, start the ranks (or be one of them), watch, report."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click

from hpcslaq.cli.live import Display, preparing
from hpcslaq.cli.output import emit_json, json_option, octal_mode, reports_errors
from hpcslaq.cli.prepare import default_run_directory, prepare_run, read_checked
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

#: How often the display looks at the journal, s.
_LOOK_S = 0.25

#: Exit code after a second signal, as shells have it.
EXIT_INTERRUPTED = 130


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

        def prepare() -> RunDirectory:
            checked = read_checked(job_file, policy, is_serving=serve)
            where = out or default_run_directory(job_file)
            return prepare_run(job_file, checked, where, lambda what, share: None, mode=mode)

        return _run_as_rank(prepare, ranks, _early_end(stop_before))
    mpi = find_mpi(family)
    allocation = find_allocation(os.environ)
    is_one_machine = allocation is None or allocation.num_nodes == 1
    cores = len(os.sched_getaffinity(0)) if allocation is None else allocation.num_tasks
    checked = read_checked(job_file, policy, is_serving=serve)
    with preparing(quiet or as_json) as progress:
        where = out or default_run_directory(job_file)
        run = prepare_run(job_file, checked, where, progress, mode=mode)
    num_ranks = ranks or checked.run.ranks or cores + 1
    if allocation is None:
        program = ["-m", "hpcslaq.mpi", str(run.path)]
    else:
        # This command again, as ranks: they watch the end of the allocation.
        program = ["-m", "hpcslaq", "run", str(job_file), "--out", str(run.path)]
        program += ["--stop-before", stop_before, *(["--policy", policy] if policy else [])]
        program += ["--serve"] if serve else []
    line = mpi_command(mpi, num_ranks, program, is_one_machine=is_one_machine)
    env = mpi_environment(mpi, os.environ, num_ranks, cores, is_one_machine=is_one_machine)
    code = _start(line, env, run, is_quiet=quiet or as_json)
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
    prepare: Callable[[], RunDirectory], ranks: int | None, early_end: Callable[[], str]
) -> int:
    """Be one rank of a launch that somebody else started."""
    # Should the ranks not find each other (a lost message of PMI), nobody waits until the time
    # limit: launcher and batch script then see that there is no result.
    faulthandler.dump_traceback_later(_MEETING_S, exit=True)
    # Imported here: it loads MPI.
    from hpcslaq.mpi.main import run_ranks

    size = launched_size(os.environ)
    if ranks is not None and ranks != size:
        raise LaunchError(f"--ranks {ranks}, but the launcher started {size} ranks")

    # Called on rank 0 only; the other ranks learn the directory from it.
    prepared: list[RunDirectory] = []

    def prepare_noted() -> Path:
        run = prepare()
        prepared.append(run)
        return run.path

    code = run_ranks(prepare_noted, early_end)
    for run in prepared:
        report = _report(run, is_page_wanted=code != EXIT_STOPPED_EARLY)
        click.echo(f"{headline(report)}\nreport: hpcslaq report {run.path}")
    return code


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


def _start(line: list[str], env: dict[str, str], run: RunDirectory, *, is_quiet: bool) -> int:
    """Start the ranks and stay until they have ended; the run's exit code.

    The launcher's own exit code and messages count only where the run left no result: they
    differ between MPIs, and Open MPI reports success after losing a node. Rank 0 removes an
    earlier result when it holds the journal: another run may be on in this directory.
    """
    before = _stamp(run.result_json)
    with tempfile.TemporaryFile("w+") as output:
        # A session of its own: Ctrl-C must reach this process only, which asks the ranks to
        # checkpoint; the launchers would kill them within a quarter of a second.
        process = subprocess.Popen(
            line,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        is_openmpi = any(name.startswith("OMPI_") for name in env)
        with _Signals(process, run, is_openmpi) as signals, Display(run, is_quiet) as display:
            while process.poll() is None:
                display.update()
                signals.pass_on()
                try:
                    process.wait(_LOOK_S)
                except subprocess.TimeoutExpired:
                    continue
            display.update()
        result = run.read_result()
        if result is not None and _stamp(run.result_json) != before:
            return int(result["exit_code"])
        if signals.count > 1:
            click.echo(
                "ended at once, as asked; the same command goes on from the last checkpoints"
            )
            return EXIT_INTERRUPTED
        output.seek(0)
        tail = output.read()[-4000:].strip()
    raise LaunchError(
        f"the ranks ended without a result (launcher's exit code {process.returncode}); "
        f"run directory {run.path}; the last they said:\n{tail or '(nothing)'}"
    )


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


class _Signals:
    """First signal: ask the ranks to checkpoint and end; second: end them at once.

    The first is kept until the ranks are ready for it: before they have set their handlers
    SIGUSR1 would kill them. They are when rank 0 writes to the journal.
    """

    def __init__(self, process: subprocess.Popen[Any], run: RunDirectory, is_openmpi: bool) -> None:
        self._process = process
        self._journal = run.journal
        self._num_bytes = self._size()
        # Open MPI's mpirun takes its ranks with it on SIGTERM, MPICH's mpiexec on SIGKILL.
        self._end_at_once = signal.SIGTERM if is_openmpi else signal.SIGKILL
        #: Signals that this process received.
        self.count = 0
        self._is_passed_on = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Signals:
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def pass_on(self) -> None:
        """Hand the first signal to the ranks, once they are ready for it."""
        if self.count and not self._is_passed_on and self._size() > self._num_bytes:
            self._is_passed_on = True
            self._send(signal.SIGUSR1)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            self.pass_on()
        else:
            self._send(self._end_at_once if self.count == 2 else signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _size(self) -> int:
        try:
            return self._journal.stat().st_size
        except FileNotFoundError:
            return 0
