"""Readers of traces without a header: Standard Workload Format, Gavel's, Philly's JSON.

Sources: the Parallel Workloads Archive's definition of version 2.2 (18 fields); Gavel (OSDI
2020); Philly (Jeon et al., ATC 2019), cluster_job_log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hpcslaq.sim.traces.base import (
    MAX_BYTES,
    MAX_SECONDS,
    MAX_WORKERS,
    Lines,
    Reader,
    Row,
    TraceError,
    TraceJob,
    ended,
    is_sane,
    parse_instant,
)

#: The 18 fields of the Standard Workload Format, in order.
SWF_FIELDS = (
    "job",
    "submit",
    "wait",
    "run",
    "allocated",
    "cpu",
    "memory",
    "requested",
    "requested_time",
    "requested_memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding",
    "think",
)
_SWF_STATES = {"0": "failed", "1": "done", "5": "cancelled"}
#: Statuses of parts of a job that was checkpointed; the whole job has a line of its own.
_SWF_PARTS = ("2", "3", "4")

GAVEL_COLUMNS = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "slo",
    "arrival_time",
)
#: A later version of the format has one column more.
_GAVEL_WITH_MODE = (*GAVEL_COLUMNS[:7], "mode", *GAVEL_COLUMNS[7:])

_PHILLY_STATES = {"pass": "done", "killed": "cancelled", "failed": "failed"}


def read_swf(lines: Lines) -> Iterator[TraceJob]:
    """Standard Workload Format; `;` begins a comment, -1 means unknown.

    Jobs without a run time or without processors are left out, and so are partial runs.
    """
    for line in lines:
        if line.lstrip().startswith(";"):
            continue
        cells = line.split()
        if len(cells) != len(SWF_FIELDS):
            raise lines.error(f"has {len(cells)} fields, the format has {len(SWF_FIELDS)}")
        row = Row(lines, dict(zip(SWF_FIELDS, cells, strict=True)))
        submit = row.number("submit", -1.0)
        run, workers = row.number("run", -1.0), row.integer("allocated", -1, MAX_WORKERS)
        if workers <= 0:
            workers = row.integer("requested", -1, MAX_WORKERS)
        status = row.text("status")
        reason = _swf_gap(run, workers, submit, status)
        if reason:
            lines.skip(reason)
            continue
        state = _SWF_STATES.get(status, "")
        name, user = f"job-{row.text('job')}", row.text("user")
        yield TraceJob(name, submit, workers, run, state=state, user=user, line=lines.number)


def read_gavel(lines: Lines) -> Iterator[TraceJob]:
    """Gavel's tab-separated traces: steps, workers, weight, arrival; SLO as a deadline.

    A duration is not in them: it follows from tables of throughputs.
    """
    for line in lines:
        cells = line.split("\t")
        columns = _GAVEL_WITH_MODE if len(cells) == len(_GAVEL_WITH_MODE) else GAVEL_COLUMNS
        if len(cells) != len(columns):
            raise lines.error(f"has {len(cells)} tab-separated cells, expected {len(columns)}")
        row = Row(lines, dict(zip(columns, cells, strict=True)))
        job_type = row.text("job_type")
        slo = row.number("slo", -MAX_SECONDS)
        yield TraceJob(
            f"{job_type.split(' ')[0]}-{lines.number}",
            row.number("arrival_time"),
            row.integer("scale_factor", 1, MAX_WORKERS),
            iterations=row.number("total_steps", 1),
            model=job_type,
            deadline_s=slo if slo > 0 else None,
            weight=row.number("priority_weight", 1e-9),
            line=lines.number,
        )


def read_philly(lines: Lines) -> Iterator[TraceJob]:
    """Philly's cluster_job_log: a JSON list of jobs with their attempts.

    A job's run time is that of its attempts together, its workers the most GPUs of one. Jobs
    that never ran, or whose times are missing, are left out.
    """
    for line, job in _objects(lines):
        lines.number = line
        submitted = job.get("submitted_time")
        if not isinstance(submitted, str):
            raise lines.error("submitted_time is missing")
        try:
            at = parse_instant(submitted)
        except ValueError as error:
            raise lines.error(f"submitted_time: {error}") from None
        workers, seconds = _philly_attempts(lines, job)
        if workers == 0 or not is_sane(seconds):
            lines.skip("that never ran")
            continue
        yield TraceJob(
            str(job.get("jobid", f"job-{line}")),
            at,
            workers,
            seconds,
            state=ended(str(job.get("status", "")), _PHILLY_STATES),
            user=str(job.get("user", ""))[:100],
            line=line,
        )


PLAIN: Mapping[str, Reader] = {"swf": read_swf, "gavel": read_gavel, "philly": read_philly}


def guess_plain(line: str) -> str | None:
    """The format that a first line without a known header belongs to, or None."""
    text = line.strip()
    if text.startswith(("[", "{")):
        return "philly"
    if text.startswith(";") or (len(text.split()) == len(SWF_FIELDS) and "\t" not in text):
        return "swf"
    if line.count("\t") + 1 in (len(GAVEL_COLUMNS), len(_GAVEL_WITH_MODE)):
        return "gavel"
    return "swf" if len(text.split()) == len(SWF_FIELDS) else None


def _swf_gap(run: float, workers: int, submit: float, status: str) -> str:
    if status in _SWF_PARTS:
        return "a part of another job"
    if submit < 0:
        return "without a submission"
    if workers <= 0:
        return "without processors"
    return "" if is_sane(run) else "without a run time"


def _objects(lines: Lines) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON list, each with the line on which it begins."""
    text = _whole(lines)
    decoder = json.JSONDecoder()
    line, seen = 1, 0
    place = _after(text, 0, "[")
    while True:
        place = _after(text, place, ",")
        line, seen = line + text.count("\n", seen, place), place
        if place >= len(text) or text[place] == "]":
            return
        lines.number = line
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            problem = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            at = error.pos if isinstance(error, json.JSONDecodeError) else place
            lines.number = line + text.count("\n", seen, at)
            raise lines.error(f"is not JSON: {problem}") from None
        if not isinstance(value, dict):
            raise lines.error("is not an object, as a job must be")
        yield line, value


