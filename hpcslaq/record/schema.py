"""Tables of a job file: which keys there are, of which type and in which range.

`Place` says where in the file something is and makes the error; `Field` says what a value
must be. What the keys of a job file mean is in `jobfile`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from hpcslaq.errors import JobFileError
from hpcslaq.record.times import parse_duration

#: Checks the options of a model or of a policy and returns them, possibly completed. Raises
#: ValueError, TypeError or an error of ours, best with a message "KEY: what is wrong".
Validator = Callable[[Mapping[str, object]], Mapping[str, object]]

_MAX_SHOWN = 100
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


class FieldType(Enum):
    """What a value must be; the value is how messages call it."""

    INTEGER = "an integer"
    NUMBER = "a number"
    TEXT = "a text"
    FLAG = "true or false"
    DURATION = 'a duration such as 10, "10s" or "1h30m"'
    PATH = "the path of a file"
    #: A number, text, flag, or list of these.
    ANY = "a number, a text, true or false, or a list of these"


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a table: its type, and its range or choices."""

    type: FieldType
    least: float | None = None
    #: The value must be greater than this.
    above: float | None = None
    most: float | None = None
    choices: tuple[object, ...] = ()
    #: A word that may stand instead of a value of the type.
    word: str | None = None
    #: Also a list of such values is taken.
    is_list: bool = False

    def check(self, value: object, place: Place) -> object:
        """The value in its plain form (durations in seconds); raises JobFileError."""
        if self.is_list and isinstance(value, list):
            return [self._check_one(element, place) for element in value]
        return self._check_one(value, place)

    def _check_one(self, value: object, place: Place) -> object:
        if self.word is not None and isinstance(value, str):
            if value != self.word:
                raise place.error(f"must be {self.type.value} or {self.word!r}", value=value)
            return value
        checked = _convert(self.type, value, place)
        if self.choices and checked not in self.choices:
            raise place.error("unknown value", value=value, valid=self.choices)
        if isinstance(checked, (int, float)):
            if self.least is not None and checked < self.least:
                raise place.error(f"must be >= {self.least:g}", value=value)
            if self.above is not None and checked <= self.above:
                raise place.error(f"must be > {self.above:g}", value=value)
            if self.most is not None and checked > self.most:
                raise place.error(f"must be <= {self.most:g}", value=value)
        return checked


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a job file something is, for messages: `job[2] "a".epochs`."""

    file: str
    key: str = ""

    def at(self, key: object) -> Place:
        """The place of a key of the table that is here."""
        label = key if isinstance(key, str) and _is_plain(key) else shortened(key)
        return Place(self.file, f"{self.key}.{label}" if self.key else str(label))

    def error(
        self, problem: str, *, value: object = None, valid: Collection[object] = ()
    ) -> JobFileError:
        """The error for this place, in one line."""
        shown = None if value is None else shortened(value)
        return JobFileError(
            " ".join(self.file.split()),
            self.key or "file",
            " ".join(problem.split()),
            value=shown,
            valid=valid,
        )

    def unknown(self, key: str, value: object, valid: Collection[str]) -> JobFileError:
        """The error for a key that the table here does not have."""
        close = difflib.get_close_matches(key[:_MAX_SHOWN], valid, n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        return self.at(key).error(f"unknown key{hint}", value=value, valid=sorted(valid))


def read_table(value: object, fields: Mapping[str, Field], place: Place) -> dict[str, object]:
    """The checked values of a table that has only these keys; raises JobFileError."""
    checked: dict[str, object] = {}
    for key, element in as_table(value, place).items():
        field = fields.get(key)
        if field is None:
            raise place.unknown(key, element, fields)
        checked[key] = field.check(element, place.at(key))
    return checked


def as_table(value: object, place: Place) -> dict[str, object]:
    """The value itself when it is a table; raises JobFileError."""
    if not isinstance(value, dict):
        raise place.error("must be a table", value=value)
    return value


def validated(
    validate: Validator, options: Mapping[str, object], place: Place
) -> dict[str, object]:
    """The options as a validator returns them; its complaint becomes a JobFileError."""
    try:
        return dict(validate(options))
    except JobFileError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise _complaint(str(error), options, place) from None


def _complaint(message: str, options: Mapping[str, object], place: Place) -> JobFileError:
    key, colon, problem = message.partition(": ")
    if colon and key in options:
        return place.at(key).error(problem, value=options[key])
    return place.error(message or "are refused", value=dict(options))


class Shown:
    """A shortened value: its repr is the text itself."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def shortened(value: object) -> Shown:
    """What messages show for a value: one line, bounded, whatever the value is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Python refuses to print integers of more than 4300 digits.
        text = f"an extreme {type(value).__name__}"
    return Shown(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "...")


def _is_plain(key: str) -> bool:
    return 0 < len(key) <= _MAX_SHOWN and key.replace("-", "").replace("_", "").isalnum()


def _convert(kind: FieldType, value: object, place: Place) -> object:
    if kind is FieldType.DURATION:
        try:
            return parse_duration(value)
        except ValueError:
            raise place.error(f"must be {kind.value}", value=value) from None
    if kind is FieldType.ANY:
        return plain_value(value, place)
    if kind is FieldType.NUMBER:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _finite(value, place)
    elif kind is FieldType.INTEGER:
        if isinstance(value, int) and not isinstance(value, bool):
            if not _MIN_INTEGER <= value <= _MAX_INTEGER:
                raise place.error("must fit into 64 bits", value=value)
            return value
    elif kind is FieldType.FLAG:
        if isinstance(value, bool):
            return value
    elif isinstance(value, str) and (value or kind is FieldType.TEXT):
        return value
    raise place.error(f"must be {kind.value}", value=value)


def _finite(value: int | float, place: Place) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise place.error("must be a finite number", value=value)
    return number


def plain_value(value: object, place: Place) -> object:
    """An option's value: a number, text or flag, or a list of these; raises JobFileError."""
    if isinstance(value, list):
        return [_plain_scalar(element, place) for element in value]
    return _plain_scalar(value, place)


