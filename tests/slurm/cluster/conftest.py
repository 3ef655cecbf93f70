"""A real Slurm for the tests of this folder, and the run that all of them do.

HPCSLAQ_TESTBED=auto has scripts/slurm-testbed.sh bring it up, once for all tests, and take it
down at the end; it installs packages, so it is not done unasked. With HPCSLAQ_TESTBED=DIR the
testbed in DIR is used (started if it is not up) and left running. Where it cannot be set up the
tests are skipped with the reason.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from hpcslaq.core import events as ev
from hpcslaq.errors import LaunchError
from hpcslaq.mpi.launch import FAMILIES, Mpi, find_mpi
from hpcslaq.record.journal import read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

ROOT = Path(__file__).resolve().parents[3]
TESTBED = ROOT / "scripts" / "slurm-testbed.sh"

#: Launch form -> MPI family.
FORMS = {
    "openmpi-pmix": "openmpi",
    "mpich-pmi2": "mpich",
    "mpirun": "openmpi",
    "mpiexec": "mpich",
}
#: States in which Slurm does nothing more with a job.
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

#: Testbeds that these tests bring up; in each a file that is locked as long as it is in use.
_PREFIX = "hpcslaq-slurm-auto-"

#: A requeued job may start again after this time, s: in the second in which Slurm revoked its
#: credential, the nodes refuse it, and what ends the old processes would end new ones too.
_PAUSE_S = 3.0

JOBS = """\
[run]
policy = "fair"
round = "300ms"
checkpoint_every = "500ms"
report_every = "50ms"

[data.rows]
path = "rows.npy"
label = 6
task = "classification"

[defaults]
data = "rows"
chunks = 8

[[job]]
name = "steady"
model = "{models}:SlowMean"
epochs = {epochs}
options = {{ rate = 0.01 }}

[[job]]
name = "second"
model = "{models}:SlowMean"
epochs = {epochs}
options = {{ rate = 0.02 }}

[[job]]
name = "newton"
model = "logistic"
epochs = 60
options = {{ solver = "lbfgs", l2 = 1e-2 }}
"""
#: Passes of the two long jobs: for a look, and for all the ways to interrupt them.
PASSES = {"brief.toml": 30, "jobs.toml": 300}
MODELS = Path(__file__).parent / "programs" / "slow_mean.py"


@functools.cache
def installed() -> dict[str, Mpi]:
    """An MPI of each family: this interpreter's, .venv-FAMILY's, or of HPCSLAQ_TEST_PYTHONS."""
    others = os.environ.get("HPCSLAQ_TEST_PYTHONS", "").split(os.pathsep)
    others += [str(ROOT / f".venv-{family}" / "bin" / "python") for family in FAMILIES]
    found: dict[str, Mpi] = {}
    for python in [sys.executable, *others]:
        if os.access(python, os.X_OK):
            try:
                mpi = find_mpi("auto", python)
            except LaunchError:
                continue
            found.setdefault(mpi.family, mpi)
    return found


def mpi_of(family: str) -> Mpi:
    mpi = installed().get(family)
    if mpi is None:
        pytest.skip(f"no {family} here (scripts/test.sh sets both up)")
    return mpi


@dataclass(frozen=True)
class JobInfo:
    """What `scontrol show job` says."""

    state: str
    reason: str
    restarts: int
    exit_code: str
    nodes: str


class Cluster:
    """The testbed as a user sees it."""

    def __init__(self, directory: Path, environ: dict[str, str], work: Path) -> None:
        self.directory, self.environ, self.work = directory, environ, work

    def call(self, *line: str, timeout_s: float = 60.0, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            line,
            env={**self.environ, **env},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def hpcslaq(self, python: str, *arguments: str, **env: str) -> subprocess.CompletedProcess:
        return self.call(python, "-m", "hpcslaq", *arguments, timeout_s=120.0, **env)

    def python(self, form: str) -> str:
        """The interpreter whose MPI this launch form starts; skips where it is not installed."""
        return mpi_of(FORMS[form]).python

    def submit(
        self, form: str, out: str, *options: str, jobs: str = "jobs.toml", nodes: int = 2
    ) -> Job:
        """Submit a run by `hpcslaq slurm submit`."""
        size = ("--nodes", str(nodes), "--ntasks-per-node", "2", "--time", "10")
        done = self.hpcslaq(
            self.python(form),
            *("slurm", "submit", jobs, *size, "--template", form, "--out", out, "--json"),
            *options,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return self.run(out, json.loads(done.stdout)["job_id"])

    def submit_slow(
        self, form: str, out: str, *options: str, pass_s: float = 0.2, **size: int
    ) -> Job:
        """Submit a run that would take minutes, and wait until its jobs train."""
        self.slow_down(pass_s)
        job = self.submit(form, out, *options, **size)
        job.wait_until_busy()
        return job

    def slow_down(self, pass_s: float = 0.2) -> None:
        """Let each pass of the jobs take so long, until `hurry`."""
        (self.work / "slow").write_text(str(pass_s))

    def hurry(self) -> None:
        """Let the jobs finish in seconds: the results do not depend on how long a pass takes."""
        (self.work / "slow").unlink(missing_ok=True)

    def run(self, out: str, job_id: str) -> Job:
        """The run in this directory."""
        return Job(self, job_id, self.work / out)

    def wait_until_gone(self, job: Job, timeout_s: float = 30.0) -> None:
        """Wait until no rank of a job is left, whatever became of its launcher."""
        until = time.monotonic() + timeout_s
        while left := self.ranks_of(job):
            assert time.monotonic() < until, f"job {job.id}: ranks live on: {left}"
            time.sleep(0.1)

    def ranks_of(self, job: Job) -> list[int]:
        """Process ids of the job's ranks, on all nodes, of all its starts."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                is_rank = b"hpcslaq" in words and b"run" in words and b"--out" in words
                if is_rank and os.fsencode(job.path) in words and b"srun" not in words[0]:
                    found.append(int(folder.name))
        return found

    def testbed(self, *arguments: str) -> None:
        subprocess.run([TESTBED, *arguments], check=True, timeout=120, capture_output=True)

    def crash(self, node: str) -> None:
        """Kill all processes of a node at once."""
        self.testbed("crash", str(self.directory), node)

    def restore(self) -> None:
        """Bring crashed nodes back."""
        self.testbed("start", str(self.directory))

    def cancel_all(self) -> None:
        self.call("scancel", "--full", "--signal=KILL", "--user=root")
        self.call("scancel", "--user=root")