def _after(text: str, place: int, char: str) -> int:
    """The place after blanks and, if it is there, one `char` with blanks around it."""
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    if place < len(text) and text[place] == char:
        place += 1
        while place < len(text) and text[place] in " \t\r\n":
            place += 1
    return place


def _whole(lines: Lines) -> str:
    try:
        with lines.path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(lines.path, 0, f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise TraceError(lines.path, 0, f"is longer than {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        lines.number = data.count(b"\n", 0, error.start) + 1
        raise lines.error("is not UTF-8 text") from None


def _philly_attempts(lines: Lines, job: Mapping[str, Any]) -> tuple[int, float]:
    """Most GPUs of an attempt, and the seconds of all attempts with start and end."""
    attempts = job.get("attempts", [])
    if not isinstance(attempts, list):
        raise lines.error("attempts is no list")
    workers, seconds = 0, 0.0
    for attempt in attempts:
        if not isinstance(attempt, dict):
            raise lines.error("an attempt is no object")
        begin, end = attempt.get("start_time"), attempt.get("end_time")
        details = attempt.get("detail", attempt.get("details", []))
        if not isinstance(begin, str) or not isinstance(end, str) or "None" in (begin, end):
            continue
        try:
            spell = parse_instant(end) - parse_instant(begin)
        except ValueError as error:
            raise lines.error(f"attempt: {error}") from None
        if spell <= 0 or not isinstance(details, list):
            continue
        gpus = sum(len(one.get("gpus") or ()) for one in details if isinstance(one, dict))
        workers, seconds = max(workers, min(gpus, MAX_WORKERS)), seconds + spell
    return workers, seconds
