"""Convex models on real data: the optimum of scikit-learn to a relative 1e-6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.builtin import missing_packages
from hpcslaq.data.cache import default_cache_root, prepare
from hpcslaq.data.source import DataSource
from hpcslaq.data.store import open_dataset
from hpcslaq.train.catalogue import build_model, load_model_class
from hpcslaq.train.options import validate_options
from hpcslaq.train.reducer import Solo
from hpcslaq.train.state import initial_state
from hpcslaq.train.trainer import StopRule, Trainer

pytestmark = [pytest.mark.data, pytest.mark.long]

linear_model = pytest.importorskip("sklearn.linear_model")
svm = pytest.importorskip("sklearn.svm")


def opened(name: str) -> Any:
    missing = missing_packages(name)
    if missing:
        pytest.skip(f"the packages of {name} are not installed (scripts/fetch-data.sh)")
    return open_dataset(Path(prepare(DataSource(name), default_cache_root())))


def fitted(data: Any, model: str, options: dict[str, object]) -> float:
    """The last loss of a fit to the end."""
    job = JobSpec("job", model, "d", num_chunks=4, max_epochs=5000, options=options)
    built = build_model(model, validate_options(load_model_class(model), options))
    trainer = Trainer(job, built, data, initial_state(job, built, data), Solo())
    report = trainer.step()
    while not report.is_final:
        report = trainer.step()
    assert report.stop is StopRule.CONVERGED, report
    assert trainer.state.last_loss is not None
    return trainer.state.last_loss


def logistic(scores: np.ndarray, y: np.ndarray) -> float:
    return float(np.logaddexp(0.0, -(2.0 * y - 1.0) * scores).mean())


def squared_hinge(scores: np.ndarray, y: np.ndarray) -> float:
    return float((np.maximum(0.0, 1.0 - (2.0 * y - 1.0) * scores) ** 2).mean())


@pytest.mark.parametrize(("name", "l2"), [("census", 1e-3), ("protein", 1e-3)])
def test_logistic_regression(name, l2):
    data = opened(name)
    rows = data.rows(0, data.num_rows)
    reference = linear_model.LogisticRegression(
        C=1.0 / (l2 * data.num_rows), tol=1e-9, max_iter=5000
    ).fit(rows.X, rows.y)
    w = reference.coef_[0]
    best = logistic(reference.decision_function(rows.X), rows.y) + 0.5 * l2 * w @ w
    loss = fitted(data, "logistic", {"l2": l2, "gradient_tolerance": 1e-7})
    assert loss == pytest.approx(best, rel=1e-6)


def test_linear_svm():
    data, l2 = opened("protein"), 1e-2
    rows = data.rows(0, data.num_rows)
    reference = svm.LinearSVC(
        C=1.0 / (l2 * data.num_rows), dual=False, fit_intercept=False, tol=1e-8, max_iter=5000
    ).fit(rows.X, rows.y)
    w = reference.coef_[0]
    best = squared_hinge(rows.X @ w, rows.y) + 0.5 * l2 * w @ w
    options = {"l2": l2, "intercept": False, "gradient_tolerance": 1e-7}
    assert fitted(data, "svm", options) == pytest.approx(best, rel=1e-6)


def test_softmax_regression():
    data, l2 = opened("mnist"), 1e-1
    rows = data.rows(0, data.num_rows)
    reference = linear_model.LogisticRegression(
        C=1.0 / (l2 * data.num_rows), tol=1e-8, max_iter=5000
    ).fit(rows.X, rows.y)
    logs = reference.predict_log_proba(rows.X)
    best = -float(logs[np.arange(len(logs)), rows.y.astype(int)].mean())
    best += 0.5 * l2 * float(np.sum(reference.coef_**2))
    loss = fitted(data, "softmax", {"l2": l2, "gradient_tolerance": 1e-6})
    assert loss == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.1), (0.1, 0.05)])
def test_linear_regression_and_its_penalties(l1, l2):
    data = opened("flights")
    rows = data.rows(0, data.num_rows)
    if l1:
        reference = linear_model.ElasticNet(
            alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), tol=1e-10, precompute=True, max_iter=100_000
        )
    else:
        reference = linear_model.Ridge(alpha=l2 * data.num_rows)
    errors = reference.fit(rows.X, rows.y).predict(rows.X) - rows.y
    w = reference.coef_
    best = 0.5 * float(errors @ errors) / data.num_rows
    best += l1 * float(np.abs(w).sum()) + 0.5 * l2 * float(w @ w)
    loss = fitted(data, "lasso", {"l1": l1, "l2": l2})
    assert loss == pytest.approx(best, rel=1e-6)
