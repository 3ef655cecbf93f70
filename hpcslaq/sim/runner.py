"""Many simulations of one workload: over policies, seeds and sizes, in processes.

Every simulation depends on its `Task` and the workload only, so results are the same for any
number of processes and in any order. With a directory, finished ones are kept there and an
interrupted batch goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcslaq import __version__
from hpcslaq.core import events as ev
from hpcslaq.core.policy import Policy
from hpcslaq.errors import JobFileError
from hpcslaq.policies.registry import make_policy, policy_names, policy_parameters
from hpcslaq.record.files import write_atomic
from hpcslaq.sim.faults import rank_losses
from hpcslaq.sim.foresight import SUFFIX, foretold
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.metrics import Summary, mean_normalised_loss, summarise
from hpcslaq.sim.shares import ShareWatch
from hpcslaq.sim.simulator import SimResult, Simulator
from hpcslaq.sim.utilities import earned, possible
from hpcslaq.sim.workload_file import Workload

#: Points of the quality-over-time curve.
GRID_POINTS = 200


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy as commands name it: `quality`, `las:quantum_s=3600:num_queues=2`, `srtf+oracle`."""

    text: str
    name: str
    parameters: tuple[tuple[str, Any], ...]
    is_told: bool

    @classmethod
    def parse(cls, text: str) -> PolicyChoice:
        """Read it; raises JobFileError, naming what is wrong and what would be valid."""
        name, *pairs = text.removesuffix(SUFFIX).split(":")
        if name not in policy_names():
            raise JobFileError(
                "command line", "--policy", "unknown policy", value=text, valid=policy_names()
            )
        kinds = {parameter.name: parameter.kind for parameter in policy_parameters(name)}
        values = []
        for pair in pairs:
            key, _, value = pair.partition("=")
            values.append((key, _value(kinds.get(key, "str"), value)))
        is_told = text.endswith(SUFFIX) or name.startswith("oracle-")
        choice = cls(text, name, tuple(values), is_told)
        try:
            choice.make(())
        except ValueError as error:
            raise JobFileError("command line", "--policy", str(error), value=text) from None
        return choice

    def make(self, jobs: Iterable[SimJob]) -> Policy:
        """The policy, told the truth of the jobs where that is wanted."""
        policy = make_policy(self.name, **dict(self.parameters))
        return foretold(policy, jobs) if self.is_told else policy


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation."""

    policy: str
    seed: int


def simulate(workload: Workload, task: Task, *, keep_journal: bool = False) -> SimResult:
    """Run one simulation."""
    return _simulate(workload, task, workload.jobs(task.seed), keep_journal)[0]


def measure(workload: Workload, task: Task) -> dict[str, Any]:
    """Run one simulation and condense it into one JSON-able value; deterministic."""
    jobs = workload.jobs(task.seed)
    result, watch = _simulate(workload, task, jobs, keep_journal=False)
    horizon = workload.horizon_s(jobs)
    summary = summarise(result.records.values(), result.tracks, horizon_s=horizon)
    grid = np.linspace(0.0, horizon, GRID_POINTS + 1)
    alone = {
        job.name: job.num_iterations * job.step_time.seconds(job.spec.worker_limit) for job in jobs
    }
    live = mean_normalised_loss(result.tracks, grid, is_live_only=True)
    slowdowns = [
        (record.finished_at - record.submitted_at) / alone[name]
        for name, record in result.records.items()
        if record.finished_at is not None and record.started_at is not None
    ]
    return {
        "policy": task.policy,
        "seed": task.seed,
        "workers": workload.shape.workers,
        "exit_code": result.exit_code,
        "figures": {
            **figures(summary),
            "mean_normalised_loss_live": float(np.nanmean(live)) if live.size else None,
            **_utility_figures(workload, jobs, result),
            "worst_slowdown": max(slowdowns, default=float("nan")),
            **watch.figures(),
        },
        "quality": {
            "at_s": grid.tolist(),
            "all": mean_normalised_loss(result.tracks, grid).tolist(),
            "live": live.tolist(),
        },
        "shares": watch.shares(result.tracks),
        "num_events": result.num_events,
    }


def _utility_figures(
    workload: Workload, jobs: Sequence[SimJob], result: SimResult
) -> dict[str, float]:
    """What was earned, and as a share of what all jobs are worth at once; none without utility."""
    most = possible(jobs)
    if not most > 0:
        return {}
    total = earned(result.records.values(), workload.shape.round_s)
    return {"utility": total, "utility_share": total / most}


def figures(summary: Summary) -> dict[str, float]:
    """The figures of a summary under flat names."""
    values: dict[str, float] = {}
    for key, value in asdict(summary).items():
        if isinstance(value, Mapping):
            stem = key.replace("time_to_s", "time_to")
            for fraction, number in value.items():
                values[f"{stem}_{round(100 * fraction)}"] = number
        else:
            values[key] = value
    return values


def run_tasks(
    workload: Workload,
    tasks: Sequence[Task],
    *,
    processes: int = 1,
    keep_in: Path | None = None,
    on_done: Callable[[Task], None] = lambda task: None,
) -> list[dict[str, Any]]:
    """`measure` of every task, in the order of the tasks.

    `keep_in` : directory of finished results (made if missing); those of the same workload,
    task and version are taken from there. `on_done(task)` is called for each as it is there.
    """
    results: dict[Task, dict[str, Any]] = {}
    for task in tasks:
        kept = None if keep_in is None else _kept(keep_in, workload, task)
        if kept is not None:
            results[task] = kept
            on_done(task)
    missing = [task for task in dict.fromkeys(tasks) if task not in results]

    def take(task: Task, result: dict[str, Any]) -> None:
        results[task] = result
        if keep_in is not None:
            _keep(keep_in, workload, task, result)
        on_done(task)

    if processes == 1 or len(missing) < 2:
        for task in missing:
            take(task, measure(workload, task))
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(processes, len(missing)), mp_context=context) as pool:
            waiting = {pool.submit(measure, workload, task): task for task in missing}
            try:
                for future in as_completed(waiting):
                    take(waiting[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [results[task] for task in tasks]


def compare(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Means over the seeds by policy and figure, and paired differences from the first policy.

    For each: `mean`, `low` and `high` (95 % interval of the mean), and where there is a first
    policy to compare with `change` (relative change of the mean), `change_low`, `change_high`
    (95 % interval of the mean paired difference, over the first policy's mean).
    """
    by_policy: dict[str, dict[int, Mapping[str, Any]]] = {}
    for result in results:
        by_policy.setdefault(result["policy"], {})[result["seed"]] = result["figures"]
    first = next(iter(by_policy), None)
    table: dict[str, dict[str, Any]] = {}
    for policy, runs in by_policy.items():
        table[policy] = {}
        for key in next(iter(runs.values())):
            values = [_number(runs[seed][key]) for seed in runs]
            cell = dict(zip(("mean", "low", "high"), interval(values), strict=True))
            if policy != first and first is not None:
                base = by_policy[first]
                both = [seed for seed in runs if seed in base]
                old = [_number(base[seed][key]) for seed in both]
                new = [_number(runs[seed][key]) for seed in both]
                cell.update(_change(old, new))
            table[policy][key] = cell
    return table


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and the ends of its 95 % interval (Student's t); NaN ends below two values."""
    from scipy.special import stdtrit

    known = [value for value in values if value == value]
    if not known:
        return float("nan"), float("nan"), float("nan")
    mean = statistics.fmean(known)
    if len(known) < 2:
        return mean, float("nan"), float("nan")
    half = float(stdtrit(len(known) - 1, 0.975)) * statistics.stdev(known) / len(known) ** 0.5
    return mean, mean - half, mean + half


def _change(old: Sequence[float], new: Sequence[float]) -> dict[str, float]:
    base = statistics.fmean(old) if old else float("nan")
    mean, low, high = interval([b - a for a, b in zip(old, new, strict=True)])
    if not abs(base) > 0:
        return {}
    return {"change": mean / base, "change_low": low / base, "change_high": high / base}


def _simulate(
    workload: Workload, task: Task, jobs: Sequence[SimJob], keep_journal: bool
) -> tuple[SimResult, ShareWatch]:
    shape, faults = workload.shape, workload.faults
    losses: list[tuple[float, ev.Event]] = []
    if faults.rank_life_s is not None:
        rng = np.random.default_rng([shape.seed, task.seed, 1])
        last = max((job.spec.arrival_s for job in jobs), default=0.0)
        until = last + 10.0 * faults.rank_life_s
        losses = rank_losses(rng, shape.workers, faults.rank_life_s, until)
    ranks = range(1, shape.workers + 1)
    watch = ShareWatch()
    simulator = Simulator(
        PolicyChoice.parse(task.policy).make(jobs),
        jobs,
        shape.workers,
        shape.round_s,
        seed=shape.seed + task.seed,
        noise=shape.noise,
        delays=workload.delays,
        hosts={rank: f"h{(rank - 1) // shape.workers_per_host:05d}" for rank in ranks},
        happenings=losses,
        max_s=float("inf") if shape.max_time_s is None else shape.max_time_s,
        keep_journal=keep_journal,
        on_record=watch.note,
    )
    return simulator.run(), watch


def _key(workload: Workload, task: Task) -> str:
    document = {"version": __version__, "workload": workload.document, "task": asdict(task)}
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _file(directory: Path, workload: Workload, task: Task) -> Path:
    return directory / f"{_key(workload, task)[:24]}.json"


def _kept(directory: Path, workload: Workload, task: Task) -> dict[str, Any] | None:
    try:
        value = json.loads(_file(directory, workload, task).read_text())
    except (FileNotFoundError, ValueError):
        return None
    is_ours = isinstance(value, dict) and value.get("key") == _key(workload, task)
    return value["result"] if is_ours else None


def _keep(directory: Path, workload: Workload, task: Task, result: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"key": _key(workload, task), "result": result})
    write_atomic(_file(directory, workload, task), text.encode())


def _value(kind: str, text: str) -> Any:
    """A parameter's value from the command line; what does not fit is left to `make_policy`."""
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text]
        return {"int": int, "float": float}.get(kind, str)(text)
    except (ValueError, KeyError):
        return text


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
