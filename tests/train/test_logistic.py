"""Logistic regression: against hand-worked values, scikit-learn, and any allocation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import DataError
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import Chunk, DataInfo, Draw


def spec(**changes) -> JobSpec:
    given = {"name": "job", "model": "logistic", "data": "arrays", "num_chunks": 7}
    return JobSpec(**(given | {"max_epochs": 300} | changes))


def test_loss_and_gradient_of_two_rows_worked_by_hand():
    model = build_model("logistic", {})
    state = {"x": np.zeros(2), "trial": np.array([1.0, 0.0])}  # weight 1, intercept 0
    chunk = Chunk(0, np.array([[2.0], [-1.0]]), np.array([1.0, 1.0]))
    sums = model.statistics(state, chunk, Draw(0, 0, 0, 1, 0))
    p = [1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))]
    assert sums["loss"] == pytest.approx(-math.log(p[0]) - math.log(p[1]), rel=1e-15)
    expected = [2 * (p[0] - 1) - (p[1] - 1), p[0] + p[1] - 2]
    np.testing.assert_allclose(sums["gradient"], expected, rtol=1e-15)


def test_extreme_scores_neither_overflow_nor_lose_the_loss():
    model = build_model("logistic", {})
    scores, y = np.array([800.0, -800.0, 0.0, -40.0]), np.array([0.0, 0.0, 1.0, 1.0])
    loss, slopes = model.row_losses({}, scores.copy(), y, {})
    assert loss == pytest.approx(800 + 0 + math.log(2) + 40, rel=1e-15)
    np.testing.assert_allclose(slopes, [1, 0, -0.5, -1], atol=1e-16)


def test_rows_losses_agree_with_logaddexp_on_many_rows():
    rng = np.random.default_rng(0)
    model = build_model("logistic", {})
    scores, y = 5 * rng.standard_normal(1500), rng.integers(0, 2, 1500).astype(float)
    expected = np.logaddexp(0, np.where(y == 1, -scores, scores)).sum()
    loss, slopes = model.row_losses({}, scores.copy(), y, {})
    assert loss == pytest.approx(expected, rel=1e-13)
    np.testing.assert_allclose(slopes, 1 / (1 + np.exp(-scores)) - y, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("solver", ["lbfgs", "gd"])
def test_reaches_the_optimum_of_scikit_learn(cancer, lab, solver):
    linear_model = pytest.importorskip("sklearn.linear_model")
    l2 = 0.1
    outcome = lab.fit(
        spec(max_epochs=3000, options={"solver": solver, "l2": l2, "gradient_tolerance": 1e-9}),
        cancer,
    )
    reference = linear_model.LogisticRegression(
        C=1 / (l2 * cancer.num_rows), tol=1e-10, solver="newton-cholesky"
    ).fit(cancer.X, cancer.y)
    x = np.append(reference.coef_[0], reference.intercept_)
    np.testing.assert_allclose(outcome.model.parameters(outcome.state.arrays), x, atol=1e-6)
    signs = 2 * cancer.y - 1
    scores = cancer.X @ x[:-1] + x[-1]
    objective = np.logaddexp(0, -signs * scores).mean() + 0.5 * l2 * x[:-1] @ x[:-1]
    assert outcome.state.last_loss == pytest.approx(objective, rel=1e-9)
    assert outcome.reports[-1].stop.value == "converged"


def test_lbfgs_takes_about_as_many_passes_as_scipy(cancer, lab):
    optimize = pytest.importorskip("scipy.optimize")
    outcome = lab.fit(spec(options={"l2": 1e-4, "gradient_tolerance": 1e-6}), cancer)
    signs = 2 * cancer.y - 1

    def objective(x):
        margins = -signs * (cancer.X @ x[:-1] + x[-1])
        slopes = -signs / (1 + np.exp(-margins)) / cancer.num_rows
        gradient = np.append(cancer.X.T @ slopes + 1e-4 * x[:-1], slopes.sum())
        return np.logaddexp(0, margins).mean() + 0.5e-4 * x[:-1] @ x[:-1], gradient

    options = {"gtol": 1e-6, "ftol": 0.0, "maxiter": 1000}
    found = optimize.minimize(objective, np.zeros(31), jac=True, method="L-BFGS-B", options=options)
    assert outcome.state.last_loss == pytest.approx(found.fun, rel=1e-6)
    assert outcome.state.passes <= 1.3 * found.nfev


@pytest.mark.parametrize("solver", ["lbfgs", "gd", "sgd", "momentum", "adam"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_is_the_same_on_any_allocation(cancer, lab, solver, is_sparse):
    data = lab.ArrayData(sparse.csr_array(cancer.X) if is_sparse else cancer.X, cancer.y)
    options = {"solver": solver, "l2": 1e-3, "batch_size": 100}
    outcome = lab.assert_allocation_does_not_matter(spec(max_epochs=8, options=options), data)
    losses = outcome.state.losses
    assert losses[-1] < 0.6 * losses[0]


def test_csr_and_dense_rows_lead_to_the_same_optimum(cancer, lab):
    job = spec(options={"l2": 1e-2})
    dense = lab.fit(job, cancer)
    csr = lab.fit(job, lab.ArrayData(sparse.csr_array(cancer.X), cancer.y))
    assert csr.state.last_loss == pytest.approx(dense.state.last_loss, rel=1e-9)


def test_mini_batches_come_near_the_optimum(cancer, lab):
    best = lab.fit(spec(options={"l2": 0.1}), cancer).state.last_loss
    options = {"solver": "adam", "l2": 0.1, "batch_size": 64, "rate": 0.02, "rate_decay": 0.2}
    outcome = lab.fit(spec(max_epochs=30, options=options | {"losses_per_epoch": 1}), cancer)
    assert outcome.state.iterations == 30
    assert outcome.state.last_loss == pytest.approx(best, rel=0.02)


def test_without_an_intercept_the_last_parameter_stays_zero(cancer, lab):
    outcome = lab.fit(spec(max_epochs=20, options={"intercept": False, "l2": 0.1}), cancer)
    assert outcome.model.parameters(outcome.state.arrays)[-1] == 0


def test_predicts_probabilities_and_measures_them(cancer, lab):
    outcome = lab.fit(spec(options={"l2": 0.01}), cancer)
    state = outcome.state.arrays
    measured = outcome.model.evaluate(state, cancer.rows(0, 569))
    assert measured["auc"] > 0.99
    assert measured["accuracy"] > 0.97
    probabilities = outcome.model.predict(state, cancer.X[0])
    assert probabilities.shape == (1,)
    assert 0 < probabilities[0] < 1


def test_data_of_three_classes_are_refused():
    with pytest.raises(DataError, match="2 classes, the data have 3"):
        build_model("logistic", {}).check_data(DataInfo(10, 2, False, "classification", 3))
