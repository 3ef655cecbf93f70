"""What the evaluation scripts share: arguments, batches of simulations, tables and figures."""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcslaq.sim.runner import PolicyChoice, Task, compare, run_tasks
from hpcslaq.sim.workload_file import Workload, read_workload, with_changes

ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT / "jobs" / "workloads" / "slaq_paper.toml"
#: Policies of the comparison, the first one is the base of all changes.
POLICIES = "fair,slaq,quality,oracle-quality,oracle-slaq,fifo,las,srtf,optimus,maxmin"


def arguments(text: str, *, policies: str = POLICIES, seeds: int = 10) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", type=Path, default=PAPER)
    parser.add_argument("--curves", type=Path, action="append", default=[])
    parser.add_argument("--number", type=int, help="jobs, in place of the workload's")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--load", type=float)
    parser.add_argument("--policies", default=policies)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("evaluation"))
    parser.add_argument("--keep", type=Path, help="directory of finished simulations")
    return parser


def workload_of(asked: argparse.Namespace, **changes: Any) -> Workload:
    """The workload that was asked for, with further changes."""
    given = {"workers": asked.workers, "load": asked.load, "number": asked.number, **changes}
    return with_changes(read_workload(asked.workload), curves=asked.curves, **given)


def run(asked: argparse.Namespace, workload: Workload) -> list[dict[str, Any]]:
    """All policies on all seeds; goes on where it stopped."""
    policies = [PolicyChoice.parse(text).text for text in asked.policies.split(",")]
    tasks = [Task(policy, seed) for seed in range(asked.seeds) for policy in policies]
    count = 0

    def show(task: Task) -> None:
        nonlocal count
        count += 1
        print(f"  {count}/{len(tasks)} {task.policy} seed {task.seed}", flush=True)

    keep = asked.keep or asked.out / "simulations"
    return run_tasks(workload, tasks, processes=asked.processes, keep_in=keep, on_done=show)


def means(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """`compare` of the results."""
    return compare(results)


def write(asked: argparse.Namespace, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The table as CSV and as JSON."""
    asked.out.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (asked.out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    (asked.out / f"{name}.json").write_text(json.dumps([_plain(row) for row in rows], indent=1))
    print(f"{asked.out / name}.csv, .json")


def figure(asked: argparse.Namespace, name: str, title: str, x: str, y: str):
    """A context manager that yields axes and saves the figure."""
    from contextlib import contextmanager

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    @contextmanager
    def drawing():
        drawn, axes = pyplot.subplots(figsize=(7.0, 4.2), layout="constrained")
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.grid(alpha=0.3)
        yield axes
        if axes.get_yscale() == "log":
            plain = ticker.FuncFormatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(plain)
            axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        if axes.get_legend_handles_labels()[0] and axes.get_legend() is None:
            axes.legend(frameon=False)
        asked.out.mkdir(parents=True, exist_ok=True)
        drawn.savefig(asked.out / f"{name}.png", dpi=130)
        pyplot.close(drawn)
        print(asked.out / f"{name}.png")

    return drawing()


def mean_curve(curves: Iterable[Sequence[float]]) -> list[float]:
    """The mean over the seeds at each point, of what is known there."""
    points = []
    for values in zip(*curves, strict=True):
        known = [value for value in values if value is not None and value == value]
        points.append(sum(known) / len(known) if known else math.nan)
    return points


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
