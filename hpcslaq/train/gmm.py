"""Gaussian mixtures by expectation maximisation, with diagonal or full covariances.

Source: Dempster, Laird and Rubin (1977); the formulas are those of Bishop, Pattern
Recognition and Machine Learning, section 9.2.2, with a small constant on the variances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import linalg, sparse

from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError, TrainingError
from hpcslaq.train.blocks import row_blocks, rows_per_block
from hpcslaq.train.exact import Statistics
from hpcslaq.train.kmeans import sample_rows, spread_centres
from hpcslaq.train.model import (
    Array,
    Batch,
    Chunk,
    Context,
    DataInfo,
    Draw,
    Features,
    Model,
    State,
    Step,
    Totals,
    TrainingData,
    as_features,
)
from hpcslaq.train.options import Option

_SEED_ITERATIONS = 20


class GaussianMixture(Model):
    """Mixture of Gaussians; the loss is the mean negative log-likelihood of a row."""

    convergence: ClassVar[Convergence] = Convergence.SUPERLINEAR
    options: ClassVar[Mapping[str, Option]] = {
        "components": Option(int, 8, "number of Gaussians", at_least=1),
        "covariance": Option(str, "diag", "shape of a covariance", choices=("diag", "full")),
        "regularisation": Option(float, 1e-6, "added to the variances", at_least=0.0),
        "sample": Option(int, 10_000, "rows that the first Gaussians are found on", at_least=1),
        "mean_tolerance": Option(
            float, 0.0, "ends when no mean's coordinate moved by more", at_least=0.0
        ),
    }

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.is_full = self.settings["covariance"] == "full"

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError if there are fewer rows than components."""
        if info.num_rows < self.settings["components"]:
            raise DataError(
                f"gmm: {info.num_rows} rows are fewer than {self.settings['components']} components"
            )

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """Gaussians of the clusters that k-means finds on a sample."""
        num = self.settings["components"]
        rows = sample_rows(data, max(self.settings["sample"], num), rng)
        # Sums are taken about this point, so that second moments do not cancel.
        shift = rows.mean(axis=0)
        rows = rows - shift
        labels = _cluster(rows, spread_centres(rows, num, rng))
        resp = np.zeros((len(rows), num))
        resp[np.arange(len(rows)), labels] = 1.0
        state: State = {"shift": shift}
        counts, sums, squares = self._moments(rows, resp)
        self._set(state, counts, sums, squares)
        return state

    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Responsibilities (k,), sums (k, d), second moments, and the log-likelihood."""
        num, dim = state["means"].shape
        counts, sums = np.zeros(num), np.zeros((num, dim))
        squares = np.zeros((num, dim, dim) if self.is_full else (num, dim))
        likelihood = 0.0
        terms = self._terms(state)
        for _, _, rows in row_blocks(chunk.X, chunk.cache, rows_per_block(dim)):
            X = _centred(rows, state["shift"])
            logs, resp = self._responsibilities(state, terms, X)
            likelihood += float(logs.sum())
            parts = self._moments(X, resp)
            counts += parts[0]
            sums += parts[1]
            squares += parts[2]
        return {"counts": counts, "sums": sums, "squares": squares, "likelihood": likelihood}

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """Maximisation."""
        old = state["means"]
        self._set(state, totals["counts"], totals["sums"], totals["squares"])
        moved = float(np.abs(state["means"] - old).max())
        loss = -totals["likelihood"] / context.info.num_rows
        return Step(loss, is_converged=moved <= self.settings["mean_tolerance"])

    def _moments(self, X: Array, resp: Array) -> tuple[Array, Array, Array]:
        sums = resp.T @ X
        if self.is_full:
            squares = np.stack([(X * weights[:, None]).T @ X for weights in resp.T])
        else:
            squares = resp.T @ (X * X)
        return resp.sum(axis=0), sums, squares

    def _set(self, state: State, counts: Array, sums: Array, squares: Array) -> None:
        """Weights, means and precisions from the sums (about the shift)."""
        counts = np.maximum(counts, 10 * np.finfo(np.float64).eps)
        means = sums / counts[:, None]
        state["weights"] = counts / counts.sum()
        state["means"] = means
        extra = self.settings["regularisation"]
        if not self.is_full:
            variances = squares / counts[:, None] - means * means
            state["covariances"] = np.maximum(variances, 0.0) + extra
            return
        covariances = squares / counts[:, None, None] - means[:, :, None] * means[:, None, :]
        diagonal = np.einsum("kii->ki", covariances)
        diagonal += extra
        state["covariances"] = covariances

    def _terms(self, state: State) -> tuple[Array, Any, Any]:
        """Constant of each component's log-density, and what multiplies X (see `_logs`)."""
        covariances, means = state["covariances"], state["means"]
        dim = means.shape[1]
        constants = np.log(state["weights"]) - 0.5 * dim * math.log(2 * math.pi)
        if not self.is_full:
            if np.any(covariances <= 0):
                raise TrainingError("gmm: a variance is 0; raise the option regularisation")
            precisions = 1.0 / covariances
            constants -= 0.5 * np.log(covariances).sum(axis=1)
            constants -= 0.5 * (means * means * precisions).sum(axis=1)
            return constants, (-0.5 * precisions).T.copy(), (means * precisions).T.copy()
        factors = []
        for k, covariance in enumerate(covariances):
            try:
                lower = np.linalg.cholesky(covariance)
            except np.linalg.LinAlgError:
                raise TrainingError(
                    f"gmm: the covariance of component {k} is singular; "
                    "raise the option regularisation"
                ) from None
            constants[k] -= np.log(lower.diagonal()).sum()
            inverse = linalg.solve_triangular(lower, np.eye(dim), lower=True)
            factors.append(np.ascontiguousarray(inverse.T))
        offsets = [mean @ factor for mean, factor in zip(means, factors, strict=True)]
        return constants, factors, offsets

    def _logs(self, terms: tuple[Array, Any, Any], X: Array) -> Array:
        """Logarithms of weight times density: (n, k)."""
        constants, first, second = terms
        if not self.is_full:
            logs = (X * X) @ first
            logs += X @ second
            logs += constants
            return np.asarray(logs)
        logs = np.empty((len(X), len(constants)))
        for k, (factor, offset) in enumerate(zip(first, second, strict=True)):
            standard = X @ factor
            standard -= offset
            logs[:, k] = constants[k] - 0.5 * np.einsum("ij,ij->i", standard, standard)
        return logs

    def _responsibilities(
        self, state: State, terms: tuple[Array, Any, Any], X: Array
    ) -> tuple[Array, Array]:
        """Log-likelihood of each row (n,) and its responsibilities (n, k)."""
        logs = self._logs(terms, X)
        largest = logs.max(axis=1)
        logs -= largest[:, None]
        resp = np.exp(logs, out=logs)
        sums = resp.sum(axis=1)
        resp /= sums[:, None]
        return np.log(sums) + largest, resp

    def parameters(self, state: State) -> Array:
        """(P,): weights, means and covariances."""
        means = state["means"] + state["shift"]
        return np.concatenate([state["weights"], means.ravel(), state["covariances"].ravel()])

    def predict(self, state: State, X: Features) -> Array:
        """Responsibilities: (n, k)."""
        return self._responsibilities(
            state, self._terms(state), _centred(as_features(X), state["shift"])
        )[1]

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """Mean log-likelihood of a row."""
        terms, total = self._terms(state), 0.0
        X = as_features(batch.X)
        for _, _, rows in row_blocks(X, {}, rows_per_block(X.shape[1])):
            X_centred = _centred(rows, state["shift"])
            total += float(self._responsibilities(state, terms, X_centred)[0].sum())
        return {"log_likelihood": total / X.shape[0]}


def _centred(rows: Features, shift: Array) -> Array:
    dense = rows.toarray() if sparse.issparse(rows) else rows
    return np.asarray(dense - shift)


def _cluster(rows: Array, centres: Array) -> Any:
    """Labels after some iterations of k-means; an empty cluster keeps its centre."""
    labels = np.zeros(len(rows), dtype=np.int64)
    for _ in range(_SEED_ITERATIONS):
        distances = rows @ (-2.0 * centres.T) + (centres * centres).sum(axis=1)
        following = distances.argmin(axis=1)
        if np.array_equal(following, labels):
            break
        labels = following
        counts = np.bincount(labels, minlength=len(centres))
        members = np.zeros((len(centres), len(rows)))
        members[labels, np.arange(len(rows))] = 1.0
        is_filled = counts > 0
        centres[is_filled] = (members @ rows)[is_filled] / counts[is_filled, None]
    return labels
