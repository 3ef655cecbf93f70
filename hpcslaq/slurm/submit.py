"""Handing a batch script to Slurm, and remembering which jobs belong to a directory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcslaq.errors import HpcslaqError, LaunchError
from hpcslaq.record.codec import dump_json, load_json
from hpcslaq.record.files import write_atomic
from hpcslaq.record.rundir import RunDirectory, RunDirectoryError
from hpcslaq.slurm.commands import ask

#: sbatch may wait for a busy controller, s.
_SUBMIT_S = 60.0
_PARSABLE = re.compile(r"(\d+)(;\S+)?")
_MAX_RECORD_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that was submitted for a run directory."""

    job_id: str
    #: Seconds since 1970.
    submitted_at: float


def write_script(run: RunDirectory, text: str) -> Path:
    """Keep the batch script in the run directory, so that it can be submitted again by hand."""
    write_atomic(run.batch_script, text.encode(), is_program=True)
    return run.batch_script


def submit(script: Path, arguments: Sequence[str] = ()) -> str:
    """Submit a batch script; the job id. Raises LaunchError with what sbatch said."""
    answer = ask(["sbatch", "--parsable", *arguments, os.fspath(script)], _SUBMIT_S)
    if answer.problem:
        raise LaunchError(answer.problem)
    match = _PARSABLE.fullmatch(answer.text.strip().splitlines()[-1] if answer.text else "")
    if match is None:
        raise LaunchError(f"sbatch said {answer.text.strip()[:200]!r}, which is no job id")
    return match[1]


def check(script: Path) -> str:
    """Slurm's own opinion of a batch script, without submitting it. Raises LaunchError."""
    # What --test-only has to say goes to standard error, in both cases.
    answer = ask(["sh", "-c", 'sbatch --test-only "$1" 2>&1', "sh", os.fspath(script)], _SUBMIT_S)
    if answer.problem:
        raise LaunchError(answer.problem.removeprefix("sh: "))
    return answer.text.strip()


def record_submission(run: RunDirectory, job_id: str) -> None:
    """Note in the run directory that this job was submitted for it."""
    known = read_submissions(run)
    jobs = [*known, Submission(job_id, time.time())]
    document = {"jobs": [{"id": job.job_id, "submitted_at": job.submitted_at} for job in jobs]}
    write_atomic(run.slurm_json, dump_json(document).encode() + b"\n")


def read_submissions(run: RunDirectory) -> list[Submission]:
    """The jobs submitted for a run directory, oldest first. Raises RunDirectoryError."""
    try:
        with run.slurm_json.open("rb") as file:
            document = load_json(file.read(_MAX_RECORD_BYTES))
        return [Submission(str(job["id"]), float(job["submitted_at"])) for job in document["jobs"]]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (HpcslaqError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(f"{run.slurm_json}: is damaged: {error!r}") from None
