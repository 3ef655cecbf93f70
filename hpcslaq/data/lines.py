"""Text files, plain or gzip, as blocks of whole lines with their line numbers.

What the lines mean is for `csvfile` and `libsvm`.
"""

from __future__ import annotations

import gzip
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from hpcslaq.data.blocks import Progress
from hpcslaq.errors import DataError

_BLOCK_BYTES = 4 << 20
#: No honest row is longer; a gzip file can hold a line of any length in a few bytes.
_MAX_LINE_BYTES = 64 << 20
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(slots=True)
class RowLines:
    """Where each row of a text file stands: rows are on consecutive lines but for gaps."""

    #: Row at which a run of rows on consecutive lines starts, and its line, both ascending.
    _rows: list[int] = field(default_factory=list)
    _lines: list[int] = field(default_factory=list)
    _next_row: int = 0
    _next_line: int = -1

    def add(self, lines: list[int]) -> None:
        """The next rows stand on these lines."""
        if not lines:
            return
        is_one_run = lines[0] == self._next_line and lines[-1] - lines[0] == len(lines) - 1
        if not is_one_run:
            for row, line in enumerate(lines, start=self._next_row):
                if line != self._next_line:
                    self._rows.append(row)
                    self._lines.append(line)
                self._next_line = line + 1
        self._next_row += len(lines)
        self._next_line = lines[-1] + 1

    def where(self, row: int) -> str:
        """The place of a row that was added."""
        run = bisect_right(self._rows, row) - 1
        return f"line {self._lines[run] + row - self._rows[run]}"


def line_blocks(path: Path, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines) block after block; lines end in a newline byte.

    Raises DataError when a gzip file is damaged or a line is longer than 64 MB.
    """
    size = max(1, path.stat().st_size)
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_gzip else raw
        number, rest = 1, b""
        while part := _read(stream, path, number):
            head, newline, tail = part.rpartition(b"\n")
            if not newline:
                rest += part
                if len(rest) > _MAX_LINE_BYTES:
                    raise DataError(f"{path}: line {number}: longer than 64 MB")
                continue
            block = rest + head + newline
            yield number, block
            progress("read", raw.tell() / size)
            number += block.count(b"\n")
            rest = tail
        if rest:
            yield number, rest + b"\n"


def _read(stream: BinaryIO, path: Path, number: int) -> bytes:
    try:
        return stream.read(_BLOCK_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: line {number} or later: damaged gzip file: {error}") from error
