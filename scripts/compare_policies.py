#!/usr/bin/env python3
"""Time to a given share of the loss reduction under several policies, on real ranks.

Runs the jobs of jobs/compare.toml once under each policy per repetition and compares within
each repetition: one after the other in an order that rotates (A B C, B C A, ...), or, with
--together, all at once. On a machine that others use too, whose speed changes from one minute to
the next, only runs at the same time have the same speed; they slow each other down evenly,
as each has the same number of ranks. Losses do not depend on the allocation, so every run of a
job has the same first and best loss, and a share is reached at the same iteration.

Per run and share: the mean over jobs of the seconds from arrival until the loss has fallen by
that share of (first - best). In addition the same on the run's own work clock, which a change of
the machine's speed does not touch: the share of all iterations' work (each job's counted with
its mean cost over all runs) that the run had done since the job's arrival.

    python scripts/compare_policies.py [--repetitions 5] [--out FOLDER] [--policies quality ...]

FOLDER/compare.csv has a line per run and job, FOLDER/compare.json the tables. Runs that are
there already are not repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcslaq.record.codec import Kind
from hpcslaq.record.journal import read_journal
from hpcslaq.record.summary import RunSummary
from hpcslaq.sim.metrics import FRACTIONS, Track, average_quality_loss, tracks_of

JOB_FILE = Path(__file__).resolve().parents[1] / "jobs" / "compare.toml"
#: Runs are compared on the loss averaged from the first arrival to this time, s.
HORIZON_S = 30.0


@dataclass
class Run:
    """One live run."""

    policy: str
    repetition: int
    tracks: list[Track]
    #: Rank-seconds of computing by job.
    work_s: dict[str, float]
    regroups: int
    end_s: float


def main() -> None:
    """Run in turn, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", nargs="+", default=["fair", "slaq", "quality"])
    parser.add_argument("--baseline", default="fair")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--together", action="store_true", help="all policies at the same time")
    parser.add_argument("--job-file", type=Path, default=JOB_FILE)
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    asked = parser.parse_args()
    runs = []
    for repetition in range(asked.repetitions):
        turn = repetition % len(asked.policies)
        order = asked.policies[turn:] + asked.policies[:turn]
        folders = {policy: asked.out / f"{policy}-{repetition}" for policy in order}
        missing = {p: f for p, f in folders.items() if not is_finished(f)}
        if asked.together and 0 < len(missing) < len(folders):
            there = ", ".join(str(f) for f in folders.values() if f not in missing.values())
            sys.exit(f"{there}: ran at another time than the rest; remove them first")
        for some in [missing] if asked.together else [{p: f} for p, f in missing.items()]:
            _launch(asked.job_file, some)
        for policy, folder in folders.items():
            runs.append(read_run(folder, policy, repetition))
            times = "  ".join(f"{s:6.2f}" for s in mean_times(runs[-1]).values())
            print(f"{repetition} {policy:8} {times}  end {runs[-1].end_s:5.1f} s", flush=True)
    table = tabulate(runs, asked.policies, asked.baseline)
    write_csv(asked.out / "compare.csv", runs)
    (asked.out / "compare.json").write_text(json.dumps(table, indent=1) + "\n")
    print("\n" + as_text(table))


def is_finished(folder: Path) -> bool:
    """Whether the run is there; exits where it stopped early, as a resumed one lost time."""
    if not folder.exists():
        return False
    result = folder / "result.json"
    if result.exists() and json.loads(result.read_text())["exit_code"] == 0:
        return True
    return sys.exit(f"{folder}: holds an unfinished run; remove it first")


