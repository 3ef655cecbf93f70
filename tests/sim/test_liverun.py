"""Runs with a journal: replayed, simulated again, and under other policies.

The runs are made by the simulator, so what a simulation of them should give is known.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcslaq.cli.main import cli
from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.journal import JournalWriter
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.sim.fidelity import live_outcome, measure_fidelity, what_if
from hpcslaq.sim.liverun import LiveRun, UnfitRunError
from hpcslaq.sim.replay import replay_run
from hpcslaq.sim.scaling import Delays
from hpcslaq.sim.simulator import Simulator
from tests.sim.pretend import job_of

DELAYS = Delays(message_s=0.0, form_s=0.25, form_per_member_s=0.0, load_s=0.5, checkpoint_s=0.0)


def jobs_of(num: int = 6):
    return [
        dataclasses.replace(
            job_of(f"j{i}", num_iterations=20 + 5 * i, chunks=8, chunk_s=0.05, arrival_s=2.0 * i),
            finish_s=0.5,
        )
        for i in range(num)
    ]


def write_run(path: Path, policy: str = "slaq", jobs=None, entries=None, **more) -> RunDirectory:
    """A run directory whose journal a simulation wrote."""
    jobs = jobs or jobs_of()
    run = RunDirectory.create(path)
    specs = tuple(job.spec for job in jobs)
    RunPlan(policy, specs, {"d": "/data/d"}, round_s=1.0, job_file="j.toml").write(run)
    if entries is None:
        result = Simulator(make_policy(policy), jobs, 4, 1.0, delays=DELAYS, **more).run()
        entries = result.journal
    with JournalWriter(run.journal) as journal:
        for now, event, orders in entries:
            journal.append(now, event, *orders)
    return run


@pytest.mark.parametrize("policy", ["fair", "slaq", "quality", "srtf"])
def test_a_journal_replays_to_identical_commands(tmp_path: Path, policy: str) -> None:
    happenings = [(3.0, ev.RankLost(2)), (5.0, ev.WeightChanged("j1", 3.0))]
    run = write_run(tmp_path / "run", policy, happenings=happenings)
    replay = replay_run(run)
    assert replay.is_identical
    assert replay.num_commands > 10
    assert replay.num_refused == 0


def test_a_changed_command_is_found(tmp_path: Path) -> None:
    result = Simulator(make_policy("slaq"), jobs_of(), 4, 1.0, delays=DELAYS).run()
    entries = list(result.journal)
    place = next(i for i, (_, _, orders) in enumerate(entries) if len(orders) > 1)
    now, event, orders = entries[place]
    entries[place] = (now, event, orders[1:])
    replay = replay_run(write_run(tmp_path / "run", entries=entries))
    assert not replay.is_identical
    assert replay.differences[0].event_number == place + 1
    assert replay.differences[0].event == type(event).__name__


def test_commands_lost_at_the_very_end_are_no_difference(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    text = run.journal.read_bytes()
    whole = text.splitlines(keepends=True)
    last = max(i for i, line in enumerate(whole) if b'"command"' in line and b"Start" in line)
    run.journal.write_bytes(b"".join(whole[:last]))
    assert replay_run(run).is_identical


@pytest.mark.parametrize("policy", ["fair", "slaq", "quality"])
def test_the_simulation_of_a_simulated_run_agrees_with_it(tmp_path: Path, policy: str) -> None:
    live = LiveRun.read(write_run(tmp_path / "run", policy))
    assert live.delays.form_s == pytest.approx(0.25)
    assert live.jobs[0].finish_s == pytest.approx(0.5)
    assert live.jobs[0].load_s == pytest.approx(0.5)
    fidelity = measure_fidelity(live)
    assert len(fidelity.jobs) == 6
    figures = fidelity.figures()
    assert figures["max_abs_jct_error"] < 0.1
    assert abs(figures["mean_jct_error"]) < 0.03
    assert abs(figures["makespan_error"]) < 0.03


def test_recorded_decisions_give_nearly_the_same_run(tmp_path: Path) -> None:
    # They are repeated at the simulation's own events, up to a round (1 s of about 12) later.
    live = LiveRun.read(write_run(tmp_path / "run", "slaq"))
    figures = measure_fidelity(live, is_recorded=True).figures()
    assert abs(figures["mean_jct_error"]) < 0.2


def test_noise_of_the_run_does_not_bias_the_fit(tmp_path: Path) -> None:
    live = LiveRun.read(write_run(tmp_path / "run", "fair", noise=0.3, seed=4))
    assert abs(measure_fidelity(live).figures()["mean_jct_error"]) < 0.1


def test_failed_cancelled_and_silent_jobs_are_told_apart(tmp_path: Path) -> None:
    jobs = jobs_of(4)
    jobs[1] = dataclasses.replace(jobs[1], fails_at=7)
    jobs[3] = dataclasses.replace(jobs[3], fails_at=1)
    happenings = [(5.5, ev.JobCancelled("j2"))]
    live = LiveRun.read(write_run(tmp_path / "run", "fair", jobs, happenings=happenings))
    assert live.left_out == {"j3": "gave no loss"}
    assert set(live.ended_at) == {"j0"}
    result = live.simulate(live.policy())
    states = {name: record.state.value for name, record in result.records.items()}
    assert states == {"j0": "done", "j1": "failed", "j2": "cancelled"}
    assert result.records["j1"].iterations == 6


def test_a_run_that_cannot_be_simulated_is_refused(tmp_path: Path) -> None:
    result = Simulator(make_policy("fair"), jobs_of(), 4, 1.0).run()
    entries = list(result.journal)
    with pytest.raises(UnfitRunError, match="has not ended yet"):
        LiveRun.read(write_run(tmp_path / "a", "fair", entries=entries[:-1]))
    with pytest.raises(UnfitRunError, match="was started 2 times"):
        LiveRun.read(write_run(tmp_path / "b", "fair", entries=[entries[0], *entries]))
    start, shutdown = entries[0], [cmd.Shutdown(0)]
    ended = [start, (1.0, ev.ArrivalsClosed(), shutdown)]
    with pytest.raises(UnfitRunError, match="no job of it gave a loss"):
        LiveRun.read(write_run(tmp_path / "c", "fair", entries=ended))


def test_more_workers_shorten_the_run(tmp_path: Path) -> None:
    live = LiveRun.read(write_run(tmp_path / "run", "fair"))
    own, wide = what_if(live, live.policy()), what_if(live, live.policy(), 16)
    assert own.mean_jct_s == pytest.approx(live_outcome(live).mean_jct_s, rel=0.03)
    assert wide.workers == 16
    assert wide.mean_jct_s < 0.9 * own.mean_jct_s
    assert wide.utility == own.utility == 6.0


# -- commands ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_path(tmp_path_factory) -> str:
    return str(write_run(tmp_path_factory.mktemp("runs") / "run", "slaq").path)


def invoke(*args: str):
    return CliRunner().invoke(cli, list(args))


def test_the_replay_command_says_identical(run_path: str) -> None:
    result = invoke("replay", run_path)
    assert result.exit_code == 0
    assert "identical" in result.output
    assert '"is_identical": true' in invoke("replay", run_path, "--json").output


def test_the_fidelity_command_prints_the_error_of_each_job(run_path: str) -> None:
    result = invoke("fidelity", run_path)
    assert result.exit_code == 0
    assert all(f"j{i} " in result.output for i in range(6))
    assert '"mean_abs_jct_error"' in invoke("fidelity", run_path, "--json").output
    assert invoke("fidelity", run_path, "--decisions", "recorded").exit_code == 0


def test_the_whatif_command_puts_the_own_error_beside(run_path: str) -> None:
    result = invoke("whatif", run_path, "--policy", "fair,slaq", "--workers", "8")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()[1:5]] == [
        "slaq",
        "slaq",
        "fair",
        "slaq",
    ]
    assert "own error on this run" in result.output
    assert invoke("whatif", run_path, "--policy", "best").exit_code == 2
    assert invoke("whatif", run_path + "x").exit_code == 3
