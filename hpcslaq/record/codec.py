"""Frozen dataclasses to JSON and back, exactly; for the journal and for control messages.

A `Codec` knows a closed set of classes and learns their fields from the annotations
once; decoding checks every type and never builds anything outside the set. What is
written where is the business of `journal`; arrays and models are in `checkpoint`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from hpcslaq.core.commands import Command
from hpcslaq.core.events import Event
from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.utility import UtilityCurve
from hpcslaq.errors import HpcslaqError

#: Turns a checked value into a JSON-able one, or back. Raises CodecError.
Convert = Callable[[Any], Any]

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class CodecError(HpcslaqError):
    """A value cannot be encoded, or a text is not the encoding of a known class."""


class Kind(Enum):
    """The two kinds of journal entries."""

    EVENT = "event"
    COMMAND = "command"


class Entry(NamedTuple):
    """One line of a journal; `now` is in seconds since run start."""

    kind: Kind
    now: float
    item: Event | Command


class _Both(NamedTuple):
    """How values of one annotated type are written and read."""

    encode: Convert
    decode: Convert


class Codec:
    """Encodes and decodes instances of a closed set of dataclasses.

    A dataclass becomes `{"type": NAME, FIELD: VALUE, ...}`, also inside another one.
    Fields may be str, int, float, bool, None, enums (by value), tuples, mappings with
    str or int keys, registered dataclasses, unions of these, and `object` for any JSON
    value (lists stay lists, a tuple comes back as a list). Non-finite floats are written
    as the strings "nan", "inf", "-inf" where the field is a float, and refused in `object`.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        #: Registered classes by name; only these are ever built.
        self._classes: dict[str, type] = {}
        #: Converters of registered classes, made at their first use.
        self._plans: dict[type, _Both] = {}
        for cls in classes:
            self.register(cls)

    def register(self, cls: type) -> type:
        """Add a dataclass (usable as a decorator); its name must be new."""
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"{cls!r} is not a dataclass")
        if self._classes.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(f"a class named {cls.__name__!r} is registered already")
        return cls

    def to_json(self, obj: object) -> dict[str, Any]:
        """The JSON-able form of a registered dataclass instance."""
        data: dict[str, Any] = self._plan(type(obj)).encode(obj)
        return data

    def from_json(self, data: object) -> Any:
        """The instance that `to_json` gave `data` for; raises CodecError on anything else."""
        if not isinstance(data, dict):
            raise CodecError(f"expected an object with a type, found {_shown(data)}")
        cls = self._classes.get(data["type"]) if isinstance(data.get("type"), str) else None
        if cls is None:
            raise CodecError(f"type: unknown {_shown(data.get('type'))}")
        return self._plan(cls).decode(data)

    def encode(self, obj: object) -> bytes:
        """The compact UTF-8 JSON of a registered dataclass instance."""
        return dump_json(self.to_json(obj)).encode()

    def decode(self, data: bytes) -> Any:
        """The instance that `encode` gave `data` for; raises CodecError on anything else."""
        return self.from_json(load_json(data))

    def _plan(self, cls: type) -> _Both:
        plan = self._plans.get(cls)
        if plan is None:
            if self._classes.get(cls.__name__) is not cls:
                raise CodecError(f"{cls.__name__} is not a registered class")
            plan = self._plans[cls] = self._dataclass(cls)
        return plan

    def _dataclass(self, cls: type) -> _Both:
        hints = typing.get_type_hints(cls)
        converters = {f.name: self._of(hints[f.name]) for f in dataclasses.fields(cls)}
        return _Both(
            _object_encoder(cls, [(key, both.encode) for key, both in converters.items()]),
            _object_decoder(cls, {key: both.decode for key, both in converters.items()}),
        )

    def _of(self, hint: Any) -> _Both:
        """The converters of one annotation; TypeError where it is not supported."""
        simple = _SIMPLE.get(hint)
        if simple is not None:
            return simple
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple:
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                return _sequence(self._of(arguments[0]))
            return _row([self._of(argument) for argument in arguments])
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return _mapping(arguments[0], self._of(arguments[1]))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _enum(hint)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            # Looked up at use: a class may be registered after the one that holds it.
            return _Both(
                lambda obj: self._plan(hint).encode(obj),
                lambda data: self._plan(hint).decode(data),
            )
        raise TypeError(f"fields of type {hint!r} are not supported")

    def _union(self, arms: tuple[Any, ...]) -> _Both:
        rest = [arm for arm in arms if arm is not type(None)]
        if len(rest) == 1 and len(arms) == 2:
            return _optional(self._of(rest[0]))
        names = " | ".join(getattr(arm, "__name__", str(arm)) for arm in arms)
        # Classes are told apart by their type at once: a union of all events has many arms.
        classes = [a for a in arms if isinstance(a, type) and dataclasses.is_dataclass(a)]
        others = [self._of(arm) for arm in arms if arm not in classes]
        by_type = {cls: self._of(cls).encode for cls in classes}
        by_name = {cls.__name__: self._of(cls).decode for cls in classes}

        def first(converts: list[Convert], value: Any) -> Any:
            for convert in converts:
                try:
                    return convert(value)
                except CodecError:
                    continue
            raise CodecError(f"expected {names}, found {_shown(value)}")

        encoders, decoders = [b.encode for b in others], [b.decode for b in others]

        def encode(value: Any) -> Any:
            convert = by_type.get(type(value))
            return first(encoders, value) if convert is None else convert(value)

        def decode(value: Any) -> Any:
            name = value.get("type") if by_name and isinstance(value, dict) else None
            convert = by_name.get(name) if isinstance(name, str) else None
            return first(decoders, value) if convert is None else convert(value)

        return _Both(encode, decode)