def _plain_scalar(value: object, place: Place) -> object:
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return _convert(FieldType.INTEGER, value, place)
    if isinstance(value, float):
        return _finite(value, place)
    raise place.error(f"must be {FieldType.ANY.value}", value=value)


def dataclass_validator(cls: type) -> Validator:
    """A validator from the fields of a frozen dataclass of parameters, such as a policy.

    Fields of type int, float, bool, str, or one of these or None are options; a float
    whose name ends in `_s` also takes a duration. The instance is built once, so that its
    own checks count. Raises TypeError at once where a field has another type.
    """
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls!r} is not a dataclass")
    hints = typing.get_type_hints(cls)
    fields = {f.name: _field_for(f.name, hints[f.name]) for f in dataclasses.fields(cls) if f.init}

    def validate(options: Mapping[str, object]) -> Mapping[str, object]:
        checked: dict[str, object] = {}
        for key, value in options.items():
            if key not in fields:
                close = difflib.get_close_matches(key[:_MAX_SHOWN], fields, n=1)
                hint = f", did you mean {close[0]!r}?" if close else ""
                valid = ", ".join(sorted(fields)) or "none"
                raise ValueError(f"{key}: unknown option{hint} (valid: {valid})")
            try:
                checked[key] = fields[key].check(value, Place("", key))
            except JobFileError as error:
                raise ValueError(f"{key}: {error.problem}") from None
        cls(**checked)
        return checked

    return validate


_TYPES = {
    int: FieldType.INTEGER,
    float: FieldType.NUMBER,
    bool: FieldType.FLAG,
    str: FieldType.TEXT,
}


def _field_for(name: str, hint: object) -> Field:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        hint = arms[0] if len(arms) == 1 else hint
    kind = _TYPES.get(hint) if isinstance(hint, type) else None
    if kind is None:
        raise TypeError(f"{name}: fields of type {hint!r} are no options")
    if kind is FieldType.NUMBER and name.endswith("_s"):
        kind = FieldType.DURATION
    return Field(kind)
