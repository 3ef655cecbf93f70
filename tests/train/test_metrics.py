"""Measures against scikit-learn, and their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcslaq.train import metrics


@pytest.mark.parametrize("decimals", [1, 15])
def test_auc_is_that_of_scikit_learn_with_and_without_ties(decimals):
    reference = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(decimals)
    y = (rng.random(500) < 0.2).astype(float)
    scores = np.round(rng.random(500) + 0.3 * y, decimals)
    assert metrics.auc(y, scores) == pytest.approx(reference.roc_auc_score(y, scores), rel=1e-12)


def test_auc_worked_by_hand():
    # Pairs (positive, negative): 3 > 1, 3 > 2, 2 > 1, 2 = 2: 3.5 of 4.
    assert metrics.auc(np.array([0, 1, 0, 1.0]), np.array([1, 3, 2, 2.0])) == 3.5 / 4
    assert math.isnan(metrics.auc(np.ones(3), np.arange(3.0)))


def test_log_losses_are_those_of_scikit_learn():
    reference = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200).astype(float)
    p = metrics.softmax(rng.standard_normal((200, 3)))
    assert metrics.log_loss(y, p) == pytest.approx(reference.log_loss(y, p), rel=1e-12)
    is_two, of_two = (y == 2).astype(float), p[:, 2]
    expected = reference.log_loss(is_two, of_two)
    assert metrics.log_loss(is_two, of_two) == pytest.approx(expected, rel=1e-12)


def test_regression_measures_are_those_of_scikit_learn():
    reference = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    y, predicted = rng.standard_normal((2, 100))
    assert metrics.r2(y, predicted) == pytest.approx(reference.r2_score(y, predicted), rel=1e-12)
    expected = math.sqrt(reference.mean_squared_error(y, predicted))
    assert metrics.rmse(y, predicted) == pytest.approx(expected, rel=1e-12)
    assert math.isnan(metrics.r2(np.ones(3), np.arange(3.0)))


def test_sigmoid_and_softmax_do_not_overflow():
    np.testing.assert_array_equal(metrics.sigmoid(np.array([-1e4, 0, 1e4])), [0, 0.5, 1])
    np.testing.assert_array_equal(metrics.softmax(np.array([[1e4, 0.0]])), [[1, 0]])


def test_accuracy_counts_hits():
    assert metrics.accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == 0.75
