"""Batches of simulations: the same in any order and after an interruption."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpcslaq.errors import JobFileError
from hpcslaq.sim import runner
from hpcslaq.sim.runner import PolicyChoice, Task, compare, interval, measure, run_tasks
from hpcslaq.sim.workload_file import parse_workload
from tests.sim.test_workload_file import TINY

WORKLOAD = parse_workload(TINY + "load = 0.9\n", "tiny.toml")
TASKS = [Task(policy, seed) for policy in ("fair", "slaq") for seed in (0, 1)]


def plain(value) -> str:
    return json.dumps(value, sort_keys=True)


def test_a_simulation_gives_the_same_figures_every_time() -> None:
    assert plain(measure(WORKLOAD, TASKS[2])) == plain(measure(WORKLOAD, TASKS[2]))


def test_processes_change_nothing() -> None:
    assert plain(run_tasks(WORKLOAD, TASKS)) == plain(run_tasks(WORKLOAD, TASKS, processes=2))


def test_an_interrupted_batch_goes_on_where_it_stopped(tmp_path: Path, monkeypatch) -> None:
    def interrupt(task: Task) -> None:
        if task == TASKS[1]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(WORKLOAD, TASKS, keep_in=tmp_path, on_done=interrupt)
    done: list[Task] = []
    measured: list[Task] = []

    def counted(workload, task):
        measured.append(task)
        return measure(workload, task)

    monkeypatch.setattr(runner, "measure", counted)
    results = run_tasks(WORKLOAD, TASKS, keep_in=tmp_path, on_done=done.append)
    assert measured == TASKS[2:]
    assert sorted(map(str, done)) == sorted(map(str, TASKS))
    assert plain(results) == plain(run_tasks(WORKLOAD, TASKS))


def test_a_damaged_or_foreign_result_is_not_taken(tmp_path: Path) -> None:
    results = run_tasks(WORKLOAD, TASKS[:1], keep_in=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text(kept.read_text()[:-20])
    assert plain(run_tasks(WORKLOAD, TASKS[:1], keep_in=tmp_path)) == plain(results)
    other = parse_workload(TINY + "load = 0.5\n", "tiny.toml")
    assert plain(run_tasks(other, TASKS[:1], keep_in=tmp_path)) != plain(results)
    assert len(list(tmp_path.iterdir())) == 2


def test_policies_are_named_with_parameters_and_foresight() -> None:
    choice = PolicyChoice.parse("las:quantum_s=36:num_queues=2")
    assert choice.make(()).quantum_s == 36.0
    assert PolicyChoice.parse("srtf+oracle").is_told
    told = PolicyChoice.parse("elasticflow:reserve_s=60+oracle")
    assert told.is_told
    assert told.parameters == (("reserve_s", 60.0),)
    assert PolicyChoice.parse("oracle-quality").is_told


@pytest.mark.parametrize(
    "text", ["best", "las:quantum=3", "las:quantum_s=x", "las:num_queues=0", "fair:", "+oracle", ""]
)
def test_unknown_policies_and_parameters_are_refused(text: str) -> None:
    with pytest.raises(JobFileError, match="--policy"):
        PolicyChoice.parse(text)


def test_the_interval_is_students() -> None:
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, -0.4841, 4.4841), abs=1e-3)
    assert math.isnan(interval([5.0])[1])
    assert math.isnan(interval([])[0])


def test_changes_are_paired_by_seed() -> None:
    results = [
        {"policy": policy, "seed": seed, "figures": {"x": base * factor}}
        for policy, factor in (("old", 1.0), ("new", 0.5))
        for seed, base in ((0, 10.0), (1, 1000.0), (2, 100.0))
    ]
    cell = compare(results)["new"]["x"]
    assert cell["change"] == pytest.approx(-0.5)
    assert "change" not in compare(results)["old"]["x"]


def test_core_shares_and_moves_are_among_the_figures() -> None:
    result = measure(WORKLOAD, Task("fair", 0))
    assert sum(result["shares"].values()) == pytest.approx(1.0)
    assert result["figures"]["num_orders"] >= result["figures"]["num_regroups"]
    assert len(result["quality"]["at_s"]) == len(result["quality"]["all"])
