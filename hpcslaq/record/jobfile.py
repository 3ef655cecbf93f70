"""Job files: TOML in, jobs out, and one clear line for anything that is wrong.

What models, policies and data there are is told by the caller (`Catalogue`), because the
layers that know it are above this one. Keys and types are checked in `schema`, grids are
expanded in `sweep`. Nothing is started, loaded or written here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcslaq.core.jobs import Convergence, JobSpec
from hpcslaq.errors import HpcslaqError, JobFileError
from hpcslaq.record.jobsync import SYNC_FIELDS, read_sync, sync_document
from hpcslaq.record.schema import (
    Field,
    FieldType,
    Place,
    Validator,
    as_table,
    plain_value,
    read_table,
    validated,
)
from hpcslaq.record.sweep import MAX_JOBS, expand_sweep
from hpcslaq.record.tomlfile import parse_toml, read_text
from hpcslaq.record.utilities import read_utility, utility_table

#: Cap on the passes of a job that has a stop rule but no `epochs`.
DEFAULT_MAX_EPOCHS = 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]{0,99}")
_MAX_SEED = 2**63 - 1
_MAX_COUNT = 10**9


def _no_options(options: Mapping[str, object]) -> Mapping[str, object]:
    for key in options:
        raise ValueError(f"{key}: unknown option (valid: none)")
    return options


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What a job file must know of a model."""

    #: Checks and completes the options of a job.
    validate: Validator = _no_options
    #: The convergence class, or a function of the (checked) options that gives it.
    convergence: Convergence | Callable[[Mapping[str, object]], Convergence] = Convergence.SUBLINEAR
    #: Why parameter servers cannot train it with these (checked) options; "": they can.
    sync_problem: Callable[[Mapping[str, object]], str] = lambda options: ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The models, policies and data that a job file may name."""

    models: Mapping[str, ModelEntry]
    #: Validators of the parameters, by policy name (`schema.dataclass_validator`).
    policies: Mapping[str, Validator]
    #: Names of built-in data sets.
    builtin_data: Collection[str]
    #: Keys of a `[data.NAME]` table beside `source` and `path`.
    data_fields: Mapping[str, Field] = field(default_factory=dict)
    #: Gives the entry of a user's model, "module:Class" or "/path.py:Class"; None: refused.
    plugin: Callable[[str], ModelEntry] | None = None
    default_policy: str = "slaq"
    default_chunks: int = 16


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The `[run]` table. Times are in seconds."""

    policy: str
    #: Parameters of the policy by name, as its validator returned them.
    policy_options: Mapping[str, object] = field(default_factory=dict)
    #: Length of a scheduling round.
    round_s: float = 3.0
    #: Seed of every job that has none of its own.
    seed: int = 0
    #: A running job is checkpointed at least this often; 0: at every epoch.
    checkpoint_every_s: float = 60.0
    #: Checkpoints kept per job.
    keep_checkpoints: int = 3
    #: A job reports its losses at most this often.
    report_every_s: float = 0.2
    #: Ranks to start, with the coordinator's, where the command line says nothing.
    ranks: int | None = None
    #: The run checkpoints and stops after this time; None: no limit.
    time_limit_s: float | None = None
    #: A call of a model's code may last so long; then its job fails. None: no limit.
    step_limit_s: float | None = None
    #: A rank that gives no sign of life for so long counts as lost; 0: none does.
    heartbeat_limit_s: float = 60.0
    #: Memory that a rank may take, in MiB; beyond it the job that asks for more fails.
    memory_limit_mb: float | None = None
    #: Jobs that do not say otherwise are self-checked (see `JobFile.self_checks`).
    self_check: bool = False
    #: The run stays open for further jobs until it is closed.
    is_serving: bool = False


@dataclass(frozen=True, slots=True)
class JobFile:
    """A checked job file. Paths are absolute, sweeps are expanded, defaults are filled in."""

    run: RunOptions
    jobs: tuple[JobSpec, ...]
    #: Data by the name that jobs use: `{"source": BUILT-IN}` or `{"path": FILE}`, and options.
    data: Mapping[str, Mapping[str, object]]
    #: Values that held-out measures are compared with in the report: job -> measure -> value.
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    #: Names of the jobs whose chunks are now and then computed again on another rank.
    self_checks: tuple[str, ...] = ()


