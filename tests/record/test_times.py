"""Durations in and out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.record.times import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("5m", 300),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1d2h3m4s5ms", 93784.005),
        ("0", 0),
        ("12.5", 12.5),
        ("1e3", 1000),
        (" 3s ", 3),
        (7, 7),
        (0.125, 0.125),
    ],
)
def test_durations_are_read_as_people_write_them(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "bad",
    [
        *("", " ", "s", "ten", "10 s", "10S", "1m30", "30s1m", "1m1m", "-1s", "-1", "1..5s"),
        *("inf", "nan", "1e999", "5ms1s", "1mss", "\u0661s", "9" * 100, "1h30m\n2s"),
        *(-1, -0.5, float("nan"), float("inf"), 10**400, True, None, [], {}),
    ],
)
def test_anything_else_is_refused_with_examples(bad: object) -> None:
    with pytest.raises(ValueError, match="not a duration >= 0 such as"):
        parse_duration(bad)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0123, "12.3ms"),
        (0.25, "250ms"),
        (0.9999, "1s"),
        (4.25, "4.25s"),
        (59.999, "1m"),
        (61, "1m1s"),
        (3599.7, "1h"),
        (5400, "1h30m"),
        (5431, "1h31m"),
        (86_399, "1d"),
        (93_784, "1d2h"),
    ],
)
def test_durations_are_shown_with_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e8))
@settings(max_examples=300, deadline=None)
def test_a_shown_duration_is_read_back_within_its_rounding(seconds: float) -> None:
    unit = 5e-7 if seconds < 0.9995 else 0.005 if seconds < 60 else 0.5
    unit = 1800 if seconds >= 86_399.5 else 30 if seconds >= 3599.5 else unit
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=unit * 1.01)


@given(st.text(max_size=12) | st.text("0123456789.hmsd", max_size=12))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_number_or_a_value_error(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except ValueError:
        pass


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_no_text_for_what_is_no_duration(bad: float) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        format_duration(bad)
