"""`hpcslaq predict`: the figures by name, and what is wrong with a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]
FIGURES = {
    "horizon",
    "num_predictions",
    "mean_relative_error",
    "weighted_drop_error",
    "median_drop_error",
    "missed_share",
    "coverage_80",
}


@pytest.fixture
def loss_file(tmp_path: Path) -> Path:
    path = tmp_path / "losses.txt"
    path.write_text("".join(f"{0.3 + 1.0 / (k + 2.0)}\n" for k in range(60)))
    return path


def test_the_figures_of_each_horizon_are_printed(invoke: Invoke, loss_file: Path) -> None:
    result = invoke("predict", loss_file, "--horizon", 1, "--horizon", 10, "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert [errors["horizon"] for errors in value["horizons"]] == [1, 10]
    assert all(set(errors) == FIGURES for errors in value["horizons"])
    assert value["num_losses"] == 60 and value["predictor"] == "drop"
    assert value["horizons"][1]["num_predictions"] == 45
    assert value["horizons"][1]["weighted_drop_error"] < 0.1


def test_the_figures_of_one_horizon_are_also_at_the_top(invoke: Invoke, loss_file: Path) -> None:
    value = json.loads(invoke("predict", loss_file, "--horizon", 10, "--json").stdout)
    assert {key: value[key] for key in FIGURES} == value["horizons"][0]


def test_the_fit_of_the_paper_is_told_its_family_and_has_no_interval(
    invoke: Invoke, loss_file: Path
) -> None:
    for family, most in (("sublinear", 0.01), ("superlinear", 1.0)):
        arguments = ("--horizon", 10, "--predictor", "slaq", "--convergence", family, "--json")
        value = json.loads(invoke("predict", loss_file, *arguments).stdout)
        assert value["convergence"] == family and value["coverage_80"] is None
        assert value["weighted_drop_error"] < most


def test_a_target_loss_keeps_predictions_from_falling_below_it(
    invoke: Invoke, tmp_path: Path
) -> None:
    path = tmp_path / "sudden.txt"
    losses = [max(1.0 - 0.02 * k, 0.4) for k in range(40)]
    path.write_text("\n".join(map(str, losses)))
    plain, told = (
        json.loads(invoke("predict", path, "--horizon", 10, "--json", *more).stdout)
        for more in ((), ("--target-loss", 0.4))
    )
    assert told["weighted_drop_error"] < plain["weighted_drop_error"]


def test_without_json_there_is_a_table(invoke: Invoke, loss_file: Path) -> None:
    text = invoke("predict", loss_file).stdout
    assert "60 losses, predictor drop" in text and "80 % interval holds" in text
    assert len(text.splitlines()) == 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"1.0\n0.5\nabc\n", "3: 'abc' is not a number"),
        (b"1.0\nnan\n", "2: loss nan is not finite"),
        (b"1,1.0\n3,0.5\n", "2: iteration 3 does not follow 1"),
        (b"", "no losses"),
        (b"iteration,loss\n", "no losses"),
        (b"1,\n", "1: '1,' is not a number"),
        (b"1,2,3\n", "1: 3 fields, expected loss or iteration,loss"),
        (b"1.0\n0.5\n", "2 losses in it, and 7 are needed for a prediction from iteration 6"),
        (b"\xff\xfe\x00", "is not a text file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(
    invoke: Invoke, tmp_path: Path, text: bytes, problem: str
) -> None:
    path = tmp_path / "losses.csv"
    path.write_bytes(text)
    result = invoke("predict", path, "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "DataError" and problem in error["message"]
    assert str(path) in error["message"]


def test_a_directory_is_no_file_of_losses(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("predict", tmp_path)
    assert result.exit_code == 2 and "is a directory" in result.stderr


def test_a_file_that_reaches_only_some_horizons_is_judged_on_those(
    invoke: Invoke, tmp_path: Path
) -> None:
    path = tmp_path / "short.txt"
    path.write_text("".join(f"{1.0 / k}\n" for k in range(1, 13)))
    value = json.loads(invoke("predict", path, "--json").stdout)
    assert [errors["num_predictions"] for errors in value["horizons"]] == [6, 2, 0]
    assert invoke("predict", path, "--horizon", 10).exit_code == 2


def test_a_target_loss_is_a_finite_number(invoke: Invoke, loss_file: Path) -> None:
    assert invoke("predict", loss_file, "--target-loss", "nan").exit_code == 2


def test_a_missing_file_and_a_wrong_horizon_have_exit_codes_of_their_own(
    invoke: Invoke, tmp_path: Path, loss_file: Path
) -> None:
    assert invoke("predict", tmp_path / "nothing").exit_code == 3
    assert invoke("predict", loss_file, "--horizon", 0).exit_code == 2