_RUN_FIELDS = {
    "round": Field(FieldType.DURATION, above=0),
    "seed": Field(FieldType.INTEGER, least=0, most=_MAX_SEED),
    "checkpoint_every": Field(FieldType.DURATION),
    "keep_checkpoints": Field(FieldType.INTEGER, least=1, most=1000),
    "report_every": Field(FieldType.DURATION),
    "ranks": Field(FieldType.INTEGER, least=2, most=10**6),
    "time_limit": Field(FieldType.DURATION, above=0),
    "step_limit": Field(FieldType.DURATION, above=0),
    "heartbeat_limit": Field(FieldType.DURATION),
    "memory_limit_mb": Field(FieldType.NUMBER, above=0),
    "self_check": Field(FieldType.FLAG),
    "serve": Field(FieldType.FLAG),
}
#: Keys of a job that hold one value of its JobSpec.
_JOB_FIELDS = {
    "model": Field(FieldType.TEXT),
    "data": Field(FieldType.TEXT),
    "chunks": Field(FieldType.INTEGER, least=1, most=10**6),
    "epochs": Field(FieldType.INTEGER, least=1, most=_MAX_COUNT),
    "arrival": Field(FieldType.DURATION),
    "min_workers": Field(FieldType.INTEGER, least=1, most=10**6),
    "max_workers": Field(FieldType.INTEGER, least=1, most=10**6),
    "weight": Field(FieldType.NUMBER, above=0),
    "target_loss": Field(FieldType.NUMBER),
    "tolerance": Field(FieldType.NUMBER, above=0),
    "patience": Field(FieldType.INTEGER, least=1, most=_MAX_COUNT),
    "deadline": Field(FieldType.DURATION, above=0),
    "seed": Field(FieldType.INTEGER, least=0, most=_MAX_SEED),
    **SYNC_FIELDS,
}
_REFERENCE_FIELD = Field(FieldType.NUMBER)
_SELF_CHECK_FIELD = Field(FieldType.FLAG)
_JOB_KEYS = ("name", *_JOB_FIELDS, "options", "utility", "sweep", "reference", "self_check")
#: Field of RunOptions or JobSpec by key of the file, where they differ.
_FIELD_OF_KEY = {
    "round": "round_s",
    "checkpoint_every": "checkpoint_every_s",
    "report_every": "report_every_s",
    "time_limit": "time_limit_s",
    "step_limit": "step_limit_s",
    "heartbeat_limit": "heartbeat_limit_s",
    "serve": "is_serving",
    "chunks": "num_chunks",
    "epochs": "max_epochs",
    "arrival": "arrival_s",
    "deadline": "deadline_s",
    "servers": "num_servers",
}
_KEY_OF_FIELD = {name: key for key, name in _FIELD_OF_KEY.items()}


def read_job_file(path: Path, catalogue: Catalogue) -> JobFile:
    """Read and check a job file; raises NotFoundError or JobFileError."""
    text = read_text(path, "job file")
    return parse_job_file(text, str(path), catalogue)


def parse_job_file(
    text: str, file_name: str, catalogue: Catalogue, *, check_files: bool = True
) -> JobFile:
    """The jobs that a TOML text asks for.

    Paths in it are relative to the directory of `file_name`; with `check_files` those of data
    must exist. Raises JobFileError, one line with file, key, value and what would be valid.
    """
    document = parse_toml(text, Place(file_name))
    return _check_document(document, file_name, catalogue, check_files)


def from_document(document: Mapping[str, object], file_name: str, catalogue: Catalogue) -> JobFile:
    """The job file of a run from its `run.toml` (`RunDirectory.read_run_toml`).

    The inverse of `to_document`; raises JobFileError. Data files need not exist any more.
    """
    own = {key: value for key, value in document.items() if key not in ("format", "versions")}
    return _check_document(own, file_name, catalogue, check_files=False)