def dump_json(data: object) -> str:
    """Compact JSON in one line of ASCII, floats exact; raises CodecError on NaN and Inf."""
    try:
        return _ENCODER.encode(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise CodecError(f"not representable as JSON: {error}") from None


def load_json(text: str | bytes) -> Any:
    """The value of a JSON text; raises CodecError on anything else, NaN and Infinity too."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}") from None


#: What a job as it was asked for consists of.
JOB_CLASSES = (JobSpec, UtilityCurve)


def journal_codec() -> Codec:
    """A codec of all events, all commands and JobSpec."""
    return Codec([*JOB_CLASSES, *typing.get_args(Event), *typing.get_args(Command)])


class LineCodec:
    """Journal lines: `{"now": SECONDS, "event": {...}}` or the same with "command"."""

    def __init__(self) -> None:
        self._codec = journal_codec()
        self._kinds = {
            **dict.fromkeys(typing.get_args(Event), Kind.EVENT),
            **dict.fromkeys(typing.get_args(Command), Kind.COMMAND),
        }
        self._is_kind = {kind.value: kind for kind in Kind}

    def to_line(self, now: float, item: Event | Command) -> str:
        """One line, without a line end, for an event or a command at `now` (s since start)."""
        kind = self._kinds.get(type(item))
        if kind is None:
            raise CodecError(f"{type(item).__name__} is neither an event nor a command")
        if not math.isfinite(now):
            raise CodecError(f"now: {now} is not finite")
        return dump_json({"now": float(now), kind.value: self._codec.to_json(item)})

    def from_line(self, line: str | bytes) -> Entry:
        """The entry that a line holds; raises CodecError."""
        data = load_json(line)
        if not isinstance(data, dict) or len(data) != 2 or "now" not in data:
            raise CodecError(f"expected now and an event or a command, found {_shown(data)}")
        now = _decode_float(data.pop("now"))
        if not math.isfinite(now):
            raise CodecError(f"now: {now} is not finite")
        ((key, payload),) = data.items()
        item = self._codec.from_json(payload)
        kind = self._kinds.get(type(item))
        if kind is None or kind is not self._is_kind.get(key):
            raise CodecError(f"{key!r} holds a {type(item).__name__}")
        return Entry(kind, now, item)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _shown(value: object) -> str:
    """A short text of any value for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def _object_encoder(cls: type, encoders: list[tuple[str, Convert]]) -> Convert:
    name = cls.__name__

    def encode(obj: Any) -> dict[str, Any]:
        if type(obj) is not cls:
            raise CodecError(f"expected {name}, found {_shown(obj)}")
        data: dict[str, Any] = {"type": name}
        key = ""
        try:
            for key, convert in encoders:
                data[key] = convert(getattr(obj, key))
        except CodecError as error:
            raise CodecError(f"{name}.{key}: {error}") from None
        return data

    return encode


def _object_decoder(cls: type, decoders: dict[str, Convert]) -> Convert:
    name = cls.__name__
    required = [
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]

    def decode(data: Any) -> Any:
        if not isinstance(data, dict) or data.get("type") != name:
            raise CodecError(f"expected {name}, found {_shown(data)}")
        values: dict[str, Any] = {}
        key = ""
        try:
            for key, value in data.items():
                if key != "type":
                    values[key] = decoders[key](value)
        except KeyError:
            valid = ", ".join(decoders) or "none"
            raise CodecError(f"{name}: unknown field {_shown(key)} (valid: {valid})") from None
        except CodecError as error:
            raise CodecError(f"{name}.{key}: {error}") from None
        if len(values) != len(decoders):
            missing = [key for key in required if key not in values]
            if missing:
                raise CodecError(f"{name}: missing {', '.join(missing)}")
        try:
            return cls(**values)
        except ValueError as error:
            raise CodecError(f"{name}: {error}") from None

    return decode


def _exactly(kind: type, article_name: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise CodecError(f"expected {article_name}, found {_shown(value)}")
        return value

    return convert


def _encode_float(value: Any) -> Any:
    if not isinstance(value, (float, int)) or isinstance(value, bool):
        raise CodecError(f"expected a number, found {_shown(value)}")
    try:
        value = float(value)
    except OverflowError:
        raise CodecError(f"{_shown(value)} is too large for a float") from None
    return value if math.isfinite(value) else str(value)


def _decode_float(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is str and value in _NON_FINITE:
        return _NON_FINITE[value]
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            pass
    raise CodecError(f"expected a number, found {_shown(value)}")


def _encode_any(value: Any) -> Any:
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CodecError(f"{value} is not finite")
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_encode_any(item) for item in value]
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: _encode_any(item) for key, item in value.items()}
    raise CodecError(f"{_shown(value)} has no JSON form")


def _decode_any(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise CodecError(f"{value} is not finite")
    if isinstance(value, list):
        return [_decode_any(item) for item in value]
    if isinstance(value, dict):
        return {key: _decode_any(item) for key, item in value.items()}
    return value


def _decode_none(value: Any) -> None:
    if value is not None:
        raise CodecError(f"expected null, found {_shown(value)}")


_STR = _exactly(str, "a string")
_INT = _exactly(int, "an integer")
_BOOL = _exactly(bool, "true or false")
_SIMPLE: dict[Any, _Both] = {
    str: _Both(_STR, _STR),
    int: _Both(_INT, _INT),
    bool: _Both(_BOOL, _BOOL),
    float: _Both(_encode_float, _decode_float),
    object: _Both(_encode_any, _decode_any),
    Any: _Both(_encode_any, _decode_any),
    None: _Both(_decode_none, _decode_none),
    type(None): _Both(_decode_none, _decode_none),
}


def _sequence(item: _Both) -> _Both:
    """tuple[T, ...]."""
    encode_item, decode_item = item

    def encode(value: Any) -> list[Any]:
        if not isinstance(value, (tuple, list)):
            raise CodecError(f"expected a tuple, found {_shown(value)}")
        return [encode_item(element) for element in value]

    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise CodecError(f"expected a list, found {_shown(value)}")
        return tuple([decode_item(element) for element in value])

    return _Both(encode, decode)


def _optional(item: _Both) -> _Both:
    """T | None."""
    encode, decode = item
    return _Both(
        lambda value: None if value is None else encode(value),
        lambda value: None if value is None else decode(value),
    )


def _row(items: list[_Both]) -> _Both:
    """tuple[A, B, C]."""

    def check(value: Any) -> None:
        if not isinstance(value, (tuple, list)) or len(value) != len(items):
            raise CodecError(f"expected {len(items)} values, found {_shown(value)}")

    def encode(value: Any) -> list[Any]:
        check(value)
        return [item.encode(element) for item, element in zip(items, value, strict=True)]

    def decode(value: Any) -> tuple[Any, ...]:
        check(value)
        return tuple(item.decode(element) for item, element in zip(items, value, strict=True))

    return _Both(encode, decode)


def _mapping(key_type: Any, item: _Both) -> _Both:
    """Mapping[str, T] or Mapping[int, T]; JSON keys are strings."""
    if key_type not in (str, int):
        raise TypeError(f"mappings with keys of type {key_type!r} are not supported")
    encode_item, decode_item = item

    def encode(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise CodecError(f"expected a mapping, found {_shown(value)}")
        for key in value:
            if type(key) is not key_type:
                raise CodecError(f"key {_shown(key)} is not of type {key_type.__name__}")
        return {str(key): encode_item(element) for key, element in value.items()}

    def decode_key(key: str) -> Any:
        if key_type is str:
            return key
        # Only the canonical form, or two keys could mean the same number.
        if len(key) <= 20 and key.removeprefix("-").isdecimal() and str(int(key)) == key:
            return int(key)
        raise CodecError(f"key {_shown(key)} is not an integer")

    def decode(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise CodecError(f"expected an object, found {_shown(value)}")
        return {decode_key(key): decode_item(element) for key, element in value.items()}

    return _Both(encode, decode)


def _enum(cls: type[Enum]) -> _Both:
    def encode(value: Any) -> Any:
        if not isinstance(value, cls):
            raise CodecError(f"expected a {cls.__name__}, found {_shown(value)}")
        return value.value

    def decode(value: Any) -> Enum:
        for member in cls:
            if type(member.value) is type(value) and member.value == value:
                return member
        valid = ", ".join(str(member.value) for member in cls)
        raise CodecError(f"expected a {cls.__name__}, found {_shown(value)} (valid: {valid})")

    return _Both(encode, decode)
