"""Gaussian mixtures against scikit-learn, by hand, and on any allocation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import DataError
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import DataInfo
from hpcslaq.train.state import initial_state


def spec(**changes) -> JobSpec:
    given = {"name": "job", "model": "gmm", "data": "arrays", "num_chunks": 5, "max_epochs": 15}
    return JobSpec(**(given | changes))


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_iterations_are_those_of_scikit_learn(cancer, lab, covariance):
    mixture = pytest.importorskip("sklearn.mixture")
    exceptions = pytest.importorskip("sklearn.exceptions")
    options = {"components": 3, "covariance": covariance, "regularisation": 1e-4}
    job = spec(options=options)
    outcome = lab.fit(job, cancer)
    first = initial_state(job, outcome.model, cancer).arrays
    covariances = first["covariances"]
    precisions = 1 / covariances if covariance == "diag" else np.linalg.inv(covariances)
    reference = mixture.GaussianMixture(
        3,
        covariance_type=covariance,
        reg_covar=1e-4,
        max_iter=15,
        tol=0.0,
        weights_init=first["weights"] / first["weights"].sum(),
        means_init=first["means"] + first["shift"],
        precisions_init=precisions,
    )
    with pytest.warns(exceptions.ConvergenceWarning):
        reference.fit(cancer.X)
    state = outcome.state.arrays
    np.testing.assert_allclose(state["weights"], reference.weights_, rtol=1e-6)
    np.testing.assert_allclose(state["means"] + state["shift"], reference.means_, atol=1e-6)
    np.testing.assert_allclose(state["covariances"], reference.covariances_, atol=1e-6)
    measured = outcome.model.evaluate(state, cancer.rows(0, 569))["log_likelihood"]
    assert measured == pytest.approx(reference.score(cancer.X), rel=1e-7)
    np.testing.assert_allclose(
        outcome.model.predict(state, cancer.X[:50]),
        reference.predict_proba(cancer.X[:50]),
        atol=1e-6,
    )
    assert np.all(np.diff(outcome.state.losses) < 1e-3)


def test_one_gaussian_is_mean_and_variance(lab):
    data = lab.ArrayData(np.array([[1.0], [2.0], [6.0], [7.0]]), np.zeros(4))
    options = {"components": 1, "regularisation": 0.0}
    outcome = lab.fit(spec(num_chunks=2, options=options), data)
    assert outcome.model.parameters(outcome.state.arrays).tolist() == [1.0, 4.0, 6.5]
    density = -0.5 * (math.log(2 * math.pi * 6.5) + 1)
    assert outcome.state.last_loss == pytest.approx(-density)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_is_the_same_on_any_allocation(digits, lab, covariance):
    data = lab.ArrayData(digits.X[:600, 20:40], digits.y[:600])
    options = {"components": 4, "covariance": covariance, "regularisation": 1e-3}
    outcome = lab.assert_allocation_does_not_matter(spec(max_epochs=8, options=options), data)
    assert outcome.state.last_loss < outcome.state.losses[0]


def test_a_degenerate_variance_fails_with_advice(lab):
    data = lab.ArrayData(np.ones((10, 1)), np.zeros(10))
    outcome = lab.train(spec(options={"components": 1, "regularisation": 0.0}), data)
    assert "raise the option regularisation" in outcome.reports[-1].failure.message


def test_fewer_rows_than_components_are_refused():
    with pytest.raises(DataError, match="3 rows are fewer than 8 components"):
        build_model("gmm", {}).check_data(DataInfo(3, 2))
