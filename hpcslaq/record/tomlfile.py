"""Reads the TOML files that people write, with bounds: what they mean is known elsewhere.

Job files (`jobfile`) and workloads of the simulator. Every error is one line with the file and
the place in it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hpcslaq.errors import NotFoundError
from hpcslaq.record.schema import Place

#: Longest file that is read.
MAX_BYTES = 2 * 2**20

#: Runs of characters in which a dotted key must lie, and its separators.
_KEY_RUN = re.compile(r"[\w\"'. \t-]+")
_SEPARATOR = re.compile(r"\.[ \t]*[\w\"'-]")
_MAX_KEY_PARTS = 100


def read_text(path: Path, kind: str) -> str:
    """The text of a file of this kind ("job file"); raises NotFoundError or JobFileError."""
    place = Place(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such {kind}") from None
    except OSError as error:
        raise place.error(f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise place.error(f"is longer than {MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Place(str(path), f"line {line}").error("is not UTF-8 text") from None


def parse_toml(text: str, place: Place) -> dict[str, object]:
    """The tables of a TOML text; raises JobFileError, naming the line."""
    if len(text) > MAX_BYTES:
        raise place.error(f"is longer than {MAX_BYTES} bytes")
    for run in _KEY_RUN.findall(text):
        # The parser's time grows with the square of the parts of a key.
        if run.count(".") > _MAX_KEY_PARTS and len(_SEPARATOR.findall(run)) > _MAX_KEY_PARTS:
            raise place.error(f"has a key of more than {_MAX_KEY_PARTS} parts", value=run)
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise place.error("is nested too deeply") from None
    except ValueError as error:
        match = re.fullmatch(r"(.*) \(at (.*)\)", str(error), re.DOTALL)
        problem, where = match.groups() if match else (str(error), "file")
        if where == "end of document":
            where = f"line {text.count(chr(10)) + 1} (end of file)"
        if problem == "Cannot overwrite a value":
            problem = "this key was given a value before"
        problem = f"is not TOML: {problem[:200]}"
        raise Place(place.file, where).error(problem, value=_source_line(text, where)) from None


def _source_line(text: str, where: str) -> str | None:
    """The line of a parser's "line 3, column 5", which the parser does not show."""
    match = re.fullmatch(r"line (\d+), column \d+", where)
    lines = text.split("\n", int(match[1])) if match else []
    return lines[int(match[1]) - 1].strip() if match and len(lines) >= int(match[1]) else None
