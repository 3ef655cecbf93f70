"""Durations as people write them: "10s", "5m", "1h30m", "250ms", or a number of seconds."""

from __future__ import annotations

import math
import re

#: Seconds by unit, largest first: the order in which a text must give them.
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}

_NUMBER = r"\d+(?:\.\d+)?"
_TEXT = re.compile("".join(rf"(?:({_NUMBER}){unit}(?![a-z]))?" for unit in _UNITS))
_PLAIN = re.compile(rf"{_NUMBER}(?:[eE][+-]?\d+)?")

#: Longest text that is looked at.
_MAX_LENGTH = 64


def parse_duration(value: object) -> float:
    """Seconds for a number (seconds) or a text such as "1h30m"; raises ValueError."""
    problem = 'not a duration >= 0 such as 10, "10s", "5m", "1h30m" or "250ms"'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            raise ValueError(problem) from None
    elif isinstance(value, str) and len(value) <= _MAX_LENGTH:
        seconds = _parse_text(value.strip())
    else:
        raise ValueError(problem)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(problem)
    return seconds


def _parse_text(text: str) -> float:
    """Seconds, or NaN where the text is no duration."""
    if not text.isascii():
        return math.nan
    if _PLAIN.fullmatch(text):
        return float(text)
    match = _TEXT.fullmatch(text)
    if not text or match is None:
        return math.nan
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    return math.fsum(float(number) * unit for number, unit in parts if number is not None)


def format_duration(seconds: float) -> str:
    """A text such as "1h30m", "4.25s" or "12ms": the two largest units, rounded.

    `parse_duration` reads it back. A value that is negative or not finite raises ValueError.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{seconds} is not a duration >= 0")
    if round(seconds * 1e3) < 1_000:
        return f"{_short(seconds * 1e3, 3)}ms" if seconds else "0s"
    if round(seconds, 2) < 60:
        return f"{_short(seconds, 2)}s"
    rest = round(seconds)
    if rest >= 86_400:
        rest = round(rest / 3_600) * 3_600
    elif rest >= 3_600:
        rest = round(rest / 60) * 60
    text = ""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_UNITS[unit]))
        if count:
            text += f"{count}{unit}"
    return text


def _short(value: float, digits: int) -> str:
    """A decimal number without trailing zeros."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
