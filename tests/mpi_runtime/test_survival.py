"""Ranks die at every place of a worker's life, and nothing is lost (Open MPI with ULFM)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
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
MEAN = f"{PROGRAMS / 'user_models.py'}:Mean"
#: How often each death is tried by the long test; 20 and more by hand, see docs/faults.md.
REPEATS = int(os.environ.get("HPCSLAQ_TEST_REPEATS", "1"))


def mean(name: str, epochs: int = 60, **changes: Any) -> JobSpec:
    options = {"rate": 0.1, "sleep_s": 0.004}
    return replace(JobSpec(name, MEAN, "rows", 8, epochs, options=options), **changes)


#: The second job takes ranks from the first, which gets them back when the third has ended.
JOBS = [mean("a", 80), mean("b", 60, arrival_s=0.2), mean("c", 10, arrival_s=0.5)]

#: What happens -> [rank, place, count of visits]: see programs/mortal.py.
DEATHS: dict[str, list[list[object]]] = {
    "a member in a pass": [[2, "pass", 5]],
    "the leader in a pass": [[1, "pass", 7]],
    "a member in the sum": [[2, "sum", 6]],
    "the leader after the sum": [[1, "+sum", 9]],
    "several at once": [[2, "pass", 6], [3, "pass", 6], [4, "pass", 6]],
    "all but one, leader included": [[1, "pass", 6], [2, "pass", 6], [4, "pass", 6]],
    "one after the other": [[1, "pass", 4], [2, "pass", 9], [3, "pass", 14]],
    "a member that loads": [[3, "load", 1]],
    "the leader that loads": [[1, "load", 1]],
    "the leader that collects its members": [[1, "collect", 1]],
    "the leader before it calls its members": [[1, "call", 1]],
    "the leader after it called its members": [[1, "+call", 1]],
    "a member that is ready": [[4, "ready", 1]],
    "a member when the group is formed": [[4, "+form", 1]],
    "a member in the broadcast of the state": [[3, "share", 1]],
    "the leader before the broadcast": [[1, "share", 1]],
    "the leader after the broadcast": [[1, "+share", 1]],
    "after a death a leader that has told one member": [[4, "pass", 3], [1, "+enter", 4]],
    "the leader that shares an order": [[1, "order", 1]],
    "the leader that has shared an order": [[1, "+order", 1]],
    "a member that is told an order": [[2, "order", 1]],
    "the leader of a regroup before it calls": [[1, "call", 2]],
    "a member that waits in a regroup": [[2, "ready", 2]],
    "a joiner of another job's new group": [[3, "ready", 2]],
    "a member when all agree": [[2, "agree", 1]],
    "the leader when all agree": [[1, "agree", 1]],
    "a member in the repair": [[2, "pass", 6], [3, "repair", 1]],
    "the new leader in the repair": [[1, "pass", 6], [2, "+repair", 1]],
    "a member in the last exchange": [[2, "confirm", 1]],
    "the leader in the last exchange": [[1, "confirm", 1]],
    "the leader that writes a checkpoint": [[1, "save", 1]],
    "a member that leaves": [[4, "leave", 1]],
    "the leader that closes its job": [[1, "close", 1]],
    "at some time": [[3, "idle", 9]],
}

#: Inside the creation of a communicator nobody can be woken: the others give up after a time.
INSIDE = {
    "a member inside the creation": [[2, "create", 1]],
    "the leader that has told one member": [[1, "+enter", 1]],
}

#: Tried in every launch of the tests; all of `DEATHS` by the long test.
OFTEN = [
    "a member in a pass",
    "the leader after the sum",
    "all but one, leader included",
    "one after the other",
    "after a death a leader that has told one member",
    "a member that waits in a regroup",
    "the leader that writes a checkpoint",
]

Survive = Callable[..., Any]


@pytest.fixture(scope="module")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "rows.npy", np.random.default_rng(7).normal(size=(80, 4)))
    source = DataSource(str(folder / "rows.npy"), {"label": 3, "task": "regression"})
    return str(prepare(source, folder / "cache"))


@pytest.fixture
def ulfm(mpi: Mpi) -> Mpi:
    if not mpi.is_fault_tolerant:
        pytest.skip(f"{mpi.family} cannot go on when a rank dies")
    return mpi


class Run:
    """A run that has ended, and its journal."""

    def __init__(self, code: int, output: str, directory: RunDirectory) -> None:
        self.output, self.directory = output, directory
        self.items = [(e.now, e.item) for e in read_journal(directory.journal)]
        result = directory.read_result()
        assert result is not None, output
        self.result = result
        assert code == result["exit_code"], output

    def of(self, kind: type) -> list[Any]:
        return [item for _, item in self.items if type(item) is kind]

    def digests(self) -> dict[str, tuple[str, str]]:
        return {f.job: (f.loss_digest, f.model_digest) for f in self.of(ev.JobFinished)}

    def uses_of_the_lost(self) -> list[object]:
        """Orders that give work to a rank after its loss."""
        lost: set[int] = set()
        wrong = []
        for _, item in self.items:
            if isinstance(item, ev.RankLost):
                lost.add(item.rank)
            elif isinstance(item, cmd.Start | cmd.Regroup) and lost & set(item.members):
                wrong.append(item)
        return wrong


@pytest.fixture
def survive(tmp_path: Path, data_path: str, launch_line: Callable[..., Any]) -> Survive:
    """`survive(mpi, deaths, jobs)`: the run of these jobs on 4 workers that die so."""

    def run(
        mpi: Mpi,
        deaths: list[list[object]],
        jobs: list[JobSpec] = JOBS,
        name: str = "run",
        **settings: Any,
    ) -> Run:
        directory = RunDirectory.create(tmp_path / name)
        plan = RunPlan("fair", tuple(jobs), {"rows": data_path}, round_s=0.2)
        replace(plan, checkpoint_every_s=0.1, **settings).write(directory)
        program = [str(PROGRAMS / "mortal.py"), json.dumps(deaths), str(directory.path)]
        line = mpi_command(mpi, 5, program, survives=True)
        environ = mpi_environment(mpi, {}, 5, 2)
        done = launch_line(line, environ, timeout_s=40.0)
        return Run(done.returncode, done.stdout + done.stderr, directory)

    return run


@pytest.fixture(scope="module")
def expected(data_path: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Digests of the jobs without a fault, on one worker, without MPI."""
    from hpcslaq.data.store import open_dataset
    from hpcslaq.train.catalogue import build_model
    from hpcslaq.train.reducer import Solo
    from hpcslaq.train.state import initial_state
    from hpcslaq.train.trainer import Trainer

    found = {}
    for spec in (*JOBS, SOLO, replace(SERVED, sync=Sync.ALLREDUCE, num_servers=0)):
        data = open_dataset(Path(data_path))
        options = {**spec.options, "sleep_s": 0.0} if spec.model == MEAN else spec.options
        model = build_model(spec.model, options)
        trainer = Trainer(spec, model, data, initial_state(spec, model, data), Solo())
        while not trainer.step().is_final:
            pass
        state = trainer.state
        found[spec.name] = (state.loss_digest(), state.model_digest(model))
    return found


