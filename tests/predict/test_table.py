"""Rows per job: reuse, growth, order."""

import numpy as np
import pytest

from hpcslaq.predict.table import JobTable


def test_rows_survive_growth_and_are_reused_after_a_discard() -> None:
    table = JobTable({"x": 0.0, "pair": (1.0, 2.0)})
    for i in range(40):
        row = table.add(f"j{i}")
        table["x"][row] = i
    assert len(table) == 40
    assert table["x"][table.rows(f"j{i}" for i in range(40))].tolist() == list(range(40))
    freed = table.discard("j7")
    assert table.add("new") == freed
    assert table["x"][table.row("new")] == 0.0
    assert table["pair"][table.row("new")].tolist() == [1.0, 2.0]


def test_adding_a_job_again_keeps_its_row() -> None:
    table = JobTable({"x": np.nan})
    row = table.add("a")
    table["x"][row] = 3.0
    assert table.add("a") == row
    assert table["x"][row] == 3.0


def test_an_unknown_job_has_no_row() -> None:
    table = JobTable({"x": 0.0})
    assert "a" not in table
    assert table.discard("a") is None
    with pytest.raises(KeyError):
        table.row("a")
