"""A prepared data set: memory-mapped arrays, handed out as batches of rows.

All ranks of a node share the pages of the files. How a directory is checked and opened
is the business of `store`, how it comes about that of `cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some rows of a data set."""

    #: (n, d) float64, dense or CSR; read-only when it shares the mapped file.
    X: NDArray[np.float64] | csr_array
    #: (n,) float64: class numbers 0..C-1 or regression targets; None: no labels.
    y: NDArray[np.float64] | None

    @property
    def num_rows(self) -> int:
        """n."""
        return int(self.X.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class DensePart:
    """Rows of a dense data set, mapped. X : (n, d) float64; y : (n,) float64 or None."""

    X: NDArray[np.float64]
    y: NDArray[np.float64] | None

    def rows(self, start: int, stop: int) -> Batch:
        """Rows [start, stop) as views."""
        return Batch(self.X[start:stop], None if self.y is None else self.y[start:stop])

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """A copy of the rows with these numbers."""
        return Batch(self.X[indices], None if self.y is None else self.y[indices])


@dataclass(frozen=True, slots=True, eq=False)
class SparsePart:
    """Rows of a CSR data set, mapped: data (nnz,) float64, indices (nnz,), indptr (n+1,)."""

    data: NDArray[np.float64]
    indices: NDArray[np.signedinteger]
    indptr: NDArray[np.signedinteger]
    num_features: int
    y: NDArray[np.float64] | None

    def rows(self, start: int, stop: int) -> Batch:
        """Rows [start, stop); values and column numbers are views of the mapped file."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        X = csr_view(
            self.data[first:last],
            self.indices[first:last],
            self.indptr[start : stop + 1] - self.indptr[start],
            (stop - start, self.num_features),
        )
        return Batch(X, None if self.y is None else self.y[start:stop])

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """A copy of the rows with these numbers."""
        whole = csr_view(
            self.data, self.indices, self.indptr, (len(self.indptr) - 1, self.num_features)
        )
        return Batch(take_rows(whole, indices), None if self.y is None else self.y[indices])


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """An opened data set. Training rows are in a fixed random order, so chunks are exchangeable."""

    name: str
    path: Path
    #: Training rows; the held-out ones are not among them.
    num_rows: int
    num_features: int
    is_sparse: bool
    #: "classification", "regression", "unlabelled" or "counts" (bag of words).
    task: str
    #: C of a classification, else 0.
    num_classes: int
    #: The user's own labels (numbers or strings) of the classes 0..C-1.
    class_labels: tuple[int | float | str, ...]
    #: Hex digest of what was put in: the input's bytes, the options, the format's version.
    content_hash: str
    train: DensePart | SparsePart
    held_out: DensePart | SparsePart | None
    num_holdout_rows: int
    #: (d,) float64 each: what was subtracted from and divided by in every column when the set was
    #: standardised, None otherwise. New rows need (x - center) / scale before a prediction.
    center: NDArray[np.float64] | None = None
    scale: NDArray[np.float64] | None = None
    feature_names: tuple[str, ...] | None = None

    def rows(self, start: int, stop: int) -> Batch:
        """Training rows [start, stop) without a copy. Raises IndexError outside the data."""
        if not 0 <= start <= stop <= self.num_rows:
            raise IndexError(f"{self.name}: rows [{start}, {stop}) of {self.num_rows}")
        return self.train.rows(start, stop)

    def chunk(self, index: int, num_chunks: int) -> Batch:
        """Chunk `index` of `num_chunks`: rows [index*N//K, (index+1)*N//K) without a copy.

        Raises IndexError unless 0 <= index < num_chunks.
        """
        if not 0 <= index < num_chunks:
            raise IndexError(f"{self.name}: chunk {index} of {num_chunks}")
        start = index * self.num_rows // num_chunks
        stop = (index + 1) * self.num_rows // num_chunks
        return self.train.rows(start, stop)

    def take(self, indices: Sequence[int] | NDArray[np.integer]) -> Batch:
        """A copy of the training rows with these numbers, in this order.

        Raises IndexError if one is outside [0, num_rows).
        """
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < self.num_rows:
            raise IndexError(f"{self.name}: a row number outside [0, {self.num_rows})")
        return self.train.take(chosen)

    def holdout(self) -> Batch | None:
        """The held-out rows without a copy; None when nothing was held out."""
        if self.held_out is None:
            return None
        return self.held_out.rows(0, self.num_holdout_rows)


def csr_view(
    data: NDArray[np.float64],
    indices: NDArray[np.signedinteger],
    indptr: NDArray[np.signedinteger],
    shape: tuple[int, int],
) -> csr_array:
    """A CSR array of exactly these three arrays, canonical by the caller's promise.

    The constructor of scipy copies `data` and `indices` when they are views of much
    larger arrays (its `prune`), which chunks of a mapped file always are.
    """
    view = csr_array(shape, dtype=np.float64)
    view.data, view.indices, view.indptr = data, indices, indptr
    view.has_sorted_indices = True
    view.has_canonical_format = True
    return view


def take_rows(X: csr_array, rows: NDArray[np.int64]) -> csr_array:
    """A copy of some rows of a canonical CSR array, canonical too."""
    lengths = np.diff(X.indptr)[rows]
    indptr = np.zeros(len(rows) + 1, dtype=X.indptr.dtype)
    np.cumsum(lengths, out=indptr[1:])
    # Position of each wanted entry: its row's start plus its number within the row.
    shift = X.indptr[rows] - indptr[:-1]
    entries = np.arange(indptr[-1], dtype=np.int64) + np.repeat(shift, lengths)
    return csr_view(X.data[entries], X.indices[entries], indptr, (len(rows), X.shape[1]))
