"""`hpcslaq validate`: everything that `run` would check, and nothing started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from hpcslaq.cli.live import preparing
from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.cli.prepare import check_sources, prepare_data, read_checked
from hpcslaq.core.jobs import JobSpec, Sync
from hpcslaq.data.store import open_dataset
from hpcslaq.record.jobfile import JobFile
from hpcslaq.record.jobsync import sync_document
from hpcslaq.record.times import format_duration
from hpcslaq.train.catalogue import load_model_class


@click.command("validate")
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--policy", help="Policy in place of the job file's.")
@click.option("--data", "with_data", is_flag=True, help="Also prepare and check the data.")
@json_option
@reports_errors
def command(job_file: Path, policy: str | None, with_data: bool, as_json: bool) -> None:
    """Check JOB_FILE and list the jobs that would run."""
    checked = read_checked(job_file, policy)
    check_sources(job_file, checked)
    directories: dict[str, str] = {}
    if with_data:
        with preparing(as_json) as progress:
            directories = prepare_data(job_file, checked, progress)
    document = _document(job_file, checked, directories)
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _document(path: Path, checked: JobFile, directories: dict[str, str]) -> dict[str, Any]:
    run = checked.run
    return {
        "job_file": str(path),
        "is_valid": True,
        "run": {
            "policy": run.policy,
            "policy_options": dict(run.policy_options),
            "round_s": run.round_s,
            "seed": run.seed,
            "checkpoint_every_s": run.checkpoint_every_s,
            "ranks": run.ranks,
            "time_limit_s": run.time_limit_s,
            "step_limit_s": run.step_limit_s,
            "heartbeat_limit_s": run.heartbeat_limit_s,
            "memory_limit_mb": run.memory_limit_mb,
        },
        "data": [
            _describe_data(key, source, directories.get(key))
            for key, source in checked.data.items()
        ],
        "jobs": [_describe_job(spec) for spec in checked.jobs],
    }


def _describe_data(key: str, source: Any, directory: str | None) -> dict[str, Any]:
    """Where the data come from and, once they are prepared, what they are."""
    described: dict[str, Any] = {"name": key, "source": dict(source)}
    if directory is not None:
        data = open_dataset(Path(directory))
        described |= {
            "directory": directory,
            "content_hash": data.content_hash,
            "num_rows": data.num_rows,
            "num_holdout_rows": data.num_holdout_rows,
            "num_features": data.num_features,
            "is_sparse": data.is_sparse,
            "task": data.task,
            "num_classes": data.num_classes,
        }
    return described


def _describe_job(spec: JobSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "model": spec.model,
        "data": spec.data,
        "chunks": spec.num_chunks,
        "epochs": spec.max_epochs,
        "arrival_s": spec.arrival_s,
        "min_workers": spec.min_workers,
        "max_workers": spec.worker_limit,
        **sync_document(spec),
        "weight": spec.weight,
        "target_loss": spec.target_loss,
        "tolerance": spec.tolerance,
        "deadline_s": spec.deadline_s,
        "seed": spec.seed,
        "convergence": spec.convergence.value,
        "options": dict(spec.options),
    }


def _show(document: dict[str, Any]) -> None:
    console = terminal()
    run, jobs = document["run"], document["jobs"]
    console.print(
        escape(
            f"{document['job_file']}: valid; {len(jobs)} jobs under {run['policy']}, "
            f"rounds of {format_duration(run['round_s'])}, seed {run['seed']}"
        )
    )
    columns = ("job", "model", "data", "chunks", "epochs", "arrival", "workers", "options")
    table = Table(*columns, box=None, pad_edge=False)
    for job in jobs:
        table.add_row(*map(escape, _cells(job)))
    console.print(table)
    for data in document["data"]:
        if "num_rows" in data:
            form = "sparse" if data["is_sparse"] else "dense"
            console.print(
                escape(
                    f"data {data['name']}: {data['num_rows']:,} rows + "
                    f"{data['num_holdout_rows']:,} held out, {data['num_features']:,} features, "
                    f"{form}, {data['task']}"
                )
            )


def _cells(job: dict[str, Any]) -> tuple[str, ...]:
    known = load_model_class(job["model"]).options
    given = {k: v for k, v in job["options"].items() if v != known[k].default}
    options = ", ".join(f"{key}={value}" for key, value in given.items())
    return (
        job["name"],
        job["model"],
        job["data"],
        str(job["chunks"]),
        str(job["epochs"]),
        format_duration(job["arrival_s"]),
        f"{job['min_workers']}-{job['max_workers']}{_servers(job)}",
        options,
    )


def _servers(job: dict[str, Any]) -> str:
    """The parameter servers that come on top of a job's workers, and their staleness."""
    if job["sync"] != Sync.PS.value:
        return ""
    if job["servers"] is None:
        servers = f"1 server per {job['workers_per_server']:g}"
    else:
        servers = f"{job['servers']} server{'s' * (job['servers'] > 1)}"
    stale = f", staleness {job['staleness']}" if job["staleness"] else ""
    return f" + {servers}{stale}"
