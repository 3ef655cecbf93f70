"""Linear regression and LASSO against closed forms, scikit-learn, and any allocation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import DataError
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import DataInfo


def spec(model="linear", **changes) -> JobSpec:
    given = {"name": "job", "model": model, "data": "arrays", "num_chunks": 6, "max_epochs": 5000}
    return JobSpec(**(given | changes))


def objective(data, x, l1=0.0, l2=0.0):
    errors = data.X @ x[:-1] + x[-1] - data.y
    return (
        errors @ errors / (2 * len(data.y)) + l1 * np.abs(x[:-1]).sum() + l2 / 2 * x[:-1] @ x[:-1]
    )


def test_least_squares_are_solved(diabetes, lab):
    outcome = lab.fit(spec(), diabetes)
    ones = np.column_stack([diabetes.X, np.ones(442)])
    best = np.linalg.lstsq(ones, diabetes.y, rcond=None)[0]
    assert outcome.state.last_loss == pytest.approx(objective(diabetes, best), rel=1e-9)
    np.testing.assert_allclose(outcome.model.parameters(outcome.state.arrays), best, rtol=1e-4)
    assert outcome.reports[-1].stop.value == "converged"


@pytest.mark.parametrize(("l1", "l2"), [(1.0, 0.0), (10.0, 0.0), (0.5, 0.3), (0.0, 1.0)])
@pytest.mark.parametrize("accelerated", [True, False])
def test_penalised_optima_are_those_of_scikit_learn(diabetes, lab, l1, l2, accelerated):
    linear_model = pytest.importorskip("sklearn.linear_model")
    options = {"l1": l1, "l2": l2, "accelerated": accelerated}
    outcome = lab.fit(spec(options=options), diabetes)
    if l1:
        reference = linear_model.ElasticNet(
            alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), tol=1e-12, max_iter=100_000
        )
    else:
        reference = linear_model.Ridge(alpha=l2 * 442)
    reference.fit(diabetes.X, diabetes.y)
    x = np.append(reference.coef_, reference.intercept_)
    assert outcome.state.last_loss == pytest.approx(objective(diabetes, x, l1, l2), rel=1e-7)
    found = outcome.model.parameters(outcome.state.arrays)
    np.testing.assert_allclose(found, x, atol=2e-3)
    np.testing.assert_array_equal(found == 0, x == 0)


def test_one_lasso_weight_worked_by_hand(lab):
    # x = (-1, 1), y = (-3, 3): mean x y = 3, mean x^2 = 1, so w = 3 - l1.
    data = lab.ArrayData(np.array([[-1.0], [1.0]]), np.array([-3.0, 3.0]), "regression")
    outcome = lab.fit(spec("lasso", num_chunks=2, options={"l1": 1.0}), data)
    np.testing.assert_allclose(outcome.state.arrays["x"], [2, 0], atol=1e-7)
    assert outcome.state.last_loss == pytest.approx(0.5 + 2.0)


def test_the_loss_never_rises_without_momentum(diabetes, lab):
    outcome = lab.fit(spec(max_epochs=100, options={"l1": 1.0, "accelerated": False}), diabetes)
    assert np.all(np.diff(outcome.state.losses) <= 1e-9 * outcome.state.losses[0])


def test_momentum_needs_far_fewer_iterations(diabetes, lab):
    best = lab.fit(spec(), diabetes).state.last_loss
    passes = {}
    for accelerated in (False, True):
        job = spec(target_loss=best * (1 + 1e-6), options={"accelerated": accelerated})
        passes[accelerated] = lab.fit(job, diabetes).state.passes
    assert passes[True] < passes[False] / 3


def test_a_fixed_step_is_used_as_it_is(diabetes, lab):
    outcome = lab.fit(spec(max_epochs=50, options={"step": 0.1}), diabetes)
    assert outcome.state.arrays["numbers"][0] == 0.1
    assert outcome.state.iterations == 50


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("accelerated", [True, False])
def test_is_the_same_on_any_allocation(diabetes, lab, is_sparse, accelerated):
    X = sparse.csr_array(diabetes.X) if is_sparse else diabetes.X
    data = lab.ArrayData(X, diabetes.y, "regression")
    options = {"l1": 0.5, "accelerated": accelerated}
    outcome = lab.assert_allocation_does_not_matter(spec(max_epochs=25, options=options), data)
    assert outcome.state.last_loss < 0.3 * outcome.state.losses[0]


def test_measures_on_held_out_rows(diabetes, lab):
    outcome = lab.fit(
        spec(options={"l2": 0.1}), lab.ArrayData(diabetes.X[:300], diabetes.y[:300], "regression")
    )
    measured = outcome.model.evaluate(outcome.state.arrays, diabetes.rows(300, 442))
    assert 0.4 < measured["r2"] < 0.6
    assert 40 < measured["rmse"] < 65


def test_labels_of_classes_are_refused():
    with pytest.raises(DataError, match="real-valued targets"):
        build_model("linear", {}).check_data(DataInfo(10, 2, False, "classification", 2))
