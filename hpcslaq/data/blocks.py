"""What a reader hands to the writer of the cache: a stream of row blocks.

A reader (one per file format or built-in set) checks the structure of its input as
far as only it can; finite values, labels and sizes are checked by the writer, for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

#: Called with the name of the stage and the fraction of it that is done, in [0, 1].
Progress = Callable[[str, float], None]

#: Bytes of float64 values in one block of rows: small against any data set that matters,
#: large against the cost of a call.
BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some consecutive rows of the input."""

    #: (n, d) dense, any real dtype, or CSR with sorted indices without duplicates.
    X: NDArray[np.generic] | csr_array
    #: (n,) numbers or (n,) strings; None: no labels.
    y: NDArray[np.generic] | None = None
    #: (n,) integers: rows with the same number are held out together; None: each row by itself.
    groups: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A reader's result. `blocks` can be walked once."""

    blocks: Iterator[Block]
    is_sparse: bool
    #: Says where a row (counted from 0) stands in the input: "line 12", "row 11".
    where: Callable[[int], str]
    #: Number of rows if the input declares it: what is to be written is checked against the
    #: free space first.
    num_rows: int | None = None
    num_features: int | None = None
    feature_names: tuple[str, ...] | None = None
    #: Columns to be standardised by mean and deviation of the training rows; None: as the
    #: option `standardise` says.
    standardise: NDArray[np.bool_] | None = None
    #: Number of the first column of a sparse input, known when all blocks were read.
    first_column: Callable[[], int] = lambda: 0


def row_number(row: int) -> str:
    """The place of a row in files without lines."""
    return f"row {row} (counted from 0)"


def one_line(error: Exception) -> str:
    """What a library says of a damaged file, in one line that is not too long."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def rows_per_block(num_columns: int) -> int:
    """Rows of float64 that make up one block."""
    return max(1, BLOCK_BYTES // (8 * max(1, num_columns)))


def row_ranges(num_rows: int, num_columns: int) -> Iterator[tuple[int, int]]:
    """Consecutive (start, stop) of blocks that cover `num_rows` rows."""
    step = rows_per_block(num_columns)
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def no_progress(stage: str, fraction: float) -> None:
    """A `Progress` that shows nothing."""
