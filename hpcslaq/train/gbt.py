"""Gradient boosted trees on binned features: classification and regression.

A pass grows one level of one tree (one tree a class): each chunk sums gradients and second
derivatives per node, feature and bin; the update chooses the splits. An epoch is a tree, and
its loss is that of the model before it. Only the lighter child of a split is summed, the
other is the parent's histogram less that. What belongs to rows (bins, margins, nodes) is
computed again from the trees wherever a chunk arrives, and kept with it.

Source: Friedman (2001), algorithm 1, with second-order leaf values and gains from Chen and
Guestrin (XGBoost, 2016), equations 5 and 7; histograms as in LightGBM (Ke et al., 2017).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hpcslaq.core.jobs import Convergence
from hpcslaq.train import metrics
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
    data_info,
    require_classes,
    require_regression,
    targets,
)
from hpcslaq.train.options import Option

Ints = NDArray[np.int64]

#: Rows that are binned at a time.
_BLOCK_ROWS = 4096
#: Least gain of a split: below it the difference of the sums is rounding.
_LEAST_GAIN = 1e-10


@dataclass(slots=True)
class _Rows:
    """What is known of a chunk's rows: kept with the chunk, never part of the state."""

    #: Bin of each value: (n, d) uint8.
    codes: NDArray[np.uint8]
    #: Sum of the first `num_trees` trees: (K, n).
    margins: Array
    num_trees: int = 0
    #: Tree and level that `nodes` is for.
    place: tuple[int, int] = (-1, -1)
    #: Node of each row within its level: (K, n).
    nodes: Any = None
    #: Gradients and second derivatives of each row for the present tree: (K, n, 2).
    derivatives: Any = None
    loss: float = 0.0


