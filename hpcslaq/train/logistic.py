"""Binary logistic regression: loss log(1 + exp(-s)) of the score s for the positive class."""

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

#: 512 factors in (1, 2] cannot overflow float64; one logarithm serves them all.
_GROUP = 512


class LogisticRegression(ScoreModel):
    """Binary logistic regression with an L2 penalty; labels 0 and 1."""

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless there are two classes."""
        require_classes(info, "logistic", 2, 2)

    def row_losses(
        self, state: State, scores: Array, y: Array, cache: dict[str, Any]
    ) -> tuple[float, Array]:
        """Sum of log(1 + exp(m)), m = s for label 0, -s for label 1, and derivatives (n,)."""
        signs = cache.get("signs")
        if signs is None:
            signs = cache["signs"] = 1.0 - 2.0 * y
        margins = np.multiply(scores, signs, out=scores)
        sizes = np.abs(margins)
        loss = 0.5 * (float(margins.sum()) + float(sizes.sum()))  # sum of max(m, 0)
        small = np.exp(np.negative(sizes, out=sizes), out=sizes)  # exp(-|m|), in (0, 1]
        ones = small + 1.0
        loss += _sum_of_logs(ones)
        # sigmoid(m) is 1 / (1 + exp(-|m|)), or exp(-|m|) times that where m < 0.
        small[margins >= 0] = 1.0
        small /= ones
        small *= signs
        return loss, small

    def predict(self, state: State, X: Features) -> Array:
        """Probabilities of class 1: (n,)."""
        return metrics.sigmoid(self.scores(state, as_features(X)))

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """AUC, log-loss and accuracy."""
        probabilities, y = self.predict(state, batch.X), targets(batch)
        return {
            "auc": metrics.auc(y, probabilities),
            "log_loss": metrics.log_loss(y, probabilities),
            "accuracy": metrics.accuracy(y, probabilities > 0.5),
        }


def _sum_of_logs(values: Array) -> float:
    """The sum of the logarithms of values in (1, 2]; within 1e-13 relative of term by term."""
    whole = values.size - values.size % _GROUP
    grouped = np.multiply.reduce(values[:whole].reshape(_GROUP, -1), axis=0)
    return float(np.log(grouped).sum()) + float(np.log(values[whole:]).sum())
