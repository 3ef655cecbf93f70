"""The start of K-means by k-means||: rounds of passes over all rows, before Lloyd's.

In each round every chunk draws rows with probability proportional to their squared distance
to the candidates so far; then all candidates are weighted by the rows nearest to them and
reduced to the centres by weighted k-means++.

Source: Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, Scalable K-Means++ (2012),
algorithm 2. Deviation: a round draws exactly `oversampling * clusters` rows with
replacement (each chunk some more than its likely share, of which the totals decide how many
count) instead of each row by a coin of its own, so that one pass a round is enough.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hpcslaq.train.blocks import row_blocks
from hpcslaq.train.exact import Statistics
from hpcslaq.train.model import Array, Chunk, Context, Draw, State, Totals

#: Rows of a block, as in Lloyd's passes.
_BLOCK_ROWS = 512


def start(first: Array) -> State:
    """What the rounds need: the first candidate (1, d), and where each round's begin."""
    return {"candidates": first, "rounds": np.array([0, 1], dtype=np.int64)}


def nothing(num_features: int) -> State:
    """The same of a job that starts in another way."""
    return {"candidates": np.zeros((0, num_features)), "rounds": np.zeros(1, dtype=np.int64)}


def is_under_way(state: State) -> bool:
    """Whether the centres are still to come."""
    return len(state.get("candidates", ())) > 0


def statistics(
    state: State, chunk: Chunk, squares: Array, draw: Draw, num_rounds: int, num_drawn: int
) -> Statistics:
    """Of a round: the chunk's mass and its draws in its own place; at last: rows a candidate.

    squares : (n,) |x|^2 of the rows.
    """
    labels, nearest = _nearest_candidates(state, chunk, squares)
    if len(state["rounds"]) - 1 > num_rounds:
        counts = np.bincount(labels, minlength=len(state["candidates"]))
        return {"weights": counts.astype(np.float64)}
    num_slots = _num_slots(num_drawn, draw.num_chunks)
    masses = np.zeros(draw.num_chunks)
    draws = np.zeros((draw.num_chunks, num_slots, chunk.X.shape[1]))
    mass = float(nearest.sum())
    masses[chunk.index] = mass
    if mass > 0:
        places = draw.rng(1).random(num_slots) * mass
        found = np.searchsorted(np.cumsum(nearest), places, side="right")
        rows = chunk.X[np.minimum(found, chunk.num_rows - 1)]
        draws[chunk.index] = rows.toarray() if sparse.issparse(rows) else rows
    return {"masses": masses, "draws": draws}


def update(state: State, totals: Totals, context: Context, num_drawn: int) -> Array | None:
    """Add a round's candidates; after the last, the weights (m,) of all candidates."""
    if "weights" in totals:
        return np.asarray(totals["weights"])
    masses, draws = np.maximum(totals["masses"], 0.0), totals["draws"]
    whole = float(masses.sum())
    if whole > 0:
        wanted = context.rng(1).multinomial(num_drawn, masses / whole)
        counts = np.minimum(wanted, draws.shape[1])
        new = np.concatenate([own[:n] for own, n in zip(draws, counts, strict=True)])
        state["candidates"] = np.concatenate([state["candidates"], new])
    state["rounds"] = np.append(state["rounds"], len(state["candidates"]))
    return None


def _num_slots(num_drawn: int, num_chunks: int) -> int:
    """Draws of a chunk: its likely share four times over, and some; never more than all."""
    return min(num_drawn, math.ceil(4 * num_drawn / num_chunks) + 8)


def _nearest_candidates(
    state: State, chunk: Chunk, squares: Array
) -> tuple[NDArray[np.int64], Array]:
    """Number of each row's nearest candidate, and its squared distance: (n,) each.

    Kept with the chunk and brought up to date round by round. It is always computed in the
    same portions, because a product's last bits may depend on the shapes of its factors.
    """
    kept = chunk.cache.get("candidates")
    if kept is None:
        kept = (0, np.zeros(chunk.num_rows, dtype=np.int64), np.full(chunk.num_rows, np.inf))
    done, labels, nearest = kept
    ends: list[Any] = state["rounds"].tolist()
    for number in range(done + 1, len(ends)):
        first, end = ends[number - 1], ends[number]
        if first == end:
            continue
        factors = np.ascontiguousarray(-2.0 * state["candidates"][first:end].T)
        offsets = np.einsum("ij,ij->j", factors, factors) / 4.0
        for begin, stop, X in row_blocks(chunk.X, chunk.cache, _BLOCK_ROWS):
            distances = X @ factors
            distances += offsets
            best = distances.argmin(axis=1)
            found = distances[np.arange(best.size), best] + squares[begin:stop]
            found = np.maximum(found, 0.0)
            is_nearer = found < nearest[begin:stop]
            nearest[begin:stop][is_nearer] = found[is_nearer]
            labels[begin:stop][is_nearer] = first + best[is_nearer]
    chunk.cache["candidates"] = (len(ends) - 1, labels, nearest)
    return labels, nearest
