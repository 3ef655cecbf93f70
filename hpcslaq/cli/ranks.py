"""Starting the ranks of a run on this machine, and staying with them until they have ended.

Signals go to this process, which passes them on. What the launcher says at the end counts
only where the ranks left no result. How its command line looks is in `hpcslaq.mpi.launch`.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import click

from hpcslaq.cli.live import Display
from hpcslaq.core.coordinator import EXIT_STOPPED_EARLY
from hpcslaq.errors import HpcslaqError, LaunchError
from hpcslaq.mpi.launch import (
    LAUNCHER_VARIABLE,
    kill_session,
    mapped_shared_memory,
    this_launcher,
)
from hpcslaq.record.rundir import RunDirectory

#: How often the display looks at the journal, s.
_LOOK_S = 0.25
#: As much of what the ranks said last is looked at.
_TAIL_BYTES = 64 * 1024

#: Exit code after a second signal, as shells have it.
EXIT_INTERRUPTED = 130

#: Codes with which a rank ends that has said what is wrong.
_SAID_CODES = (1, 2, 3, 4, EXIT_STOPPED_EARLY)


class RanksEndedError(HpcslaqError):
    """The ranks ended without a result, though the run had begun: the same command resumes it."""

    exit_code = EXIT_STOPPED_EARLY
    #: Nobody had asked them to.
    is_unwanted = True


def keep_running(
    line: list[str], env: dict[str, str], run: RunDirectory, *, is_quiet: bool, max_restarts: int
) -> int:
    """Start the ranks, and again up to `max_restarts` times where ranks were lost.

    Each start replays the journal and goes on from the newest valid checkpoints. Returns and
    raises what `start_ranks` does in the last one.
    """
    for restart in itertools.count(1):
        try:
            code = start_ranks(line, env, run, is_quiet=is_quiet)
        except RanksEndedError as error:
            if restart > max_restarts or not error.is_unwanted:
                raise
            reason = "the ranks ended without a result"
        else:
            result = run.read_result() if code == EXIT_STOPPED_EARLY else None
            lost = result["lost_ranks"] if result and not result["stop_reason"] else []
            if restart > max_restarts or not lost:
                return code
            reason = f"lost ranks {', '.join(str(rank) for rank in lost)}"
        click.echo(f"restart {restart} of {max_restarts}: {reason}", err=True)
    raise AssertionError("counting has an end")


def start_ranks(line: list[str], env: dict[str, str], run: RunDirectory, *, is_quiet: bool) -> int:
    """Start the ranks and stay until they have ended; the run's exit code.

    The launcher's own exit code and messages count only where the run left no result: they
    differ between MPIs, and Open MPI reports success after losing a node. Rank 0 removes an
    earlier result when it holds the journal: another run may be on in this directory.

    Raises LaunchError where they ended before the run began, RanksEndedError later, and what a
    rank said was wrong with the run.
    """
    before = _stamp(run.result_json)
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        # A session of its own: Ctrl-C must reach this process only, which asks the ranks to
        # checkpoint; the launchers would kill them within a quarter of a second.
        process = subprocess.Popen(
            line,
            env={**env, LAUNCHER_VARIABLE: this_launcher()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        is_openmpi = any(name.startswith("OMPI_") for name in env)
        with _Signals(process, run, is_openmpi) as signals, Display(run, is_quiet) as display:
            shared: set[Path] = set()
            while process.poll() is None:
                display.update()
                signals.pass_on()
                if not shared and signals.are_ranks_ready:
                    shared = mapped_shared_memory(process.pid)
                try:
                    process.wait(_LOOK_S)
                except subprocess.TimeoutExpired:
                    continue
            display.update()
        for path in shared:  # a rank that was killed has left its own
            path.unlink(missing_ok=True)
        result = run.read_result()
        if result is not None and _stamp(run.result_json) != before:
            return int(result["exit_code"])
        if signals.count > 1:
            click.echo(
                "ended at once, as asked; the same command goes on from the last checkpoints",
                err=True,
            )
            return EXIT_INTERRUPTED
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - _TAIL_BYTES))
        said = output.read().strip()
    error = _without_result(run, process.returncode, said, has_begun=signals.are_ranks_ready)
    if isinstance(error, RanksEndedError):
        error.is_unwanted = signals.count == 0
    raise error


def _without_result(
    run: RunDirectory, returncode: int, said: str, *, has_begun: bool
) -> HpcslaqError:
    """What to tell of ranks that ended without a result."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if errors and returncode in _SAID_CODES:
        # A rank found what is wrong, nobody was killed.
        error = HpcslaqError(errors[-1].removeprefix("error: "))
        error.exit_code = returncode
        return error
    text = f"the ranks ended without a result (launcher's exit code {returncode}); "
    tail = f"the last they said:\n{said[-4000:] or '(nothing)'}"
    if has_begun:
        return RanksEndedError(
            f"{text}run directory {run.path}; the same command goes on from the last checkpoints; "
            f"{tail}"
        )
    return LaunchError(f"{text}run directory {run.path}; {tail}")


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._process.poll() is None:
            kill_session(self._process.pid)
            self._process.wait()

    @property
    def are_ranks_ready(self) -> bool:
        """Whether rank 0 drives the run: all ranks have their signal handlers then."""
        return self._size() > self._num_bytes

    def pass_on(self) -> None:
        """Hand the first signal to the ranks, once they are ready for it."""
        if self.count and not self._is_passed_on and self.are_ranks_ready:
            self._is_passed_on = True
            self._send(signal.SIGUSR1)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            self.pass_on()
        elif self.count == 2:
            self._send(self._end_at_once)
        elif self._process.poll() is None:
            kill_session(self._process.pid)

    def _send(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _size(self) -> int:
        try:
            return self._journal.stat().st_size
        except FileNotFoundError:
            return 0
