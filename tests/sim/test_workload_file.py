"""Workloads in TOML: what they draw, and one line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcslaq.errors import HpcslaqError, JobFileError
from hpcslaq.sim.workload_file import parse_workload, read_workload, with_changes

TINY = """
[workload]
workers = 8
round = "2s"
[arrivals]
mean_gap = "4s"
[jobs]
number = 10
curves = ["synthetic/linear", "synthetic/power"]
iterations = [20, 40]
chunks = 8
"""


def work(jobs) -> float:
    return sum(job.num_iterations * job.step_time.seconds(1) for job in jobs)


def test_the_same_seed_draws_the_same_jobs_and_another_one_others() -> None:
    workload = parse_workload(TINY, "tiny.toml")
    first, again, other = workload.jobs(1), workload.jobs(1), workload.jobs(2)
    assert [job.spec for job in first] == [job.spec for job in again]
    assert [list(job.losses) for job in first] == [list(job.losses) for job in again]
    assert [job.spec for job in first] != [job.spec for job in other]
    assert [job.name for job in first[:3]] == ["linear-00000", "power-00001", "linear-00002"]
    assert all(20 <= job.num_iterations <= 40 for job in first)


def test_the_load_is_work_over_capacity_while_jobs_arrive() -> None:
    workload = parse_workload(TINY + "load = 0.75\n", "tiny.toml")
    for seed in range(3):
        assert work(workload.jobs(seed)) == pytest.approx(0.75 * 8 * 4.0 * 10, rel=0.01)
    more = with_changes(workload, load=1.5)
    assert work(more.jobs(0)) == pytest.approx(2 * work(workload.jobs(0)), rel=0.01)


def test_more_workers_change_the_jobs_only_through_the_load() -> None:
    workload = parse_workload(TINY, "tiny.toml")
    wide = with_changes(workload, workers=64)
    assert wide.shape.workers == 64
    assert [job.spec for job in wide.jobs(0)] == [job.spec for job in workload.jobs(0)]
    assert wide.document != workload.document


def test_files_of_curves_are_found_beside_the_workload(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("".join(f"{1 / k}\n" for k in range(1, 31)))
    text = '[jobs]\nnumber = 3\ncurves = "mine.txt"\nuntil = 0.5\n'
    text += 'sizes = [0.5, 1.0]\niteration = "4s"\n'
    (tmp_path / "w.toml").write_text(text)
    jobs = read_workload(tmp_path / "w.toml").jobs(0)
    assert [job.num_iterations for job in jobs] == [2, 2, 2]  # 1 to 1/30: half is at 1/2
    times = [job.step_time.seconds(1) for job in jobs]
    assert times == pytest.approx([2.0, 4.0, 2.0])


def test_arrivals_may_be_replayed_or_all_at_once() -> None:
    head = '[jobs]\nnumber = 3\ncurves = "synthetic"\n[arrivals]\n'
    replay = parse_workload(head + 'kind = "replay"\ntimes = ["1m", 5, 8]\n', "w")
    assert [job.spec.arrival_s for job in replay.jobs(0)] == [0.0, 3.0, 55.0]
    together = parse_workload(head + 'kind = "at_once"\n', "w")
    assert [job.spec.arrival_s for job in together.jobs(0)] == [0.0] * 3


def test_the_horizon_does_not_depend_on_the_policy_but_on_the_jobs() -> None:
    workload = parse_workload(TINY, "w")
    jobs = workload.jobs(0)
    expected = jobs[-1].spec.arrival_s + work(jobs) / 8
    assert workload.horizon_s(jobs) == pytest.approx(expected)
    stated = parse_workload(TINY.replace('"2s"', '"2s"\nhorizon = "7m"'), "w")
    assert stated.horizon_s(jobs) == 420.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[workloads]", r"w: workloads: unknown key, did you mean 'workload'\?"),
        ("[workload]\nworker = 3", r"workload.worker: unknown key, did you mean 'workers'\?"),
        ("[workload]\nworkers = 0", "workload.workers: must be >= 1, got 0"),
        ("[arrivals]\nkind = 'sometimes'", "arrivals.kind: unknown value"),
        ("[arrivals]\nkind = 'replay'", "arrivals.times: are given exactly with"),
        (
            "[arrivals]\nkind='replay'\ntimes=[1]\n[jobs]\ncurves='synthetic'",
            "jobs.number: is more",
        ),
        ("[jobs]\ncurves = []", "jobs.curves: is empty"),
        ("[jobs]\ncurves = ['no/such']", "jobs.curves: .*there is no such file"),
        ("[jobs]\ncurves = 'recorded/none'", "jobs.curves: "),
        ("[jobs]\ncurves='synthetic'\niterations = [5, 3]", "jobs.iterations: must be one value"),
        ("[jobs]\ncurves='synthetic'\nchunks=2\nmin_workers=3", "jobs.min_workers: must be <= 2"),
        ("[trace]\nfile='x'\n[jobs]\n", "trace: stands in place of"),
        ("[jobs", "line 1.*is not TOML"),
    ],
)
def test_mistakes_are_named_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(JobFileError, match=problem) as caught:
        parse_workload(text, "w")
    assert len(str(caught.value).splitlines()) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(["workers", "round", "noise", "number", "curves", "iterations", "times"]),
)
def test_any_value_is_taken_or_refused(value, key) -> None:
    from hpcslaq.record.toml import dump_toml

    tables = {"workers": "workload", "round": "workload", "noise": "workload", "times": "arrivals"}
    try:
        text = dump_toml({tables.get(key, "jobs"): {key: value}})
        parse_workload(text, "w")
    except (HpcslaqError, ValueError, TypeError) as error:
        assert not isinstance(error, UnicodeError)


def test_the_numbers_of_a_range_may_be_one(tmp_path: Path) -> None:
    workload = parse_workload("[jobs]\ncurves='synthetic'\nnumber=4\niterations=7", "w")
    assert {job.num_iterations for job in workload.jobs(3)} == {7}
    assert np.isfinite(workload.jobs(3)[0].losses).all()
