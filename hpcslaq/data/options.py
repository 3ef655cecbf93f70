"""Options of a data source as data: name, type, default, documentation.

The job-file parser lists these as the valid keys; `source.py` says which of them go
with which kind of source. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "true/false", list: "list"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a data source: what it may be and what it means."""

    name: str
    #: Types of a value as TOML gives them; an integer passes for a float, a bool never for an int.
    types: tuple[type, ...]
    default: object
    doc: str
    #: All valid values; empty: any value of the right type.
    choices: tuple[object, ...] = ()
    minimum: float | None = None
    #: Exclusive upper bound.
    below: float | None = None
    #: File formats to which the option applies; empty: all.
    formats: tuple[str, ...] = ()

    @property
    def type_name(self) -> str:
        """The type in words, for messages and help."""
        return " or ".join(_TYPE_NAMES[kind] for kind in self.types)

    def check(self, value: object) -> object:
        """The value in its final type. Raises ValueError, naming the option, if it is invalid."""
        if isinstance(value, tuple):
            value = list(value)
        if isinstance(value, int) and not isinstance(value, bool):
            is_right = int in self.types or float in self.types
        else:
            is_right = type(value) in self.types
        if not is_right:
            raise ValueError(f"{self.name}: {value!r} is not a {self.type_name}")
        if self.choices and value not in self.choices:
            valid = ", ".join(str(choice).lower() for choice in self.choices)
            raise ValueError(f"{self.name}: {value!r} is not one of {valid}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_range(value)
            return value if int in self.types and isinstance(value, int) else float(value)
        if isinstance(value, list) and not all(isinstance(item, str | int) for item in value):
            raise ValueError(f"{self.name}: {value!r} holds more than strings and integers")
        return value

    def _check_range(self, value: float) -> None:
        # Written so that NaN fails too.
        if self.minimum is not None and not value >= self.minimum:
            raise ValueError(f"{self.name}: {value} < {self.minimum}")
        if self.below is not None and not value < self.below:
            raise ValueError(f"{self.name}: {value} is not below {self.below}")


def check_options(schema: Iterable[Option], given: Mapping[str, object]) -> dict[str, object]:
    """All options of the schema by name: the given values, else the defaults.

    Raises ValueError, starting with the key, on an unknown key or an invalid value.
    """
    known = {option.name: option for option in schema}
    for key in given:
        if key not in known:
            raise ValueError(f"{key}: unknown option (valid: {', '.join(known)})")
    return {
        name: option.check(given[name]) if name in given else option.default
        for name, option in known.items()
    }