SOLO = mean("solo", 150, max_workers=1)
#: One server; statistics as exact as those of all-reduce.
SERVED = JobSpec(
    "served",
    "mlp_regressor",
    "rows",
    8,
    60,
    options={"solver": "adam", "batch_size": 8},
    sync=Sync.PS,
    num_servers=1,
)


def check(run: Run, deaths: list[list[object]], expected: dict[str, Any]) -> None:
    assert run.result["exit_code"] == 0, run.output
    assert run.digests() == {job: expected[job] for job in run.digests()}
    assert {job.spec.name for job in run.of(ev.JobSubmitted)} == set(run.digests())
    assert run.uses_of_the_lost() == []
    assert run.result["communicators_alive"] == 0
    ended = {rank for rank, *_ in deaths}
    assert {lost.rank for lost in run.of(ev.RankLost)} <= ended


@pytest.mark.parametrize("what", OFTEN)
def test_the_survivors_end_all_jobs_with_the_same_bits(ulfm, survive, expected, what):
    run = survive(ulfm, DEATHS[what])
    check(run, DEATHS[what], expected)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", DEATHS)
def test_wherever_ranks_die_nothing_is_lost(ulfm, survive, expected, what):
    for number in range(REPEATS):
        check(survive(ulfm, DEATHS[what], name=f"run{number}"), DEATHS[what], expected)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_member_dies_again_and_again_and_no_run_hangs(ulfm, survive, expected):
    deaths = DEATHS["a member in a pass"]
    for number in range(20):
        check(survive(ulfm, deaths, name=f"run{number}"), deaths, expected)


