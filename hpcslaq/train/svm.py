"""Linear support vector machine: hinge loss max(0, 1 - m) of the margin m, or its square.

`lbfgs` and `gd` minimise the hinge with its kink rounded off over a width that they shrink
tenfold whenever they have converged. The rounded loss is at least the hinge and at most h / 2
above it, and falls with the width h; so the losses fall, and end within h / 2 of the best.

Source: the rounding is that of Chapelle, Training a support vector machine in the primal
(2007), section 2.2, one-sided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hpcslaq.train import metrics
from hpcslaq.train.model import (
    Array,
    Batch,
    Context,
    DataInfo,
    Features,
    State,
    Step,
    Totals,
    as_features,
    require_classes,
    targets,
)
from hpcslaq.train.options import Option
from hpcslaq.train.scores import OPTIONS, ScoreModel

#: Width of the rounded kink at first, and by what it shrinks.
_FIRST_WIDTH, _SHRINK = 0.1, 0.1


class LinearSVM(ScoreModel):
    """Binary linear SVM with an L2 penalty; labels 0 and 1."""

    options: ClassVar[Mapping[str, Option]] = {
        **OPTIONS,
        "l2": Option(float, 1e-4, "weight of the penalty l2/2 |W|^2 on the mean loss", at_least=0),
        "loss": Option(
            str, "squared_hinge", "the loss of a row", choices=("hinge", "squared_hinge")
        ),
        "smoothing": Option(float, 1e-7, "last width of the hinge's rounded kink", above=0.0),
    }

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.is_smoothed = self.settings["loss"] == "hinge" and not self.is_stochastic

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless there are two classes."""
        require_classes(info, "svm", 2, 2)

    def start(self, x: Array) -> State:
        """As for all linear scores; the hinge's state also has the width of its kink."""
        state = super().start(x)
        return state | {"width": np.array([_FIRST_WIDTH])} if self.is_smoothed else state

    def row_losses(
        self, state: State, scores: Array, y: Array, cache: dict[str, Any]
    ) -> tuple[float, Array]:
        """Sum of max(0, 1 - m), rounded off or not, or of its square, and derivatives (n,)."""
        signs = cache.get("signs")
        if signs is None:
            signs = cache["signs"] = 2.0 * y - 1.0
        scores *= signs
        lacks = np.maximum(np.subtract(1.0, scores, out=scores), 0.0, out=scores)
        if self.settings["loss"] == "squared_hinge":
            loss = float(lacks @ lacks)
            lacks *= signs
            lacks *= -2.0
            return loss, lacks
        if not self.is_smoothed:
            return float(lacks.sum()), -signs * (lacks > 0)
        width = float(state["width"][0])
        # With s = min(1, lack / width): the loss is lack s + width (1 - s^2) / 2, its slope s.
        slopes = np.minimum(lacks / width, 1.0)
        loss = float(lacks @ slopes) + 0.5 * width * (slopes.size - float(slopes @ slopes))
        slopes *= signs
        return loss, np.negative(slopes, out=slopes)

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """One evaluation of the solver; when it has converged, a narrower kink."""
        done = super().update(state, totals, context)
        if not done.is_converged or not self.is_smoothed:
            return done
        width = float(state["width"][0])
        if width <= self.settings["smoothing"] * 1.001:
            return done
        state.update(self.start(state["x"]))
        state["width"][0] = max(_SHRINK * width, self.settings["smoothing"])
        return Step(done.loss)

    def gradient_tolerance(self, state: State) -> float:
        """Loose while the kink is wide."""
        last = super().gradient_tolerance(state)
        return max(last, 1e-2 * float(state["width"][0])) if self.is_smoothed else last

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
