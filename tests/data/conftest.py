"""What most tests of the data package need: prepare a file and open the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.data import Dataset, DataSource, open_dataset, prepare

Load = Callable[..., Dataset]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """load(path, **options): the opened data set, all rows, in the order of the file."""

    def load_file(path: Path | str, **options: object) -> Dataset:
        plain = {"shuffle": False, "holdout": 0.0, **options}
        directory = prepare(DataSource(str(path), plain), tmp_path / "cache")
        leftovers = [item.name for item in directory.iterdir() if item.name.startswith("spool")]
        assert not leftovers
        return open_dataset(directory, verify=True)

    return load_file


@pytest.fixture
def table() -> tuple[np.ndarray, np.ndarray]:
    """(40, 3) numbers with zeros among them, and (40,) labels -1 or +1."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(40, 3)) * (rng.random((40, 3)) < 0.6)
    y = np.where(rng.random(40) < 0.4, -1.0, 1.0)
    return X, y
