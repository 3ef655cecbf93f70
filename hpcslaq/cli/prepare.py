"""From a job file to a run directory that is ready to start.

Everything that can be wrong is found here, before a rank is started: the job file, the
options, the data (converted into the cache, with progress), the models' demands on it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hpcslaq.cli.catalogue import gather
from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.builtin import builtin_versions
from hpcslaq.data.cache import default_cache_root, prepare
from hpcslaq.data.dataset import Dataset
from hpcslaq.data.source import DataSource
from hpcslaq.data.store import open_dataset
from hpcslaq.errors import DataError, HpcslaqError, JobFileError
from hpcslaq.record.jobfile import JobFile, read_job_file, with_policy
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import data_info
from hpcslaq.train.trainer import USER_ERRORS, described

#: Called with what is being done to which data, and the share that is done (0 to 1).
Progress = Callable[[str, float], None]


def default_run_directory(job_file: Path) -> Path:
    """Where a run goes for which no directory was named: `runs/NAME-TIME-PROCESS`."""
    return Path("runs") / f"{job_file.stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def read_checked(path: Path, policy: str | None = None, *, is_serving: bool = False) -> JobFile:
    """The job file, checked; under another policy where one is given, or open for more jobs."""
    catalogue = gather()
    job_file = read_job_file(path, catalogue)
    if policy is not None:
        job_file = with_policy(job_file, policy, catalogue)
    if is_serving:
        job_file = replace(job_file, run=replace(job_file.run, is_serving=True))
    for key, source in job_file.data.items():
        _source(path, key, source)
    return job_file


def check_sources(path: Path, job_file: JobFile) -> None:
    """Check that all data are there, without reading them.

    Raises JobFileError where a file is missing, LaunchError where a package is.
    """
    for key, given in job_file.data.items():
        source = _source(path, key, given)
        if source.is_builtin:
            builtin_versions(source.location)
        elif not Path(source.location).is_file():
            raise JobFileError(
                str(path), f"data.{key}.path", "there is no such file", value=source.location
            )


def prepare_data(path: Path, job_file: JobFile, progress: Progress) -> dict[str, str]:
    """Directory of the prepared data set by data key; converts what is not in the cache."""
    directories = {}
    for key, given in job_file.data.items():
        source = _source(path, key, given)
        report = _reporter(key, progress)
        # Absolute: the run may be resumed from another directory.
        directories[key] = str(prepare(source, default_cache_root().absolute(), report))
    opened = {key: open_dataset(Path(directory)) for key, directory in directories.items()}
    for spec in job_file.jobs:
        _check_fit(path, spec, opened[spec.data])
    return directories


def make_plan(path: Path, job_file: JobFile, data_paths: Mapping[str, str]) -> RunPlan:
    """What the ranks read."""
    run = job_file.run
    return RunPlan(
        policy=run.policy,
        policy_options=run.policy_options,
        jobs=job_file.jobs,
        data_paths=data_paths,
        round_s=run.round_s,
        seed=run.seed,
        checkpoint_every_s=run.checkpoint_every_s,
        keep_checkpoints=run.keep_checkpoints,
        report_every_s=run.report_every_s,
        job_file=str(path),
        references=job_file.references,
        self_checks=job_file.self_checks,
        time_limit_s=run.time_limit_s or 0.0,
        step_limit_s=run.step_limit_s or 0.0,
        heartbeat_limit_s=run.heartbeat_limit_s,
        memory_limit_mb=run.memory_limit_mb or 0.0,
        is_serving=run.is_serving,
    )


def prepare_run(
    path: Path,
    job_file: JobFile,
    out: Path,
    progress: Progress,
    *,
    num_workers: int | None = None,
    mode: int | None = None,
) -> RunDirectory:
    """A run directory with its plan; that of an earlier attempt at the same is taken up again.

    `path` : where `job_file` (of `read_checked`) is, for messages; `num_workers` : worker ranks
    that a new run is to have; `mode` : see `RunDirectory.create`. Raises JobFileError, DataError,
    NotFoundError, LaunchError; nothing is left behind then.
    """
    if num_workers is not None and not RunDirectory.is_run(out):
        _check_workers(path, job_file, num_workers)
    plan = make_plan(path, job_file, prepare_data(path, job_file, progress))
    if RunDirectory.is_run(out):
        run = RunDirectory.open_existing(out)
        present = RunPlan.read(run)
        if not plan.is_same_work(present):
            key, values = plan.first_difference(present)
            raise JobFileError(
                str(path),
                key or "job",
                f"{values}; {out} holds a run of other jobs or settings, choose another --out",
            )
        if plan != present:
            plan.write(run)
        return run
    run = RunDirectory.create(out, mode)
    try:
        plan.write(run)
    except (HpcslaqError, OSError):
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run


def _check_workers(path: Path, job_file: JobFile, num_workers: int) -> None:
    """Raise where a job could never start."""
    for spec in job_file.jobs:
        if spec.min_ranks > num_workers:
            raise JobFileError(
                str(path),
                f'job "{spec.name}".min_workers',
                f"this run has {num_workers} (its ranks but the coordinator)",
                value=spec.min_ranks,
            )


def _source(path: Path, key: str, given: Mapping[str, object]) -> DataSource:
    """The data source of a `[data.KEY]` table or a built-in name."""
    options = dict(given)
    location = str(options.pop("path", None) or options.pop("source", key))
    try:
        return DataSource(location, options)
    except ValueError as error:
        option, _, problem = str(error).partition(": ")
        raise JobFileError(str(path), f"data.{key}.{option}", problem) from None


def _reporter(key: str, progress: Progress) -> Progress:
    return lambda what, share: progress(f"data {key}: {what}", share)


def _check_fit(path: Path, spec: JobSpec, data: Dataset) -> None:
    """Raise where a model cannot be trained on its data, before any rank is started."""
    if spec.num_chunks > data.num_rows:
        raise JobFileError(
            str(path),
            f'job "{spec.name}".chunks',
            f"{spec.data} has {data.num_rows} rows",
            value=spec.num_chunks,
        )
    try:
        build_model(spec.model, spec.options).check_data(data_info(data))
    except DataError as error:
        raise JobFileError(str(path), f'job "{spec.name}".data', str(error)) from None
    except HpcslaqError:
        raise
    except USER_ERRORS as error:  # of a user's model class
        line, details = described(error)
        problem = f"{spec.model} cannot be asked about its data: {line}\n{details}"
        raise JobFileError(str(path), f'job "{spec.name}".model', problem) from None
