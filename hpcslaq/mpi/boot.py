"""Start-up and end of the ranks: the only place with collectives over the world.

Checks that launcher and MPI library belong together (N worlds of one rank are a classic
silent failure), splits the control channel from the workers' communicator, and hands
every rank what rank 0 read from the run directory.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, cast

import mpi4py

mpi4py.rc.thread_level = "serialized"

from mpi4py import MPI  # noqa: E402  (after the thread level is chosen)

from hpcslaq.errors import LaunchError  # noqa: E402
from hpcslaq.mpi.launch import launched_rank, launched_size  # noqa: E402

#: What a call of MPI raises.
MpiError = MPI.Exception

#: A coordinator and one worker.
MIN_RANKS = 2


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a rank holds after start-up."""

    rank: int
    size: int
    #: All ranks; point-to-point control messages only.
    control: MPI.Intracomm
    #: All workers (world rank r is rank r - 1); the parent of job groups. None on rank 0.
    workers: MPI.Intracomm | None
    #: Host name and process number of every world rank.
    hosts: tuple[str, ...]
    pids: tuple[int, ...]


def check_world(size: int, promised: int | None, library: str) -> None:
    """Raise LaunchError where the world is not what the launcher promised, or too small."""
    if promised is not None and promised != size:
        raise LaunchError(
            f"the launcher started {promised} ranks, but MPI sees a world of {size}: launcher and "
            f"MPI library do not belong together (library: {library}); "
            "start with the mpirun of that library, or under Slurm with the matching srun --mpi="
        )
    if size < MIN_RANKS:
        raise LaunchError(
            f"{size} rank is not enough: one coordinates and at least one trains; "
            "start with mpirun -n 2 or more, or use `hpcslaq run --ranks N`"
        )


def open_world() -> Ranks:
    """Split the world; collective over all ranks, once, at start-up."""
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    control = world.Dup()
    # Opens a connection between every pair: after a death, news reach only open ones.
    control.alltoall([0] * size)
    hosts, pids = zip(*control.allgather((socket.gethostname(), os.getpid())), strict=True)
    workers = control.Split(MPI.UNDEFINED if rank == 0 else 0, rank)
    own = None if rank == 0 else cast(MPI.Intracomm, workers)
    return Ranks(rank, size, control, own, hosts, pids)


def broadcast_text(ranks: Ranks, text: str | None) -> str:
    """Rank 0's text on every rank; collective over all ranks, at start-up only."""
    result: str = ranks.control.bcast(text, 0)
    return result


def close_world(ranks: Ranks) -> None:
    """Leave MPI together; collective, at the very end.

    Messages that nobody wants any more (an order for a group that had just ended) are taken
    in first: MPICH refuses to free a communicator with unmatched messages. Leaving here and
    not at the interpreter's exit: an exit code other than 0 would make `python -m mpi4py`
    abort all ranks.
    """
    _drain(ranks.control)
    ranks.control.Barrier()
    _drain(ranks.control)
    if ranks.workers is not None:
        ranks.workers.Free()
    leave()


def is_fault_tolerant() -> bool:
    """Whether the launcher lets the ranks go on when one dies (Open MPI's --with-ft ulfm)."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable", "") in ("1", "true")


def end_process(ranks: Ranks, rank: int) -> None:
    """Make sure that a rank that counts as dead is: it may only have been stopped.

    Possible on this host only. A stopped one elsewhere ends when it goes on: Open MPI sees to that.
    """
    if ranks.hosts[rank] == ranks.hosts[ranks.rank]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(ranks.pids[rank], signal.SIGKILL)


def leave_abruptly(exit_code: int) -> NoReturn:
    """End this process without MPI_Finalize, which may wait for ranks that have died."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def leave() -> None:
    """Leave MPI; collective, nothing of it can be used afterwards."""
    MPI.Finalize()


def abort(exit_code: int) -> NoReturn:
    """End all ranks at once, for a rank that cannot go on: others would wait for it for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(exit_code)
    raise AssertionError("MPI_Abort came back")


def _drain(comm: MPI.Intracomm) -> None:
    """Receive and drop what has arrived."""
    status = MPI.Status()
    while (message := comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
        message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])


def mpi_version() -> str:
    """First line of the MPI library's version."""
    return MPI.Get_library_version().splitlines()[0].strip("\x00 ")


def world_size() -> int:
    """Number of ranks in the world."""
    return MPI.COMM_WORLD.Get_size()


def process_usage() -> dict[str, float]:
    """CPU seconds and peak resident set (bytes) of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user_s": used.ru_utime,
        "system_s": used.ru_stime,
        "peak_rss_bytes": used.ru_maxrss * 1024.0,
    }


def is_speaker() -> bool:
    """Whether this process reports start-up errors: the first rank, also among singletons."""
    rank = launched_rank(os.environ)
    return MPI.COMM_WORLD.Get_rank() == 0 and rank in (None, 0)


def promised_size() -> int | None:
    """Number of ranks that the launcher promised; None where it does not say."""
    return launched_size(os.environ)
