#!/usr/bin/env python3
"""Thousands of jobs through the inbox, many of them failing, while the run is watched.

Two ways to look at it:

- on ranks (the default): `hpcslaq run --serve`, `hpcslaq status --watch` in a terminal of its
  own, `hpcslaq submit` of all jobs, `hpcslaq close`; then what `status` and `report` cost;
- `--pretend`: rank 0's loop with its journal, its inbox and its coordinator, and ranks that answer
  at once. No MPI is started, so that rank 0 alone is measured, also its memory.

Printed: ticks of rank 0 (p50, p99, longest), jobs by their end, bytes of state per job.

    python scripts/bench_inbox.py [--jobs 5000] [--failing 0.5] [--policy fair] [--ranks 3]
    python scripts/bench_inbox.py --pretend [--jobs 5000] [--workers 8] [--policy quality]
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi4py

mpi4py.rc.initialize = False

from hpcslaq.core import events as ev  # noqa: E402
from hpcslaq.core.coordinator import Coordinator  # noqa: E402
from hpcslaq.core.jobs import JobSpec  # noqa: E402
from hpcslaq.mpi.messages import End, Farewell, Lead  # noqa: E402
from hpcslaq.mpi.rank0 import Rank0  # noqa: E402
from hpcslaq.mpi.requests import RequestDesk  # noqa: E402
from hpcslaq.policies.registry import make_policy  # noqa: E402
from hpcslaq.record.inbox import CloseRequest, Inbox, SubmitRequest  # noqa: E402
from hpcslaq.record.journal import JournalWriter, read_journal  # noqa: E402
from hpcslaq.record.plan import RunPlan  # noqa: E402
from hpcslaq.record.rundir import RunDirectory  # noqa: E402
from hpcslaq.record.summary import RunSummary  # noqa: E402

MODEL = """
import numpy as np
from hpcslaq.train.model import Model, Step
from hpcslaq.train.options import Option

class Mean(Model):
    options = {"number": Option(int, 0, "which"), "fails": Option(bool, False, "raise")}

    def initial_state(self, data, rng):
        return {"mean": np.zeros(data.num_features)}

    def statistics(self, state, chunk, draw):
        if self.settings["fails"]:
            raise RuntimeError("as asked for")
        return {"sum": chunk.X.sum(axis=0)}

    def update(self, state, totals, context):
        state["mean"] = totals["sum"] / context.info.num_rows
        return Step(1.0 / (1 + context.epoch))

    def parameters(self, state):
        return state["mean"]

    def predict(self, state, X):
        return np.tile(state["mean"], (X.shape[0], 1))
"""


class PretendRanks:
    """A control channel whose ranks train a job in no time, and let every so-manieth fail."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        self._fails = fails
        self._events: deque[ev.Event | Farewell] = deque()
        self.lost: set[int] = set()

    def send(self, dest: int, tag: int, message: object) -> None:
        if isinstance(message, End):
            self._events.append(Farewell(dest, 0, 0, 0))
        if not isinstance(message, Lead):
            return
        job, generation = message.spec.name, message.generation
        self._events.append(ev.GroupFormed(job, generation, message.members))
        if not self._fails(job):
            losses = tuple(1.0 / n for n in range(1, 6))
            self._events.append(ev.ProgressReported(job, generation, 1, losses, 5, 0.01, 1))
        self._events.append(ev.GroupDissolved(job, generation))
        if self._fails(job):
            self._events.append(ev.JobFailed(job, generation, dest, "as asked", "Traceback\n" * 10))
        else:
            digest = "ab" * 32
            self._events.append(
                ev.JobFinished(job, generation, 5, 5, 0.2, digest, digest, "epochs")
            )
        for rank in message.members:
            self._events.append(ev.RankReleased(rank, job, generation, {"compute": 0.01}))

    def poll(self, tag: int) -> ev.Event | Farewell | None:
        return self._events.popleft() if self._events else None

    def look(self) -> set[int]:
        return set()

    def flush(self, timeout_s: float) -> bool:
        return True


