"""Readers of traces with a header line: our own CSV, ElasticFlow, Pollux, Helios, Alibaba.

The header decides the format (`HEADERS`). Formats without one are in `plain`.

Sources: ElasticFlow (ASPLOS 2023), Pollux (OSDI 2021), Helios (SC 2021), Alibaba's cluster
traces of 2020 (tasks of the PAI platform) and 2023 (pods).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcslaq.sim.traces.base import (
    MAX_WORKERS,
    Lines,
    Reader,
    Row,
    Trace,
    TraceError,
    TraceJob,
    ended,
    is_sane,
    rows,
)

#: The columns of our own CSV, in order; the first three are needed. See `read_own`.
OWN_COLUMNS = (
    "job",
    "submit_s",
    "workers",
    "duration_s",
    "iterations",
    "model",
    "batch_size",
    "deadline_s",
    "state",
    "user",
    "weight",
)
STATES = ("", "done", "failed", "cancelled")

_HELIOS = {
    "completed": "done",
    "cancelled": "cancelled",
    "failed": "failed",
    "timeout": "failed",
    "node_fail": "failed",
}
_ALIBABA = {
    "terminated": "done",
    "succeeded": "done",
    "failed": "failed",
    "interrupted": "cancelled",
}
#: Columns of `pai_task_table.csv`, which comes without a header.
PAI_TASK_COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)


def read_own(lines: Lines) -> Iterator[TraceJob]:
    """Our own CSV.

    `job` (any text), `submit_s` (seconds from any origin), `workers` (>= 1), and optionally
    `duration_s` (on these workers), `iterations`, `model`, `batch_size`, `deadline_s` (after the
    submission), `state` (done, failed, cancelled), `user`, `weight` (> 0); one of `duration_s`
    and `iterations` is needed.
    """
    for row in rows(lines):
        duration = row.optional("duration_s", least=1e-9)
        iterations = row.optional("iterations", least=1)
        if duration is None and iterations is None:
            raise lines.error("has neither duration_s nor iterations")
        state = row.text("state", "")
        if state not in STATES:
            raise lines.error(f"state: {state[:40]!r} (valid: {', '.join(STATES[1:])})")
        yield TraceJob(
            row.text("job"),
            row.number("submit_s"),
            row.integer("workers", 1, MAX_WORKERS),
            duration,
            iterations,
            row.text("model", ""),
            _batch(row),
            row.optional("deadline_s", least=1e-9),
            state,
            row.text("user", ""),
            row.optional("weight", least=1e-9) or 1.0,
            lines.number,
        )


def format_own(trace: Trace) -> Iterator[str]:
    """The lines of a trace in our own CSV, without their ends; `read_own` reads them.

    Raises TraceError where a job has neither a duration nor iterations (Pollux' workloads).
    """
    yield ",".join(OWN_COLUMNS)
    for job in trace.jobs:
        if job.duration_s is None and job.iterations is None:
            problem = "says neither how long a job takes nor how many iterations: not converted"
            raise TraceError(trace.path, job.line, problem)
        cells = (
            job.name,
            _digits(job.submit_s),
            job.num_workers,
            _digits(job.duration_s),
            _digits(job.iterations),
            _plain(job.model),
            job.batch_size,
            _digits(job.deadline_s),
            job.state,
            _plain(job.user),
            "" if job.weight == 1.0 else _digits(job.weight),
        )
        yield ",".join("" if cell is None else str(cell) for cell in cells)


def read_elasticflow(lines: Lines) -> Iterator[TraceJob]:
    """ElasticFlow's CSVs, the raw ones and those with models and deadlines alike.

    `submission_time` or `submit_time`; `deadline` or `ddl` is an instant; of `duration` and
    `real_duration` (and the iterations) the real one counts where there are both.
    """
    for row in rows(lines):
        submit = row.number("submit_time" if row.text("submit_time", "") else "submission_time")
        real, planned = row.optional("real_duration"), row.optional("duration")
        iterations = row.optional("real_iteration") or row.optional("num_iteration")
        deadline = row.optional("deadline")
        if deadline is None:
            deadline = row.optional("ddl")
        duration = real if real is not None else planned
        if duration is None or not is_sane(duration):
            lines.skip("without a duration")
            continue
        if deadline is not None and deadline <= submit:
            raise lines.error(f"has a deadline, {deadline:g}, that is not after its submission")
        yield TraceJob(
            row.text("job_id"),
            submit,
            row.integer("num_gpu", 1, MAX_WORKERS),
            duration,
            iterations if iterations is not None else row.optional("iteration"),
            row.text("model_name", ""),
            _batch(row),
            None if deadline is None else deadline - submit,
            line=lines.number,
        )


def read_pollux(lines: Lines) -> Iterator[TraceJob]:
    """Pollux' workload CSV; how long its jobs take is in its tables (`pollux`)."""
    for row in rows(lines):
        yield TraceJob(
            row.text("name"),
            row.number("time"),
            row.integer("num_replicas", 1, MAX_WORKERS),
            model=row.text("application"),
            batch_size=row.integer("batch_size", 1),
            line=lines.number,
        )


def read_helios(lines: Lines) -> Iterator[TraceJob]:
    """Helios' cluster_log.csv; jobs without GPUs or without a run time are left out."""
    for row in rows(lines):
        workers, duration = row.integer("gpu_num", 0, MAX_WORKERS), row.number("duration")
        if workers == 0 or not is_sane(duration):
            lines.skip("without GPUs" if workers == 0 else "without a duration")
            continue
        yield TraceJob(
            row.text("job_id"),
            row.instant("submit_time"),
            workers,
            duration,
            state=ended(row.text("state", ""), _HELIOS),
            user=row.text("user", ""),
            line=lines.number,
        )


def read_alibaba_tasks(lines: Lines) -> Iterator[TraceJob]:
    """The tasks of Alibaba's pai_task_table.csv, with or without a header.

    A job's tasks run together: their workers add up (a worker is a GPU, parts of one count
    as one per task), from the first start to the last end. There are no submission times; the
    start stands for it. Rows without GPUs or without times are left out.
    """
    header = PAI_TASK_COLUMNS
    jobs: dict[str, tuple[float, float, int, str, int]] = {}
    for row in rows(lines, columns=header):
        if row.text("job_name", "") == "job_name":
            continue
        start, end = row.optional("start_time"), row.optional("end_time")
        gpus = row.optional("plan_gpu", most=100.0 * MAX_WORKERS)
        if not gpus or start is None or end is None or not is_sane(end - start):
            lines.skip("without GPUs" if not gpus else "without start and end")
            continue
        instances = row.optional("inst_num", most=MAX_WORKERS) or 1.0
        workers = max(1, round(instances * gpus / 100.0))
        name = row.text("job_name")
        was = jobs.get(name, (start, end, 0, "", lines.number))
        state = ended(row.text("status", ""), _ALIBABA)
        jobs[name] = (
            min(was[0], start),
            max(was[1], end),
            min(was[2] + workers, MAX_WORKERS),
            state if was[3] in ("", "done") else was[3],
            was[4],
        )
    for name, (start, end, workers, state, line) in jobs.items():
        yield TraceJob(name, start, workers, end - start, state=state, line=line)


def read_alibaba_pods(lines: Lines) -> Iterator[TraceJob]:
    """Alibaba's openb_pod_list CSVs of 2023; pods without GPUs or an end are left out."""
    for row in rows(lines):
        workers = row.integer("num_gpu", 0, MAX_WORKERS)
        created, deleted = row.optional("creation_time"), row.optional("deletion_time")
        begun = row.optional("scheduled_time")
        since = created if begun is None else begun
        if workers == 0 or created is None or since is None or deleted is None:
            lines.skip("without GPUs" if workers == 0 else "without its times")
            continue
        if not is_sane(deleted - since):
            lines.skip("without a duration")
            continue
        state = ended(row.text("pod_phase", ""), _ALIBABA)
        name = row.text("name")
        yield TraceJob(name, created, workers, deleted - since, state=state, line=lines.number)


#: Columns that a header must have, by format, and the reader.
HEADERS: Mapping[str, tuple[frozenset[str], Reader]] = {
    "hpcslaq": (frozenset(OWN_COLUMNS[:3]), read_own),
    "pollux": (
        frozenset({"name", "time", "application", "num_replicas", "batch_size"}),
        read_pollux,
    ),
    "helios": (frozenset({"job_id", "gpu_num", "submit_time", "state", "duration"}), read_helios),
    "alibaba-pods": (
        frozenset({"name", "num_gpu", "creation_time", "deletion_time"}),
        read_alibaba_pods,
    ),
    "alibaba": (frozenset({"job_name", "inst_num", "start_time", "plan_gpu"}), read_alibaba_tasks),
    "elasticflow": (frozenset({"job_id", "num_gpu"}), read_elasticflow),
}


def _batch(row: Row) -> int | None:
    return row.integer("batch_size", 1) if row.text("batch_size", "") else None


def _digits(value: float | None) -> str | None:
    if value is None:
        return None
    return str(int(value)) if value == int(value) else repr(value)


def _plain(text: str) -> str:
    """Text that needs no quotes in a CSV cell."""
    return "".join(" " if char in ',"\r\n' else char for char in text)
