"""Disks that are full, read-only or have lost checkpoints: training goes on, loudly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.cache import prepare
from hpcslaq.data.source import DataSource
from hpcslaq.mpi.launch import Mpi
from hpcslaq.record.journal import read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.build import build_report
from hpcslaq.report.text import problems

ROOT = Path(__file__).resolve().parents[2]
MEAN = f"{ROOT / 'tests/mpi_runtime/programs/user_models.py'}:Mean"
SECRET = "s3cr3t-of-the-user"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB of its own."""
    place = tmp_path / "small"
    place.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(place)]
    try:
        done = subprocess.run(line, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if done.returncode != 0:
        pytest.skip("file systems are mounted by root only, and not in every container")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all the space that is left."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096) == 4096:
                pass
        except OSError:
            pass
    return filler


WRITER = """
import json, logging, sys
from pathlib import Path
import mpi4py
mpi4py.rc.initialize = False
import numpy as np
from hpcslaq.mpi.fence import Fence
from hpcslaq.mpi.leader import CheckpointWriter, Snapshot
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.store import CheckpointStore

logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
store = CheckpointStore(Path(sys.argv[1]), {"job": "a"}, keep=2)
writer = CheckpointWriter("a", store, Fence(RunDirectory(Path(sys.argv[1]).parent)))
for line in sys.stdin:
    iterations = int(line)
    writer.submit(Snapshot(iterations, 1, {"w": np.full(60_000, float(iterations))}))
    writer.close()
    said = [[type(r).__name__, r.iterations] for r in writer.results()]
    newest = store.load_newest(0)
    print(json.dumps([said, newest.iteration if newest else 0]), flush=True)
"""


class Writer:
    """A leader's writer in a process of its own."""

    def __init__(self, place: Path) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(place)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def write(self, iterations: int) -> tuple[list[list[Any]], int]:
        """What is said, and the newest checkpoint that can be used."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{iterations}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            pytest.fail(self._process.communicate(timeout=30)[1])
        said, newest = json.loads(answer)
        return said, newest

    def end(self) -> str:
        """What was logged; the process ended well."""
        _, log = self._process.communicate(timeout=30)
        assert self._process.returncode == 0, log
        return log


WRITTEN, FAILED = "CheckpointWritten", "CheckpointFailed"


def check_goes_on(place: Path, break_it: Callable[[], Callable[[], object]], reason: str) -> None:
    """One warning and one report, the last good one stays, and writing goes on when it can."""
    writer = Writer(place)
    assert writer.write(10) == ([[WRITTEN, 10]], 10)
    mend = break_it()
    assert writer.write(20) == ([[FAILED, 20]], 10)
    assert writer.write(30) == ([], 10)
    assert writer.write(40) == ([], 10)
    mend()
    assert writer.write(50) == ([[WRITTEN, 50]], 50)
    break_it()()
    mend = break_it()
    assert writer.write(60) == ([[FAILED, 60]], 50)
    mend()
    log = writer.end()
    assert log.count("checkpoint not written, training goes on") == 2
    assert reason in log
    left = [path.name for path in place.iterdir() if path.name.startswith(".tmp-")]
    assert left == []


def test_a_full_disk_costs_checkpoints_and_nothing_else(small_disk: Path) -> None:
    def break_it() -> Callable[[], object]:
        filler = fill(small_disk)
        return lambda: filler.unlink()

    check_goes_on(small_disk / "a", break_it, "No space left on device")


def test_a_read_only_disk_costs_checkpoints_and_nothing_else(small_disk: Path) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    def break_it() -> Callable[[], object]:
        remount("ro")
        return lambda: remount("rw")

    check_goes_on(small_disk / "a", break_it, "Read-only file system")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_costs_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "a"

    def break_it() -> Callable[[], object]:
        place.chmod(0o500)
        return lambda: place.chmod(0o700)

    check_goes_on(place, break_it, "Permission denied")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small prepared data set."""
    folder = tmp_path_factory.mktemp("data")
    X = np.random.default_rng(7).normal(size=(400, 6))
    np.save(folder / "rows.npy", np.column_stack([X, X[:, 0] > 0]))
    source = DataSource(str(folder / "rows.npy"), {"label": 6, "task": "classification"})
    return str(prepare(source, folder / "cache"))


def mean(name: str, epochs: int = 30) -> JobSpec:
    return JobSpec(name, MEAN, "rows", 8, epochs, options={"rate": 0.2, "sleep_s": 0.03})


def make_run(path: Path, rows: str, **settings: Any) -> RunDirectory:
    run = RunDirectory.create(path)
    jobs = (mean("a"), mean("b"))
    plan = {"round_s": 0.2, "checkpoint_every_s": 0.0, **settings}
    RunPlan("fair", jobs, {"rows": rows}, **plan).write(run)
    return run


def items(run: RunDirectory, kind: type) -> list[Any]:
    return [entry.item for entry in read_journal(run.journal) if type(entry.item) is kind]


def start(launch: Callable[..., Any], mpi: Mpi, run: RunDirectory) -> int:
    program = ["-m", "hpcslaq.mpi", str(run.path)]
    code: int = launch(mpi, 3, program, timeout_s=90.0, MY_API_TOKEN=SECRET).returncode
    # The environment is not written into a run.
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    return code


@pytest.mark.launch
def test_jobs_on_a_full_disk_end_as_they_would_elsewhere(
    any_mpi: Mpi, launch: Callable[..., Any], rows: str, tmp_path: Path, small_disk: Path
) -> None:
    fill(small_disk)
    run = make_run(tmp_path / "full", rows)
    # The journal, logs and models have another disk than the checkpoints.
    subprocess.run(["mount", "--bind", str(small_disk), str(run.checkpoints)], check=True)
    try:
        assert start(launch, any_mpi, run) == 0
    finally:
        subprocess.run(["umount", "--lazy", str(run.checkpoints)], check=True)
    elsewhere = make_run(tmp_path / "elsewhere", rows)
    assert start(launch, any_mpi, elsewhere) == 0
    digests = [
        {f.job: (f.loss_digest, f.model_digest) for f in items(one, ev.JobFinished)}
        for one in (run, elsewhere)
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2
    failed = items(run, ev.CheckpointFailed)
    assert {item.job for item in failed} == {"a", "b"}
    assert all("No space left on device" in item.message for item in failed)
    assert not items(elsewhere, ev.CheckpointFailed)


@pytest.mark.launch
@pytest.mark.parametrize("damage", ["junk", "delete"])
def test_a_job_without_a_usable_checkpoint_fails_and_never_starts_from_zero(
    any_mpi: Mpi, launch: Callable[..., Any], rows: str, tmp_path: Path, damage: str
) -> None:
    run = make_run(tmp_path / "run", rows, time_limit_s=0.8)
    assert start(launch, any_mpi, run) == 75
    files = sorted(run.checkpoint_directory("a").glob("*.h5"))
    assert files
    for file in files:
        if damage == "junk":
            file.write_bytes(b"junk" * 1000)
        else:
            file.unlink()
    # The same again, now without a limit.
    plan = RunPlan.read(run)
    RunPlan(plan.policy, plan.jobs, plan.data_paths, round_s=0.2, checkpoint_every_s=0.0).write(run)
    assert start(launch, any_mpi, run) == 1
    (failed,) = items(run, ev.JobFailed)
    assert failed.job == "a"
    expected = "none of them is" if damage == "junk" else "was written, found none"
    assert expected in failed.message
    (finished,) = items(run, ev.JobFinished)
    assert finished.job == "b"
    reasons = dict(problems(build_report(run)))
    assert expected in reasons["a"]