def resident_bytes() -> int:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def pretend(directory: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Rank 0 alone: the figures."""
    run = RunDirectory.create(directory / "run")
    plan = RunPlan(given.policy, (), {}, is_serving=True)
    plan.write(run)
    inbox = Inbox(run.inbox)
    share = given.failing

    def fails(job: str) -> bool:
        return (int(job[1:]) * share) % 1.0 + share >= 1.0

    coordinator = Coordinator(make_policy(given.policy), 1.0)
    journal = JournalWriter(run.journal)
    begin = time.monotonic()
    rank0 = Rank0(
        coordinator,
        PretendRanks(fails),  # type: ignore[arg-type]
        journal,
        arrivals=(),
        data_paths={},
        desk=RequestDesk(run, plan, coordinator),
        clock=lambda: time.monotonic() - begin,
        stop_reason=lambda: "",
    )
    for number in range(given.jobs):
        spec = JobSpec(f"j{number}", "mean", "rows", 1, 5, options={"number": number})
        inbox.send(SubmitRequest(spec, str(run.path)))
    inbox.send(CloseRequest())
    sent_s, before = time.monotonic() - begin, resident_bytes()
    with journal:
        code = rank0.run({rank: "host" for rank in range(1, given.workers + 1)})
    wall_s = time.monotonic() - begin - sent_s
    return {
        "exit_code": code,
        "send_s": sent_s,
        "run_s": wall_s,
        **{f"tick_p{p}_ms": 1e3 * rank0.ticks.percentile(p / 100) for p in (50, 99)},
        "tick_max_ms": 1e3 * max(rank0.ticks.durations_s),
        "num_ticks": len(rank0.ticks.durations_s),
        "state_bytes_per_job": (resident_bytes() - before) / given.jobs,
        **counts(run),
    }


def counts(run: RunDirectory) -> dict[str, Any]:
    """Jobs by their end, from the journal; its size; what is left in the inbox."""
    summary = RunSummary()
    summary.fold_all(read_journal(run.journal))
    states = Counter(job.state.value for job in summary.jobs.values())
    return {
        "jobs": dict(states),
        "num_jobs": len(summary.jobs),
        "journal_bytes_per_job": run.journal.stat().st_size / max(1, len(summary.jobs)),
        "waiting_requests": len(list(run.inbox.glob("*.json"))),
        "ignored_entries": summary.num_ignored,
    }


def write_files(directory: Path, given: argparse.Namespace) -> tuple[Path, Path]:
    """A job file to serve, and one with all the jobs."""
    (directory / "mean.py").write_text(MODEL)
    rows = "\n".join(f"{n % 7},{n % 3},{n % 2}" for n in range(40))
    (directory / "rows.csv").write_text("x,y,label\n" + rows + "\n")
    num_bad = round(given.jobs * given.failing)
    head = f'[run]\npolicy = "{given.policy}"\n[data.rows]\npath = "rows.csv"\nholdout = 0\n'
    job = '[[job]]\nname = "{}"\nmodel = "mean.py:Mean"\ndata = "rows"\nchunks = 2\nepochs = 5\n'
    serve, many = directory / "serve.toml", directory / "many.toml"
    serve.write_text(head + job.format("first"))
    text = head
    for name, fails, num in (("bad", "true", num_bad), ("good", "false", given.jobs - num_bad)):
        if num:
            text += job.format(name) + f"options = {{ fails = {fails} }}\n"
            text += f"[job.sweep]\nnumber = {list(range(num))}\n"
    many.write_text(text)
    return serve, many


def watch(run: Path, seconds: list[float]) -> None:
    """`hpcslaq status --watch` in a terminal of its own; its CPU seconds."""
    line = [sys.executable, "-m", "hpcslaq", "status", str(run), "--watch"]
    child, screen = pty.fork()
    if child == 0:
        os.execv(line[0], line)
    try:
        while os.read(screen, 65536):
            pass
    except OSError:  # The terminal's end after its program's.
        pass
    _, _, used = os.wait4(child, 0)
    seconds.append(used.ru_utime + used.ru_stime)


def on_ranks(directory: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The whole thing: the figures."""
    serve, many = write_files(directory, given)
    run = RunDirectory(directory / "run")
    hpcslaq = [sys.executable, "-m", "hpcslaq"]

    def timed(*arguments: str) -> float:
        begin = time.monotonic()
        subprocess.run([*hpcslaq, *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - begin

    begin = time.monotonic()
    line = [*hpcslaq, "run", str(serve), "--out", str(run.path), "--serve", "--quiet"]
    with subprocess.Popen([*line, "--ranks", str(given.ranks)]) as process:
        while not run.journal.exists():
            if process.poll() is not None:
                raise SystemExit(f"the run ended with {process.returncode}")
            time.sleep(0.1)
        watched: list[float] = []
        watcher = threading.Thread(target=watch, args=(run.path, watched))
        watcher.start()
        submit_s = timed("submit", str(run.path), str(many))
        timed("close", str(run.path))
        code = process.wait()
        wall_s = time.monotonic() - begin
        watcher.join()
    result = run.read_result() or {}
    return {
        "exit_code": code,
        "submit_s": submit_s,
        "run_s": wall_s,
        "tick_p50_ms": 1e3 * result["tick_p50_s"],
        "tick_p99_ms": 1e3 * result["tick_p99_s"],
        "num_ticks": result["num_ticks"],
        "rank0_peak_bytes": result["cpu_s"]["0"]["peak_rss_bytes"],
        "watch_cpu_s": watched[0],
        **counts(run),
        "status_s": timed("status", str(run.path)),
        "report_s": timed("report", str(run.path)),
        "page_bytes": run.report_html.stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--failing", type=float, default=0.5, help="share of the jobs")
    parser.add_argument("--policy", default="fair")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8, help="of --pretend")
    parser.add_argument("--pretend", action="store_true", help="rank 0 alone, without MPI")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-inbox-") as directory:
        found = (pretend if given.pretend else on_ranks)(Path(directory), given)
    if given.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")


if __name__ == "__main__":
    main()
