"""Softmax (multinomial logistic) regression: loss -log softmax(s)_y of the scores s (K,)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcslaq.train import metrics
from hpcslaq.train.model import (
    Array,
    Batch,
    DataInfo,
    Features,
    State,
    as_features,
    require_classes,
    targets,
)
from hpcslaq.train.scores import ScoreModel


class SoftmaxRegression(ScoreModel):
    """Softmax regression with an L2 penalty; labels 0, ..., K - 1, one weight column a class."""

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless there are at least two classes."""
        require_classes(info, "softmax")

    def num_outputs(self, info: DataInfo) -> int:
        """One score a class."""
        return info.num_classes

    def row_losses(
        self, state: State, scores: Array, y: Array, cache: dict[str, Any]
    ) -> tuple[float, Array]:
        """Sum of log(sum_k exp(s_k)) - s_y and derivatives softmax(s) - [k = y], (n, K)."""
        places = cache.get("places")
        if places is None:
            places = np.arange(y.size) * scores.shape[1] + y.astype(np.int64)
            cache["places"] = places
        scores -= scores.max(axis=1, keepdims=True)
        loss = -float(scores.ravel()[places].sum())
        exps = np.exp(scores, out=scores)
        sums = exps.sum(axis=1)
        loss += float(np.log(sums).sum())
        exps /= sums[:, None]
        exps.ravel()[places] -= 1.0
        return loss, exps

    def predict(self, state: State, X: Features) -> Array:
        """Probabilities of the classes: (n, K)."""
        return metrics.softmax(self.scores(state, as_features(X)))

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """Log-loss and accuracy."""
        probabilities, y = self.predict(state, batch.X), targets(batch)
        return {
            "log_loss": metrics.log_loss(y, probabilities),
            "accuracy": metrics.accuracy(y, probabilities.argmax(axis=1)),
        }
