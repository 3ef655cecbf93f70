"""Files of loss curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError, NotFoundError
from hpcslaq.sim.curves import Curve, format_curve, read_curve, read_curves


def test_a_curve_comes_back_from_its_file(tmp_path: Path) -> None:
    curve = Curve(
        "svm",
        np.array([1.0, 1 / 3, 0.1]),
        np.array([0.25, 0.5, 0.125]),
        np.array([0.5, 0.5, 0.25]),
        3,
        Convergence.SUPERLINEAR,
        {"model": "svm", "data": "census"},
    )
    path = tmp_path / "svm.csv"
    path.write_text(format_curve(curve))
    again = read_curve(path)
    for key in ("losses", "cpu_s", "wall_s"):
        assert getattr(again, key).tolist() == getattr(curve, key).tolist()
    assert again.name == "svm"
    assert again.iterations_per_epoch == 3
    assert again.convergence is Convergence.SUPERLINEAR
    assert again.facts == curve.facts


def test_a_plain_list_of_losses_is_a_curve(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("2.5\n\n1.5\n1e-3\n")
    (tmp_path / "notes.md").write_text("not a curve")
    curves = read_curves(tmp_path)
    assert list(curves) == ["a"]
    assert curves["a"].losses.tolist() == [2.5, 1.5, 1e-3]
    assert curves["a"].cpu_s is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no loss"),
        ("1.0\nx\n", r"c\.csv:2: 'x' is not made of numbers"),
        ("1.0\nnan\n", r"c\.csv:2: 'nan' is not finite"),
        ("loss,cpu_s\n1.0\n", r"c\.csv:2: 1 values, expected 2"),
        ("loss,cpu_s\n1.0,-1\n", r"c\.csv:2: .* has a negative time"),
        ("cost\n1.0\n", r"c\.csv:1: columns 'cost'"),
        ("# convergence: fast\n1.0\n", "convergence: 'fast'"),
        ("# iterations_per_epoch: 0\n1.0\n", "iterations_per_epoch: '0'"),
    ],
)
def test_what_is_no_curve_is_refused_with_its_line(tmp_path: Path, text, problem) -> None:
    path = tmp_path / "c.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=problem):
        read_curve(path)


def test_a_missing_curve_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "x.csv", tmp_path):
        with pytest.raises(NotFoundError):
            read_curves(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "c.txt"
    path.write_bytes(data)
    try:
        assert np.isfinite(read_curve(path).losses).all()
    except DataError as error:
        assert len(str(error).splitlines()) == 1
