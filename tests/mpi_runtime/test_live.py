"""Whole runs on real ranks: jobs train, are regrouped, fail, stop and resume."""

from __future__ import annotations

import json
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
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.cache import prepare
from hpcslaq.data.source import DataSource
from hpcslaq.models import load_model
from hpcslaq.mpi.launch import Mpi, mpi_command, mpi_environment
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.codec import Kind
from hpcslaq.record.journal import JournalWriter, read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.summary import RunSummary

pytestmark = pytest.mark.launch

PROGRAMS = Path(__file__).parent / "programs"
MEAN = f"{PROGRAMS / 'user_models.py'}:Mean"


@pytest.fixture(scope="module")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small prepared data set: 400 rows, 6 features, 2 classes."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(7)
    X = rng.normal(size=(400, 6))
    y = (X @ rng.normal(size=6) + rng.normal(size=400) > 0).astype(float)
    np.save(folder / "rows.npy", np.column_stack([X, y]))
    source = DataSource(str(folder / "rows.npy"), {"label": 6, "task": "classification"})
    return str(prepare(source, folder / "cache"))


@dataclass
class Live:
    """A finished attempt: exit code and journal."""

    code: int
    output: str
    run: RunDirectory

    def items(self, kind: type) -> list[tuple[float, Any]]:
        return [(e.now, e.item) for e in read_journal(self.run.journal) if type(e.item) is kind]

    def digests(self) -> dict[str, tuple[str, str]]:
        return {f.job: (f.loss_digest, f.model_digest) for _, f in self.items(ev.JobFinished)}

    def result(self) -> dict[str, Any]:
        result = self.run.read_result()
        assert result is not None, self.output
        return result


@pytest.fixture
def live(tmp_path: Path, data_path: str, launch: Callable[..., Any]) -> Callable[..., Live]:
    """`live(mpi, ranks, jobs, policy=..., name=...)`: run these jobs to the end."""

    def run(
        mpi: Mpi,
        ranks: int,
        jobs: list[JobSpec],
        *,
        policy: str = "fair",
        name: str = "run",
        program: tuple[str, ...] = ("-m", "hpcslaq.mpi"),
        round_s: float = 0.2,
        timeout_s: float = 90.0,
        **settings: Any,
    ) -> Live:
        path = tmp_path / name
        if RunDirectory.is_run(path):
            directory = RunDirectory.open_existing(path)
        else:
            directory = RunDirectory.create(path)
            plan = RunPlan(policy, tuple(jobs), {"rows": data_path}, round_s=round_s, **settings)
            plan.write(directory)
        done = launch(mpi, ranks, [*program, str(path)], timeout_s=timeout_s)
        return Live(done.returncode, done.stdout + done.stderr, directory)

    return run


def job(name: str, **changes: Any) -> JobSpec:
    spec = JobSpec(name, "logistic", "rows", 8, 60, options={"l2": 1e-3, "solver": "gd"})
    return replace(spec, **changes)


def mean(name: str, **options: Any) -> JobSpec:
    return JobSpec(name, MEAN, "rows", 8, 20, options=options)


MIX = [
    job("gd", max_epochs=150),
    job("newton", options={"l2": 1e-2, "solver": "lbfgs"}, arrival_s=0.05),
    mean("mean", rate=0.3, sleep_s=0.01),
    replace(mean("late", rate=0.2, sleep_s=0.02), arrival_s=0.25),
]


@pytest.mark.long
def test_results_are_the_same_bits_on_any_allocation(mpi, live):
    reference = live(mpi, 2, MIX, name="reference")
    assert reference.code == 0, reference.output
    assert set(reference.digests()) == {"gd", "newton", "mean", "late"}
    regroups = set()
    for ranks, policy in ((3, "fifo"), (5, "slaq"), (9, "fair")):
        other = live(mpi, ranks, MIX, policy=policy, name=f"{policy}-{ranks}")
        assert other.code == 0, other.output
        assert other.digests() == reference.digests()
        regroups.add(len(other.items(cmd.Regroup)))
    assert max(regroups) > 0