def _check_document(
    document: Mapping[str, object], file_name: str, catalogue: Catalogue, check_files: bool
) -> JobFile:
    place = Place(file_name)
    known = ("run", "data", "defaults", "job")
    for key, value in document.items():
        if key not in known:
            raise place.unknown(key, value, known)
    directory = os.path.dirname(os.path.abspath(file_name))
    run = _read_run(document.get("run", {}), catalogue, place.at("run"))
    sources = _read_data(document.get("data", {}), catalogue, directory, check_files, place)
    reader = _JobReader(catalogue, sources, run, directory, check_files)
    jobs = tuple(reader.read(document, place))
    used = {job.spec.data: reader.source(job.spec.data) for job in jobs}
    return JobFile(
        run,
        tuple(job.spec for job in jobs),
        used,
        {job.spec.name: job.reference for job in jobs if job.reference},
        tuple(job.spec.name for job in jobs if job.is_self_checked),
    )


def with_policy(job_file: JobFile, policy: str, catalogue: Catalogue) -> JobFile:
    """The same file under another policy (with its default parameters).

    Raises JobFileError where there is none of this name.
    """
    if policy == job_file.run.policy:
        return job_file
    name, options = _read_policy(policy, catalogue, Place("command line", "--policy"))
    return replace(job_file, run=replace(job_file.run, policy=name, policy_options=options))


def to_document(job_file: JobFile) -> dict[str, object]:
    """The tables of a job file with everything filled in, for `run.toml`.

    `parse_job_file` of its TOML text gives an equal JobFile.
    """
    run: dict[str, object] = {
        key: getattr(job_file.run, _FIELD_OF_KEY.get(key, key)) for key in _RUN_FIELDS
    }
    run["policy"] = {"name": job_file.run.policy, **job_file.run.policy_options}
    jobs = []
    for spec in job_file.jobs:
        job: dict[str, object] = {"name": spec.name}
        for key in _JOB_FIELDS:
            job[key] = getattr(spec, _FIELD_OF_KEY.get(key, key))
        if spec.utility is not None:
            job["utility"] = utility_table(spec.utility)
        job |= sync_document(spec)
        job["self_check"] = spec.name in job_file.self_checks
        job["reference"] = dict(job_file.references.get(spec.name, {}))
        jobs.append({**job, "options": dict(spec.options)})
    return {"run": run, "data": {k: dict(v) for k, v in job_file.data.items()}, "job": jobs}


def _read_run(value: object, catalogue: Catalogue, place: Place) -> RunOptions:
    table = dict(as_table(value, place))
    policy = table.pop("policy", catalogue.default_policy)
    for key, element in table.items():
        if key not in _RUN_FIELDS:
            raise place.unknown(key, element, ("policy", *_RUN_FIELDS))
    values: dict[str, Any] = read_table(table, _RUN_FIELDS, place)
    name, options = _read_policy(policy, catalogue, place.at("policy"))
    fields = {_FIELD_OF_KEY.get(key, key): element for key, element in values.items()}
    return RunOptions(policy=name, policy_options=options, **fields)


def _read_policy(
    value: object, catalogue: Catalogue, place: Place
) -> tuple[str, dict[str, object]]:
    """Name and parameters from a name or from a table with `name` and the parameters."""
    parameters: dict[str, object] = {}
    if isinstance(value, dict):
        parameters = {key: element for key, element in value.items() if key != "name"}
        place, value = place.at("name"), value.get("name")
        if value is None:
            raise place.error("is missing", valid=sorted(catalogue.policies))
    if not isinstance(value, str) or value not in catalogue.policies:
        raise place.error("unknown policy", value=value, valid=sorted(catalogue.policies))
    where = Place(place.file, place.key.removesuffix(".name"))
    for key, element in parameters.items():
        plain_value(element, where.at(key))
    return value, validated(catalogue.policies[value], parameters, where)


def _read_data(
    value: object, catalogue: Catalogue, directory: str, check_files: bool, place: Place
) -> dict[str, dict[str, object]]:
    fields = {
        "source": Field(FieldType.TEXT),
        "path": Field(FieldType.PATH),
        **catalogue.data_fields,
    }
    sources: dict[str, dict[str, object]] = {}
    for name, table in as_table(value, place.at("data")).items():
        where = place.at("data").at(name)
        if not _NAME.fullmatch(name):
            raise where.error("is not a name of 1-100 letters, digits or ._+=,-")
        source = read_table(table, fields, where)
        if ("source" in source) == ("path" in source):
            raise where.error(
                "needs either `path`, a file, or `source`, a built-in set",
                valid=sorted(catalogue.builtin_data),
            )
        if "source" in source and source["source"] not in catalogue.builtin_data:
            raise where.at("source").error(
                "unknown data", value=source["source"], valid=sorted(catalogue.builtin_data)
            )
        for key, element in source.items():
            if fields[key].type is FieldType.PATH:
                source[key] = _resolve(element, directory, check_files, where.at(key))
        sources[name] = source
    return sources


