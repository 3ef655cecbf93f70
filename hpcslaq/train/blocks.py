"""Rows of a chunk in blocks that stay in the processor's cache between two uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scipy import sparse

from hpcslaq.train.model import Features

#: Bytes of a dense block: measured best between 0.5 and 3 MB with 1 MB of L2 cache a core.
BLOCK_BYTES = 1 << 20


def rows_per_block(num_columns: int, least: int = 64) -> int:
    """Rows of a block with this many float64 columns."""
    return max(least, BLOCK_BYTES // (8 * num_columns))


def row_blocks(
    X: Features, cache: dict[str, Any], num_rows: int
) -> Iterator[tuple[int, int, Features]]:
    """Blocks of at most `num_rows` rows of X as (start, stop, rows).

    Dense blocks are views. CSR blocks share values and column numbers with X, and are kept in
    `cache`, since making one costs as much as a product with some thousand numbers.
    """
    n = X.shape[0]
    if not sparse.issparse(X):
        for start in range(0, n, num_rows):
            stop = min(start + num_rows, n)
            yield start, stop, X[start:stop]
        return
    key = f"blocks of {num_rows}"
    if key not in cache:
        cache[key] = [_csr_rows(X, s, min(s + num_rows, n)) for s in range(0, n, num_rows)]
    yield from cache[key]


def transposed(X: Features, cache: dict[str, Any]) -> Features:
    """X' without a copy of its values; for CSR kept in `cache`, since scipy needs 30 us for it."""
    if not sparse.issparse(X):
        return X.T
    if "transposed" not in cache:
        shape = (X.shape[1], X.shape[0])
        cache["transposed"] = _filled(sparse.csc_array(shape), X.data, X.indices, X.indptr)
    return cache["transposed"]


def _csr_rows(X: Any, start: int, stop: int) -> tuple[int, int, Any]:
    first, last = X.indptr[start], X.indptr[stop]
    rows = _filled(
        sparse.csr_array((stop - start, X.shape[1])),
        X.data[first:last],
        X.indices[first:last],
        X.indptr[start : stop + 1] - first,
    )
    return start, stop, rows


def _filled(empty: Any, data: Any, indices: Any, indptr: Any) -> Any:
    # Given to the constructor, a part of a larger array would be copied (scipy "prunes" it),
    # and chunks that are mapped from a file would fill each rank's memory.
    empty.data, empty.indices, empty.indptr = data, indices, indptr
    return empty