def test_the_summary_and_a_replay_tell_the_same_story(any_mpi, live):
    done = live(any_mpi, 4, MIX)
    assert done.code == 0, done.output
    coordinator, summary = Coordinator(make_policy("fair"), 0.2), RunSummary("fair")
    last = 0.0
    for entry in read_journal(done.run.journal):
        last = entry.now
        summary.fold(entry.kind, entry.now, entry.item)
        if entry.kind is Kind.EVENT:
            coordinator.handle(entry.item, entry.now)
    for name, record in coordinator.jobs.items():
        told = summary.jobs[name]
        assert (told.state, told.regroups) == (record.state, record.regroups)
        assert told.iterations == record.iterations
        assert told.rank_seconds(last) == pytest.approx(record.attained_rank_seconds(last))


def test_a_model_is_loaded_without_mpi_and_predicts(any_mpi, live, data_path):
    done = live(any_mpi, 3, [job("a", max_epochs=200)])
    assert done.code == 0, done.output
    fitted = load_model(done.run.model_file("a"))
    X = np.random.default_rng(1).normal(size=(50, 6))
    assert set(fitted.predict(X)) == {0.0, 1.0}
    assert fitted.info.digests["model_digest"] == done.digests()["a"][1]
    with pytest.raises(ValueError, match=r"expected \(n, 6\)"):
        fitted.predict(X[:, :5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fail_at_epoch": 3}, "the user's code has a bug"),
        ({"nan_at_epoch": 3}, "loss is nan"),
        ({"fail_at_epoch": 3, "bad_chunk": 7}, "chunk 7: RuntimeError: the user's code has a bug"),
        ({"exit_at_epoch": 3}, "sys.exit(3) was called"),
        ({"shape_at_epoch": 3}, "has shape (6,), another chunk's (1,)"),
        ({"type_at_epoch": 3}, "'mean' was float64, the update made it float32"),
        ({"noise_at_epoch": 3}, "self-check: statistics 'square' of chunk"),
        ({"bad_evaluation": True}, "evaluate: ZeroDivisionError: no rows of this kind"),
    ],
)
def test_only_the_job_with_bad_user_code_fails(mpi, live, options, message):
    jobs = [mean("bad", **options), mean("good", sleep_s=0.02)]
    done = live(mpi, 4, jobs, self_checks=("bad", "good"))
    assert done.code == 1, done.output
    ((_, failed),) = done.items(ev.JobFailed)
    assert failed.job == "bad"
    assert message in failed.message
    if options.keys() & {"fail_at_epoch", "exit_at_epoch", "bad_evaluation"}:
        assert "user_models.py" in failed.details
    assert set(done.digests()) == {"good"}


def test_what_a_model_prints_is_in_its_log_with_the_rank(any_mpi, live):
    done = live(any_mpi, 3, [mean("loud", is_loud=True), mean("quiet")])
    assert done.code == 0, done.output
    lines = done.run.job_log("loud").read_text().splitlines()
    # 20 epochs of 8 chunks, and the first pass is made again for its grid.
    assert len(lines) == 21 * 8
    assert all(line.startswith(("rank 1: epoch", "rank 2: epoch")) for line in lines)
    assert "epoch" not in done.output
    assert not done.run.job_log("quiet").exists()


def test_a_job_whose_model_does_not_load_fails_and_frees_its_ranks(any_mpi, live):
    lost = replace(mean("lost"), model=f"{PROGRAMS / 'nowhere.py'}:Mean")
    done = live(any_mpi, 3, [lost, mean("good")])
    assert done.code == 1, done.output
    assert [failed.job for _, failed in done.items(ev.JobFailed)] == ["lost"]
    assert set(done.digests()) == {"good"}


