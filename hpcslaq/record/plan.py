"""The plan of a run: what `run.toml` says, resolved, as every rank reads it.

A job file says what the user wants; the plan says what will be done: each job written
out, each data set by the directory of its prepared form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import HpcslaqError
from hpcslaq.record.codec import JOB_CLASSES, Codec
from hpcslaq.record.rundir import RunDirectory, RunDirectoryError

_CODEC = Codec(JOB_CLASSES)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run does. Raises RunDirectoryError where `run.toml` says something else."""

    policy: str
    jobs: tuple[JobSpec, ...]
    #: Directory of the prepared data set by data key.
    data_paths: Mapping[str, str]
    policy_options: Mapping[str, object] = field(default_factory=dict)
    round_s: float = 1.0
    seed: int = 0
    #: A checkpoint of each job is written at least this often, s.
    checkpoint_every_s: float = 60.0
    #: Checkpoints kept per job.
    keep_checkpoints: int = 2
    #: Losses are reported to the coordinator at least this often, s.
    report_every_s: float = 0.1
    #: Each start of the run checkpoints and ends after this time, s; 0: no limit.
    time_limit_s: float = 0.0
    #: A call of user code may last so long, s; 0: no limit.
    step_limit_s: float = 0.0
    #: A rank that gives no sign of life for so long counts as lost, s; 0: none does.
    heartbeat_limit_s: float = 60.0
    #: Memory that a worker rank may take, MiB; 0: no limit.
    memory_limit_mb: float = 0.0
    #: The run stays open for further jobs (`inbox`) until it is told that no more will come.
    is_serving: bool = False
    #: The job file that was asked for, for people.
    job_file: str = ""
    #: What the report shows beside held-out measures: job -> measure -> value.
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    #: Names of the jobs that are self-checked.
    self_checks: tuple[str, ...] = ()

    def write(self, run: RunDirectory) -> None:
        """Write the plan as the run's `run.toml`."""
        document: dict[str, object] = {
            "job_file": self.job_file,
            "run": {name: getattr(self, name) for name in _SETTINGS},
            "data": {key: {"path": path} for key, path in self.data_paths.items()},
            "job": [_CODEC.to_json(job) for job in self.jobs],
            "reference": {job: dict(values) for job, values in self.references.items()},
            "self_checks": list(self.self_checks),
        }
        run.write_run_toml(document)

    def is_same_work(self, other: RunPlan) -> bool:
        """Whether a run of one plan may go on with the other.

        From where a run is started, how long it is worked on and whether it is open for further
        jobs may differ from start to start.
        """
        return _essence(self) == _essence(other)

    def first_difference(self, present: RunPlan) -> tuple[str, str]:
        """The first key in which the work differs, and both values in words; empty if in none."""
        asked, there = _essence(self), _essence(present)
        names = {job.name: job for job in there.jobs}
        for job in asked.jobs:
            if job.name not in names:
                return f'job "{job.name}"', "the run has no such job"
            for name, mine, theirs in _unequal(job, names.pop(job.name)):
                return f'job "{job.name}".{name}', f"{mine!r}, and the run has {theirs!r}"
        if names:
            return f'job "{next(iter(names))}"', "the run has it, and it is not in this file"
        for name, mine, theirs in _unequal(asked, there):
            if name == "jobs":
                return "job", "the run has the same jobs in another order"
            return name, f"{mine!r}, and the run has {theirs!r}"
        return "", ""

    @classmethod
    def read(cls, run: RunDirectory) -> RunPlan:
        """The plan that `write` wrote."""
        document = run.read_run_toml()
        try:
            plan: RunPlan = Codec((*JOB_CLASSES, cls)).from_json(
                {
                    "type": cls.__name__,
                    "jobs": document["job"],
                    "data_paths": {key: item["path"] for key, item in document["data"].items()},
                    "job_file": document["job_file"],
                    "references": document.get("reference", {}),
                    "self_checks": document.get("self_checks", []),
                    **{name: document["run"][name] for name in _SETTINGS},
                }
            )
        except (KeyError, TypeError, AttributeError, ValueError, HpcslaqError) as error:
            raise RunDirectoryError(f"{run.run_toml}: is damaged: {error!r}") from None
        return plan


def _unequal(mine: object, theirs: object) -> Iterator[tuple[str, object, object]]:
    """Name and both values of each field of two dataclasses, or key of their mappings, that differ.

    A mapping that differs is followed by the name of its key: options.l2.
    """
    for item in fields(mine):  # type: ignore[arg-type]
        one, other = getattr(mine, item.name), getattr(theirs, item.name)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            for key in dict.fromkeys([*one, *other]):
                if one.get(key) != other.get(key):
                    yield f"{item.name}.{key}", one.get(key), other.get(key)
        else:
            yield item.name, one, other


def _essence(plan: RunPlan) -> RunPlan:
    """The plan without what may differ, as it comes back from its file."""
    return replace(
        plan,
        jobs=tuple(replace(job, options=_plain(job.options)) for job in plan.jobs),
        policy_options=_plain(plan.policy_options),
        job_file="",
        time_limit_s=0.0,
        step_limit_s=0.0,
        memory_limit_mb=0.0,
        heartbeat_limit_s=0.0,
        is_serving=False,
    )


def _plain(options: Mapping[str, object]) -> dict[str, object]:
    """The options as TOML has them: no value None, no tuples."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in options.items()
        if value is not None
    }


_SETTINGS = (
    "policy",
    "policy_options",
    "round_s",
    "seed",
    "checkpoint_every_s",
    "keep_checkpoints",
    "report_every_s",
    "time_limit_s",
    "step_limit_s",
    "memory_limit_mb",
    "heartbeat_limit_s",
    "is_serving",
)
