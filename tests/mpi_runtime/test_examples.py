"""The examples in jobs/, as a user would run them."""

from __future__ import annotations

import json
import sys
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


def test_the_example_of_a_torch_module_is_the_same_on_any_number_of_ranks(
    any_mpi, command, tmp_path
):
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    if any_mpi.python != sys.executable:
        pytest.skip("the interpreter with an MPI is another than that with torch")
    digests = []
    for ranks in ("2", "4"):
        arguments = ["run", str(JOBS / "torch_digits.toml"), "--ranks", ranks, "--json"]
        done = command(any_mpi, [*arguments, "--out", str(tmp_path / ranks)], timeout_s=300.0)
        assert done.returncode == 0, done.stdout + done.stderr
        jobs = json.loads(done.stdout)["jobs"]
        digests.append([(job["loss_digest"], job["model_digest"]) for job in jobs])
        assert max(job["metrics"]["accuracy"] for job in jobs) > 0.95
    assert digests[0] == digests[1]
    path = tmp_path / "2" / "models" / f"{jobs[0]['name']}.h5"
    fitted = load_model(path, allow_user_code=True)
    probabilities = fitted.scores(np.zeros((3, 64)))
    assert probabilities.shape == (3, 10)
    assert torch.get_num_threads() == 1


def test_the_example_of_parameter_servers_gives_the_bits_of_all_reduce(any_mpi, command, tmp_path):
    pytest.importorskip("sklearn")
    arguments = ["run", str(JOBS / "servers.toml"), "--ranks", "6", "--json"]
    done = command(any_mpi, [*arguments, "--out", str(tmp_path / "run")])
    assert done.returncode == 0, done.stdout + done.stderr
    plain, served, stale = json.loads(done.stdout)["jobs"]
    for digest in ("loss_digest", "model_digest"):
        assert plain[digest] == served[digest]
    assert (plain["sync"], served["workers_per_server"], stale["staleness"]) == (
        "allreduce",
        2.0,
        "unbounded",
    )
    assert min(job["metrics"]["accuracy"] for job in (plain, served, stale)) > 0.9
