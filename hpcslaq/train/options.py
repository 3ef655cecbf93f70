"""Hyperparameters: what a model accepts, and the check of what a job gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcslaq.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Option:
    """One hyperparameter. None is accepted exactly if it is the default."""

    #: int, float, bool or str; of each element if `is_list`.
    type: type
    default: object
    doc: str
    #: Bounds of numbers: `above` and `below` are excluded, the others included.
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    choices: tuple[object, ...] = ()
    #: The value is a list of values; it arrives as a tuple.
    is_list: bool = False

    def describe(self) -> str:
        """The valid values in words, for example "float > 0"."""
        if self.choices:
            return "one of " + ", ".join(str(c) for c in self.choices)
        text = self.type.__name__
        bounds = (("> ", self.above), (">= ", self.at_least), ("< ", self.below))
        limits = [
            f"{sign}{bound:g}"
            for sign, bound in (*bounds, ("<= ", self.at_most))
            if bound is not None
        ]
        if limits:
            text += " " + " and ".join(limits)
        if self.is_list:
            text = f"list of {text}"
        return text + (" or none" if self.default is None else "")

    def convert(self, value: object) -> object:
        """The value in the option's type. Raises ValueError if it is not valid."""
        if value is None and self.default is None:
            return None
        if not self.is_list:
            return self._convert_one(value)
        if not isinstance(value, (list, tuple)):
            raise ValueError(value)
        return tuple(self._convert_one(item) for item in value)

    def _convert_one(self, value: object) -> object:
        if self.type is float and type(value) is int:
            value = float(value)
        if type(value) is not self.type:  # exact: True is no int here
            raise ValueError(value)
        if self.choices and value not in self.choices:
            raise ValueError(value)
        if isinstance(value, (int, float)):
            self._check_bounds(value)
        return value

    def _check_bounds(self, value: float) -> None:
        is_inside = (
            math.isfinite(value)
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )
        if not is_inside:
            raise ValueError(value)


def validate_options(model: Any, given: Mapping[str, object]) -> dict[str, Any]:
    """All options of a model class: the given ones checked, the others at their defaults.

    Raises TrainingError naming the key, the value and what is valid.
    """
    known: Mapping[str, Option] = model.options
    for key in given:
        if key not in known:
            raise TrainingError(
                f"option {key}: {model.__name__} has no such option "
                f"(valid: {', '.join(sorted(known)) or 'none'})"
            )
    settings: dict[str, Any] = {}
    for key, option in known.items():
        if key not in given:
            settings[key] = option.default
            continue
        try:
            settings[key] = option.convert(given[key])
        except ValueError:
            raise TrainingError(
                f"option {key}: {given[key]!r} is not valid for {model.__name__} "
                f"(valid: {option.describe()})"
            ) from None
    return settings
