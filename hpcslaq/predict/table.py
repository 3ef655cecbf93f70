"""One row per followed job, one numpy array per quantity.

A decision for thousands of jobs then reads whole columns. Rows of jobs that ended are
reused; the arrays double when they are full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


class JobTable:
    """Columns by name, rows by job; a column's shape is (rows,) or (rows, width)."""

    def __init__(self, columns: Mapping[str, float | tuple[float, ...]]) -> None:
        #: What a fresh row holds; a tuple makes a column of that width.
        self._fresh = dict(columns)
        #: Row of each followed job; rows are distinct and below the capacity.
        self._row_of: dict[str, int] = {}
        #: Rows that no job uses, the next one last.
        self._free: list[int] = []
        self._arrays: dict[str, Floats] = {
            name: np.empty((0, *np.shape(fresh))) for name, fresh in self._fresh.items()
        }

    def __contains__(self, job: str) -> bool:
        return job in self._row_of

    def __len__(self) -> int:
        return len(self._row_of)

    def __getitem__(self, column: str) -> Floats:
        """The whole column, also of rows that no job uses; valid until the next `add`."""
        return self._arrays[column]

    def add(self, job: str) -> int:
        """Give the job a fresh row (or the one it has) and return it."""
        if job in self._row_of:
            return self._row_of[job]
        if not self._free:
            self._grow()
        row = self._free.pop()
        for name, fresh in self._fresh.items():
            self._arrays[name][row] = fresh
        self._row_of[job] = row
        return row

    def row(self, job: str) -> int:
        """The job's row; KeyError where it is not followed."""
        return self._row_of[job]

    def rows(self, jobs: Iterable[str]) -> Rows:
        """Rows of several jobs, (n,); KeyError where one is not followed."""
        row_of = self._row_of
        return np.array([row_of[job] for job in jobs], dtype=np.int64)

    def copy_row(self, source: str, job: str) -> None:
        """Give `job` (which is followed) the values of `source`."""
        for array in self._arrays.values():
            array[self._row_of[job]] = array[self._row_of[source]]

    def discard(self, job: str) -> int | None:
        """Free the job's row and return it; None where it is not followed."""
        row = self._row_of.pop(job, None)
        if row is not None:
            self._free.append(row)
        return row

    def _grow(self) -> None:
        old = next(iter(self._arrays.values())).shape[0]
        new = max(16, 2 * old)
        for name, array in self._arrays.items():
            grown = np.empty((new, *array.shape[1:]))
            grown[:old] = array
            self._arrays[name] = grown
        self._free.extend(range(new - 1, old - 1, -1))
