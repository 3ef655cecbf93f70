"""Softmax regression and linear SVM against scikit-learn, by hand, and on any allocation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import DataError
from hpcslaq.train import scores as scores_module
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import Chunk, DataInfo, Draw


def spec(model, **changes) -> JobSpec:
    given = {"name": "job", "model": model, "data": "arrays", "num_chunks": 6, "max_epochs": 500}
    return JobSpec(**(given | changes))


@pytest.mark.parametrize("model", ["logistic", "softmax", "svm"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_gradients_agree_with_differences_of_the_loss(model, loss):
    rng = np.random.default_rng(0)
    num_classes = 3 if model == "softmax" else 2
    chunk = Chunk(0, rng.standard_normal((40, 4)), rng.integers(0, num_classes, 40).astype(float))
    built = build_model(model, {"loss": loss} if model == "svm" else {})
    x = rng.standard_normal(5 * (3 if model == "softmax" else 1))

    def at(x):
        state = built.start(np.zeros(x.size)) | {"trial": x}
        return built.statistics(state, chunk, Draw(0, 0, 0, 1, 0))

    def loss_at(x):
        return at(x)["loss"]

    gradient = at(x)["gradient"]
    for i in range(x.size):
        move = np.zeros(x.size)
        move[i] = 1e-6
        difference = (loss_at(x + move) - loss_at(x - move)) / 2e-6
        assert gradient[i] == pytest.approx(difference, rel=1e-6, abs=1e-6)


def test_blocks_of_a_large_chunk_sum_to_the_whole(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((1000, 20)), rng.integers(0, 2, 1000).astype(float)
    x, draw = rng.standard_normal(21), Draw(0, 0, 0, 1, 0)
    model = build_model("logistic", {})
    whole = model.statistics({"x": x, "trial": x}, Chunk(0, X, y), draw)
    monkeypatch.setattr(scores_module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(scores_module, "rows_per_block", lambda columns: 300)
    chunk = Chunk(0, X, y)
    for _ in range(2):  # without and with a filled cache
        blocks = model.statistics({"x": x, "trial": x}, chunk, draw)
        assert blocks["loss"] == pytest.approx(whole["loss"], rel=1e-12)
        np.testing.assert_allclose(blocks["gradient"], whole["gradient"], rtol=1e-9, atol=1e-12)


def test_softmax_reaches_the_optimum_of_scikit_learn(digits, lab):
    linear_model = pytest.importorskip("sklearn.linear_model")
    l2 = 0.01
    options = {"l2": l2, "gradient_tolerance": 1e-8}
    outcome = lab.fit(spec("softmax", options=options), digits)
    reference = linear_model.LogisticRegression(
        C=1 / (l2 * digits.num_rows), tol=1e-9, max_iter=5000
    ).fit(digits.X, digits.y)
    s = digits.X @ reference.coef_.T + reference.intercept_
    of_truth = s[np.arange(len(s)), digits.y.astype(int)]
    objective = np.mean(np.log(np.exp(s).sum(axis=1)) - of_truth)
    objective += 0.5 * l2 * np.sum(reference.coef_**2)
    assert outcome.state.last_loss == pytest.approx(objective, rel=1e-6)
    p = outcome.model.predict(outcome.state.arrays, digits.X)
    np.testing.assert_allclose(p, reference.predict_proba(digits.X), atol=1e-4)
    assert outcome.model.evaluate(outcome.state.arrays, digits.rows(0, 1797))["accuracy"] > 0.94


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_svm_reaches_the_optimum_of_scikit_learn(cancer, lab, loss):
    svm = pytest.importorskip("sklearn.svm")
    l2 = 0.01
    options = {"l2": l2, "loss": loss, "intercept": False}
    outcome = lab.fit(spec("svm", options=options, max_epochs=2000), cancer)
    reference = svm.LinearSVC(
        C=1 / (l2 * cancer.num_rows),
        loss=loss,
        dual=loss == "hinge",
        fit_intercept=False,
        tol=1e-9,
        max_iter=1_000_000,
    ).fit(cancer.X, cancer.y)
    w = reference.coef_[0]
    lacks = np.maximum(0, 1 - (2 * cancer.y - 1) * (cancer.X @ w))
    mean = lacks.mean() if loss == "hinge" else (lacks**2).mean()
    objective = mean + 0.5 * l2 * w @ w
    w = outcome.model.parameters(outcome.state.arrays)[:-1]
    lacks = np.maximum(0, 1 - (2 * cancer.y - 1) * (cancer.X @ w))
    mean = lacks.mean() if loss == "hinge" else (lacks**2).mean()
    assert mean + 0.5 * l2 * w @ w == pytest.approx(objective, rel=1e-6)
    assert outcome.state.last_loss == pytest.approx(objective, rel=1e-6)
    assert outcome.reports[-1].stop.value == "converged"
    assert np.all(np.diff(outcome.state.losses) <= 1e-12)
    assert outcome.model.evaluate(outcome.state.arrays, cancer.rows(0, 569))["auc"] > 0.99


@pytest.mark.parametrize("model", ["softmax", "svm"])
@pytest.mark.parametrize("solver", ["lbfgs", "gd", "sgd", "adam"])
def test_is_the_same_on_any_allocation(cancer, lab, model, solver):
    X = sparse.csr_array(cancer.X) if solver == "gd" else cancer.X
    options = {"solver": solver, "l2": 1e-3, "batch_size": 100}
    outcome = lab.assert_allocation_does_not_matter(
        spec(model, max_epochs=8, options=options), lab.ArrayData(X, cancer.y)
    )
    assert outcome.state.last_loss < 0.7 * outcome.state.losses[0]


@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_the_hinge_is_the_same_on_any_allocation(cancer, lab, solver):
    options = {"solver": solver, "loss": "hinge", "l2": 1e-2, "batch_size": 100}
    job = spec("svm", max_epochs=40, options=options | {"gradient_tolerance": 1e-4})
    lab.assert_allocation_does_not_matter(job, cancer)


def test_data_without_labels_are_refused():
    for model in ("softmax", "svm"):
        with pytest.raises(DataError, match="no class labels"):
            build_model(model, {}).check_data(DataInfo(10, 2, False, "regression", 0))
