"""Recorded loss curves as text files: one line per iteration, after `# key: value` lines.

    # model: logistic
    # convergence: superlinear
    # iterations_per_epoch: 1
    loss,cpu_s,wall_s
    0.6931471805599453,0.211,0.213

A plain file of numbers, one loss per line, is a curve too. The set that the project ships is
in the directory `recorded`; what it was recorded from is in the header of each file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError, NotFoundError

Floats = NDArray[np.float64]

#: Largest file and most iterations that are read.
MAX_BYTES, MAX_ITERATIONS = 64 * 2**20, 2_000_000

_COLUMNS = ("loss", "cpu_s", "wall_s")
#: Where the shipped curves are.
RECORDED = Path(__file__).with_name("recorded")
_SUFFIXES = (".csv", ".txt")


@dataclass(frozen=True, slots=True)
class Curve:
    """What one job did when it ran alone on one worker."""

    name: str
    #: (n,) loss of iterations 1 to n, n >= 1, finite.
    losses: Floats
    #: (n,) CPU and wall seconds of each iteration; None: not recorded.
    cpu_s: Floats | None = None
    wall_s: Floats | None = None
    iterations_per_epoch: int = 1
    convergence: Convergence = Convergence.SUBLINEAR
    #: All that the header says, by key.
    facts: Mapping[str, str] = field(default_factory=dict)


def read_curve(path: Path) -> Curve:
    """Read one file; raises NotFoundError, or DataError naming file and line."""
    facts: dict[str, str] = {}
    columns: tuple[str, ...] | None = None
    rows: list[tuple[float, ...]] = []
    for number, line in enumerate(_lines(path), 1):
        text = line.strip()
        if not text:
            continue
        if text.startswith("#"):
            key, colon, value = text[1:].partition(":")
            if colon:
                facts[key.strip()] = value.strip()
        elif columns is None and text[0].isalpha() and not text.lower().startswith(("nan", "inf")):
            columns = tuple(name.strip() for name in text.split(","))
            if columns not in (_COLUMNS, _COLUMNS[:2], _COLUMNS[:1]):
                raise DataError(f"{path}:{number}: columns {text[:80]!r}, expected {_COLUMNS}")
        else:
            columns = columns or _COLUMNS[:1]
            rows.append(_row(text, len(columns), f"{path}:{number}"))
            if len(rows) > MAX_ITERATIONS:
                raise DataError(f"{path}:{number}: more than {MAX_ITERATIONS} iterations")
    if not rows:
        raise DataError(f"{path}: holds no loss")
    return _curve(path, np.array(rows).T, facts)


def read_curves(path: Path) -> dict[str, Curve]:
    """The curve of a file, or those of all .csv and .txt files of a directory, by name."""
    if not path.exists():
        raise NotFoundError(f"{path}: there is no such file or directory of curves")
    if not path.is_dir():
        curve = read_curve(path)
        return {curve.name: curve}
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    if not files:
        raise NotFoundError(f"{path}: holds no .csv or .txt file of a curve")
    return {(curve := read_curve(file)).name: curve for file in files}


@cache
def recorded_curves() -> Mapping[str, Curve]:
    """The curves that the project ships, by name; raises NotFoundError where they are missing."""
    return read_curves(RECORDED)


def format_curve(curve: Curve) -> str:
    """The text of a curve's file; `read_curve` gives the same curve (times to 4 digits)."""
    lines = [f"# {key}: {' '.join(value.split())}" for key, value in curve.facts.items()]
    lines.append(f"# convergence: {curve.convergence.value}")
    lines.append(f"# iterations_per_epoch: {curve.iterations_per_epoch}")
    columns = [list(map(repr, curve.losses.tolist()))]
    for times in (curve.cpu_s, curve.wall_s):
        if times is not None:
            columns.append([f"{value:.4g}" for value in times.tolist()])
    lines.append(",".join(_COLUMNS[: len(columns)]))
    lines += [",".join(row) for row in zip(*columns, strict=True)]
    return "\n".join(lines) + "\n"


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such curve") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise DataError(f"{path}: is longer than {MAX_BYTES} bytes")
    return data.decode(errors="replace").split("\n")


def _row(text: str, num_columns: int, place: str) -> tuple[float, ...]:
    cells = text.split(",")
    if len(cells) != num_columns:
        raise DataError(f"{place}: {len(cells)} values, expected {num_columns}")
    try:
        values = tuple(float(cell) for cell in cells)
    except ValueError:
        raise DataError(f"{place}: {text[:80]!r} is not made of numbers") from None
    if not all(map(math.isfinite, values)):
        raise DataError(f"{place}: {text[:80]!r} is not finite")
    if min(values[1:], default=0.0) < 0.0:
        raise DataError(f"{place}: {text[:80]!r} has a negative time")
    return values


def _curve(path: Path, columns: Floats, facts: dict[str, str]) -> Curve:
    kind = facts.pop("convergence", Convergence.SUBLINEAR.value)
    per_epoch = facts.pop("iterations_per_epoch", "1")
    try:
        convergence = Convergence(kind)
    except ValueError:
        valid = ", ".join(one.value for one in Convergence)
        raise DataError(f"{path}: convergence: {kind[:80]!r} (valid: {valid})") from None
    if not (per_epoch.isdecimal() and len(per_epoch) < 10 and int(per_epoch) >= 1):
        raise DataError(f"{path}: iterations_per_epoch: {per_epoch[:80]!r} is no number >= 1")
    return Curve(
        path.stem,
        columns[0],
        columns[1] if len(columns) > 1 else None,
        columns[2] if len(columns) > 2 else None,
        int(per_epoch),
        convergence,
        facts,
    )
