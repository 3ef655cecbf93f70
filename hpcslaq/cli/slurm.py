"""`hpcslaq slurm script|submit`: the batch script of a run, printed or handed to Slurm."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpcslaq.cli.output import emit_json, json_option, reports_errors
from hpcslaq.cli.prepare import check_sources, default_run_directory, read_checked
from hpcslaq.errors import JobFileError, LaunchError
from hpcslaq.mpi.launch import find_mpi
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.times import parse_duration
from hpcslaq.slurm.query import mpi_plugins
from hpcslaq.slurm.script import (
    DEFAULT_OUTPUT,
    INDEX,
    BatchOptionError,
    BatchOptions,
    Template,
    batch_script,
    choose_template,
    parse_time_limit,
)
from hpcslaq.slurm.submit import check, record_submission, submit, write_script

#: Taken where it exists and `--site` says nothing.
_SITE = Path("slurm/site.sh")
#: Default of `--warn`, s.
_WARN_S = 120.0

_OPTIONS = [
    click.argument("job_file"),
    click.option("--nodes", "-N", type=int, default=1, show_default=True),
    click.option("--ntasks-per-node", type=int, required=True, help="Workers on each node."),
    click.option("--time", "-t", "time_limit", required=True, help="90m, 2h, 01:30:00, ..."),
    click.option("--out", help="Run directory; default: runs/..."),
    click.option(
        "--template",
        type=click.Choice(["auto", *(template.value for template in Template)]),
        default="auto",
        help="How the ranks are started; default: what fits this MPI and this Slurm.",
    ),
    click.option("--requeue", type=int, default=0, help="Requeues by itself, at the most."),
    click.option(
        "--warn",
        help="Checkpoint and end so long before the limit; default: 120s, or half of a short one.",
    ),
    click.option("--array", help="Indices; one run for each (%a in JOB_FILE is the index)."),
    click.option("--policy", help="Policy in place of the job file's; a list with --array."),
    click.option("--serve", is_flag=True, help="Stay open for `hpcslaq submit`."),
    click.option("--cpus-per-task", type=int, default=1),
    click.option("--job-name", default="hpcslaq", show_default=True),
    click.option("--partition", "-p"),
    click.option("--account", "-A"),
    click.option("--qos"),
    click.option("--constraint", "-C"),
    click.option("--mem", help="Memory per node, for example 64G."),
    click.option("--output", help="Slurm's output file."),
    click.option("--site", help=f"Sourced by the script; default: {_SITE} if it is there."),
    click.option("--python", help="Interpreter on the nodes; default: the present one."),
    click.option("--image", help="Container image of --template apptainer."),
    click.option("--sbatch", "extra", multiple=True, help="A further option, --name=value."),
]


def _batch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group("slurm")
def command() -> None:
    """Run inside a Slurm allocation."""


@command.command("script")
@_batch_options
@reports_errors
def script_command(**given: Any) -> None:
    """Print the batch script that trains the jobs of JOB_FILE."""
    click.echo(batch_script(_read_options(given)), nl=False)


@command.command("submit")
@_batch_options
@click.option("--test-only", is_flag=True, help="Have Slurm check the script; submit nothing.")
@json_option
@reports_errors
def submit_command(test_only: bool, as_json: bool, **given: Any) -> None:
    """Submit a run of JOB_FILE. With the --out of an unfinished run, that one goes on."""
    options = _read_options(given)
    if given["output"] is None:
        options = replace(options, output=_output(options))
    _check_job_file(options)
    run = _run_directory(options)
    script = write_script(run, batch_script(options))
    if test_only:
        said = check(script)
        if as_json:
            emit_json({"directory": str(run.path), "script": str(script), "slurm": said})
        else:
            click.echo(f"{said}\nnothing was submitted; the script is {script}")
        return
    job_id = submit(script)
    record_submission(run, job_id)
    if as_json:
        emit_json({"job_id": job_id, "directory": str(run.path), "script": str(script)})
        return
    where = run.path if options.array is None else run.path / "INDEX"
    click.echo(
        f"submitted as Slurm job {job_id}; results: {where}\n"
        f"  how it stands:      hpcslaq status {where} --slurm\n"
        f"  watch it:           hpcslaq status {where} --watch --slurm\n"
        f"  checkpoint and end: scancel --batch --signal=USR1 {job_id}\n"
        f"  go on afterwards:   sbatch {script}"
    )


def _read_options(given: dict[str, Any]) -> BatchOptions:
    """The options of the script; names of files become absolute, as the job may start anywhere."""
    job_file = given["job_file"]
    out = given["out"] or str(default_run_directory(Path(job_file.replace(INDEX, "array"))))
    site = given["site"] or (str(_SITE) if _SITE.is_file() else None)
    python = given["python"]
    template, launcher = _template(given["template"])
    time_s = parse_time_limit(given["time_limit"])
    warn_s = min(_WARN_S, time_s / 2) if given["warn"] is None else _duration("warn", given["warn"])
    if python is None:
        python = "python3" if template is Template.APPTAINER else sys.executable
    policies = tuple(given["policy"].split(",")) if given["policy"] else ()
    return BatchOptions(
        job_file=os.path.abspath(job_file),
        run_directory=os.path.abspath(out),
        time_s=time_s,
        template=template,
        launcher=launcher,
        warn_s=warn_s,
        max_restarts=given["requeue"],
        policies=policies,
        is_serving=given["serve"],
        site=None if site is None else os.path.abspath(site),
        python=python,
        output=given["output"] or DEFAULT_OUTPUT,
        **{name: given[name] for name in _SAME},
    )


_SAME = (
    "nodes",
    "ntasks_per_node",
    "array",
    "cpus_per_task",
    "job_name",
    "partition",
    "account",
    "qos",
    "constraint",
    "mem",
    "image",
    "extra",
)


def _template(name: str) -> tuple[Template, str | None]:
    """The template of this name, and the launcher that belongs to the MPI found here."""
    if name != "auto" and Template(name) not in (Template.MPIRUN, Template.MPIEXEC):
        return Template(name), None
    try:
        mpi = find_mpi()
    except LaunchError:
        if name == "auto":
            raise
        return Template(name), None
    template = choose_template(mpi.family, mpi_plugins()) if name == "auto" else Template(name)
    is_own = template in (Template.MPIRUN, Template.MPIEXEC)
    return template, mpi.launcher if is_own else None


def _duration(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BatchOptionError(option, text, str(error)) from None


def _check_job_file(options: BatchOptions) -> None:
    """Find what is wrong with the jobs now, and not when the allocation has begun."""
    if INDEX in options.job_file:
        return
    path = Path(options.job_file)
    for policy in options.policies or (None,):
        job_file = read_checked(path, policy)
    check_sources(path, job_file)
    workers = options.nodes * options.ntasks_per_node
    for spec in job_file.jobs:
        if spec.min_ranks > workers:
            raise JobFileError(
                str(path),
                f'job "{spec.name}".min_workers',
                f"more than the {workers} workers that were asked for",
                value=spec.min_ranks,
            )


def _base(options: BatchOptions) -> Path:
    """The run directory, or the directory that holds those of an array."""
    name = options.run_directory
    return Path(name if options.array is None else name.replace(INDEX, "").rstrip("/-_."))


def _output(options: BatchOptions) -> str:
    name = "slurm-%j.out" if options.array is None else "slurm-%A_%a.out"
    return f"{_base(options)}/logs/{name}"


def _run_directory(options: BatchOptions) -> RunDirectory:
    """The directory of the run, or the one that holds an array's; made if it is not there."""
    path = _base(options)
    run = RunDirectory(path)
    if RunDirectory.is_run(path):
        return RunDirectory.open_existing(path)
    if options.array is not None and run.slurm_json.exists():
        return run
    return RunDirectory.create(path)
