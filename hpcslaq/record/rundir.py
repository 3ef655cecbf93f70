"""The run directory: the name of every file of a run, in one class.

Nothing else in the project joins paths below a run. What the files hold is in
`journal`, `checkpoint`, `modelfile` and `jobfile`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcslaq import __version__
from hpcslaq.errors import HpcslaqError, NotFoundError
from hpcslaq.record.codec import dump_json, load_json
from hpcslaq.record.files import make_directory, write_atomic
from hpcslaq.record.toml import dump_toml

#: Version of the layout and of the file formats; a run of another one is not resumed.
FORMAT = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]{0,99}")
_SUBDIRECTORIES = ("inbox", "checkpoints", "models", "logs")
#: What a submission leaves for the run that is made when the job starts.
_SUBMISSION_FILES = ("batch.sh", "slurm.json")
_BATCH_LOG = re.compile(r"slurm-[0-9_]+\.out")
_MAX_RUN_TOML_BYTES = 256 * 2**20
_MAX_OWNER_BYTES = 100
_MAX_RESULT_BYTES = 256 * 2**20


class RunDirectoryError(HpcslaqError):
    """A directory cannot be used for a run, or a file of it is damaged."""

    exit_code = 2


_NUMBER = (int, float)
#: What readers count on in `result.json`: a type, or that of the values of an object.
_RESULT_TYPES: dict[str, Any] = {
    "exit_code": (int,),
    "wall_s": _NUMBER,
    "num_ranks": (int,),
    "mpi": (str,),
    "versions": {"": (str,)},
    "tick_p50_s": _NUMBER,
    "tick_p99_s": _NUMBER,
    "num_ticks": (int,),
    "communicators_made": (int,),
    "communicators_peak": (int,),
    "communicators_alive": (int,),
    "cpu_s": {"": {"": _NUMBER}},
}


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """All file names of a run; make one with `create` or `open_existing`."""

    path: Path

    @staticmethod
    def is_run(path: Path) -> bool:
        """Whether `open_existing(path)` would find a run there."""
        return (path / "run.toml").is_file()

    @classmethod
    def create(cls, path: Path, mode: int | None = None) -> RunDirectory:
        """Make a new run directory that only its owner may enter (or as `mode` says).

        Files in it can be read by those who may enter. A directory that exists keeps its mode,
        unless one is given. It may exist when it is empty or holds only what an interrupted
        `create` or a submission left. Raises RunDirectoryError where there is a run or
        anything else.
        """
        run = cls(path.absolute())
        if mode is not None and (mode & 0o700 != 0o700 or mode & ~0o775):
            raise RunDirectoryError(
                f"{path}: mode {mode:03o} is none for a run directory: its owner needs all rights "
                "and nobody but its group may write (valid: 700, 750, 755, 770, ...)"
            )
        if cls.is_run(run.path):
            raise RunDirectoryError(f"{path}: holds a run already; resume it or choose another")
        try:
            if os.path.lexists(run.path):
                run._check_reusable()
            else:
                run.path.parent.mkdir(parents=True, exist_ok=True)
                run.path.mkdir(mode=0o700)
                mode = 0o700 if mode is None else mode
            # mkdir's mode is subject to the umask, the user's choice is not.
            if mode is not None:
                run.path.chmod(mode)
            for name in _SUBDIRECTORIES:
                make_directory(run.path / name)
        except OSError as error:
            raise RunDirectoryError(f"{path}: cannot be made: {error.strerror}") from None
        return run

    @classmethod
    def open_existing(cls, path: Path) -> RunDirectory:
        """The run in this directory.

        Raises NotFoundError, naming the path, where there is none or it has not started, and
        RunDirectoryError where one of its directories was replaced by a link or a file.
        """
        run = cls(path.absolute())
        if not run.path.is_dir():
            raise NotFoundError(f"{path}: there is no such run directory")
        if not cls.is_run(run.path):
            if run.slurm_json.exists():
                raise NotFoundError(
                    f"{path}: the run has not started; how its Slurm job stands: "
                    f"hpcslaq status {path} --slurm"
                )
            raise NotFoundError(f"{path}: is not a run directory (it has no run.toml)")
        run._check_subdirectories()
        return run

    def _check_reusable(self) -> None:
        if not self.path.is_dir():
            raise RunDirectoryError(f"{self.path}: exists and is not a directory")
        for name in sorted(os.listdir(self.path)):
            entry = self.path / name
            if name in _SUBMISSION_FILES and entry.is_file() and not entry.is_symlink():
                continue
            is_ours = name in _SUBDIRECTORIES and entry.is_dir() and not entry.is_symlink()
            if not is_ours or not all(_BATCH_LOG.fullmatch(file) for file in os.listdir(entry)):
                raise RunDirectoryError(
                    f"{self.path}: is neither empty nor a run directory (it holds {name!r})"
                )

    def _check_subdirectories(self) -> None:
        for name in _SUBDIRECTORIES:
            try:
                mode = (self.path / name).lstat().st_mode
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(mode):
                raise RunDirectoryError(f"{self.path / name}: is not a directory of this run")

    @property
    def run_toml(self) -> Path:
        """What was asked, resolved, with the versions of everything."""
        return self.path / "run.toml"

    @property
    def journal(self) -> Path:
        """Every event and every command with its time: the truth."""
        return self.path / "journal.jsonl"

    @property
    def inbox(self) -> Path:
        """Directory of requests from the login node."""
        return self.path / "inbox"

    @property
    def checkpoints(self) -> Path:
        """Directory that holds one directory of checkpoints per job."""
        return self.path / "checkpoints"

    @property
    def models(self) -> Path:
        """Directory of trained models."""
        return self.path / "models"

    @property
    def logs(self) -> Path:
        """Directory of log files."""
        return self.path / "logs"

    @property
    def heartbeats(self) -> Path:
        """Signs of life of the ranks, while the run is on."""
        return self.path / "heartbeats"

    @property
    def report_html(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def result_json(self) -> Path:
        """Written last by the coordinator: without it the run did not end by itself."""
        return self.path / "result.json"

    @property
    def owner(self) -> Path:
        """Which start of the run may write here."""
        return self.path / "owner"

    @property
    def coordinator_log(self) -> Path:
        """The log of rank 0."""
        return self.logs / "coordinator.log"

    @property
    def batch_script(self) -> Path:
        """The batch script with which the run was submitted."""
        return self.path / _SUBMISSION_FILES[0]

    @property
    def slurm_json(self) -> Path:
        """The Slurm jobs that were submitted for the run."""
        return self.path / _SUBMISSION_FILES[1]

    def checkpoint_directory(self, job: str) -> Path:
        """Where a job's checkpoints are; it may not exist yet."""
        return self.checkpoints / checked_name(job)

    def model_file(self, job: str) -> Path:
        """The trained model of a job."""
        return self.models / f"{checked_name(job)}.h5"

    def job_log(self, job: str) -> Path:
        """The log of a job."""
        return self.logs / f"job-{checked_name(job)}.log"

    def rank_log(self, rank: int) -> Path:
        """The log of one rank (debugging)."""
        return self.logs / f"rank-{int(rank)}.log"

    def find_model(self, job: str) -> Path:
        """The existing model file of a job; raises NotFoundError, naming the path."""
        file = self.model_file(job)
        if not file.is_file():
            raise NotFoundError(f"{file}: there is no trained model of job {job!r}")
        return file

    def write_run_toml(
        self, document: Mapping[str, object], versions: Mapping[str, str] | None = None
    ) -> None:
        """Write `run.toml`: `document` plus `format` and `[versions]` (ours and `versions`).

        Raises RunDirectoryError where a value has no TOML form.
        """
        whole: dict[str, object] = {
            "format": FORMAT,
            **document,
            "versions": {**software_versions(), **(versions or {})},
        }
        try:
            text = dump_toml(whole)
        except (TypeError, ValueError) as error:
            raise RunDirectoryError(f"{self.run_toml}: {error}") from None
        write_atomic(self.run_toml, text.encode())

    def read_run_toml(self) -> dict[str, Any]:
        """The document that `write_run_toml` wrote, with `format` and `versions`.

        Raises NotFoundError or RunDirectoryError.
        """
        data = _read_bounded(self.run_toml, _MAX_RUN_TOML_BYTES)
        try:
            document = tomllib.loads(data.decode())
        except (ValueError, RecursionError) as error:
            raise RunDirectoryError(f"{self.run_toml}: is damaged: {error}") from None
        if document.get("format") != FORMAT:
            raise RunDirectoryError(
                f"{self.run_toml}: format: expected {FORMAT}, found {document.get('format')!r}"
            )
        versions = document.get("versions")
        if not (isinstance(versions, dict) and all(isinstance(v, str) for v in versions.values())):
            raise RunDirectoryError(f"{self.run_toml}: is damaged: versions: no table of strings")
        return document

    def claim(self) -> None:
        """Make this start of the run the owner: ranks of earlier ones write no more."""
        write_atomic(self.owner, secrets.token_hex(16).encode() + b"\n")

    def read_owner(self) -> bytes | None:
        """What the newest `claim` wrote; None where there is none, or none can be read."""
        try:
            return _read_bounded(self.owner, _MAX_OWNER_BYTES)
        except HpcslaqError:
            return None

    def write_result(self, result: Mapping[str, object]) -> None:
        """Write `result.json`, in one piece; the last thing that a run does."""
        write_atomic(self.result_json, dump_json(dict(result)).encode() + b"\n")

    def read_result(self) -> dict[str, Any] | None:
        """What `write_result` wrote, or None where the run has not ended by itself.

        Raises RunDirectoryError where the file is damaged.
        """
        try:
            data = _read_bounded(self.result_json, _MAX_RESULT_BYTES)
        except NotFoundError:
            return None
        try:
            result = load_json(data)
        except HpcslaqError as error:
            raise RunDirectoryError(f"{self.result_json}: is damaged: {error}") from None
        if not isinstance(result, dict):
            raise RunDirectoryError(f"{self.result_json}: is damaged: not an object")
        for key, kinds in _RESULT_TYPES.items():
            if not _is_of(result.get(key), kinds) and (key in result or key == "exit_code"):
                value = repr(result.get(key))[:80]
                raise RunDirectoryError(f"{self.result_json}: is damaged: {key} is {value}")
        return result

    def remove_result(self) -> None:
        """Delete `result.json` of an earlier attempt: the first thing that a resumed run does."""
        self.result_json.unlink(missing_ok=True)


def _is_of(value: object, kinds: Any) -> bool:
    """Whether a JSON value is of these types, or an object all of whose values are."""
    if isinstance(kinds, dict):
        return isinstance(value, dict) and all(_is_of(one, kinds[""]) for one in value.values())
    return type(value) in kinds


def checked_name(job: str) -> str:
    """The name itself; raises RunDirectoryError where it could leave its directory."""
    if not isinstance(job, str) or not _NAME.fullmatch(job):
        raise RunDirectoryError(f"{job!r} is not a job name (letters, digits or ._+=,-)")
    return job


def software_versions(
    packages: Iterable[str] = ("numpy", "scipy", "h5py", "mpi4py"),
) -> dict[str, str]:
    """Versions of this project, of Python, of the system and of installed packages."""
    versions = {
        "hpcslaq": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _read_bounded(path: Path, limit: int) -> bytes:
    try:
        # A pipe in a run of somebody else is not waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RunDirectoryError(f"{path}: is not a regular file")
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such file") from None
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise RunDirectoryError(f"{path}: more than {limit} bytes")
    return data