def _resolve(value: object, directory: str, check_files: bool, place: Place) -> object:
    """The absolute form of a path, or of each in a list."""
    if isinstance(value, list):
        return [_resolve(element, directory, check_files, place) for element in value]
    path = os.path.abspath(os.path.join(directory, str(value)))
    if check_files and not os.path.exists(path):
        raise place.error("there is no such file", value=path)
    return path


@dataclass(frozen=True, slots=True)
class _ReadJob:
    """One job of a file, with what is said of it besides its JobSpec."""

    spec: JobSpec
    reference: Mapping[str, float]
    is_self_checked: bool


@dataclass(frozen=True, slots=True)
class _JobReader:
    """Reads the `[[job]]` tables of one file."""

    catalogue: Catalogue
    #: The `[data.NAME]` tables, checked.
    sources: Mapping[str, Mapping[str, object]]
    run: RunOptions
    #: Directory of the job file.
    directory: str
    check_files: bool

    def source(self, name: str) -> Mapping[str, object]:
        """Where the data of this (checked) name come from: a table, a built-in set, a path."""
        if name in self.sources:
            return self.sources[name]
        return {"source": name} if name in self.catalogue.builtin_data else {"path": name}

    def read(self, document: Mapping[str, object], place: Place) -> Iterator[_ReadJob]:
        """Yield all jobs of the file in order, sweeps expanded."""
        defaults = self._read_defaults(document.get("defaults", {}), place.at("defaults"))
        tables = document.get("job", [])
        if isinstance(tables, dict):
            raise place.at("job").error("must be an array of tables: write [[job]]")
        if not isinstance(tables, list) or not tables:
            raise place.at("job").error("there is no [[job]] table")
        first_place: dict[str, str] = {}
        for number, table in enumerate(tables, 1):
            where = Place(place.file, f"job[{number}]")
            for job, at in self._read_table(table, defaults, where):
                name = job.spec.name
                if name in first_place:
                    problem = f"duplicate name, also that of {first_place[name]}"
                    raise at.at("name").error(problem, value=name)
                first_place[name] = at.key
                if len(first_place) > MAX_JOBS:
                    raise place.at("job").error(f"more than {MAX_JOBS} jobs")
                yield job

    def _read_defaults(self, value: object, place: Place) -> dict[str, object]:
        table = as_table(value, place)
        valid = [key for key in _JOB_KEYS if key not in ("name", "sweep", "reference")]
        for key, element in table.items():
            if key not in valid:
                raise place.unknown(key, element, valid)
            if key == "options":
                as_table(element, place.at(key))
            elif key == "utility":
                read_utility(element, place.at(key))
            elif key == "self_check":
                _SELF_CHECK_FIELD.check(element, place.at(key))
            else:
                _JOB_FIELDS[key].check(element, place.at(key))
        return table

    def _read_table(
        self, value: object, defaults: Mapping[str, object], place: Place
    ) -> Iterator[tuple[_ReadJob, Place]]:
        """The jobs of one table, each with its place for messages."""
        table = as_table(value, place)
        name = table.get("name")
        if isinstance(name, str) and _NAME.fullmatch(name):
            place = _named(place, name)
        for key, element in table.items():
            if key not in _JOB_KEYS:
                raise place.unknown(key, element, _JOB_KEYS)
        if name is None:
            raise place.at("name").error("is missing")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problem = "must be 1-100 letters, digits or ._+=,- starting with a letter or digit"
            raise place.at("name").error(problem, value=name)
        merged = {**defaults, **table}
        options = {
            **as_table(defaults.get("options", {}), place.at("options")),
            **as_table(table.get("options", {}), place.at("options")),
        }
        if "sweep" not in table:
            yield self._read_job(name, merged, options, place), place
            return
        grid = expand_sweep(table["sweep"], tuple(_JOB_FIELDS), place.at("sweep"))
        for suffix, values, swept in grid:
            full = name + suffix
            where = _named(Place(place.file, place.key.partition(" ")[0]), full)
            if not _NAME.fullmatch(full):
                raise place.at("sweep").error("gives a name of more than 100 letters", value=full)
            yield self._read_job(full, {**merged, **values}, {**options, **swept}, where), where

    def _read_job(
        self, name: str, table: Mapping[str, object], options: dict[str, object], place: Place
    ) -> _ReadJob:
        spec = self._read_spec(name, table, options, place)
        where = place.at("reference")
        reference = {
            key: float(str(_REFERENCE_FIELD.check(value, where.at(key))))
            for key, value in as_table(table.get("reference", {}), where).items()
        }
        is_checked = table.get("self_check", self.run.self_check)
        _SELF_CHECK_FIELD.check(is_checked, place.at("self_check"))
        return _ReadJob(spec, reference, bool(is_checked))

    def _read_spec(
        self, name: str, table: Mapping[str, object], options: dict[str, object], place: Place
    ) -> JobSpec:
        values: dict[str, Any] = {
            key: _JOB_FIELDS[key].check(element, place.at(key))
            for key, element in table.items()
            if key in _JOB_FIELDS
        }
        for key in ("model", "data"):
            if key not in values:
                raise place.at(key).error("is missing", valid=self._valid(key))
        if not values.keys() & {"epochs", "tolerance", "target_loss"}:
            raise place.at("epochs").error(
                "is missing, and so is any other stop rule",
                valid=("epochs", "tolerance", "target_loss"),
            )
        values["data"] = self._data(values["data"], place.at("data"))
        values["model"], entry = self._model(values["model"], place.at("model"))
        for key, element in options.items():
            options[key] = plain_value(element, place.at("options").at(key))
        checked = validated(entry.validate, options, place.at("options"))
        utility = table.get("utility")
        values = {
            "chunks": self.catalogue.default_chunks,
            "epochs": DEFAULT_MAX_EPOCHS,
            "seed": self.run.seed,
            **values,
        }
        read_sync(values, entry.sync_problem(checked), place)
        kind = entry.convergence
        fields = {_FIELD_OF_KEY.get(key, key): element for key, element in values.items()}
        try:
            return JobSpec(
                name=name,
                convergence=kind if isinstance(kind, Convergence) else kind(checked),
                options=checked,
                utility=None if utility is None else read_utility(utility, place.at("utility")),
                **fields,
            )
        except ValueError as error:
            raise _impossible(str(error), place) from None

    def _data(self, name: str, place: Place) -> str:
        """The key of the data: a name that is known, or the absolute form of a path."""
        if name in self.sources or name in self.catalogue.builtin_data:
            return name
        if "." in name or "/" in name:
            return str(_resolve(name, self.directory, self.check_files, place))
        raise place.error(
            "unknown data", value=name, valid=[*self._valid("data"), "the path of a file"]
        )

    def _valid(self, key: str) -> list[str]:
        if key == "model":
            return sorted(self.catalogue.models)
        return sorted({*self.sources, *self.catalogue.builtin_data})

    def _model(self, name: str, place: Place) -> tuple[str, ModelEntry]:
        """The full name and the entry of a model; a user's file is found by its path."""
        entry = self.catalogue.models.get(name)
        if entry is not None:
            return name, entry
        target, colon, cls = name.rpartition(":")
        if not colon or not target or not cls.isidentifier() or self.catalogue.plugin is None:
            raise place.error("unknown model", value=name, valid=self._valid("model"))
        if target.endswith(".py"):
            target = str(_resolve(target, self.directory, self.check_files, place))
        try:
            return f"{target}:{cls}", self.catalogue.plugin(f"{target}:{cls}")
        except JobFileError:
            raise
        except HpcslaqError as error:
            raise place.error(str(error), value=name) from None


def _named(place: Place, name: str) -> Place:
    return Place(place.file, f'{place.key} "{name}"')


def _impossible(message: str, place: Place) -> JobFileError:
    """JobSpec's complaint ("field: problem") in the words of the job file."""
    for name, key in _KEY_OF_FIELD.items():
        message = re.sub(rf"\b{name}\b", key, message)
    key, _, problem = message.partition(": ")
    return place.at(key).error(problem)