class BoostedTrees(Model):
    """Base of classifier and regressor; K outputs, trees of `depth` full levels."""

    convergence: ClassVar[Convergence] = Convergence.SUBLINEAR
    options: ClassVar[Mapping[str, Option]] = {
        "depth": Option(int, 5, "levels of splits of a tree", at_least=1, at_most=10),
        "rate": Option(float, 0.1, "shrinkage of each tree", above=0.0, at_most=1.0),
        "bins": Option(int, 64, "most bins of a feature", at_least=2, at_most=256),
        "l2": Option(float, 1.0, "penalty l2/2 v^2 on leaf values v", at_least=0.0),
        "min_child_weight": Option(
            float, 1.0, "least sum of second derivatives (rows, in regression) in a child", above=0
        ),
        "sample": Option(int, 50_000, "rows that the bins are chosen from", at_least=1),
    }

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        #: As many ones as a block of rows has values, or more: of use to all chunks.
        self._ones: Array = np.ones(0)

    @abstractmethod
    def num_outputs(self, info: DataInfo) -> int:
        """Trees an iteration."""

    @abstractmethod
    def first_margins(self, y: Array, info: DataInfo) -> Array:
        """The constant model (K,) for a sample of targets."""

    @abstractmethod
    def derivatives(self, margins: Array, y: Array) -> tuple[float, Array, Array]:
        """Sum of the losses, gradients and second derivatives (K, n) by the margins (K, n)."""

    def steps_per_epoch(self, info: DataInfo) -> int:
        """One pass a level."""
        return int(self.settings["depth"])

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """Bins and the constant model, from a sample of the rows."""
        info, depth = data_info(data), self.settings["depth"]
        size = min(info.num_rows, self.settings["sample"])
        batch = data.take(np.sort(rng.choice(info.num_rows, size, replace=False)))
        X = batch.X.toarray() if sparse.issparse(batch.X) else np.asarray(batch.X)
        num_outputs = self.num_outputs(info)
        return {
            #: Upper ends of the bins but the last: (d, bins - 1), filled up with infinity.
            "edges": _bin_edges(X, self.settings["bins"]),
            "base": np.asarray(self.first_margins(targets(batch), info), dtype=np.float64),
            # Finished trees: splits (T, K, 2^depth - 1) and leaf values (T, K, 2^depth).
            "features": np.zeros((0, num_outputs, 2**depth - 1), dtype=np.int64),
            "bins": np.zeros((0, num_outputs, 2**depth - 1), dtype=np.int64),
            "values": np.zeros((0, num_outputs, 2**depth)),
            # The tree that grows, and what its next level needs of the last.
            "new_features": np.zeros((num_outputs, 2**depth - 1), dtype=np.int64),
            "new_bins": np.zeros((num_outputs, 2**depth - 1), dtype=np.int64),
            "is_summed": np.ones((num_outputs, 1), dtype=np.bool_),
            "parent_slopes": np.zeros((num_outputs, 0)),
            "parent_curvatures": np.zeros((num_outputs, 0)),
        }

    # -- statistics -----------------------------------------------------------------------

    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Sums per output, summed node, feature and bin; at the root also the loss."""
        rows = self._rows(state, chunk)
        level = draw.step
        self._go_down(state, rows, targets(chunk), level)
        num_outputs, num_bins = len(state["base"]), state["edges"].shape[1] + 1
        num_nodes = max(1, 2**level // 2)
        shape = (num_outputs, num_nodes, rows.codes.shape[1], num_bins)
        slopes, curvatures = np.zeros(shape), np.zeros(shape)
        for k in range(num_outputs):
            chosen = nodes = None  # at the root all rows are summed, in one node
            derivatives = rows.derivatives[k]
            if level:
                chosen = np.flatnonzero(state["is_summed"][k][rows.nodes[k]])
                derivatives, nodes = derivatives[chosen], rows.nodes[k][chosen] >> 1
            _fill(slopes[k], curvatures[k], rows.codes, chosen, derivatives, nodes, self._ones)
        sums: dict[str, Array | float] = {"slopes": slopes, "curvatures": curvatures}
        return sums if level else sums | {"loss": rows.loss}

    def _rows(self, state: State, chunk: Chunk) -> _Rows:
        rows = chunk.cache.get("rows")
        if rows is None:
            margins = np.repeat(state["base"][:, None], chunk.num_rows, axis=1)
            codes = _codes(chunk.X, state["edges"])
            rows = chunk.cache["rows"] = _Rows(codes, margins)
            if self._ones.size < min(len(codes), _BLOCK_ROWS) * codes.shape[1]:
                self._ones = np.ones(min(len(codes), _BLOCK_ROWS) * codes.shape[1])
        return rows

    def _go_down(self, state: State, rows: _Rows, y: Array, level: int) -> None:
        """Bring margins, derivatives and nodes to this tree and level."""
        tree = len(state["values"])
        if rows.place == (tree, level):  # the pass is made again
            return
        if rows.derivatives is None or rows.place[0] != tree:
            for t in range(rows.num_trees, tree):
                leaves = self._leaves(state, rows, t)
                for k, values in enumerate(state["values"][t]):
                    rows.margins[k] += values[leaves[k]]
            rows.num_trees = tree
            rows.loss, slopes, curvatures = self.derivatives(rows.margins, y)
            rows.derivatives = np.stack([slopes, curvatures], axis=-1)
        splits = (state["new_features"], state["new_bins"])
        if rows.place == (tree, level - 1):
            rows.nodes = [
                _children(rows.codes, rows.nodes[k], splits[0][k], splits[1][k], level - 1)
                for k in range(len(rows.nodes))
            ]
        else:
            rows.nodes = self._nodes(rows.codes, *splits, level)
        rows.place = (tree, level)

    def _leaves(self, state: State, rows: _Rows, tree: int) -> list[NDArray[Any]]:
        """Leaf of each row in a finished tree of each output."""
        depth, splits = self.settings["depth"], (state["features"][tree], state["bins"][tree])
        if rows.place != (tree, depth - 1):
            return self._nodes(rows.codes, *splits, depth)
        # The rows went down with the tree as it grew: one step is left.
        return [
            _children(rows.codes, nodes, features, bins, depth - 1)
            for nodes, features, bins in zip(rows.nodes, *splits, strict=True)
        ]

    def _nodes(
        self, codes: NDArray[np.uint8], features: Ints, bins: Ints, level: int
    ) -> list[NDArray[Any]]:
        """Node of each row in a level of each output's tree."""
        found = []
        for own_features, own_bins in zip(features, bins, strict=True):
            nodes = np.zeros(len(codes), dtype=np.int64)
            for upper in range(level):
                nodes = _children(codes, nodes, own_features, own_bins, upper)
            found.append(nodes)
        return found

    # -- update ---------------------------------------------------------------------------

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """Choose the splits of this level; after the last, finish the tree."""
        level, depth = context.step, self.settings["depth"]
        slopes = _with_siblings(totals["slopes"], state["parent_slopes"], state["is_summed"])
        curvatures = _with_siblings(
            totals["curvatures"], state["parent_curvatures"], state["is_summed"]
        )
        first = 2**level - 1
        place = slice(first, first + 2**level)
        splits = self._best_splits(slopes, curvatures)
        state["new_features"][:, place], state["new_bins"][:, place] = splits
        left, right = _child_sums(slopes, *splits), _child_sums(curvatures, *splits)
        if level < depth - 1:
            state["parent_slopes"], state["parent_curvatures"] = slopes, curvatures
            is_left = right[..., 0] <= right[..., 1]
            both = np.stack([is_left, ~is_left], axis=-1)
            state["is_summed"] = both.reshape(len(both), -1)
        else:
            values = -self.settings["rate"] * left / (right + self.settings["l2"] + 1e-300)
            self._finish_tree(state, values.reshape(len(values), -1))
        return Step(totals["loss"] / context.info.num_rows if level == 0 else None)

    def _best_splits(self, slopes: Array, curvatures: Array) -> tuple[Ints, Ints]:
        """Feature and bin (K, nodes) of the largest gain; where none gains, all go left."""
        l2, least = self.settings["l2"], self.settings["min_child_weight"]
        left, weights = np.cumsum(slopes, axis=-1), np.cumsum(curvatures, axis=-1)
        all_slopes, all_weights = left[..., -1:], weights[..., -1:]
        right, other = all_slopes - left, all_weights - weights
        is_valid = (weights >= least) & (other >= least)
        gains = left * left / (weights + l2 + 1e-300)
        gains += right * right / np.maximum(other + l2, 1e-300)
        gains -= all_slopes * all_slopes / (all_weights + l2 + 1e-300)
        gains[~is_valid] = 0.0
        num_bins = gains.shape[-1]
        flat = gains.reshape(*gains.shape[:2], -1)
        best = flat.argmax(axis=-1)
        is_gain = np.take_along_axis(flat, best[..., None], axis=-1)[..., 0] > _LEAST_GAIN
        features = np.where(is_gain, best // num_bins, 0)
        return features, np.where(is_gain, best % num_bins, num_bins - 1)

    def _finish_tree(self, state: State, values: Array) -> None:
        for name in ("features", "bins"):
            state[name] = np.concatenate([state[name], state[f"new_{name}"][None]])
            state[f"new_{name}"] = np.zeros_like(state[f"new_{name}"])
        state["values"] = np.concatenate([state["values"], values[None]])
        # Small again at the epoch's end, where the state travels and is stored.
        num_outputs = len(values)
        state["is_summed"] = np.ones((num_outputs, 1), dtype=np.bool_)
        state["parent_slopes"] = np.zeros((num_outputs, 0))
        state["parent_curvatures"] = np.zeros((num_outputs, 0))

    # -- the finished model ---------------------------------------------------------------

    def parameters(self, state: State) -> Array:
        """(P,): base, then per tree the split features, thresholds and leaf values."""
        padded = np.pad(state["edges"], ((0, 0), (0, 1)), constant_values=np.inf)
        thresholds = padded[state["features"], state["bins"]]
        parts = (state["base"], state["features"], thresholds, state["values"])
        return np.concatenate([np.asarray(p, dtype=np.float64).ravel() for p in parts])

    def margins(self, state: State, X: Features) -> Array:
        """Sum of all trees: (K, n)."""
        codes = _codes(as_features(X), state["edges"])
        margins = np.repeat(state["base"][:, None], len(codes), axis=1)
        for features, bins, values in zip(
            state["features"], state["bins"], state["values"], strict=True
        ):
            leaves = self._nodes(codes, features, bins, self.settings["depth"])
            for k, own_values in enumerate(values):
                margins[k] += own_values[leaves[k]]
        return margins


class BoostedClassifier(BoostedTrees):
    """Boosted trees for labels: logistic loss for two classes, else softmax."""

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless there are at least two classes."""
        require_classes(info, "gbt")

    def num_outputs(self, info: DataInfo) -> int:
        """One tree an iteration for two classes, else one a class."""
        return 1 if info.num_classes == 2 else info.num_classes

    def first_margins(self, y: Array, info: DataInfo) -> Array:
        """Log-odds or logarithms of the classes' shares."""
        counts = np.bincount(y.astype(np.int64), minlength=info.num_classes) + 1.0
        logs = np.log(counts / counts.sum())
        return np.asarray(logs[1:] - logs[:1] if info.num_classes == 2 else logs)

    def derivatives(self, margins: Array, y: Array) -> tuple[float, Array, Array]:
        """Of log(1 + exp(-m)) for two classes, else of the cross-entropy."""
        if len(margins) == 1:
            p = metrics.sigmoid(margins)
            loss = float(np.logaddexp(0.0, margins[0] * (1.0 - 2.0 * y)).sum())
            return loss, p - y, p * (1.0 - p)
        p = metrics.softmax(np.ascontiguousarray(margins.T)).T.copy()
        labels, rows = y.astype(np.int64), np.arange(y.size)
        loss = float(np.logaddexp.reduce(margins, axis=0).sum() - margins[labels, rows].sum())
        curvatures = p * (1.0 - p)
        p[labels, rows] -= 1.0
        return loss, p, curvatures

    def predict(self, state: State, X: Features) -> Array:
        """Probabilities: (n,) of class 1 for two classes, else (n, K)."""
        margins = self.margins(state, X)
        return metrics.sigmoid(margins[0]) if len(margins) == 1 else metrics.softmax(margins.T)

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """Log-loss and accuracy; for two classes also the AUC."""
        p, y = self.predict(state, batch.X), targets(batch)
        labels = p > 0.5 if p.ndim == 1 else p.argmax(axis=1)
        measured = {"log_loss": metrics.log_loss(y, p), "accuracy": metrics.accuracy(y, labels)}
        return measured | ({"auc": metrics.auc(y, p)} if p.ndim == 1 else {})


class BoostedRegressor(BoostedTrees):
    """Boosted trees for real-valued targets: half squared error."""

    def check_data(self, info: DataInfo) -> None:
        """Raises DataError unless the targets are real numbers."""
        require_regression(info, "gbt_regressor")

    def num_outputs(self, info: DataInfo) -> int:
        """One tree an iteration."""
        return 1

    def first_margins(self, y: Array, info: DataInfo) -> Array:
        """The mean."""
        return np.array([y.mean()])

    def derivatives(self, margins: Array, y: Array) -> tuple[float, Array, Array]:
        """Of (m - y)^2 / 2."""
        errors = margins - y
        return 0.5 * float(np.vdot(errors, errors)), errors, np.ones_like(errors)

    def predict(self, state: State, X: Features) -> Array:
        """Predicted targets: (n,)."""
        return np.asarray(self.margins(state, X)[0])

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """R2 and root mean squared error."""
        predicted, y = self.predict(state, batch.X), targets(batch)
        return {"r2": metrics.r2(y, predicted), "rmse": metrics.rmse(y, predicted)}


def _bin_edges(X: Array, num_bins: int) -> Array:
    """Edges (d, bins - 1) that cut each feature into parts of about equally many rows."""
    edges = np.full((X.shape[1], num_bins - 1), np.inf)
    shares = np.linspace(0.0, 1.0, num_bins + 1)[1:-1]
    for feature, column in enumerate(X.T):
        values = np.unique(column)
        if values.size <= num_bins:
            cuts = 0.5 * (values[:-1] + values[1:])
        else:
            cuts = np.unique(np.quantile(column, shares, method="lower"))
            cuts = cuts[cuts < values[-1]]
        edges[feature, : cuts.size] = cuts
    return edges


def _codes(X: Features, edges: Array) -> NDArray[np.uint8]:
    """Bin of each value (n, d): the number of edges below it."""
    codes = np.empty(X.shape, dtype=np.uint8)
    for start in range(0, len(codes), _BLOCK_ROWS):
        rows = X[start : start + _BLOCK_ROWS]
        columns = np.ascontiguousarray((rows.toarray() if sparse.issparse(rows) else rows).T)
        block = codes[start : start + _BLOCK_ROWS]
        for feature, (own_edges, column) in enumerate(zip(edges, columns, strict=True)):
            block[:, feature] = np.searchsorted(own_edges, column)
    return codes


def _children(
    codes: NDArray[np.uint8], nodes: NDArray[Any], features: Ints, bins: Ints, level: int
) -> NDArray[Any]:
    """The node of each row one level below: 2 n, or 2 n + 1 if its bin is beyond the split's."""
    first = 2**level - 1
    level_features, level_bins = (a[first : first + 2**level] for a in (features, bins))
    if level == 0:
        return np.asarray(codes[:, level_features[0]] > level_bins[0], dtype=np.int64)
    places = np.arange(nodes.size) * codes.shape[1] + level_features[nodes]
    own_codes = codes.ravel()[places]
    return np.asarray(2 * nodes + (own_codes > level_bins[nodes]))


def _fill(
    slopes: Array,
    curvatures: Array,
    codes: NDArray[np.uint8],
    chosen: NDArray[Any] | None,
    derivatives: Array,
    nodes: NDArray[Any] | None,
    ones: Array,
) -> None:
    """Sum the chosen rows' derivatives (m, 2) per node, feature and bin (nodes, d, bins).

    chosen, nodes : (m,) numbers of the rows and of their nodes; None: all rows, in one node.

    As a product with the sparse matrix that has a 1 for each row at the place of each of its
    bins: twice as fast as counting feature by feature with bincount.
    """
    _, dim, num_bins = slopes.shape
    features = np.arange(dim, dtype=np.int32) * num_bins
    starts = None if nodes is None else (nodes * (dim * num_bins)).astype(np.int32)
    sums = np.zeros((slopes.size, 2))
    for first in range(0, len(derivatives), _BLOCK_ROWS):
        part = slice(first, first + _BLOCK_ROWS)
        places = codes[part if chosen is None else chosen[part]].astype(np.int32)
        places += features
        if starts is not None:
            places += starts[part, None]
        columns = np.arange(0, places.size + 1, dim, dtype=np.int32)
        shape = (slopes.size, len(places))
        ones_at = sparse.csc_array((ones[: places.size], places.ravel(), columns), shape=shape)
        sums += ones_at @ derivatives[part]
    slopes += sums[:, 0].reshape(slopes.shape)
    curvatures += sums[:, 1].reshape(slopes.shape)


def _with_siblings(summed: Array, parents: Array, is_summed: NDArray[np.bool_]) -> Array:
    """Histograms of all nodes of a level: the summed children, and parents less these."""
    if not parents.size:
        return summed
    is_left = is_summed[:, ::2, None, None]
    others = parents - summed
    both = np.stack([np.where(is_left, summed, others), np.where(is_left, others, summed)], axis=2)
    return np.asarray(both.reshape(len(both), -1, *summed.shape[2:]))


def _child_sums(histograms: Array, features: Ints, bins: Ints) -> Array:
    """Sums (K, nodes, 2) left and right of each node's split."""
    own = np.take_along_axis(histograms, features[..., None, None], axis=2)[..., 0, :]
    sums = np.cumsum(own, axis=-1)
    left = np.take_along_axis(sums, bins[..., None], axis=-1)[..., 0]
    return np.stack([left, sums[..., -1] - left], axis=-1)
