"""Which format a trace is in, and what it holds in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcslaq.sim.traces.base import Lines, Reader, Trace, TraceError, finish, header_of
from hpcslaq.sim.traces.plain import PLAIN, guess_plain
from hpcslaq.sim.traces.tables import HEADERS, PAI_TASK_COLUMNS

#: All formats by name, in the order in which they are tried.
FORMATS: Mapping[str, Reader] = {
    **{name: reader for name, (_, reader) in HEADERS.items()},
    **PLAIN,
}


def read_trace(path: Path, format_name: str | None = None) -> Trace:
    """Read a trace in this format, or in the one that its first line shows.

    Raises NotFoundError, or TraceError naming the line.
    """
    if format_name is None:
        format_name = recognise(path)
    if format_name not in FORMATS:
        valid = ", ".join(FORMATS)
        raise TraceError(path, 0, f"unknown format {format_name[:40]!r} (valid: {valid})")
    lines = Lines(path)
    return finish(format_name, lines, FORMATS[format_name](lines))


def recognise(path: Path) -> str:
    """The format of a trace by its first line; raises TraceError where none fits."""
    lines = Lines(path)
    first = _first_line(lines)
    names = set(header_of(first))
    for format_name, (needed, _) in HEADERS.items():
        if needed <= names:
            return format_name
    guess = guess_plain(first)
    if guess is not None:
        return guess
    if first.count(",") == len(PAI_TASK_COLUMNS) - 1:
        return "alibaba"
    valid = ", ".join(FORMATS)
    raise TraceError(path, 1, f"is in no known format; name one of: {valid}")


def summary_of(trace: Trace) -> dict[str, Any]:
    """The trace in figures, JSON-able; times in seconds."""
    jobs = trace.jobs
    submit = np.array([job.submit_s for job in jobs])
    workers = np.array([job.num_workers for job in jobs])
    known = [(job.duration_s, job.num_workers) for job in jobs if job.duration_s is not None]
    durations = np.array([duration for duration, _ in known])
    work = float(sum(duration * num for duration, num in known))
    span = float(submit[-1])
    return {
        "file": str(trace.path),
        "format": trace.format,
        "num_jobs": len(jobs),
        "skipped": dict(trace.skipped),
        "span_s": span,
        "mean_gap_s": span / max(len(jobs) - 1, 1),
        "workers": {
            str(num): count for num, count in sorted(Counter(workers.tolist()).items())[:40]
        },
        "max_workers": int(workers.max()),
        "num_with_duration": len(known),
        "duration_s": _spread(durations),
        "worker_seconds": work,
        "mean_busy_workers": work / span if span > 0 else None,
        "num_with_deadline": sum(job.deadline_s is not None for job in jobs),
        "models": dict(Counter(job.model for job in jobs if job.model).most_common(20)),
        "states": dict(Counter(job.state for job in jobs if job.state)),
    }


def _spread(values: np.ndarray) -> dict[str, float] | None:
    if not values.size:
        return None
    low, middle, high, top = np.quantile(values, [0.0, 0.5, 0.95, 1.0]).tolist()
    return {"min": low, "median": middle, "mean": float(values.mean()), "p95": high, "max": top}


def _first_line(lines: Lines) -> str:
    # A JSON file may be one long line: its first characters are enough.
    head = lines.head(4096)
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"[", b"{")):
        return "["
    return next(iter(lines), "")
