"""Linear support vector machine: hinge loss max(0, 1 - m) of the margin m, or its square."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hpcslaq.core.jobs import Convergence
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
from hpcslaq.train.options import Option
from hpcslaq.train.scores import OPTIONS, ScoreModel


class LinearSVM(ScoreModel):
    """Binary linear SVM with an L2 penalty; labels 0 and 1.

    The hinge has kinks: gradient descent with an adaptive step may end early there; L-BFGS
    with its weak Wolfe search and mini-batches may not.
    """

    convergence: ClassVar[Convergence] = Convergence.SUBLINEAR
    options: ClassVar[Mapping[str, Option]] = {
        **OPTIONS,
        "l2": Option(float, 1e-4, "weight of the penalty l2/2 |W|^2 on the mean loss", at_least=0),
        "loss": Option(
            str, "squared_hinge", "the loss of a row", choices=("hinge", "squared_hinge")
        ),
    }

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless there are two classes."""
        require_classes(info, "svm", 2, 2)

    def row_losses(self, scores: Array, y: Array, cache: dict[str, Any]) -> tuple[float, Array]:
        """Sum of max(0, 1 - m) or of its square, and (sub)derivatives (n,)."""
        signs = cache.get("signs")
        if signs is None:
            signs = cache["signs"] = 2.0 * y - 1.0
        scores *= signs
        lacks = np.maximum(np.subtract(1.0, scores, out=scores), 0.0, out=scores)
        if self.settings["loss"] == "hinge":
            loss = float(lacks.sum())
            return loss, -signs * (lacks > 0)
        loss = float(lacks @ lacks)
        lacks *= signs
        lacks *= -2.0
        return loss, lacks

    def predict(self, state: State, X: Features) -> Array:
        """Signed distances, scaled by |w|: (n,), positive for class 1."""
        return self.scores(state, as_features(X))

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """AUC, accuracy and mean hinge loss."""
        scores, y = self.predict(state, batch.X), targets(batch)
        hinge = np.maximum(0.0, 1.0 - (2.0 * y - 1.0) * scores)
        return {
            "auc": metrics.auc(y, scores),
            "accuracy": metrics.accuracy(y, scores > 0),
            "hinge": float(hinge.mean()),
        }
