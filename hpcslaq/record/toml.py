"""Writes TOML: the value types that `run.toml` needs; read it back with `tomllib`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def dump_toml(document: Mapping[str, object]) -> str:
    """The TOML text of nested mappings of strings, numbers, booleans, lists and mappings.

    A list that holds only mappings becomes an array of tables. TOML has no null: a None
    value is left out. Raises ValueError or TypeError, naming the key, on other values.
    """
    lines: list[str] = []
    _table(lines, (), document)
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(lines: list[str], path: tuple[str, ...], table: Mapping[str, object]) -> None:
    """Plain values first, then sub-tables: after a header, keys belong to that header."""
    deferred: list[tuple[str, object]] = []
    for key, value in table.items():
        if not isinstance(key, str):
            raise TypeError(f"{_joined(path)}: key {key!r} is not a string")
        if isinstance(value, Mapping) or _is_table_array(value):
            deferred.append((key, value))
        elif value is not None:
            try:
                lines.append(f"{_key(key)} = {_value(value)}")
            except (TypeError, ValueError) as error:
                raise type(error)(f"{_joined((*path, key))}: {error}") from None
    for key, value in deferred:
        inner = (*path, key)
        if isinstance(value, Mapping):
            lines += ["", f"[{_joined(inner)}]"]
            _table(lines, inner, value)
        elif isinstance(value, (list, tuple)):
            for element in value:
                lines += ["", f"[[{_joined(inner)}]]"]
                _table(lines, inner, element)


def _is_table_array(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(isinstance(element, Mapping) for element in value)
    )


def _joined(path: tuple[str, ...]) -> str:
    return ".".join(_key(part) for part in path)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(element) for element in value) + "]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {_value(element)}" for key, element in value.items())
        return "{" + ", ".join(pairs) + "}"
    raise TypeError(f"{value!r} has no TOML form")


def _string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not valid Unicode text") from None
    escaped = "".join(
        _ESCAPES.get(char) or (char if char >= " " and char != "\x7f" else f"\\u{ord(char):04x}")
        for char in text
    )
    return f'"{escaped}"'