def test_a_regroup_does_not_wait_for_a_job_in_a_long_step(mpi, live):
    jobs = [
        replace(mean("slow", sleep_s=1.0), max_epochs=4, max_workers=1),
        job("steady", max_epochs=100_000, tolerance=None, options={"l2": 1e-3, "solver": "gd"}),
        replace(mean("brief", sleep_s=0.002), max_epochs=100, arrival_s=1.2),
        replace(mean("brief2", sleep_s=0.002), max_epochs=100, arrival_s=2.3),
    ]
    jobs[1] = replace(mean("steady", sleep_s=0.001), max_epochs=1500)
    done = live(mpi, 4, jobs, timeout_s=120)
    assert done.code == 0, done.output
    ordered = {o.generation: now for now, o in done.items(cmd.Regroup) if o.job != "slow"}
    formed = {f.generation: now for now, f in done.items(ev.GroupFormed)}
    delays = [formed[g] - now for g, now in ordered.items() if g in formed]
    assert delays, "no regroup took place"
    # A world-wide collective would wait for the end of the slow job's step, up to 1 s.
    assert sorted(delays)[len(delays) // 2] < 0.25


@pytest.mark.long
@pytest.mark.timeout(900)
def test_three_thousand_regroups_leave_no_communicator_alive(any_mpi, live):
    # MPICH has room for about two thousand communicators: a leak ends this run.
    jobs = [replace(mean(name, rate=1e-6), max_epochs=10**9, max_workers=2) for name in ("a", "b")]
    churn = (str(PROGRAMS / "churn.py"), "3000")
    done = live(any_mpi, 4, jobs, program=churn, round_s=0.002, timeout_s=800)
    assert done.code == 75, done.output
    result = done.result()
    assert len(done.items(cmd.Regroup)) >= 3000
    assert result["communicators_peak"] <= len(jobs) + 2
    assert result["communicators_alive"] == 0


def test_a_signal_stops_early_and_a_second_start_continues_with_the_same_bits(mpi, live, tmp_path):
    jobs = [replace(mean(n, rate=0.01, sleep_s=0.01), max_epochs=150) for n in ("a", "b")]
    jobs.append(replace(mean("c", rate=0.3), arrival_s=1.5))
    undisturbed = live(mpi, 3, jobs, name="undisturbed")
    assert undisturbed.code == 0, undisturbed.output

    path = tmp_path / "stopped"
    directory = RunDirectory.create(path)
    plan = RunPlan.read(undisturbed.run)
    plan.write(directory)
    from_outside = _start(mpi, 3, path)
    _wait_until(lambda: path.joinpath("journal.jsonl").exists() and _has_progress(directory))
    from_outside.send_signal(signal.SIGUSR1)
    out, _ = from_outside.communicate(timeout=60)
    result = directory.read_result()
    assert result is not None, out
    assert result["exit_code"] == 75
    assert list(directory.checkpoints.glob("*/*.h5"))

    resumed = live(mpi, 4, jobs, name="stopped")
    assert resumed.code == 0, resumed.output
    assert resumed.digests() == undisturbed.digests()


def _has_progress(directory: RunDirectory) -> bool:
    text = directory.journal.read_text()
    return text.count("ProgressReported") >= 4


def _wait_until(is_true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def _start(mpi: Mpi, ranks: int, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        mpi_command(mpi, ranks, ["-m", "hpcslaq.mpi", str(path)]),
        env=mpi_environment(mpi, os.environ, ranks, os.cpu_count() or 1),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_world_of_one_is_refused_with_exit_code_4(mpi, launch, tmp_path):
    done = launch(mpi, 1, ["-m", "hpcslaq.mpi", str(tmp_path)])
    assert done.returncode == 4, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("1 rank is not enough") == 1
    assert "Traceback" not in done.stderr


def test_singletons_of_a_foreign_launcher_are_refused(mpi, tmp_path):
    done = subprocess.run(
        [mpi.python, "-m", "hpcslaq.mpi", str(tmp_path)],
        env={**os.environ, "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "started 4 ranks, but MPI sees a world of 1" in done.stderr


def test_a_run_that_has_ended_reports_its_tick_times(any_mpi, live):
    result = live(any_mpi, 3, [mean("a")]).result()
    assert 0 < result["tick_p50_s"] <= result["tick_p99_s"]
    json.dumps(result)


def test_a_second_start_in_the_directory_of_a_live_run_is_refused(mpi, live, launch, tmp_path):
    done = live(mpi, 3, [job("a")])
    assert done.code == 0, done.output
    with JournalWriter(done.run.journal):
        second = launch(mpi, 3, ["-m", "hpcslaq.mpi", str(done.run.path)])
    assert second.returncode == 1, second.stdout + second.stderr
    assert (second.stdout + second.stderr).count("another run is writing it") == 1
    # What the other run has written stays.
    assert done.result()["exit_code"] == 0


def test_an_error_of_rank_0_ends_all_ranks(mpi, live):
    done = live(mpi, 3, [job("a")], program=(str(PROGRAMS / "broken_rank0.py"),))
    assert done.code != 0
    assert "a bug of ours" in done.output
    assert done.run.read_result() is None
