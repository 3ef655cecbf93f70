"""Parameter servers on real ranks: the bits of all-reduce through regroups, pauses and stops."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec, Sync
from hpcslaq.data.cache import prepare
from hpcslaq.data.source import DataSource
from hpcslaq.mpi.launch import Mpi, mpi_command, mpi_environment
from hpcslaq.record.journal import read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

pytestmark = pytest.mark.launch

PROGRAMS = Path(__file__).parent / "programs"
STEPS = f"{PROGRAMS / 'sliced_models.py'}:Steps"


@pytest.fixture(scope="module")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small prepared data set: 600 rows, 9 features, 2 classes."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(7)
    X = rng.normal(size=(600, 9))
    y = (X @ rng.normal(size=9) + rng.normal(size=600) > 0).astype(float)
    np.save(folder / "rows.npy", np.column_stack([X, y]))
    source = DataSource(str(folder / "rows.npy"), {"label": 9, "task": "classification"})
    return str(prepare(source, folder / "cache"))


@dataclass
class Done:
    """A finished attempt."""

    code: int
    output: str
    run: RunDirectory

    def items(self, kind: type) -> list[Any]:
        return [e.item for e in read_journal(self.run.journal) if type(e.item) is kind]

    def digests(self) -> dict[str, tuple[str, str]]:
        return {f.job: (f.loss_digest, f.model_digest) for f in self.items(ev.JobFinished)}

    def groups(self, job: str) -> list[int]:
        """Sizes of the groups that the job had."""
        return [len(f.members) for f in self.items(ev.GroupFormed) if f.job == job]


@pytest.fixture
def live(tmp_path: Path, data_path: str, launch: Callable[..., Any]) -> Callable[..., Done]:
    """`live(mpi, ranks, jobs, name=...)`: run these jobs to the end, go on if they have begun."""

    def run(mpi: Mpi, ranks: int, jobs: list[JobSpec], *, name: str = "run", **plan: Any) -> Done:
        path = tmp_path / name
        if RunDirectory.is_run(path):
            directory = RunDirectory.open_existing(path)
        else:
            directory = RunDirectory.create(path)
            given = {"policy": "fair", "round_s": 0.05, **plan}
            RunPlan(jobs=tuple(jobs), data_paths={"rows": data_path}, **given).write(directory)
        done = launch(mpi, ranks, ["-m", "hpcslaq.mpi", str(path)], timeout_s=90.0)
        return Done(done.returncode, done.stdout + done.stderr, directory)

    return run


def job(name: str, model: str = "logistic", **changes: Any) -> JobSpec:
    options = {"solver": "adam", "batch_size": 64, "l2": 1e-3}
    return replace(JobSpec(name, model, "rows", 8, 40, options=options), **changes)


def serving(spec: JobSpec, name: str, **sync: Any) -> JobSpec:
    return replace(spec, name=name, sync=Sync.PS, **sync)


def test_servers_give_the_bits_of_all_reduce_through_regroups(mpi, live):
    plain = [job("logistic"), job("mlp", "mlp")]
    jobs = [
        *plain,
        serving(plain[0], "logistic-2", num_servers=2),
        serving(plain[1], "mlp-ratio", workers_per_server=1.5, arrival_s=0.3),
        serving(plain[1], "mlp-1", num_servers=1, arrival_s=0.6),
    ]
    done = live(mpi, 7, jobs, checkpoint_every_s=0.0)
    assert done.code == 0, done.output
    digests = done.digests()
    assert digests["logistic-2"] == digests["logistic"]
    assert digests["mlp-ratio"] == digests["mlp-1"] == digests["mlp"]
    assert done.items(cmd.Regroup)
    written = {w.job for w in done.items(ev.CheckpointWritten)}
    assert {"logistic-2", "mlp-ratio", "mlp-1"} <= written


def test_a_job_with_servers_is_paused_and_goes_on_with_the_same_bits(any_mpi, live):
    base = job("a", "mlp", max_epochs=60)
    jobs = [serving(base, name, num_servers=2) for name in ("a", "b", "c")]
    taking_turns = {"policy_options": {"patience_rounds": 2.0}}
    done = live(any_mpi, 5, jobs, name="turns", **taking_turns)  # one job fits at a time
    assert done.code == 0, done.output
    assert done.items(ev.JobPaused)
    alone = live(any_mpi, 3, [base], name="alone")
    assert set(done.digests().values()) == set(alone.digests().values())


def test_a_stopped_run_with_servers_goes_on_with_other_numbers_of_both(any_mpi, live, tmp_path):
    spec = JobSpec("a", STEPS, "rows", 8, 300, options={"sleep_s": 0.01})
    jobs = [serving(spec, "fixed", num_servers=2), serving(spec, "ratio", workers_per_server=1.0)]
    alone = live(any_mpi, 3, [replace(spec, options={})], name="alone")
    assert alone.code == 0, alone.output
    path = tmp_path / "stopped"
    directory = RunDirectory.create(path)
    plan = replace(RunPlan.read(alone.run), jobs=tuple(jobs), checkpoint_every_s=0.0)
    plan.write(directory)
    ranks = 8
    process = subprocess.Popen(
        mpi_command(any_mpi, ranks, ["-m", "hpcslaq.mpi", str(path)]),
        env=mpi_environment(any_mpi, os.environ, ranks, os.cpu_count() or 1),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while len(list(directory.checkpoints.glob("*/*.h5"))) < 2:
        assert time.monotonic() < until and process.poll() is None, "no checkpoint in time"
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=60)
    result = directory.read_result()
    assert result is not None and result["exit_code"] == 75, out
    done = live(any_mpi, 6, jobs, name="stopped")
    assert done.code == 0, done.output
    assert set(done.digests().values()) == set(alone.digests().values())


@pytest.mark.parametrize("role", ["worker", "server"])
def test_only_the_job_whose_worker_or_server_fails_ends(mpi, live, role):
    options = {"fail_at_epoch": 5, "fails": role, "sleep_s": 0.001}
    bad = serving(JobSpec("bad", STEPS, "rows", 8, 100, options=options), "bad", num_servers=2)
    good = serving(job("good", max_epochs=20), "good", num_servers=1)
    done = live(mpi, 7, [bad, good])
    assert done.code == 1, done.output
    (failed,) = done.items(ev.JobFailed)
    assert failed.job == "bad" and f"the {role} has a bug" in failed.message
    assert "sliced_models.py" in failed.details
    assert set(done.digests()) == {"good"}


@pytest.mark.parametrize("staleness", [2, math.inf])
def test_stale_jobs_are_regrouped_and_end_with_a_model(mpi, live, staleness):
    base = job("a", "mlp", max_epochs=30)
    jobs = [
        serving(base, "fixed", num_servers=2, staleness=staleness),
        serving(base, "ratio", workers_per_server=1.5, staleness=staleness, arrival_s=0.3),
        replace(job("plain", max_epochs=30), arrival_s=0.5),
    ]
    done = live(mpi, 7, jobs, checkpoint_every_s=0.0)
    assert done.code == 0, done.output
    assert done.items(cmd.Regroup)
    finished = {f.job: f for f in done.items(ev.JobFinished)}
    assert set(finished) == {"fixed", "ratio", "plain"}
    for name in ("fixed", "ratio"):
        assert finished[name].epochs == 30
        first = next(r.losses[0] for r in done.items(ev.ProgressReported) if r.job == name)
        assert finished[name].final_loss < first
        # Losses are told in order, each once, whatever became of the group.
        told = [r for r in done.items(ev.ProgressReported) if r.job == name]
        assert sum(len(r.losses) for r in told) == finished[name].iterations


@pytest.mark.parametrize("role", ["worker", "server"])
def test_only_the_stale_job_whose_worker_or_server_fails_ends(any_mpi, live, role):
    options = {"fail_at_epoch": 5, "fails": role}
    bad = JobSpec("bad", STEPS, "rows", 8, 100, options=options)
    jobs = [
        serving(bad, "bad", num_servers=2, staleness=math.inf),
        serving(job("good", max_epochs=20), "good", num_servers=1, staleness=1),
    ]
    done = live(any_mpi, 7, jobs)
    assert done.code == 1, done.output
    (failed,) = done.items(ev.JobFailed)
    assert failed.job == "bad" and f"the {role} has a bug" in failed.message
    assert {f.job for f in done.items(ev.JobFinished)} == {"good"}
