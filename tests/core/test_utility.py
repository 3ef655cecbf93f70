"""Utilities by delay: their forms, their edges, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcslaq.core.utility import UtilityCurve, UtilityKind

K = UtilityKind
CURVES = [
    UtilityCurve(K.CONSTANT, 5.0),
    UtilityCurve(K.SIGMOID, 50.0, 30.0, 0.5),
    UtilityCurve(K.LINEAR, 10.0, 20.0),
    UtilityCurve(K.STEP, 10.0, 20.0),
    UtilityCurve(K.TABLE, values=(9.0, 4.0, 4.0, 0.5), every_s=10.0),
]


@pytest.mark.parametrize("curve", CURVES, ids=lambda c: c.kind.value)
@given(delays=st.lists(st.floats(0.0, 1e6), min_size=2, max_size=2))
def test_a_utility_never_rises_and_is_never_negative(
    curve: UtilityCurve, delays: list[float]
) -> None:
    early, late = sorted(delays)
    assert curve.at(early) >= curve.at(late) >= 0.0


def test_the_forms_have_their_marks_where_the_user_put_them() -> None:
    constant, sigmoid, linear, step, table = CURVES
    assert constant.at(0.0) == constant.at(1e9) == 5.0
    assert sigmoid.at(30.0) == 25.0 and sigmoid.at(1e9) < 1e-200
    assert (linear.at(0.0), linear.at(10.0), linear.at(20.0)) == (10.0, 5.0, 0.0)
    assert (step.at(20.0), step.at(20.1)) == (10.0, 0.0)
    assert [table.at(s) for s in (0.0, 9.9, 10.0, 29.0, 30.0, 500.0)] == [9, 9, 4, 4, 0.5, 0.5]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"kind": K.SIGMOID, "target_s": 3.0}, "steepness: is missing"),
        ({"kind": K.CONSTANT, "target_s": 3.0}, "target_s: is not used"),
        ({"kind": K.STEP}, "target_s: is missing"),
        ({"kind": K.STEP, "target_s": -1.0}, "target_s: -1.0 is not a finite"),
        ({"kind": K.CONSTANT, "peak": 0.0}, "peak: 0.0 is not a finite"),
        ({"kind": K.TABLE, "values": (1.0, 2.0), "every_s": 1.0}, "rise"),
        ({"kind": K.TABLE, "values": (1.0, -2.0), "every_s": 1.0}, "values: "),
        ({"kind": K.TABLE, "every_s": 1.0}, "values: is missing"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UtilityCurve(**fields)  # type: ignore[arg-type]
