"""The small tables that come with scikit-learn: for tests and first steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hpcslaq.data.blocks import Block, Progress, Table, row_number
from hpcslaq.data.packages import SCIKIT_LEARN, locate

_DIRECTORY = "sklearn/datasets/data/"


def read_digits(options: Mapping[str, object], progress: Progress) -> Table:
    """1,797 x 64 grey values in [0, 1], ten classes."""
    values = _load("digits.csv.gz", ",")
    return _table(values[:, :-1] / 16, values[:, -1])


def read_breast_cancer(options: Mapping[str, object], progress: Progress) -> Table:
    """569 x 30, two classes."""
    return _with_header("breast_cancer.csv")


def read_wine(options: Mapping[str, object], progress: Progress) -> Table:
    """178 x 13, three classes."""
    return _with_header("wine_data.csv")


def read_iris(options: Mapping[str, object], progress: Progress) -> Table:
    """150 x 4, three classes."""
    return _with_header("iris.csv")


def read_diabetes(options: Mapping[str, object], progress: Progress) -> Table:
    """442 x 10, a regression target."""
    y = _load("diabetes_target.csv.gz", None)
    return _table(_load("diabetes_data_raw.csv.gz", None), y[:, 0])


def _with_header(name: str) -> Table:
    # The first line holds the sizes and the names of the classes.
    values = _load(name, ",", skip=1)
    return _table(values[:, :-1], values[:, -1])


def _load(name: str, delimiter: str | None, skip: int = 0) -> NDArray[np.float64]:
    path = locate(SCIKIT_LEARN, _DIRECTORY + name)
    return np.loadtxt(path, delimiter=delimiter, skiprows=skip, ndmin=2)


def _table(X: NDArray[np.float64], y: NDArray[np.float64]) -> Table:
    return Table(iter([Block(X, y)]), False, row_number, *X.shape)
