"""Workloads of the simulator in TOML: which jobs arrive when, on which cluster.

    [workload]                      [arrivals]
    workers = 640                   kind = "poisson_gaps"
    round = "3s"                    mean_gap = "15s"

    [jobs]
    number = 160
    curves = ["recorded"]           # or "synthetic", "synthetic/FAMILY", files, directories
    load = 0.8                      # one-worker work that arrives, as a share of the capacity

In place of [arrivals] and [jobs] a [trace] table names a trace (`traces`). A [utility] table gives
every job a drawn utility, for policies that earn it (`utilities`). All keys are in
`_FIELDS`, their meaning in the classes below; errors are one line with the file and the key.
`Workload.jobs(seed)` draws the jobs, the same ones under every policy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import HpcslaqError
from hpcslaq.record.schema import Field, FieldType, Place, read_table
from hpcslaq.record.tomlfile import parse_toml, read_text
from hpcslaq.sim.curves import Curve, read_curves, recorded_curves
from hpcslaq.sim.faults import with_failures
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import Delays, ScalingModel
from hpcslaq.sim.traces.jobs import trace_source
from hpcslaq.sim.utilities import UtilityMix, with_utilities
from hpcslaq.sim.workload import (
    FAMILIES,
    Floats,
    burst_arrivals,
    poisson_arrivals,
    poisson_gap_arrivals,
    replayed_arrivals,
)

#: Most jobs of a workload.
MAX_JOBS = 1_000_000


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Table [workload]: the cluster and how it is driven."""

    workers: int = 32
    workers_per_host: int = 32
    #: Length of a scheduling round.
    round_s: float = 3.0
    #: Spread of the log-normal noise on every iteration's time.
    noise: float = 0.05
    #: Until when quality is averaged; None: see `Workload.horizon_s`.
    horizon_s: float | None = None
    #: The simulation is cut off here.
    max_time_s: float | None = None
    #: What is added to the seed of every draw.
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    """Table [faults]."""

    #: Mean life of a rank; None: none dies.
    rank_life_s: float | None = None
    #: Share of the jobs whose code raises, at a uniformly drawn iteration.
    job_failures: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Table [arrivals]; see `workload` for the kinds."""

    kind: str = "poisson"
    mean_gap_s: float = 15.0
    burst: int = 10
    #: Instants of `kind = "replay"`; the first jobs get the first.
    times: tuple[float, ...] = ()

    def draw(self, rng: np.random.Generator, number: int) -> Floats:
        """(number,) s since run start."""
        if self.kind == "at_once":
            return np.zeros(number)
        if self.kind == "replay":
            return replayed_arrivals(self.times)[:number]
        if self.kind == "bursts":
            return burst_arrivals(rng, number, self.mean_gap_s, self.burst)
        draw = poisson_gap_arrivals if self.kind == "poisson_gaps" else poisson_arrivals
        return draw(rng, number, self.mean_gap_s)

    def span_s(self, number: int) -> float:
        """Expected time from the first to the last arrival."""
        if self.kind == "replay":
            return float(max(self.times[:number]) - min(self.times[:number]))
        return 0.0 if self.kind == "at_once" else self.mean_gap_s * number


@dataclass(frozen=True, slots=True)
class JobMix:
    """Table [jobs]: what arrives."""

    number: int = 100
    #: Names as in the file; taken in turn ("round_robin") or drawn ("random").
    curves: tuple[str, ...] = ("recorded",)
    order: str = "round_robin"
    #: Iterations of synthetic curves: drawn log-uniformly between the two.
    iterations: tuple[int, int] = (50, 400)
    #: Shares of the data on which a job trains, in turn: its iterations take as much less time.
    sizes: tuple[float, ...] = (1.0,)
    #: Seconds of an iteration on one worker, drawn log-uniformly; None: as recorded.
    iteration_s: tuple[float, float] | None = None
    #: Recorded times are multiplied by this.
    time_scale: float = 1.0
    #: All iteration times are scaled so that the jobs' work on one worker each is this share of
    #: what the workers can do while jobs arrive; None: they are left as they are.
    load: float | None = None
    chunks: int = 32
    #: Share of an iteration on one worker that does not divide.
    serial: float = 0.02
    #: All-reduce: seconds per step, and to send the whole buffer once.
    latency_s: float = 1e-4
    transfer_s: float = 2e-4
    min_workers: int = 1
    max_workers: int | None = None
    #: Whether a group can change during an iteration; see `SimJob.is_divisible`.
    divisible: bool = False
    #: Cap on a job's iterations.
    max_iterations: int | None = None
    #: The curve ends where this share of its whole reduction is reached; None: at its end.
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A checked workload; paths are absolute."""

    name: str
    shape: ClusterShape = field(default_factory=ClusterShape)
    delays: Delays = field(default_factory=Delays)
    faults: Faults = field(default_factory=Faults)
    arrivals: Arrivals = field(default_factory=Arrivals)
    mix: JobMix = field(default_factory=JobMix)
    #: Makes the jobs of a trace in place of `mix` and `arrivals`; None: there is no trace.
    trace_jobs: Callable[[int], Sequence[SimJob]] | None = None
    #: Draws what the jobs are worth; None: only what a job says itself.
    utility: UtilityMix | None = None
    #: What identifies it: the checked tables.
    document: Mapping[str, object] = field(default_factory=dict)

    def jobs(self, seed: int) -> list[SimJob]:
        """The jobs of this seed, in order of arrival; the same for every policy and size."""
        rng = np.random.default_rng([self.shape.seed, seed])
        if self.trace_jobs is not None:
            jobs = list(self.trace_jobs(seed))
        else:
            jobs = self._draw(rng)
        if self.utility is not None:
            # Drawn apart, so that a workload has the same jobs with and without utilities.
            values = np.random.default_rng([self.shape.seed, seed, 1])
            shape = self.shape
            jobs = with_utilities(values, jobs, self.utility, shape.round_s, shape.workers)
        if self.faults.job_failures:
            jobs = with_failures(rng, jobs, self.faults.job_failures)
        return jobs

    def horizon_s(self, jobs: Sequence[SimJob]) -> float:
        """Until when quality is averaged, s: as the file says, or what follows.

        The last arrival and the time that all workers together need at least for all jobs; so
        it depends on the jobs alone, not on the policy.
        """
        if self.shape.horizon_s is not None:
            return self.shape.horizon_s
        work = sum(job.num_iterations * job.step_time.seconds(1) for job in jobs)
        last = max((job.spec.arrival_s for job in jobs), default=0.0)
        return last + work / self.shape.workers

    def _draw(self, rng: np.random.Generator) -> list[SimJob]:
        mix = self.mix
        arrivals = self.arrivals.draw(rng, mix.number)
        pool = self._pool()
        if mix.order == "random":
            turns = rng.integers(len(pool), size=len(arrivals)).tolist()
        else:
            turns = list(range(len(arrivals)))
        jobs = [
            self._job(rng, index, float(arrival), pool[turn % len(pool)], turn // len(pool))
            for index, (arrival, turn) in enumerate(zip(arrivals, turns, strict=True))
        ]
        return jobs if mix.load is None else self._scaled(jobs, mix.load)

    def _pool(self) -> list[Curve | str]:
        """Curves, and names of synthetic families, in the order of the file."""
        pool: list[Curve | str] = []
        for name in self.mix.curves:
            pool += find_curves(name)
        return pool

    def _job(
        self, rng: np.random.Generator, index: int, arrival: float, what: Curve | str, turn: int
    ) -> SimJob:
        mix = self.mix
        curve = what if isinstance(what, Curve) else self._synthetic(rng, what)
        num = curve.losses.size if mix.max_iterations is None else mix.max_iterations
        losses = curve.losses[:num]
        if mix.until is not None:
            losses = losses[: _reached(losses, mix.until)]
        per_epoch = min(curve.iterations_per_epoch, losses.size)
        size = mix.sizes[turn % len(mix.sizes)]
        alone_s = self._alone_s(rng, curve) * size
        spec = JobSpec(
            name=f"{curve.name[:90]}-{index:05d}",
            model=curve.name,
            data="simulated",
            num_chunks=mix.chunks,
            max_epochs=max(1, losses.size // per_epoch),
            min_workers=mix.min_workers,
            max_workers=mix.max_workers,
            arrival_s=arrival,
            convergence=curve.convergence,
        )
        model = ScalingModel(
            mix.chunks,
            serial_s=mix.serial * alone_s,
            chunk_s=(1.0 - mix.serial) * alone_s / mix.chunks,
            latency_s=mix.latency_s,
            transfer_s=mix.transfer_s,
        )
        return SimJob(spec, losses, model, per_epoch, is_divisible=mix.divisible)

    def _synthetic(self, rng: np.random.Generator, family: str) -> Curve:
        make, convergence = FAMILIES[family]
        low, high = self.mix.iterations
        num = max(1, round(float(np.exp(rng.uniform(np.log(low), np.log(high))))))
        return Curve(family, make(rng, num), convergence=convergence)

    def _alone_s(self, rng: np.random.Generator, curve: Curve) -> float:
        if self.mix.iteration_s is not None:
            low, high = self.mix.iteration_s
            return float(np.exp(rng.uniform(np.log(low), np.log(high))))
        if curve.cpu_s is None:
            return self.mix.time_scale
        return self.mix.time_scale * max(float(np.mean(curve.cpu_s)), 1e-6)

    def _scaled(self, jobs: list[SimJob], load: float) -> list[SimJob]:
        """The jobs with iteration times that give this load."""
        span = self.arrivals.span_s(len(jobs))
        work = sum(job.num_iterations * job.step_time.seconds(1) for job in jobs)
        factor = load * self.shape.workers * span / work if span > 0 else 1.0
        scaled = []
        for job in jobs:
            model = job.step_time
            assert isinstance(model, ScalingModel)
            slower = replace(
                model, serial_s=model.serial_s * factor, chunk_s=model.chunk_s * factor
            )
            scaled.append(replace(job, step_time=slower))
        return scaled


def find_curves(name: str) -> list[Curve | str]:
    """What a name in `curves` stands for; raises NotFoundError or DataError."""
    kind, _, rest = name.partition("/")
    if kind == "synthetic" and (not rest or rest in FAMILIES):
        return [rest] if rest else list(FAMILIES)
    if kind == "recorded":
        shipped = recorded_curves()
        if not rest:
            return list(shipped.values())
        if rest in shipped:
            return [shipped[rest]]
    return list(read_curves(Path(name)).values())


def _reached(losses: Floats, share: float) -> int:
    """Iterations after which `share` of the whole reduction is reached."""
    goal = losses[0] - share * (losses[0] - losses.min())
    return int(np.argmax(losses <= goal)) + 1


_SECONDS = Field(FieldType.DURATION)
_POSITIVE_S = Field(FieldType.DURATION, above=0)
_SHARE = Field(FieldType.NUMBER, least=0, most=1)
_WORKERS = Field(FieldType.INTEGER, least=1, most=10**6)
_FIELDS: Mapping[str, Mapping[str, Field]] = {
    "workload": {
        "workers": _WORKERS,
        "workers_per_host": _WORKERS,
        "round": _POSITIVE_S,
        "noise": Field(FieldType.NUMBER, least=0, most=2),
        "horizon": _POSITIVE_S,
        "max_time": _POSITIVE_S,
        "seed": Field(FieldType.INTEGER, least=0),
    },
    "delays": {
        key.removesuffix("_s"): Field(FieldType.DURATION, least=0)
        for key in Delays.__dataclass_fields__
    },
    "faults": {"rank_life": _POSITIVE_S, "job_failures": _SHARE},
    "arrivals": {
        "kind": Field(
            FieldType.TEXT, choices=("poisson", "poisson_gaps", "bursts", "replay", "at_once")
        ),
        "mean_gap": _POSITIVE_S,
        "burst": Field(FieldType.INTEGER, least=1, most=10**6),
        "times": Field(FieldType.DURATION, least=0, is_list=True),
    },
    "jobs": {
        "number": Field(FieldType.INTEGER, least=1, most=MAX_JOBS),
        "curves": Field(FieldType.PATH, is_list=True),
        "order": Field(FieldType.TEXT, choices=("round_robin", "random")),
        "iterations": Field(FieldType.INTEGER, least=1, most=1_000_000, is_list=True),
        "sizes": Field(FieldType.NUMBER, above=0, is_list=True),
        "iteration": Field(FieldType.DURATION, above=0, is_list=True),
        "time_scale": Field(FieldType.NUMBER, above=0),
        "load": Field(FieldType.NUMBER, above=0, most=1000),
        "chunks": Field(FieldType.INTEGER, least=1, most=10**6),
        "serial": Field(FieldType.NUMBER, least=0, most=0.999),
        "latency": Field(FieldType.DURATION, least=0),
        "transfer": Field(FieldType.DURATION, least=0),
        "min_workers": _WORKERS,
        "max_workers": _WORKERS,
        "divisible": Field(FieldType.FLAG),
        "max_iterations": Field(FieldType.INTEGER, least=1, most=10**7),
        "until": Field(FieldType.NUMBER, above=0, most=1),
    },
    "utility": {
        key: Field(FieldType.NUMBER, above=None if key == "shares" else 0, least=0, is_list=True)
        for key in UtilityMix.__dataclass_fields__
    },
    "trace": {
        "file": Field(FieldType.PATH),
        "format": Field(FieldType.TEXT),
        "number": Field(FieldType.INTEGER, least=1, most=MAX_JOBS),
        "iteration": _POSITIVE_S,
        "elastic": Field(FieldType.FLAG),
        "serial": Field(FieldType.NUMBER, least=0, most=0.999),
        "speed_up": Field(FieldType.NUMBER, above=0),
    },
}
_IN_SECONDS = (FieldType.DURATION,)


def read_workload(path: Path) -> Workload:
    """Read and check a workload file; raises NotFoundError or JobFileError."""
    return parse_workload(read_text(path, "workload"), str(path))


def parse_workload(text: str, file_name: str) -> Workload:
    """The workload that a TOML text describes; paths are relative to the file's directory."""
    place = Place(file_name)
    document = parse_toml(text, place)
    tables: dict[str, dict[str, Any]] = {}
    for key, value in document.items():
        if key not in _FIELDS:
            raise place.unknown(key, value, _FIELDS)
        tables[key] = read_table(value, _FIELDS[key], place.at(key))
    if "trace" in tables and ("jobs" in tables or "arrivals" in tables):
        raise place.at("trace").error("stands in place of [jobs] and [arrivals]")
    directory = os.path.dirname(os.path.abspath(file_name))
    name = Path(file_name).stem
    shape = ClusterShape(**_fields("workload", tables))
    workload = Workload(
        name=name,
        shape=shape,
        delays=Delays(**_fields("delays", tables)),
        faults=Faults(**_fields("faults", tables)),
        utility=_utility(tables, place.at("utility")),
        document=tables,
    )
    if "trace" in tables:
        source = trace_source(tables["trace"], directory, place.at("trace"))
        return replace(workload, trace_jobs=source)
    arrivals = _arrivals(tables, place.at("arrivals"))
    mix = _mix(tables, arrivals, directory, place.at("jobs"))
    return replace(workload, arrivals=arrivals, mix=mix)


def with_changes(
    workload: Workload,
    *,
    workers: int | None = None,
    load: float | None = None,
    curves: Sequence[Path] = (),
    number: int | None = None,
) -> Workload:
    """The same workload on other workers, at another load, with other curves or fewer jobs."""
    document = {key: dict(_as_mapping(table)) for key, table in workload.document.items()}
    shape, mix = workload.shape, workload.mix
    if workers is not None:
        shape = replace(shape, workers=workers)
        document.setdefault("workload", {})["workers"] = workers
    changes: dict[str, Any] = {}
    if load is not None:
        changes["load"] = load
    if number is not None:
        changes["number"] = number
    if curves:
        changes["curves"] = tuple(str(path.absolute()) for path in curves)
    if changes and workload.trace_jobs is not None:
        raise Place(workload.name, "trace").error(f"has no {', '.join(changes)} to change")
    for key, value in changes.items():
        document.setdefault("jobs", {})[key] = value
    mix = replace(mix, **changes)
    for curve in mix.curves if curves else ():
        find_curves(curve)
    return replace(workload, shape=shape, mix=mix, document=document)


def _as_mapping(table: object) -> Mapping[str, Any]:
    assert isinstance(table, Mapping)
    return table


def _fields(name: str, tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The values of a table by field of its class: durations end in `_s`."""
    values = {}
    for key, value in tables.get(name, {}).items():
        in_seconds = _FIELDS[name][key].type is FieldType.DURATION and key != "times"
        values[f"{key}_s" if in_seconds else key] = value
    return values


def _utility(tables: Mapping[str, dict[str, Any]], place: Place) -> UtilityMix | None:
    if "utility" not in tables:
        return None
    values: dict[str, Any] = {}
    for key, value in tables["utility"].items():
        if key == "shares":
            values[key] = tuple(_as_list(value))
            if len(values[key]) != 3:
                raise place.at(key).error("must be three shares", value=value)
        else:
            values[key] = _range(value, place.at(key))
    try:
        return UtilityMix(**values)
    except ValueError as error:
        key, _, problem = str(error).partition(": ")
        raise place.at(key).error(problem) from None


def _arrivals(tables: Mapping[str, dict[str, Any]], place: Place) -> Arrivals:
    values = _fields("arrivals", tables)
    values["times"] = tuple(_as_list(values.get("times", ())))
    arrivals = Arrivals(**values)
    if (arrivals.kind == "replay") != bool(arrivals.times):
        raise place.at("times").error('are given exactly with kind = "replay"')
    return arrivals


def _mix(
    tables: Mapping[str, dict[str, Any]], arrivals: Arrivals, directory: str, place: Place
) -> JobMix:
    values = _fields("jobs", tables)
    for key in ("sizes", "curves"):
        if key in values:
            values[key] = tuple(_as_list(values[key]))
            if not values[key]:
                raise place.at(key).error("is empty")
    for key, name in (("iterations", "iterations"), ("iteration", "iteration_s")):
        if name in values:
            values[name] = _range(values[name], place.at(key))
    names = []
    for name in values.get("curves", ("recorded",)):
        names.append(_checked_curve(name, directory, place.at("curves")))
    values["curves"] = tuple(names)
    mix = JobMix(**values)
    if arrivals.times and len(arrivals.times) < mix.number:
        raise place.at("number").error(f"is more than the {len(arrivals.times)} arrival times")
    limit = min(mix.max_workers or mix.chunks, mix.chunks)
    if mix.min_workers > limit:
        raise place.at("min_workers").error(f"must be <= {limit}", value=mix.min_workers)
    return mix


def _checked_curve(name: str, directory: str, place: Place) -> str:
    kind, _, rest = name.partition("/")
    is_known = (kind == "synthetic" and (not rest or rest in FAMILIES)) or kind == "recorded"
    full = name if is_known else os.path.abspath(os.path.join(directory, name))
    try:
        find_curves(full)
    except HpcslaqError as error:
        raise place.error(str(error)) from None
    return full


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _range(value: object, place: Place) -> tuple[Any, Any]:
    ends = _as_list(value)
    if len(ends) == 1:
        ends = ends * 2
    if len(ends) != 2 or ends[0] > ends[1]:
        raise place.error("must be one value, or the lower and the upper one", value=value)
    return ends[0], ends[1]
