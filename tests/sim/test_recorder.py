"""Recording a real job alone."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import TrainingError
from hpcslaq.sim.curves import format_curve, read_curve
from hpcslaq.sim.recorder import Limits, record_job
from tests.train.conftest import ArrayData


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 4))
    y = X @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.1 * rng.standard_normal(120)
    return ArrayData(X, y, task="regression")


def spec_of(**fields) -> JobSpec:
    given = {"model": "linear", "max_epochs": 20, "options": {"accelerated": False}, **fields}
    return JobSpec("line", data="made", num_chunks=4, **given)


def test_every_iteration_gives_loss_cpu_and_wall_time(data, tmp_path) -> None:
    curve = record_job(spec_of(), data)
    assert curve.losses.size == 20
    assert curve.losses[-1] < 0.5 * curve.losses[0]
    assert curve.cpu_s.shape == curve.wall_s.shape == (20,)
    assert (curve.cpu_s >= 0).all()
    assert curve.facts["ended"] == "epochs"
    (tmp_path / "line.csv").write_text(format_curve(curve))
    assert read_curve(tmp_path / "line.csv").losses.tolist() == curve.losses.tolist()


def test_a_recording_is_reproducible(data) -> None:
    again = record_job(spec_of(), data)
    assert record_job(spec_of(), data).losses.tolist() == again.losses.tolist()


def test_a_recording_ends_at_its_limits(data) -> None:
    curve = record_job(spec_of(), data, Limits(max_iterations=7))
    assert curve.losses.size == 7
    assert curve.facts["ended"] == "cut off"
    assert record_job(spec_of(), data, Limits(max_cpu_s=0.0)).losses.size == 1


def test_iterations_within_an_epoch_are_told(data) -> None:
    options = {"hidden": [3], "batch_size": 10, "losses_per_epoch": 4}
    curve = record_job(spec_of(model="mlp_regressor", max_epochs=3, options=options), data)
    assert curve.losses.size == 12
    assert curve.iterations_per_epoch == 4


def test_a_failing_job_is_an_error(data) -> None:
    data.y = data.y.copy()
    data.y[5] = np.inf
    with pytest.raises(TrainingError, match="job line, iteration 1"):
        record_job(spec_of(), data)
