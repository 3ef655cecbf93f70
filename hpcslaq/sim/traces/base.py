"""What all readers of traces share: a job of a trace, bounded lines, errors with line numbers.

A reader is a generator of `TraceJob` from `Lines`; a row that is no job of ours (a rejected
one, one without workers) is skipped with a reason, a row that cannot be understood raises.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from hpcslaq.errors import HpcslaqError, NotFoundError

#: Largest file, longest line and most jobs that are read.
MAX_BYTES = 512 * 2**20
MAX_LINE = 2**16
MAX_JOBS = 2_000_000
#: Largest number of workers and of seconds that a job may have: beyond it is a mistake.
MAX_WORKERS, MAX_SECONDS = 10**6, 1e11

_SHOWN = 60


class TraceError(HpcslaqError):
    """A trace that cannot be used: file, line (0: the whole file) and what is wrong."""

    exit_code = 2

    def __init__(self, path: Path, line: int, problem: str) -> None:
        self.path, self.line, self.problem = path, line, problem
        where = f"{path}:{line}" if line else str(path)
        super().__init__(" ".join(f"{where}: {problem}".split()))


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. Times in seconds; None where the trace does not say."""

    name: str
    #: Since the first submission of the trace, or as the trace counts.
    submit_s: float
    num_workers: int
    #: Run time on `num_workers` workers.
    duration_s: float | None = None
    #: Iterations (steps) to the end.
    iterations: float | None = None
    model: str = ""
    batch_size: int | None = None
    #: By when the job is to end, after its submission.
    deadline_s: float | None = None
    #: How it ended: "done", "failed", "cancelled", or "" where the trace does not say.
    state: str = ""
    user: str = ""
    weight: float = 1.0
    #: Line of the file, for messages.
    line: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as read: jobs in order of submission, the first at 0 s."""

    format: str
    path: Path
    jobs: tuple[TraceJob, ...]
    #: Rows that were left out, by reason.
    skipped: Mapping[str, int] = field(default_factory=dict)


class Lines:
    """The lines of a trace: bounded, decoded, numbered from 1."""

    def __init__(self, path: Path) -> None:
        """Open; raises NotFoundError, or TraceError on a file that is too large."""
        self.path = path
        #: Line that was handed out last.
        self.number = 0
        self.skipped: Counter[str] = Counter()
        try:
            size = path.stat().st_size
            if path.is_dir():
                raise TraceError(path, 0, "is a directory")
        except FileNotFoundError:
            raise NotFoundError(f"{path}: there is no such trace") from None
        except OSError as error:
            raise TraceError(path, 0, f"cannot be read: {error.strerror}") from None
        if size > MAX_BYTES:
            raise TraceError(path, 0, f"is longer than {MAX_BYTES} bytes")

    def __iter__(self) -> Iterator[str]:
        """The lines without their ends; blank ones are left out. Raises TraceError."""
        with self._open() as file:
            while line := file.readline(MAX_LINE + 1):
                self.number += 1
                if len(line) > MAX_LINE:
                    raise self.error(f"is longer than {MAX_LINE} bytes")
                try:
                    text = line.decode("utf-8-sig" if self.number == 1 else "utf-8")
                except UnicodeDecodeError:
                    raise self.error("is not UTF-8 text") from None
                text = text.rstrip("\r\n")
                if text.strip():
                    yield text

    def head(self, num_bytes: int) -> bytes:
        """The first bytes of the file; raises TraceError."""
        with self._open() as file:
            return file.read(num_bytes)

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise TraceError(self.path, 0, f"cannot be read: {error.strerror}") from None

    def error(self, problem: str) -> TraceError:
        """The error for the line that was handed out last."""
        return TraceError(self.path, self.number, problem)

    def skip(self, reason: str) -> None:
        """Count a row that is left out."""
        self.skipped[reason] += 1


class Row:
    """One row of a table by column name; its methods raise TraceError naming the column."""

    __slots__ = ("_cells", "_lines")

    def __init__(self, lines: Lines, cells: Mapping[str, str]) -> None:
        self._lines, self._cells = lines, cells

    def text(self, column: str, default: str | None = None) -> str:
        """The cell without surrounding blanks."""
        cell = self._cells.get(column, "").strip()
        if not cell:
            if default is None:
                raise self._lines.error(f"{column} is empty")
            return default
        return cell

    def number(self, column: str, least: float = 0.0, most: float = MAX_SECONDS) -> float:
        """A finite number in these bounds."""
        cell = self.text(column)
        try:
            value = float(cell)
        except ValueError:
            raise self._lines.error(f"{column}: {_short(cell)} is no number") from None
        if not least <= value <= most:
            raise self._lines.error(f"{column}: {_short(cell)} is not in [{least:g}, {most:g}]")
        return value

    def optional(self, column: str, least: float = 0.0, most: float = MAX_SECONDS) -> float | None:
        """The number, None where the cell is empty or there is no such column."""
        return self.number(column, least, most) if self.text(column, "") else None

    def integer(self, column: str, least: int = 0, most: int = 10**12) -> int:
        """A whole number in these bounds; "4.0" is one."""
        value = self.number(column, least, most)
        if value != int(value):
            raise self._lines.error(f"{column}: {value:g} is not whole")
        return int(value)

    def instant(self, column: str) -> float:
        """Seconds of an instant: a number, or "2020-04-01 00:08:28" (as if in UTC)."""
        cell = self.text(column)
        if _NUMBER.fullmatch(cell):
            return self.number(column)
        try:
            return parse_instant(cell)
        except ValueError:
            raise self._lines.error(f"{column}: {_short(cell)} is no time") from None


_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?")
_EPOCH = datetime(1970, 1, 1)


def parse_instant(text: str) -> float:
    """Seconds since 1970 of "2020-04-01 00:08:28", as if in UTC; raises ValueError."""
    if not _INSTANT.fullmatch(text):
        raise ValueError(f"{_short(text)} is no time")
    return (datetime.fromisoformat(text) - _EPOCH).total_seconds()


def header_of(line: str, delimiter: str = ",") -> tuple[str, ...]:
    """Column names of a header line, in lower case."""
    return tuple(cell.strip().strip('"').lower() for cell in line.split(delimiter))


def rows(
    lines: Lines, *, columns: Sequence[str] | None = None, delimiter: str = ","
) -> Iterator[Row]:
    """Rows of a table by column name; the first line is the header unless `columns` are given.

    Raises TraceError on a row with more or fewer cells than there are columns.
    """
    names = None if columns is None else tuple(columns)
    for line in lines:
        if names is None:
            names = header_of(line, delimiter)
            if len(set(names)) != len(names):
                raise lines.error("has a column twice")
            continue
        cells = line.split(delimiter) if '"' not in line else _quoted(lines, line, delimiter)
        if len(cells) != len(names):
            raise lines.error(f"has {len(cells)} cells, the header has {len(names)}")
        yield Row(lines, dict(zip(names, cells, strict=True)))


def finish(format_name: str, lines: Lines, jobs: Iterator[TraceJob]) -> Trace:
    """Take in all jobs: sorted by submission, the first at 0 s; names made unique.

    Raises TraceError where there are none, or more than `MAX_JOBS`.
    """
    found: list[TraceJob] = []
    for job in jobs:
        found.append(job)
        if len(found) > MAX_JOBS:
            raise lines.error(f"is job {len(found)}: more than {MAX_JOBS} jobs")
    if not found:
        reasons = ", ".join(f"{num} {why}" for why, num in lines.skipped.items())
        raise TraceError(lines.path, 0, f"holds no job ({reasons or 'no rows'})")
    found.sort(key=lambda job: job.submit_s)
    first = found[0].submit_s
    used: set[str] = set()
    shifted = []
    for job in found:
        name = unique_name(job.name, used)
        shifted.append(_with(job, name=name, submit_s=job.submit_s - first))
    return Trace(format_name, lines.path, tuple(shifted), dict(lines.skipped))


def unique_name(text: str, used: set[str]) -> str:
    """A legal job name made from `text` that is not in `used` yet; it is added."""
    name = re.sub(r"[^A-Za-z0-9._+=-]", "_", text)[:80].lstrip("._+=-") or "job"
    candidate, number = name, 1
    while candidate in used:
        number += 1
        candidate = f"{name}-{number}"
    used.add(candidate)
    return candidate


def ended(state: str, words: Mapping[str, str]) -> str:
    """How a job ended, in our words; "" for a state that is not in `words`."""
    return words.get(state.strip().lower(), "")


def _with(job: TraceJob, **changes: object) -> TraceJob:
    values = {name: getattr(job, name) for name in TraceJob.__dataclass_fields__}
    return TraceJob(**{**values, **changes})


def _quoted(lines: Lines, line: str, delimiter: str) -> list[str]:
    try:
        (cells,) = csv.reader([line], delimiter=delimiter, strict=True)
    except (csv.Error, ValueError):
        raise lines.error("has quotes that do not match") from None
    return cells


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


#: A reader: jobs of a trace, from its lines.
Reader = Callable[[Lines], Iterator[TraceJob]]


def is_sane(seconds: float) -> bool:
    """Whether a duration can be simulated."""
    return math.isfinite(seconds) and 0.0 < seconds <= MAX_SECONDS
