"""SVM with a polynomial kernel of degree 2, by its explicit feature map, never materialised.

The kernel (g x'z + 1)^2 is the product of the features g x_i^2, sqrt(2) g x_i x_j (i < j),
sqrt(2 g) x_i and 1. A score that is linear in them is the quadratic form x'Mx + v'x + b with
an upper triangular M, so scores and gradients are two matrix products of the size of the
rows, instead of products with d (d + 3) / 2 columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from hpcslaq.train.blocks import row_blocks, rows_per_block
from hpcslaq.train.model import Array, DataInfo, Features, State, as_features
from hpcslaq.train.options import Option
from hpcslaq.train.svm import LinearSVM


class PolynomialSVM(LinearSVM):
    """Binary SVM with the kernel (gamma x'z + 1)^2; the weights are those of the features."""

    options: ClassVar[Mapping[str, Option]] = {
        **LinearSVM.options,
        "gamma": Option(float, 0.1, "scale of the products x'z", above=0.0),
    }

    def num_inputs(self, info: DataInfo) -> int:
        """Features of degree 2, row by row of the upper triangle, then those of degree 1."""
        return info.num_features * (info.num_features + 3) // 2

    def _sums(
        self, state: State, X: Features, y: Array, cache: dict[str, Any]
    ) -> dict[str, Array | float]:
        x, dim = self._evaluated(state), X.shape[1]
        triangle, scale = self._scale(dim)
        matrix, linear = self._form(x, dim)
        loss, products, first, count = 0.0, np.zeros((dim, dim)), np.zeros(dim), 0.0
        for start, stop, rows in row_blocks(X, cache, rows_per_block(dim)):
            dense = _dense(rows)
            scores = _form_values(dense, matrix, linear, x[-1])
            own_loss, slopes = self.row_losses(state, scores, y[start:stop], {})
            loss += own_loss
            products += (dense * slopes[:, None]).T @ dense
            first += dense.T @ slopes
            count += float(slopes.sum())
        gradient = np.empty(x.size)
        size = triangle[0].size
        gradient[:size] = scale * products[triangle]
        gradient[size:-1] = np.sqrt(2.0 * self.settings["gamma"]) * first
        gradient[-1] = count if self.settings["intercept"] else 0.0
        return {"loss": loss, "gradient": gradient}

    def _scale(self, dim: int) -> tuple[Any, Array]:
        """Places of the features of degree 2 in M, and their factors."""
        triangle = np.triu_indices(dim)
        gamma = self.settings["gamma"]
        return triangle, np.where(triangle[0] == triangle[1], gamma, np.sqrt(2.0) * gamma)

    def _form(self, x: Array, dim: int) -> tuple[Array, Array]:
        """M (d, d) and v (d,) of the weights."""
        triangle, scale = self._scale(dim)
        matrix = np.zeros((dim, dim))
        matrix[triangle] = scale * x[: scale.size]
        return matrix, np.sqrt(2.0 * self.settings["gamma"]) * x[scale.size : -1]

    def scores(self, state: State, X: Features) -> Array:
        """x'Mx + v'x + b: (n,)."""
        X, x = as_features(X), state["x"]
        form = self._form(x, X.shape[1])
        blocks = row_blocks(X, {}, rows_per_block(X.shape[1]))
        return np.concatenate([_form_values(_dense(rows), *form, x[-1]) for _, _, rows in blocks])


def _form_values(rows: Array, matrix: Array, linear: Array, intercept: float) -> Array:
    scores = np.einsum("ij,ij->i", rows @ matrix, rows)
    scores += rows @ linear
    return np.asarray(scores + intercept)


def _dense(rows: Features) -> Array:
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows)
