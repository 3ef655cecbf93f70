"""Which column of a table is the label and which are left out, by name or number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcslaq.errors import DataError

#: Names by which `label = "auto"` knows a label column or array, whatever their case.
LABEL_NAMES = ("target", "label", "labels", "class", "y")


def label_column(
    path: Path, label: object, names: tuple[str, ...] | None, num_columns: int
) -> int | None:
    """Number of the label column, None for `label = "none"`.

    "auto" is the one column with a usual name, else the last. Raises DataError if there
    is no such column.
    """
    if label == "none":
        return None
    if label == "auto":
        usual = [i for i, name in enumerate(names or ()) if name.casefold() in LABEL_NAMES]
        return usual[0] if len(usual) == 1 else num_columns - 1
    return _find(path, "label", label, names, num_columns)


def columns_to_drop(
    path: Path, drop: object, names: tuple[str, ...] | None, num_columns: int
) -> frozenset[int]:
    """Numbers of the columns that are left out. Raises DataError if one does not exist."""
    wanted = drop if isinstance(drop, list) else []
    return frozenset(_find(path, "drop", item, names, num_columns) for item in wanted)


def split_label_column(
    path: Path, label: object, X: NDArray[np.generic]
) -> tuple[NDArray[np.generic], NDArray[np.generic] | None]:
    """Features and labels of an (n, d) array whose columns have no names.

    `label` is a number of a column, or "auto" or "none" for an array without labels.
    """
    if not isinstance(label, int):
        return X, None
    column = _find(path, "label", label, None, X.shape[1])
    return np.delete(X, column, axis=1), X[:, column]


def check_label_column(path: Path, label: object, num_columns: int) -> int:
    """Number of feature columns of an array without names. Raises DataError like the above."""
    if not isinstance(label, int):
        return num_columns
    _find(path, "label", label, None, num_columns)
    return num_columns - 1


def _find(
    path: Path, key: str, wanted: object, names: tuple[str, ...] | None, num_columns: int
) -> int:
    if isinstance(wanted, int):
        if not -num_columns <= wanted < num_columns:
            raise DataError(f"{path}: {key}: no column {wanted}, there are {num_columns}")
        return wanted % num_columns
    if names is None:
        raise DataError(f"{path}: {key}: no column {wanted!r}: the columns have no names")
    hits = [i for i, name in enumerate(names) if name == wanted]
    if len(hits) != 1:
        shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise DataError(
            f"{path}: {key}: {len(hits)} columns are named {wanted!r} (there are: {shown})"
        )
    return hits[0]