class Job:
    """A submitted run: Slurm's job and the run directory."""

    def __init__(self, cluster: Cluster, job_id: str, path: Path) -> None:
        self.cluster, self.id, self.path = cluster, job_id, path

    def info(self) -> JobInfo | None:
        """How the job stands; None where Slurm gave no usable answer this time."""
        text = self.cluster.call("scontrol", "show", "job", "-o", self.id).stdout
        fields = dict(re.findall(r"(\w+)=(\S*)", text))
        if "JobState" not in fields:
            return None
        return JobInfo(
            fields["JobState"],
            fields["Reason"],
            int(fields["Restarts"]),
            fields["ExitCode"],
            fields["NodeList"],
        )

    def wait(self, is_true: Callable[[JobInfo], Any], timeout_s: float = 90.0) -> JobInfo:
        """Wait until this holds; a job that was requeued is not left waiting for its turn."""
        until, info = time.monotonic() + timeout_s, None
        waits_since: float | None = None
        while time.monotonic() < until:
            info = self.info()
            if info is not None and is_true(info):
                return info
            if info is None or (info.state, info.reason) != ("PENDING", "BeginTime"):
                waits_since = None
            elif waits_since is None:
                waits_since = time.monotonic()
            elif time.monotonic() - waits_since > _PAUSE_S:
                self.cluster.call("scontrol", "update", f"jobid={self.id}", "starttime=now")
            time.sleep(0.2)
        pytest.fail(f"job {self.id}: {info} after {timeout_s} s\n{self.output()}")

    def cancel(self) -> None:
        self.cluster.call("scancel", self.id)

    def wait_end(self, timeout_s: float = 90.0) -> JobInfo:
        return self.wait(lambda info: info.state in FINAL, timeout_s)

    def wait_until_busy(self, num_reports: int = 20, timeout_s: float = 60.0) -> None:
        """Wait until the jobs train and something is worth a checkpoint."""
        until = time.monotonic() + timeout_s
        journal, start = self.path / "journal.jsonl", 0
        if journal.exists():
            start = journal.read_text().count("ProgressReported")
        while time.monotonic() < until:
            if journal.exists():
                text = journal.read_text()
                if text.count("ProgressReported") >= start + num_reports:
                    return
            time.sleep(0.05)
        pytest.fail(f"job {self.id}: does not train\n{self.info()}\n{self.output()}")

    def wait_result(self, timeout_s: float = 60.0) -> None:
        """Wait until the run has written its result."""
        until = time.monotonic() + timeout_s
        while not (self.path / "result.json").exists():
            assert time.monotonic() < until, f"no result\n{self.output()}"
            time.sleep(0.1)

    def policy(self) -> str:
        return RunPlan.read(RunDirectory(self.path)).policy

    def stop_reasons(self) -> list[str]:
        """Why the starts of the run ended early."""
        return [event.reason for event in self.events(ev.StopRequested)]

    def output(self) -> str:
        """What the batch script and the launcher wrote."""
        files = sorted((self.path / "logs").glob("slurm-*.out"))
        return "\n".join(file.read_text(errors="replace")[-4000:] for file in files)

    def result(self) -> dict[str, Any] | None:
        return RunDirectory(self.path).read_result()

    def events(self, kind: type | tuple[type, ...]) -> list[Any]:
        journal = self.path / "journal.jsonl"
        return [entry.item for entry in read_journal(journal) if isinstance(entry.item, kind)]

    def digests(self) -> dict[str, tuple[str, str]]:
        return {f.job: (f.loss_digest, f.model_digest) for f in self.events(ev.JobFinished)}

    def check_went_on(self, digests: dict[str, tuple[str, str]], *, starts: int = 2) -> None:
        """A later start went on where the run was, and the jobs are what they would have been."""
        result = self.result()
        assert result is not None and result["exit_code"] == 0, self.output()
        assert len(self.hosts()) == starts
        assert self.digests() == digests
        assert any(formed.iterations > 0 for formed in self.events(ev.GroupFormed))

    def check_nothing_lost(self) -> None:
        """No start of a job is behind the last checkpoint that was written before it."""
        written: dict[str, int] = {}
        for event in self.events((ev.CheckpointWritten, ev.GroupFormed)):
            if isinstance(event, ev.CheckpointWritten):
                written[event.job] = max(written.get(event.job, 0), event.iterations)
            else:
                assert event.iterations >= written.get(event.job, 0)
        assert written

    def hosts(self) -> list[dict[int, str]]:
        """Hosts of the workers, for each start of the run."""
        return [dict(started.hosts) for started in self.events(ev.RunStarted)]


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def testbed() -> Iterator[tuple[Path, dict[str, str]]]:
    """Directory of a running testbed, and the variables that reach it."""
    wanted = os.environ.get("HPCSLAQ_TESTBED")
    if wanted in (None, "", "no"):
        pytest.skip("no Slurm: HPCSLAQ_TESTBED=auto sets one up (root, Debian or Ubuntu)")
    is_ours = wanted == "auto"
    if is_ours:
        _remove_leftovers()
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX) if is_ours else wanted)
    in_use = _lock(directory) if is_ours else None
    try:
        up = subprocess.run(
            [TESTBED, "start", directory], capture_output=True, text=True, timeout=280, check=False
        )
        if up.returncode == 4:
            pytest.skip(f"no Slurm here: {up.stderr.strip().splitlines()[-1]}")
        assert up.returncode == 0, up.stderr
        shown = subprocess.run(
            ["bash", "-c", '. "$1" && env -0', "bash", up.stdout.strip()],
            env=_clean_environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        yield directory, dict(line.split("=", 1) for line in shown.stdout.split("\0") if line)
    finally:
        if is_ours:
            subprocess.run([TESTBED, "stop", directory], check=False, timeout=120)
            shutil.rmtree(directory, ignore_errors=True)
        if in_use is not None:
            in_use.close()


def _lock(directory: Path) -> IO[str] | None:
    """Hold the directory as long as the file stays open; None while another process does."""
    file = (directory / "in-use").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _remove_leftovers() -> None:
    """Take down the testbeds of earlier tests that were killed before they could."""
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not (old / "in-use").is_file() or not os.access(old, os.W_OK):
            continue
        in_use = _lock(old)
        if in_use is not None:
            with in_use:
                subprocess.run([TESTBED, "stop", old], check=False, timeout=120)
                shutil.rmtree(old, ignore_errors=True)


def _clean_environment() -> dict[str, str]:
    """This environment without what launchers or an enclosing Slurm left in it."""
    prefixes = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPIR_", "HYDRA_", "SLURM_", "MPI4PY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def cluster(testbed, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The testbed, with a working directory that holds the jobs and their data."""
    directory, environ = testbed
    work = tmp_path_factory.mktemp("work")
    rng = np.random.default_rng(7)
    X = rng.normal(size=(400, 6))
    y = (X @ rng.normal(size=6) + rng.normal(size=400) > 0).astype(float)
    np.save(work / "rows.npy", np.column_stack([X, y]))
    for name, epochs in PASSES.items():
        (work / name).write_text(JOBS.format(models=MODELS, epochs=epochs))
    environ = {**environ, "XDG_CACHE_HOME": str(work / "cache")}
    return Cluster(directory, environ, work)


@pytest.fixture(autouse=True)
def no_jobs_left(cluster: Cluster) -> Iterator[None]:
    """A test that fails leaves nothing running for the next."""
    yield
    cluster.hurry()
    if cluster.call("squeue", "--noheader").stdout.strip():
        cluster.cancel_all()


@pytest.fixture(scope="session")
def undisturbed(cluster: Cluster) -> Callable[[str], dict[str, tuple[str, str]]]:
    """`undisturbed(jobs)`: the digests of the run when nothing happens to it, without Slurm."""

    @functools.cache
    def digests(jobs: str = "jobs.toml") -> dict[str, tuple[str, str]]:
        mpi = next(iter(installed().values()), None)
        if mpi is None:
            pytest.skip("no MPI here (scripts/test.sh sets one up)")
        out = cluster.work / "undisturbed" / jobs
        done = subprocess.run(
            [mpi.python, "-m", "hpcslaq", "run", jobs, "--ranks", "3", "--out", out, "--quiet"],
            env={name: v for name, v in cluster.environ.items() if "SLURM" not in name},
            cwd=cluster.work,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = Job(cluster, "0", out).digests()
        assert set(found) == {"steady", "second", "newton"}
        return found

    return digests
