"""Perceptrons: gradients, learning, and any allocation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import DataError
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import Chunk, DataInfo, Draw, batch_rows
from hpcslaq.train.state import initial_state


def spec(model="mlp", **changes) -> JobSpec:
    given = {"name": "job", "model": model, "data": "arrays", "num_chunks": 6, "max_epochs": 20}
    return JobSpec(**(given | changes))


@pytest.mark.parametrize("model", ["mlp", "mlp_regressor"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_agree_with_differences_of_the_loss(lab, model, activation):
    rng = np.random.default_rng(0)
    task = "classification" if model == "mlp" else "regression"
    data = lab.ArrayData(rng.standard_normal((30, 4)), rng.integers(0, 3, 30).astype(float), task)
    options = {"hidden": [5, 3], "activation": activation}
    built = build_model(model, options)
    state = initial_state(spec(model, options=options), built, data).arrays
    state["x"] += 0.1 * rng.standard_normal(state["x"].size)
    chunk, draw = Chunk(0, data.X, data.y), Draw(0, 0, 0, 1, 0)
    gradient = built.statistics(state, chunk, draw)["gradient"]
    for i in range(0, state["x"].size, 3):
        losses = []
        for move in (1e-6, -2e-6):
            state["x"][i] += move
            losses.append(built.statistics(state, chunk, draw)["loss"])
        state["x"][i] += 1e-6
        expected = (losses[0] - losses[1]) / 2e-6
        assert gradient[i] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_without_hidden_layers_it_is_softmax_regression(digits, lab):
    options = {"hidden": [], "batch_size": 10_000, "losses_per_epoch": 1, "l2": 0.01}
    outcome = lab.fit(spec(max_epochs=400, options=options | {"rate": 0.1}), digits)
    softmax = lab.fit(spec("softmax", max_epochs=300, options={"l2": 0.01}), digits).state.last_loss
    assert outcome.state.last_loss == pytest.approx(softmax, rel=1e-3)


def test_learns_digits_as_well_as_scikit_learn(digits, lab):
    network = pytest.importorskip("sklearn.neural_network")
    rng = np.random.default_rng(0)
    order = rng.permutation(1797)
    X, y = digits.X[order], digits.y[order]
    data = lab.ArrayData(X[:1400], y[:1400])
    options = {"hidden": [64], "batch_size": 100, "rate": 0.005}
    outcome = lab.fit(spec(max_epochs=30, options=options), data)
    measured = outcome.model.evaluate(outcome.state.arrays, lab.ArrayData(X, y).rows(1400, 1797))
    reference = network.MLPClassifier(
        [64], batch_size=100, learning_rate_init=0.005, max_iter=1000, random_state=0
    ).fit(X[:1400], y[:1400])
    assert measured["accuracy"] >= reference.score(X[1400:], y[1400:]) - 0.01
    assert measured["log_loss"] < 0.15


def test_regression_beats_the_linear_model_on_a_curved_target(lab):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (1000, 2))
    data = lab.ArrayData(X, 50 + 10 * np.sin(2 * X[:, 0]) * X[:, 1], "regression")
    options = {"hidden": [32, 32], "batch_size": 100, "rate": 0.01}
    outcome = lab.fit(spec("mlp_regressor", max_epochs=60, options=options), data)
    measured = outcome.model.evaluate(outcome.state.arrays, data.rows(0, 1000))
    assert measured["r2"] > 0.97
    assert measured["rmse"] < 2


@pytest.mark.parametrize("solver", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_is_the_same_on_any_allocation(digits, lab, solver, is_sparse):
    data = lab.ArrayData(sparse.csr_array(digits.X) if is_sparse else digits.X, digits.y)
    options = {"hidden": [16], "solver": solver, "batch_size": 200, "rate": 0.01, "l2": 1e-4}
    outcome = lab.assert_allocation_does_not_matter(spec(max_epochs=4, options=options), data)
    assert outcome.state.last_loss < outcome.state.losses[0]
    assert outcome.state.passes == 4 * 9
    assert outcome.state.iterations == 4 * 9


def test_the_regressor_is_the_same_on_any_allocation(diabetes, lab):
    options = {"hidden": [8], "activation": "tanh", "batch_size": 64, "losses_per_epoch": 2}
    job = spec("mlp_regressor", max_epochs=4, options=options)
    outcome = lab.assert_allocation_does_not_matter(job, diabetes)
    assert outcome.state.iterations == 8


def test_every_row_comes_once_in_an_epoch_in_equal_batches():
    chunk = Chunk(3, np.zeros((103, 1)), None)
    parts = [batch_rows(chunk, Draw(5, 2, step, 10, 3)) for step in range(10)]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(103))
    assert {p.size for p in parts} == {10, 11}
    again = batch_rows(Chunk(3, np.zeros((103, 1)), None), Draw(5, 2, 4, 10, 3))
    np.testing.assert_array_equal(again, parts[4])
    other_epoch = batch_rows(chunk, Draw(5, 3, 4, 10, 3))
    assert not np.array_equal(other_epoch, parts[4])


def test_chunks_with_fewer_rows_than_steps_are_fine(lab):
    data = lab.ArrayData(np.eye(4).repeat(2, axis=0), np.arange(8.0) // 4)
    options = {"hidden": [4], "batch_size": 2, "losses_per_epoch": 1}
    outcome = lab.assert_allocation_does_not_matter(
        spec(num_chunks=5, max_epochs=3, options=options), data
    )
    assert outcome.state.iterations == 3


def test_wrong_targets_are_refused():
    with pytest.raises(DataError, match="class labels"):
        build_model("mlp", {}).check_data(DataInfo(10, 2, False, "regression", 0))
    with pytest.raises(DataError, match="real-valued"):
        build_model("mlp_regressor", {}).check_data(DataInfo(10, 2, False, "classification", 3))
