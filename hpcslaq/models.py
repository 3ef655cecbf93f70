"""Finished models without MPI: `load_model(path).predict(X)`."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from hpcslaq.record.modelfile import CENTER, SCALE, ModelInfo, read_model
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import Model

__all__ = ["FittedModel", "load_model"]


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A trained model and what is known about it."""

    #: Job, hyperparameters, data, digests, held-out measures.
    info: ModelInfo
    #: The arrays of its state by name.
    arrays: dict[str, np.ndarray] = field(repr=False)
    _model: Model = field(repr=False)
    #: (d,) float64 each: what the data was standardised with; None where it was not.
    center: np.ndarray | None = field(default=None, repr=False)
    scale: np.ndarray | None = field(default=None, repr=False)

    def scores(self, X: Any) -> np.ndarray:
        """What the model computes for rows of features, before any decision.

        X : (n, d), scipy sparse or whatever numpy makes an array of. Returns (n,): regression
        values, probabilities or margins of class 1, or cluster numbers; or (n, k), one column
        per class. Raises ValueError where the number of features differs.
        """
        X = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X, dtype=np.float64)
        expected = self.info.data.get("num_features")
        if np.ndim(X) != 2 or X.shape[1] != expected:
            raise ValueError(f"X: shape {np.shape(X)}, expected (n, {expected})")
        if self.center is not None and self.scale is not None:
            X = (X - self.center) / self.scale
        return self._model.predict(self.arrays, X)

    def predict(self, X: Any) -> np.ndarray:
        """Predictions for rows of features: (n,), class labels as in the training file.

        X as in `scores`. Regression values and cluster numbers are returned as they are.
        """
        scores = self.scores(X)
        if self.info.labels is None or scores.dtype.kind != "f":
            return scores
        if scores.ndim == 1:
            classes = (scores > self._model.decision_threshold).astype(np.int64)
        else:
            classes = scores.argmax(axis=1)
        return np.asarray(self.info.labels)[classes]


def load_model(path: str | PathLike[str], *, allow_user_code: bool = False) -> FittedModel:
    """The model of a finished job, from `RUN/models/<job>.h5`.

    A file never brings code with it. A model of the user's own class (`path.py:Class` or
    `module:Class`) is therefore only loaded with `allow_user_code=True`. Raises NotFoundError,
    CheckpointError, TrainingError.
    """
    saved = read_model(Path(path))
    name = saved.info.model
    if ":" in name and not allow_user_code:
        raise PermissionError(
            f"{path}: its model class is {name!r}; pass allow_user_code=True to import it"
        )
    model = build_model(name, saved.info.options)
    arrays = dict(saved.arrays)
    center, scale = arrays.pop(CENTER, None), arrays.pop(SCALE, None)
    return FittedModel(saved.info, arrays, model, center, scale)
