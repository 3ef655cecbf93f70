"""The quadratic form is the explicit feature map of the kernel; and any allocation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import Chunk, Draw

GAMMA = 0.3


def spec(**changes) -> JobSpec:
    given = {"name": "job", "model": "poly_svm", "data": "arrays", "num_chunks": 5}
    return JobSpec(**(given | {"max_epochs": 200} | changes))


def explicit(X):
    i, j = np.triu_indices(X.shape[1])
    squares = np.where(i == j, GAMMA, np.sqrt(2) * GAMMA) * X[:, i] * X[:, j]
    return np.column_stack([squares, np.sqrt(2 * GAMMA) * X])


def test_the_map_is_that_of_the_kernel():
    X = np.random.default_rng(0).standard_normal((10, 4))
    mapped = explicit(X)
    np.testing.assert_allclose(mapped @ mapped.T + 1, (GAMMA * X @ X.T + 1) ** 2)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_sums_and_scores_are_those_of_a_linear_svm_on_the_explicit_map(is_sparse):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 4)), rng.integers(0, 2, 50).astype(float)
    mapped = explicit(X)
    x = rng.standard_normal(mapped.shape[1] + 1)
    model, linear = build_model("poly_svm", {"gamma": GAMMA}), build_model("svm", {})
    chunk = Chunk(0, sparse.csr_array(X) if is_sparse else X, y)
    sums = model.statistics({"x": x, "trial": x}, chunk, Draw(0, 0, 0, 1, 0))
    expected = linear.statistics({"x": x, "trial": x}, Chunk(0, mapped, y), Draw(0, 0, 0, 1, 0))
    assert sums["loss"] == pytest.approx(expected["loss"], rel=1e-12)
    np.testing.assert_allclose(sums["gradient"], expected["gradient"], rtol=1e-10, atol=1e-12)
    scores = model.predict({"x": x}, chunk.X)
    np.testing.assert_allclose(scores, linear.predict({"x": x}, mapped), rtol=1e-10)


def test_it_learns_what_no_linear_machine_can(lab):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    data = lab.ArrayData(X, (X[:, 0] * X[:, 1] > 0).astype(float))
    outcome = lab.fit(spec(options={"gamma": GAMMA}), data)
    assert outcome.model.evaluate(outcome.state.arrays, data.rows(0, 400))["auc"] > 0.99
    linear = lab.fit(spec(model="svm"), data)
    assert linear.model.evaluate(linear.state.arrays, data.rows(0, 400))["auc"] < 0.7


@pytest.mark.parametrize("solver", ["lbfgs", "adam"])
def test_is_the_same_on_any_allocation(cancer, lab, solver):
    job = spec(max_epochs=6, options={"solver": solver, "gamma": GAMMA, "batch_size": 150})
    outcome = lab.assert_allocation_does_not_matter(job, cancer)
    assert outcome.state.last_loss < outcome.state.losses[0]
