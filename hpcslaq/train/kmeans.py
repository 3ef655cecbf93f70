"""K-means by Lloyd's iteration, from k-means++ centres of a sample or k-means|| of all rows.

Source: Lloyd (1982); seeding from Arthur and Vassilvitskii (2007), with several candidates
a round of which the best is kept; k-means|| is in `kmeans_parallel`. A cluster that lost all
rows restarts beside the centre of the cluster with the largest inertia.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError
from hpcslaq.train import kmeans_parallel
from hpcslaq.train.blocks import row_blocks
from hpcslaq.train.exact import Statistics
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

#: Rows of a block: measured best with 64 centres of 192 numbers (512: 10 % slower).
_BLOCK_ROWS = 2048


class KMeans(Model):
    """K-means clustering; the loss is the mean squared distance to the nearest centre."""

    convergence: ClassVar[Convergence] = Convergence.SUPERLINEAR
    options: ClassVar[Mapping[str, Option]] = {
        "clusters": Option(int, 8, "number of centres", at_least=1),
        "init": Option(
            str, "k-means++", "first centres", choices=("k-means++", "k-means||", "random")
        ),
        "rounds": Option(int, 5, "passes of k-means|| that draw candidates", at_least=1),
        "oversampling": Option(
            float, 2.0, "candidates that k-means|| draws in a round, per cluster", above=0.0
        ),
        "sample": Option(int, 10_000, "rows that the first centres are chosen from", at_least=1),
        "centre_tolerance": Option(
            float, 0.0, "ends when no centre's coordinate moved by more", at_least=0.0
        ),
    }

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError if there are fewer rows than clusters."""
        clusters = self.settings["clusters"]
        if info.num_rows < clusters:
            raise DataError(f"kmeans: {info.num_rows} rows are fewer than {clusters} clusters")

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """Centres chosen from a sample of the rows; for k-means|| random ones and a candidate."""
        clusters, init = self.settings["clusters"], self.settings["init"]
        size = clusters if init == "k-means||" else max(self.settings["sample"], clusters)
        rows = sample_rows(data, size, rng)
        rest = kmeans_parallel.nothing(data.num_features)
        if init == "k-means++":
            return {"centres": spread_centres(rows, clusters, rng), **rest}
        centres = rows[rng.choice(len(rows), clusters, replace=False)]
        if init == "k-means||":
            rest = kmeans_parallel.start(centres[:1].copy())
        return {"centres": centres, **rest}

    @property
    def _num_drawn(self) -> int:
        return max(1, round(float(self.settings["oversampling"] * self.settings["clusters"])))

    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Per cluster: sum of its rows (k, d), number of rows (k,) and inertia (k,)."""
        if kmeans_parallel.is_under_way(state):
            rounds, num_drawn = self.settings["rounds"], self._num_drawn
            squares = _row_squares(chunk)
            return kmeans_parallel.statistics(state, chunk, squares, draw, rounds, num_drawn)
        chunk.cache.pop("candidates", None)
        centres = state["centres"]
        num_clusters = len(centres)
        sums, counts, inertias = (
            np.zeros(centres.shape),
            np.zeros(num_clusters),
            np.zeros(num_clusters),
        )
        factors, offsets = _distance_terms(centres)
        squares = _row_squares(chunk)
        for start, stop, X in row_blocks(chunk.X, chunk.cache, _BLOCK_ROWS):
            labels, nearest = _nearest(X, factors, offsets)
            nearest += squares[start:stop]
            counts += np.bincount(labels, minlength=num_clusters)
            inertias += np.bincount(labels, weights=nearest, minlength=num_clusters)
            found = _members(chunk, labels, num_clusters) @ X
            sums += found.toarray() if sparse.issparse(found) else found
        return {"sums": sums, "counts": counts, "inertias": inertias}

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """Move each centre to the mean of its rows; a round of k-means|| is no iteration."""
        if kmeans_parallel.is_under_way(state):
            weights = kmeans_parallel.update(state, totals, context, self._num_drawn)
            if weights is not None:
                rows, clusters = state["candidates"], self.settings["clusters"]
                state["centres"] = spread_centres(rows, clusters, context.rng(2), weights)
                state |= kmeans_parallel.nothing(rows.shape[1])
            return Step(None)
        counts, inertias, old = totals["counts"], totals["inertias"], state["centres"]
        loss = max(float(inertias.sum()), 0.0) / context.info.num_rows
        centres = totals["sums"] / np.maximum(counts, 1.0)[:, None]
        empty = np.flatnonzero(counts == 0)
        if empty.size:
            self._refill(centres, empty, counts, inertias, context)
        state["centres"] = centres
        moved = float(np.abs(centres - old).max())
        return Step(loss, is_converged=moved <= self.settings["centre_tolerance"])

    def _refill(
        self, centres: Array, empty: NDArray[Any], counts: Array, inertias: Array, context: Context
    ) -> None:
        """Put the centres without rows beside those of the clusters with most inertia."""
        rng = context.rng(0)
        donors = np.argsort(-inertias, kind="stable")
        for i, cluster in enumerate(empty):
            donor = donors[i % np.count_nonzero(counts)]
            spread = np.sqrt(max(inertias[donor], 0.0) / counts[donor] / centres.shape[1])
            centres[cluster] = centres[donor] + spread * rng.standard_normal(centres.shape[1])

    def parameters(self, state: State) -> Array:
        """(k * d,): the centres row by row."""
        return state["centres"].ravel()

    def predict(self, state: State, X: Features) -> NDArray[Any]:
        """Numbers of the nearest centres: (n,) int64."""
        factors, offsets = _distance_terms(state["centres"])
        X, cache = as_features(X), {}  # type: ignore[var-annotated]
        found = [_nearest(rows, factors, offsets)[0] for _, _, rows in row_blocks(X, cache, 8192)]
        return np.concatenate(found)

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """Mean squared distance to the nearest centre."""
        factors, offsets = _distance_terms(state["centres"])
        chunk = Chunk(0, as_features(batch.X), None)
        total = float(_row_squares(chunk).sum())
        for _, _, X in row_blocks(chunk.X, chunk.cache, 8192):
            total += float(_nearest(X, factors, offsets)[1].sum())
        return {"inertia": total / chunk.num_rows}


def sample_rows(data: TrainingData, size: int, rng: np.random.Generator) -> Array:
    """At most `size` different rows at random, dense: (m, d)."""
    if data.num_rows <= size:
        chosen = np.arange(data.num_rows)
    else:
        chosen = np.sort(rng.choice(data.num_rows, size, replace=False))
    X = data.take(chosen).X
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)


def spread_centres(
    rows: Array, num_centres: int, rng: np.random.Generator, weights: Array | None = None
) -> Array:
    """Centres (k, d) among the rows by greedy k-means++ (Arthur and Vassilvitskii, section 2).

    weights : (n,) how many rows each stands for; None: one.
    """
    num_trials = 2 + int(np.log(num_centres))
    squares = np.einsum("ij,ij->i", rows, rows)
    if weights is None:
        weights, first = np.ones(len(rows)), int(rng.integers(len(rows)))
    else:
        first = int(rng.choice(len(rows), p=weights / weights.sum()))
    chosen = [first]
    nearest = weights * _squared_distances(rows, squares, chosen)[:, 0]
    while len(chosen) < num_centres:
        total = float(nearest.sum())
        if total <= 0:  # fewer different rows than centres
            chosen.append(int(rng.integers(len(rows))))
            continue
        cumulated = np.cumsum(nearest)
        drawn = rng.random(num_trials) * cumulated[-1]
        trials = np.minimum(np.searchsorted(cumulated, drawn), len(rows) - 1)
        distances = weights[:, None] * _squared_distances(rows, squares, trials)
        distances = np.minimum(nearest[:, None], distances)
        best = int(distances.sum(axis=0).argmin())
        chosen.append(int(trials[best]))
        nearest = distances[:, best]
    return rows[chosen]


def _squared_distances(rows: Array, squares: Array, chosen: Any) -> Array:
    products = rows @ rows[chosen].T
    distances = squares[:, None] - 2.0 * products + squares[chosen]
    return np.asarray(np.maximum(distances, 0.0))


def _distance_terms(centres: Array) -> tuple[Array, Array]:
    """-2 C' (d, k) and |c|^2 (k,): x -> x (-2 C') + |c|^2 is the squared distance less |x|^2."""
    return np.ascontiguousarray(-2.0 * centres.T), np.einsum("ij,ij->i", centres, centres)


def _nearest(X: Features, factors: Array, offsets: Array) -> tuple[NDArray[Any], Array]:
    """Number of the nearest centre of each row, and its squared distance less |x|^2."""
    distances = X @ factors
    distances += offsets
    labels = distances.argmin(axis=1)
    return labels, distances[np.arange(labels.size), labels]


def _members(chunk: Chunk, labels: NDArray[Any], num_clusters: int) -> Any:
    """The matrix (k, n) that has a 1 where a row is in a cluster; valid until the next call."""
    key, num_rows = f"members of {labels.size}", labels.size
    members = chunk.cache.get(key)
    if members is None:
        places = (np.ones(num_rows), np.zeros(num_rows, np.int64), np.arange(num_rows + 1))
        members = sparse.csc_array(places, shape=(num_clusters, num_rows))
        chunk.cache[key] = members
    # Making one costs as much as the product with some hundred rows.
    members.indices[:] = labels
    return members


def _row_squares(chunk: Chunk) -> Array:
    """|x|^2 of each row: (n,), kept with the chunk."""
    squares = chunk.cache.get("squares")
    if squares is None:
        X = chunk.X
        squares = (X * X).sum(axis=1) if sparse.issparse(X) else np.einsum("ij,ij->i", X, X)
        chunk.cache["squares"] = squares = np.asarray(squares).ravel()
    return np.asarray(squares)
