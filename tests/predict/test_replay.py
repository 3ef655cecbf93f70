"""Replay of recorded losses: the figures by hand, the text format, both predictors."""

import numpy as np
import pytest

from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError
from hpcslaq.predict.replay import PREDICTORS, START, parse_losses, replay_losses

CURVE = (1.0 / np.arange(1.0, 61.0) + 0.5).tolist()


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_a_smooth_curve_is_predicted_well_by_all(predictor: str) -> None:
    (errors,) = replay_losses(CURVE, [10], predictor=predictor)
    assert errors.num_predictions == 60 - 10 - START + 1
    assert errors.mean_relative_error is not None and errors.mean_relative_error < 0.01
    assert errors.weighted_drop_error is not None and errors.weighted_drop_error < 0.2
    assert errors.missed_share == 0.0
    assert (errors.coverage_80 is None) == (predictor != "drop")


def test_constant_losses_leave_the_drop_figures_undefined() -> None:
    (errors,) = replay_losses([2.0] * 30, [5])
    assert errors.mean_relative_error == 0.0
    assert errors.weighted_drop_error is None
    assert errors.median_drop_error is None and errors.missed_share is None
    assert errors.coverage_80 == 1.0


def test_missed_improvements_are_counted() -> None:
    flat_then_falling = [1.0] * 20 + [1.0 - 0.02 * k for k in range(1, 21)]
    (errors,) = replay_losses(flat_then_falling, [10])
    assert errors.missed_share is not None and errors.missed_share > 0.2


def test_short_sequences_have_no_predictions() -> None:
    (errors,) = replay_losses(CURVE[:12], [10])
    assert errors.num_predictions == 0
    assert errors.mean_relative_error is None


def test_horizons_are_judged_one_by_one() -> None:
    both = replay_losses(CURVE, [1, 10], predictor="slaq", convergence=Convergence.SUPERLINEAR)
    alone = replay_losses(CURVE, [10], predictor="slaq", convergence=Convergence.SUPERLINEAR)
    assert both[1] == alone[0]
    assert both[0].horizon == 1


def test_unknown_predictors_and_horizons_are_refused() -> None:
    with pytest.raises(ValueError, match="predictor: 'magic'"):
        replay_losses(CURVE, [1], predictor="magic")
    with pytest.raises(ValueError, match="horizon: 0"):
        replay_losses(CURVE, [0])


def test_losses_are_read_from_lines_or_from_two_columns() -> None:
    assert parse_losses("1.5\n\n0.5\n# end\n", "x.txt") == (1.5, 0.5)
    assert parse_losses("iteration,loss\n1,1.5\n2, 0.5\n", "x.csv") == (1.5, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.0\nabc\n", r"x:2: 'abc'"),
        ("1.0\nnan\n", r"x:2: loss nan is not finite"),
        ("1,2.0\n3,1.0\n", r"x:2: iteration 3 does not follow 1"),
        ("1,2,3\n", r"x:1: 3 fields"),
        ("\n", r"x: no losses"),
    ],
)
def test_a_wrong_line_is_named(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_losses(text, "x")
