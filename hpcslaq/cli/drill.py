"""`hpcslaq drill`: what a run survives on this machine, with this MPI: tried, not promised.

Each scenario is a small run of its own that something is done to: ranks are killed, files are
torn. What ended and with which results is compared with a run that was left alone.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.core import events as ev
from hpcslaq.errors import HpcslaqError, LaunchError
from hpcslaq.mpi.launch import FAMILIES, Mpi, find_mpi, launched_rank, launched_size
from hpcslaq.record.journal import read_journal
from hpcslaq.record.rundir import RunDirectory

#: Nothing in a drill takes so long, s.
_LIMIT_S = 60.0
_RANKS = 4
_JOBS = ("first", "second")

#: The model of the drill: its passes take a known time, so that there is time to hit it.
_MODEL = """
import time
import numpy as np
from hpcslaq.train.model import Model, Step


class Paced(Model):
    def initial_state(self, data, rng):
        return {"mean": np.zeros(data.num_features)}

    def statistics(self, state, chunk, draw):
        if draw.chunk == 0:
            time.sleep(0.01)
        return {"sum": chunk.X.sum(axis=0)}

    def update(self, state, totals, context):
        step = 0.05 * (totals["sum"] / context.info.num_rows - state["mean"])
        state["mean"] = state["mean"] + step
        return Step(float(step @ step))
"""

_JOB_FILE = """
[run]
policy = "fair"
round = "0.3s"
checkpoint_every = "0.3s"
keep_checkpoints = 3

