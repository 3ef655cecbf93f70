"""CSV files, with or without a header, plain or gzip, numeric but for the label column.

A block of lines is parsed by `numpy.loadtxt`; only when it refuses one, the lines are
looked at singly to name the first bad one. A field cannot contain a line break.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcslaq.data.blocks import Block, Progress, Table
from hpcslaq.data.columns import columns_to_drop, label_column
from hpcslaq.data.lines import RowLines, line_blocks
from hpcslaq.errors import DataError

_DELIMITERS = (",", ";", "\t", "|", " ")


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the first lines say about a file."""

    path: Path
    delimiter: str
    num_columns: int
    names: tuple[str, ...] | None
    #: Number of the label column; None: no labels.
    label: int | None
    is_label_text: bool
    dropped: frozenset[int]

    @property
    def features(self) -> list[int]:
        """Numbers of the feature columns."""
        out = self.dropped | ({self.label} if self.label is not None else set())
        return [column for column in range(self.num_columns) if column not in out]

    def title(self, column: int) -> str:
        """A column in words, counted from 0 when it has no name."""
        if self.names is None:
            return f"column {column} (counted from 0)"
        return f"column {self.names[column]!r}"


def read_csv(path: Path, options: Mapping[str, object], progress: Progress) -> Table:
    """The rows of a CSV file. Raises DataError, with the line, on the first bad one."""
    blocks = _text_blocks(path, progress)
    for first in blocks:
        if first[0]:
            break
    else:
        raise DataError(f"{path}: no rows: the file is empty")
    layout, num_skip = _find_layout(path, first, options)
    lines = RowLines()
    features = layout.features
    names = layout.names
    return Table(
        blocks=_parse_all(layout, num_skip, first, blocks, lines),
        is_sparse=False,
        where=lines.where,
        num_features=len(features),
        feature_names=None if names is None else tuple(names[column] for column in features),
    )


def _text_blocks(path: Path, progress: Progress) -> Iterator[tuple[list[int], list[str]]]:
    """(line numbers, lines) of the lines that are not blank."""
    for number, block in line_blocks(path, progress):
        try:
            text = block.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            line = number + block.count(b"\n", 0, error.start)
            raise DataError(f"{path}: line {line}: not UTF-8 text") from error
        if "\0" in text:
            line = number + text.count("\n", 0, text.index("\0"))
            raise DataError(f"{path}: line {line}: a NUL byte: this is not a text file")
        kept = [
            (line, content)
            for line, content in enumerate(text.split("\n")[:-1], start=number)
            if content and not content.isspace()
        ]
        yield [line for line, _ in kept], [content for _, content in kept]


def _find_layout(
    path: Path, block: tuple[list[int], list[str]], options: Mapping[str, object]
) -> tuple[_Layout, int]:
    """The layout and the number of header lines (0 or 1)."""
    lines = block[1]
    delimiter = _find_delimiter(path, lines[0], str(options["delimiter"]))
    first = _fields(lines[0], delimiter)
    if not first:
        raise DataError(f"{path}: line {block[0][0]}: quotes that do not match within the line")
    header = options["header"]
    has_header = header is True or (
        header == "auto" and not any(_is_number(value) or not value for value in first)
    )
    names = tuple(first) if has_header else None
    label = label_column(path, options["label"], names, len(first))
    dropped = columns_to_drop(path, options["drop"], names, len(first))
    is_text = False
    if label is not None:
        sample = _fields(lines[1], delimiter) if has_header and len(lines) > 1 else first
        is_number = len(sample) > label and _is_number(sample[label])
        task = options["task"]
        is_text = task == "classification" or (task == "auto" and not is_number)
    layout = _Layout(path, delimiter, len(first), names, label, is_text, dropped)
    return layout, int(has_header)


def _find_delimiter(path: Path, line: str, asked: str) -> str:
    if asked != "auto":
        return asked
    if ".tsv" in path.suffixes:
        return "\t"
    return max(_DELIMITERS, key=lambda mark: (line.count(mark) > 0, mark != " ", line.count(mark)))


def _fields(line: str, delimiter: str) -> list[str]:
    """The stripped fields of a line; empty when its quotes do not match."""
    if delimiter == " ":
        return line.split()
    try:
        rows = list(csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error:
        return []
    return [value.strip() for value in rows[0]] if rows else []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_all(
    layout: _Layout,
    num_skip: int,
    first: tuple[list[int], list[str]],
    rest: Iterator[tuple[list[int], list[str]]],
    lines: RowLines,
) -> Iterator[Block]:
    numbers, content = first[0][num_skip:], first[1][num_skip:]
    features = layout.features
    while True:
        if content:
            table, texts = _parse(layout, numbers, content)
            lines.add(numbers)
            y: NDArray[np.generic] | None = None
            if layout.label is not None:
                y = table[:, layout.label] if texts is None else texts
            yield Block(table[:, features], y)
        following = next(rest, None)
        if following is None:
            return
        numbers, content = following


def _parse(
    layout: _Layout, numbers: list[int], content: list[str]
) -> tuple[NDArray[np.float64], NDArray[np.str_] | None]:
    """(n, columns) numbers, zero in columns of text, and the (n,) labels if they are text."""
    texts: list[str] = []

    def keep_text(value: str) -> float:
        texts.append(value)
        return 0.0

    converters: dict[int, Callable[[str], float]] = {
        column: lambda value: 0.0 for column in layout.dropped
    }
    if layout.is_label_text and layout.label is not None:
        converters[layout.label] = keep_text
    try:
        table = np.loadtxt(  # type: ignore[call-overload]  # comments=None
            content,
            dtype=np.float64,
            delimiter=None if layout.delimiter == " " else layout.delimiter,
            converters=converters or None,
            comments=None,
            quotechar='"',
            ndmin=2,
            encoding=None,
        )
    except ValueError as error:
        raise _first_bad_line(layout, numbers, content, str(error)) from error
    if table.shape != (len(content), layout.num_columns):
        raise _first_bad_line(layout, numbers, content, "its fields do not fit")
    return table, np.array(texts) if layout.is_label_text else None


def _first_bad_line(
    layout: _Layout, numbers: list[int], content: list[str], complaint: str
) -> DataError:
    skipped = layout.dropped | ({layout.label} if layout.is_label_text else set())
    for number, line in zip(numbers, content, strict=True):
        place = f"{layout.path}: line {number}"
        fields = _fields(line, layout.delimiter)
        if not fields:
            return DataError(f"{place}: quotes that do not match within the line")
        if len(fields) != layout.num_columns:
            return DataError(
                f"{place}: {len(fields)} fields, the first line has {layout.num_columns}"
            )
        for column, value in enumerate(fields):
            if column in skipped or _is_number(value):
                continue
            problem = f"{value[:40]!r} is not a number" if value else "is empty"
            advice = ""
            if column == layout.label and value:
                advice = ' (for text labels set task = "classification")'
            return DataError(f"{place}: {layout.title(column)}: {problem}{advice}")
    return DataError(f"{layout.path}: lines {numbers[0]} to {numbers[-1]}: {complaint}")
