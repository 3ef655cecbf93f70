"""Measures of predictions on rows that were not trained on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcslaq.train.model import Array

#: Probabilities are kept this far from 0 and 1 before their logarithm is taken.
_LEAST_PROBABILITY = 1e-15


def sigmoid(scores: Array) -> Array:
    """1 / (1 + exp(-s)) without overflow."""
    small = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1.0, small) / (1.0 + small)


def softmax(scores: Array) -> Array:
    """exp(s_k) / sum_j exp(s_j) along the last axis, without overflow."""
    result = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(result / result.sum(axis=-1, keepdims=True))


def auc(y: Array, scores: Array) -> float:
    """Area under the ROC curve: labels y (n,) in {0, 1}, ties count half; NaN for one class."""
    is_positive = np.asarray(y) > 0.5
    num_positive = int(is_positive.sum())
    num_negative = is_positive.size - num_positive
    if not num_positive or not num_negative:
        return math.nan
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2.0  # ranks count from 1
    rank_sum = float(mean_ranks[places[is_positive]].sum())
    wins = rank_sum - num_positive * (num_positive + 1) / 2
    return wins / (num_positive * num_negative)


def log_loss(y: Array, probabilities: Array) -> float:
    """Mean negative log-likelihood: probabilities (n,) of class 1, or (n, K) of each class."""
    if probabilities.ndim == 1:
        of_truth = np.where(np.asarray(y) > 0.5, probabilities, 1.0 - probabilities)
    else:
        of_truth = probabilities[np.arange(len(y)), np.asarray(y).astype(np.int64)]
    return float(-np.log(np.clip(of_truth, _LEAST_PROBABILITY, 1.0)).mean())


def accuracy(y: Array, predicted: NDArray[Any]) -> float:
    """Share of the rows whose predicted label is right."""
    return float(np.mean(np.asarray(y) == predicted))


def rmse(y: Array, predicted: Array) -> float:
    """Root of the mean squared error."""
    return math.sqrt(float(np.mean(np.square(y - predicted))))


def r2(y: Array, predicted: Array) -> float:
    """1 - squared error / squared deviation from the mean; NaN if y is constant."""
    deviation = float(np.square(y - np.mean(y)).sum())
    return 1.0 - float(np.square(y - predicted).sum()) / deviation if deviation else math.nan