def _launch(job_file: Path, folders: dict[str, Path]) -> None:
    """Run the jobs under each of these policies, at the same time."""
    started = {}
    for policy, folder in folders.items():
        line = [sys.executable, "-m", "hpcslaq", "run", str(job_file), "--policy", policy]
        started[policy] = subprocess.Popen(
            [*line, "--quiet", "--out", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    for policy, process in started.items():
        output, _ = process.communicate(timeout=1200)
        if process.returncode != 0:
            sys.exit(f"{folders[policy]}: exit code {process.returncode}\n{output}")


def read_run(folder: Path, policy: str, repetition: int) -> Run:
    """What a finished run's journal says."""
    entries = list(read_journal(folder / "journal.jsonl"))
    summary = RunSummary()
    summary.fold_all(entries)
    tracks = tracks_of([(e.now, e.item, ()) for e in entries if e.kind is Kind.EVENT])
    return Run(
        policy,
        repetition,
        tracks,
        {name: job.usage_s.get("compute", 0.0) for name, job in summary.jobs.items()},
        sum(job.regroups for job in summary.jobs.values()),
        summary.wall_s,
    )


def mean_times(run: Run) -> dict[float, float]:
    """Mean over jobs of the seconds to each share of the loss reduction."""
    return {f: statistics.fmean(t.time_to(f) for t in run.tracks) for f in FRACTIONS}


def mean_work(run: Run, cost: dict[str, float]) -> dict[float, float]:
    """The same on the work clock, as a share of the run's whole work.

    cost : mean compute seconds of one iteration by job.
    """
    ends = np.concatenate([track.times for track in run.tracks])
    costs = np.concatenate([np.full(len(t.times), cost[t.name]) for t in run.tracks])
    order = np.argsort(ends, kind="stable")
    clock = np.concatenate([[0.0], np.cumsum(costs[order])])
    clock /= clock[-1]
    at = np.concatenate([[0.0], ends[order]])

    def passed(track: Track, fraction: float) -> float:
        begin, end = track.arrived_at, track.arrived_at + track.time_to(fraction)
        return float(np.interp(end, at, clock) - np.interp(begin, at, clock))

    return {f: statistics.fmean(passed(t, f) for t in run.tracks) for f in FRACTIONS}


def tabulate(runs: list[Run], policies: list[str], baseline: str) -> dict[str, object]:
    """Medians by policy, and medians of the ratios to the baseline of the same repetition."""
    totals: dict[str, list[float]] = {}
    for run in runs:
        for track in run.tracks:
            totals.setdefault(track.name, []).append(run.work_s[track.name] / len(track.times))
    cost = {name: statistics.fmean(values) for name, values in totals.items()}
    figures = {
        (run.policy, run.repetition): {
            "seconds": mean_times(run),
            "work": mean_work(run, cost),
            "loss": {"mean": average_quality_loss(run.tracks, HORIZON_S)},
            "other": {"end_s": run.end_s, "regroups": run.regroups},
        }
        for run in runs
    }
    repetitions = sorted({run.repetition for run in runs})
    table: dict[str, object] = {"repetitions": len(repetitions), "baseline": baseline}
    for policy in policies:
        rows: dict[str, object] = {}
        for kind in ("seconds", "work", "loss", "other"):
            for key in figures[policy, repetitions[0]][kind]:
                mine = [figures[policy, r][kind][key] for r in repetitions]
                theirs = [figures[baseline, r][kind][key] for r in repetitions]
                ratios = [a / b for a, b in zip(mine, theirs, strict=True) if b]
                rows[f"{kind}:{key}"] = {
                    "median": statistics.median(mine),
                    "ratio_median": statistics.median(ratios) if ratios else None,
                    "ratio_min": min(ratios, default=None),
                    "ratio_max": max(ratios, default=None),
                    "values": mine,
                }
        table[policy] = rows
    return table


def as_text(table: dict[str, object]) -> str:
    """The table for people."""
    lines = []
    policies = [name for name in table if isinstance(table[name], dict)]
    for policy in policies:
        lines.append(f"{policy} (median; median ratio to {table['baseline']}, its range)")
        for key, row in table[policy].items():  # type: ignore[attr-defined]
            if row["ratio_median"] is not None:
                lines.append(
                    f"  {key:14} {row['median']:9.4g}   {row['ratio_median']:.3f}  "
                    f"({row['ratio_min']:.3f} - {row['ratio_max']:.3f})"
                )
    return "\n".join(lines)


def write_csv(path: Path, runs: list[Run]) -> None:
    """One line per run and job."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        shares = [f"seconds_to_{round(100 * f)}" for f in FRACTIONS]
        writer.writerow(["repetition", "policy", "job", "arrived_at", *shares, "ended_at"])
        for run in runs:
            for track in run.tracks:
                times = [track.arrived_at, *map(track.time_to, FRACTIONS), track.ended_at or 0.0]
                figures = [f"{value:.3f}" for value in times]
                writer.writerow([run.repetition, run.policy, track.name, *figures])


if __name__ == "__main__":
    main()
