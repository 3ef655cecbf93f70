"""The plan of a run: what of it decides whether a run may go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory, RunDirectoryError

PLAN = RunPlan(
    "fair",
    (JobSpec("a", "logistic", "rows", 8, 60, options={"l2": 1e-3, "step": None}),),
    {"rows": "/data/rows"},
)


def test_a_plan_that_was_written_is_the_same_work(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    PLAN.write(run)
    assert PLAN.is_same_work(RunPlan.read(run))
    assert PLAN.first_difference(RunPlan.read(run)) == ("", "")
    assert RunPlan.read(run).is_same_work(PLAN)


@pytest.mark.parametrize(
    "changes", [{"job_file": "b.toml"}, {"time_limit_s": 60.0}, {"is_serving": True}]
)
def test_how_a_run_is_worked_on_may_change_from_start_to_start(changes):
    assert PLAN.is_same_work(replace(PLAN, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "slaq"},
        {"round_s": 2.0},
        {"data_paths": {"rows": "/data/others"}},
        {"jobs": (replace(PLAN.jobs[0], seed=1),)},
        {"jobs": (replace(PLAN.jobs[0], options={"l2": 1e-3, "step": 0.1}),)},
        {"jobs": ()},
    ],
)
def test_what_is_trained_may_not(changes):
    other = replace(PLAN, **changes)
    assert not PLAN.is_same_work(other)
    for key, values in (PLAN.first_difference(other), other.first_difference(PLAN)):
        assert key and values


def test_jobs_in_another_order_are_another_run_and_it_says_so():
    two = replace(PLAN, jobs=(PLAN.jobs[0], replace(PLAN.jobs[0], name="b")))
    turned = replace(two, jobs=two.jobs[::-1])
    assert not two.is_same_work(turned)
    assert two.first_difference(turned) == ("job", "the run has the same jobs in another order")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("round_s = 1.0", 'round_s = "abc"'),
        ("round_s = 1.0", ""),
        ("keep_checkpoints = 2", "keep_checkpoints = 1.5"),
        ("seed = 0", "seed = []"),
        ('path = "/data/rows"', "path = 3"),
        ('path = "/data/rows"', 'other = "/data/rows"'),
        ("num_chunks = 8", "num_chunks = 0"),
        ('name = "a"', 'name = "../a"'),
        ('job_file = ""', "job_file = 1"),
        ("[[job]]", "[[other]]"),
        ("[data.rows]", "[[data]]"),
        ("self_checks = []", "self_checks = 1"),
    ],
)
def test_damage_by_hand_is_told_with_the_file(tmp_path, old, new):
    run = RunDirectory.create(tmp_path / "run")
    PLAN.write(run)
    text = run.run_toml.read_text()
    assert old in text
    run.run_toml.write_text(text.replace(old, new))
    with pytest.raises(RunDirectoryError, match=r"run\.toml: is damaged"):
        RunPlan.read(run)


def test_the_utility_of_a_job_survives_the_way_through_run_toml(tmp_path):
    utility = UtilityCurve(UtilityKind.TABLE, values=(9.0, 0.5), every_s=2.5)
    job = JobSpec("a", "logistic", "toy", 4, 3, utility=utility)
    run = RunDirectory.create(tmp_path / "run")
    RunPlan("oasis", (job,), {"toy": "/data/toy"}).write(run)
    assert RunPlan.read(run).jobs == (job,)
