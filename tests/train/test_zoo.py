"""What holds for every built-in model: read-only data, empty chunks, storable states."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import Convergence, JobSpec
from hpcslaq.train.catalogue import MODELS, build_model, load_model_class
from hpcslaq.train.model import data_info
from hpcslaq.train.options import validate_options
from hpcslaq.train.state import TrainState, checked_arrays

REGRESSORS = {"gbt_regressor", "lasso", "linear", "mlp_regressor"}


def example(lab, name, num_rows, is_sparse):
    """Small counts (fit for topics, too) as memory-mapped data would be: read-only."""
    rng = np.random.default_rng(0)
    X = rng.poisson(1.0, (num_rows, 6)).astype(float)
    y = X[:, 0] + rng.random(num_rows) if name in REGRESSORS else (X[:, 0] > X[:, 1]).astype(float)
    X = sparse.csr_array(X) if is_sparse else X
    for array in (X.data, X.indices, X.indptr, y) if is_sparse else (X, y):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return lab.ArrayData(X, y, "regression" if name in REGRESSORS else "classification")


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_on_read_only_rows_with_empty_chunks(lab, name, is_sparse):
    data = example(lab, name, 14, is_sparse)
    job = JobSpec("job", name, "arrays", num_chunks=20, max_epochs=4)
    outcome = lab.assert_allocation_does_not_matter(job, data)
    assert outcome.state.iterations >= 1
    state = outcome.state.arrays
    assert all(checked_arrays(state)[k].dtype == a.dtype for k, a in state.items())
    assert outcome.model.predict(state, data.X).shape[0] == 14
    measured = outcome.model.evaluate(state, data.rows(0, 14))
    assert measured
    assert all(isinstance(v, float) for v in measured.values())


@pytest.mark.parametrize("name", MODELS)
def test_every_model_falls_and_says_how_it_converges(lab, name):
    data = example(lab, name, 300, False)
    job = JobSpec("job", name, "arrays", num_chunks=4, max_epochs=10)
    outcome = lab.fit(job, data)
    assert outcome.state.last_loss < outcome.state.losses[0]
    assert isinstance(load_model_class(name).convergence, Convergence)


@pytest.mark.parametrize("name", MODELS)
def test_a_stored_model_predicts_the_same(lab, name):
    data = example(lab, name, 60, False)
    outcome = lab.fit(JobSpec("job", name, "arrays", num_chunks=4, max_epochs=3), data)
    stored = TrainState.unpack(outcome.state.pack())
    again = build_model(name, {})
    expected = outcome.model.predict(outcome.state.arrays, data.X)
    np.testing.assert_array_equal(again.predict(stored.arrays, data.X), expected)
    np.testing.assert_allclose(
        again.predict(stored.arrays, sparse.csr_array(data.X)), expected, rtol=1e-9, atol=1e-12
    )
    assert data_info(data).num_rows == 60


@pytest.mark.parametrize("name", ["logistic", "softmax", "svm", "poly_svm"])
@pytest.mark.parametrize("solver", ["lbfgs", "gd", "sgd", "momentum", "adam"])
def test_the_convergence_class_is_that_of_the_solver(name, solver):
    model_class = load_model_class(name)
    settings = validate_options(model_class, {"solver": solver})
    expected = Convergence.SUPERLINEAR if solver == "lbfgs" else Convergence.SUBLINEAR
    assert model_class.convergence_of(settings) is expected
    defaults = validate_options(model_class, {})
    assert model_class.convergence_of(defaults) is model_class.convergence
