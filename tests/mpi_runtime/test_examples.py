"""The examples in jobs/, as a user would run them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.models import load_model

pytestmark = [pytest.mark.launch, pytest.mark.data]

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def test_the_example_of_an_own_model_runs_and_predicts(any_mpi, command, tmp_path):
    datasets = pytest.importorskip("sklearn.datasets")
    arguments = ["run", str(JOBS / "own_model.toml"), "--ranks", "4", "--json"]
    done = command(any_mpi, [*arguments, "--out", str(tmp_path / "run")])
    assert done.returncode == 0, done.stdout + done.stderr
    huber, squares = json.loads(done.stdout)["jobs"]
    assert (huber["state"], squares["state"]) == ("done", "done")
    assert huber["reason"] == "converged"
    assert huber["is_self_checked"]
    # Within a few per cent of least squares by its own measure, and better by the other.
    assert huber["metrics"]["r2"] == pytest.approx(squares["metrics"]["r2"], abs=0.05)
    with pytest.raises(PermissionError, match="allow_user_code"):
        load_model(tmp_path / "run" / "models" / "huber.h5")
    model = load_model(tmp_path / "run" / "models" / "huber.h5", allow_user_code=True)
    X, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    assert np.corrcoef(model.predict(X), y)[0, 1] > 0.7