def test_while_members_are_left_no_iteration_is_made_again(ulfm, survive, expected):
    deaths = DEATHS["several at once"]
    run = survive(ulfm, deaths)
    check(run, deaths, expected)
    assert {lost.rank for lost in run.of(ev.RankLost)} == {2, 3, 4}
    assert len([start for start in run.of(cmd.Start) if start.job == "a"]) == 1


def test_after_a_death_groups_change_and_other_jobs_notice_nothing(ulfm, survive, expected):
    deaths = [[4, "pass", 3]]
    jobs = [mean("a", 300), mean("b", 60, arrival_s=1.2), mean("c", 10, arrival_s=1.5)]
    run = survive(ulfm, deaths, jobs)
    assert run.result["exit_code"] == 0, run.output
    assert len(run.of(cmd.Regroup)) >= 2
    assert run.result["communicators_alive"] == 0
    assert run.digests()["b"] == expected["b"]


def test_a_job_whose_last_member_dies_goes_on_from_its_checkpoint(ulfm, survive, expected):
    deaths = [[1, "pass", 100]]
    run = survive(ulfm, deaths, [SOLO])
    check(run, deaths, expected)
    assert len(run.of(cmd.Start)) == 2
    starts = [formed.iterations for formed in run.of(ev.GroupFormed)]
    assert starts[0] == 0
    assert 0 < starts[1] < 100


@pytest.mark.parametrize(("rank", "staleness"), [(2, 0), (4, 0), (1, 3), (4, 3)])
def test_a_job_with_a_server_goes_on_when_a_worker_or_the_server_dies(
    ulfm, survive, expected, rank, staleness
):
    deaths = [[rank, "pass", 60]]
    run = survive(ulfm, deaths, [replace(SERVED, staleness=staleness), JOBS[2]])
    if staleness:  # the order of updates, and so the model, is not the same in every run
        assert run.result["exit_code"] == 0, run.output
        assert set(run.digests()) == {"served", "c"}
    else:
        check(run, deaths, expected)
    assert [lost.rank for lost in run.of(ev.RankLost)] == [rank]


@pytest.mark.parametrize("what", INSIDE)
def test_who_waits_for_the_dead_inside_mpi_gives_up_and_the_rest_goes_on(
    ulfm, survive, expected, what
):
    # All members of the group may be gone: the job then resumes on the others, or later.
    run = survive(ulfm, INSIDE[what])
    assert run.result["exit_code"] in (0, 75), run.output
    assert run.digests() == {job: expected[job] for job in run.digests()}
    assert run.uses_of_the_lost() == []


def test_a_stopped_rank_is_found_by_its_heartbeat_and_counts_as_lost(ulfm, survive, expected):
    deaths = [[2, "stop pass", 6]]
    run = survive(ulfm, deaths, heartbeat_limit_s=3.0)
    check(run, deaths, expected)
    assert [lost.rank for lost in run.of(ev.RankLost)] == [2]


def test_when_all_workers_die_the_run_ends_and_says_that_it_can_be_resumed(ulfm, survive):
    run = survive(ulfm, [[rank, "pass", 8] for rank in (1, 2, 3, 4)])
    assert run.result["exit_code"] == 75, run.output
    assert run.result["lost_ranks"] == [1, 2, 3, 4]
