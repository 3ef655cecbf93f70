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

#: exp does not overflow below; log(1 + exp(m)) is m beyond.
_LARGE = 700.0


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
        loss = 0.0
        if margins.max(initial=0.0) > _LARGE:
            is_large = margins > _LARGE
            loss = float((margins[is_large] - _LARGE).sum())
            margins[is_large] = _LARGE
        slopes = np.exp(margins, out=margins)
        sums = slopes + 1.0
        slopes /= sums
        slopes *= signs
        # Not log1p, which is ten times slower; it differs by 1e-16 at most, absolutely.
        return loss + float(np.log(sums, out=sums).sum()), slopes

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
