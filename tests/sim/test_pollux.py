"""Pollux' tables: small ones, worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcslaq.errors import NotFoundError
from hpcslaq.policies.registry import make_policy
from hpcslaq.sim.simulator import Simulator
from hpcslaq.sim.traces import TraceError
from hpcslaq.sim.traces.pollux import Application, packed, read_applications
from tests.sim.pretend import PROMPT

PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,10,1.0,0.0
1,20,2.0,0.0
2,10,1.2,0.2
2,20,2.2,0.2
12,10,1.5,0.5
12,20,2.5,0.5
"""
SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
2,8,10,2.0,1.0
2,8,20,3.0,1.0
4,16,10,3.0,2.0
4,16,20,4.0,2.0
1,4,10,1.4,0.4
1,4,20,2.4,0.4
"""
#: Noise as large as the signal: a step at twice the batch is worth 2 / 1.5 steps.
SMALL = """progress,iteration,metric,grad_sqr,grad_var
100,100,0.5,1.0,1.0
200,200,0.75,1.0,1.0
"""
LARGE = SMALL.replace("0.75", "0.65")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "placements.csv").write_text(PLACEMENTS)
    (folder / "scalability.csv").write_text(SCALABILITY)
    (folder / "validation-20.csv").write_text(SMALL)
    (folder / "validation-40.csv").write_text(LARGE)
    return tmp_path


@pytest.fixture
def toy(tables: Path) -> Application:
    return read_applications(tables)["toy"]


def test_a_measured_placement_is_linear_in_the_local_batch(toy: Application) -> None:
    assert toy.throughput((1,), 15) == pytest.approx((1.5, 0.0))
    assert toy.throughput((2, 1), 10) == pytest.approx((1.5, 0.5))  # the rotation of (1, 2)


def test_other_placements_lie_between_what_was_measured(toy: Application) -> None:
    step, sync = toy.throughput((4, 4, 4), 10)
    assert 2.0 < step < 3.0
    assert step - sync == pytest.approx(1.0)
    assert np.isfinite(toy.throughput((1,) * 30, 10)).all()  # far outside: the nearest


def test_a_batch_that_does_not_fit_is_accumulated(toy: Application) -> None:
    assert toy.local_batch(2, 40) == (20, 0)
    assert toy.local_batch(1, 40) == (20, 1)
    assert toy.step_s((1,), 40) == pytest.approx(4.0)
    assert toy.step_s((2,), 40) == pytest.approx(2.2)


def test_steps_follow_progress_over_gain(toy: Application) -> None:
    assert toy.steps(20).tolist() == [100.0, 100.0]
    assert toy.steps(40) == pytest.approx([75.0, 75.0])


def test_the_metric_becomes_a_loss_that_falls(toy: Application) -> None:
    assert toy.losses(20).tolist() == [0.5, 0.25]
    assert toy.losses(30) == pytest.approx([0.5, 0.30])


def test_a_job_alone_takes_its_steps(toy: Application) -> None:
    job = toy.job("a", 0.0, 40, num_replicas=2)
    hosts = dict.fromkeys((1, 2), "n0")
    result = Simulator(make_policy("fair"), [job], 2, 60.0, delays=PROMPT, hosts=hosts).run()
    assert result.records["a"].finished_at == pytest.approx(150 * 2.2)
    track = result.tracks[0]
    assert track.losses[-1] == pytest.approx(0.35)
    assert (job.spec.min_workers, job.spec.worker_limit) == (2, 2)


def test_an_elastic_job_may_use_as_many_as_its_batch_fills(toy: Application) -> None:
    spec = toy.job("a", 0.0, 40).spec
    assert (spec.min_workers, spec.worker_limit) == (1, 4)
    assert toy.job("a", 0.0, 40, max_replicas=1).spec.worker_limit == 1


def test_workers_fill_nodes_of_four() -> None:
    assert [packed(n) for n in (1, 4, 6, 8)] == [(1,), (4,), (4, 2), (4, 4)]


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("placements.csv", PLACEMENTS.replace("12,10", "10,10"), "csv:6: placement: '10' is not"),
        ("placements.csv", PLACEMENTS.replace("1.2,0.2", "1.2,9"), "csv:4: sync_time: '9' is not"),
        ("placements.csv", PLACEMENTS.splitlines()[0], "placements.csv: holds no measurement"),
        ("scalability.csv", SCALABILITY.replace("2,8,10", "x,8,10"), "csv:2: num_nodes: 'x'"),
        ("validation-20.csv", SMALL.replace("200,200", "50,200"), "csv:3: progress: 50 does not"),
        ("validation-20.csv", SMALL.replace("0.5,1.0,1.0", "0.5,0,0"), "csv:2: grad_sqr and"),
        ("validation-big.csv", SMALL, "validation-big.csv: 'big' is no batch size"),
    ],
)
def test_mistakes_in_tables_are_named_with_their_line(tables, file, text, problem) -> None:
    (tables / "toy" / file).write_text(text)
    with pytest.raises(TraceError, match=problem):
        read_applications(tables)


def test_missing_tables_are_not_found(tmp_path: Path, tables: Path) -> None:
    for path in (tmp_path / "none", tables / "toy"):
        with pytest.raises(NotFoundError):
            read_applications(path)
    for file in (tables / "toy").glob("validation-*"):
        file.unlink()
    with pytest.raises(NotFoundError, match=r"holds no validation-BATCH\.csv"):
        read_applications(tables)