[data.rows]
path = "rows.csv"
"""

_JOB = """
[[job]]
name = "{name}"
model = "paced.py:Paced"
data = "rows"
chunks = 8
epochs = 250
"""


@dataclass(slots=True)
class Outcome:
    """What came of one scenario."""

    scenario: str
    #: What was done to the run.
    deed: str
    #: How it went on.
    way: str = ""
    #: Jobs that ended, of how many, and whether with the results of a run left alone.
    num_done: int = 0
    num_jobs: int = len(_JOBS)
    is_same: bool = False
    #: Iterations that were made again, as their results were lost.
    num_again: int = 0
    seconds: float = 0.0
    problem: str = ""

    @property
    def has_survived(self) -> bool:
        """Whether nothing was lost."""
        return not self.problem and self.is_same and self.num_done == self.num_jobs


@dataclass(slots=True)
class Drill:
    """Where the drill takes place and what it starts."""

    path: Path
    mpi: Mpi
    #: Digests of each job in a run that was left alone.
    expected: dict[str, tuple[str, str]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Write the data, the model and the job file."""
        rows = "\n".join(f"{n % 7},{n % 5},{n % 2}" for n in range(64))
        (self.path / "rows.csv").write_text(f"a,b,label\n{rows}\n")
        (self.path / "paced.py").write_text(_MODEL)
        jobs = "".join(_JOB.format(name=name) for name in _JOBS)
        (self.path / "drill.toml").write_text(_JOB_FILE + jobs)

    def start(self, run: Path, *more: str, resume: bool = False) -> subprocess.Popen[str]:
        """`hpcslaq run` (or resume) in the background."""
        what = ["resume", str(run)] if resume else ["run", "drill.toml", "--out", str(run)]
        return subprocess.Popen(
            [sys.executable, "-m", "hpcslaq", *what, "--ranks", str(_RANKS), "--quiet", *more],
            cwd=self.path,
            env={**os.environ, "HPCSLAQ_CACHE": str(self.path / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _end(process: subprocess.Popen[str], *codes: int) -> str:
    """Wait for a command that is to end with one of these codes; what it said."""
    try:
        said, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise HpcslaqError(f"no end within {_LIMIT_S:g} s") from None
    if process.returncode not in codes:
        raise HpcslaqError(f"exit code {process.returncode}: {said.strip()[-300:]}")
    return said


def _wait_for_checkpoints(run: Path, process: subprocess.Popen[str]) -> None:
    """Until each job has written two checkpoints."""
    until = time.monotonic() + _LIMIT_S
    while process.poll() is None and time.monotonic() < until:
        counts = [len(list((run / "checkpoints" / job).glob("*.h5"))) for job in _JOBS]
        if min(counts) >= 2:
            return
        time.sleep(0.02)
    raise HpcslaqError("the run did not come so far")


def _processes(run: Path) -> Iterator[tuple[int, int | None]]:
    """Processes that name this run, and which rank each is; None: it is no rank."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(run).encode() in (entry / "cmdline").read_bytes():
                lines = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                environ = dict(line.split("=", 1) for line in lines if "=" in line)
                yield int(entry.name), launched_rank(environ)


def _kill(run: Path, is_meant: Callable[[int | None], bool]) -> None:
    for pid, rank in list(_processes(run)):
        if is_meant(rank):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# -- scenarios -------------------------------------------------------------------------


def _left_alone(drill: Drill, run: Path, outcome: Outcome) -> None:
    _end(drill.start(run), 0)
    drill.expected = _digests(run)


def _worker_killed(drill: Drill, run: Path, outcome: Outcome) -> None:
    process = drill.start(run, "--max-restarts", "2")
    _wait_for_checkpoints(run, process)
    _kill(run, lambda rank: rank == 2)
    said = _end(process, 0)
    outcome.way = "restarted from checkpoints" if "restart" in said else "the survivors went on"


def _coordinator_killed(drill: Drill, run: Path, outcome: Outcome) -> None:
    process = drill.start(run, "--max-restarts", "2")
    _wait_for_checkpoints(run, process)
    _kill(run, lambda rank: rank == 0)
    _end(process, 0)
    outcome.way = "restarted: the journal was replayed"


def _all_killed(drill: Drill, run: Path, outcome: Outcome) -> None:
    process = drill.start(run)
    _wait_for_checkpoints(run, process)
    process.kill()
    process.communicate()
    while list(_processes(run)):
        _kill(run, lambda rank: True)
    with (run / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"torn')
    _end(drill.start(run, resume=True), 0)
    outcome.way = "resumed by hand"


def _launcher_killed(drill: Drill, run: Path, outcome: Outcome) -> None:
    process = drill.start(run)
    _wait_for_checkpoints(run, process)
    process.kill()
    process.communicate()
    until = time.monotonic() + _LIMIT_S
    while left := list(_processes(run)):
        if time.monotonic() > until:
            raise HpcslaqError(f"{len(left)} processes were left behind")
        time.sleep(0.05)
    _end(drill.start(run, resume=True), 0)
    outcome.way = "ranks wrote checkpoints and ended; resumed by hand"


def _checkpoints_torn(drill: Drill, run: Path, outcome: Outcome) -> None:
    process = drill.start(run)
    _wait_for_checkpoints(run, process)
    process.send_signal(signal.SIGINT)
    _end(process, 75)
    rng = random.Random(5)
    for job in _JOBS:
        newest, before, *_ = sorted((run / "checkpoints" / job).glob("*.h5"), reverse=True)
        os.truncate(newest, rng.randrange(newest.stat().st_size))
        data = bytearray(before.read_bytes())
        bit = rng.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        before.write_bytes(data)
    _end(drill.start(run, resume=True), 0)
    outcome.way = "resumed from the newest that was whole"


SCENARIOS: tuple[tuple[str, str, Callable[[Drill, Path, Outcome], None]], ...] = (
    ("undisturbed", "nothing", _left_alone),
    ("worker", "SIGKILL to one worker rank", _worker_killed),
    ("coordinator", "SIGKILL to rank 0", _coordinator_killed),
    ("all", "SIGKILL to all processes, last line of the journal torn", _all_killed),
    ("launcher", "SIGKILL to `hpcslaq run` only", _launcher_killed),
    (
        "checkpoints",
        "stopped by SIGINT; newest checkpoints cut off, older: one bit flipped",
        _checkpoints_torn,
    ),
)


# -- results ---------------------------------------------------------------------------


def _digests(run: Path) -> dict[str, tuple[str, str]]:
    return {
        entry.item.job: (entry.item.loss_digest, entry.item.model_digest)
        for entry in read_journal(run / "journal.jsonl")
        if isinstance(entry.item, ev.JobFinished)
    }


def _iterations_again(run: Path) -> int:
    """Iterations that were reported and made again after a restart."""
    reached: dict[str, int] = {}
    num_again = 0
    for entry in read_journal(run / "journal.jsonl"):
        event = entry.item
        if isinstance(event, ev.ProgressReported):
            last = event.first_iteration + len(event.losses) - 1
            reached[event.job] = max(reached.get(event.job, 0), last)
        elif isinstance(event, ev.GroupFormed):
            num_again += max(0, reached.get(event.job, 0) - event.iterations)
    return num_again


def drill_all(drill: Drill) -> Iterator[Outcome]:
    """Carry out one scenario after the other; the outcome of each when it is known."""
    drill.prepare()
    for name, deed, carry_out in SCENARIOS:
        outcome, begin, run = Outcome(name, deed), time.monotonic(), drill.path / name
        try:
            carry_out(drill, run, outcome)
            RunDirectory.open_existing(run)
            found = _digests(run)
            outcome.num_done = len(found)
            outcome.is_same = found == drill.expected
            outcome.num_again = _iterations_again(run)
        except (HpcslaqError, OSError) as error:
            outcome.problem = str(error)
            while list(_processes(run)):
                _kill(run, lambda rank: True)
        outcome.seconds = time.monotonic() - begin
        yield outcome


@click.command("drill")
@click.option("--mpi", "family", type=click.Choice(["auto", *FAMILIES]), default="auto")
@json_option
@reports_errors
def command(family: str, as_json: bool) -> int:
    """Kill ranks and tear files of small runs here, and show what survives.

    Takes a minute or two; exit code 1 if anything was lost.
    """
    if launched_size(os.environ) is not None:
        raise LaunchError("a drill starts its own ranks: call it without mpirun or srun")
    mpi = find_mpi(family)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="hpcslaq-drill-") as path:
        for outcome in drill_all(Drill(Path(path).resolve(), mpi)):
            outcomes.append(outcome)
            if not as_json:
                _show(outcome)
    num_lost = sum(not outcome.has_survived for outcome in outcomes)
    if as_json:
        emit_json(_document(mpi, outcomes))
    else:
        end = f"{num_lost} of {len(outcomes)} lost something" if num_lost else "nothing was lost"
        click.echo(f"\n{mpi.version}: {end}")
    return 1 if num_lost else 0


def _document(mpi: Mpi, outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "mpi": mpi.version,
        "is_fault_tolerant": mpi.is_fault_tolerant,
        "scenarios": [
            {**asdict(outcome), "has_survived": outcome.has_survived} for outcome in outcomes
        ],
    }


def _show(outcome: Outcome) -> None:
    console = terminal()
    mark, style = ("ok", "green") if outcome.has_survived else ("LOST", "red")
    bits = "same results" if outcome.is_same else "other results"
    console.print(
        f"[{style}]{mark:4}[/] {outcome.scenario}: {outcome.deed}"
        + (f" -> {outcome.way}" if outcome.way else "")
    )
    text = f"{outcome.num_done} of {outcome.num_jobs} jobs done, {bits}, "
    text += f"{outcome.num_again} iterations made again, {outcome.seconds:.0f} s"
    console.print("     " + (outcome.problem or text), markup=False)
