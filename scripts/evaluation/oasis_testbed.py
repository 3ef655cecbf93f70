"""The live testbed: jobs/oasis.toml under each policy, one run after the other.

    python scripts/evaluation/oasis_testbed.py --out runs/oasis-testbed --ranks 7

For each policy: utility, jobs that are done, refused or late, makespan; and, for those of the OASiS
family, the bound, the certified ratio, and by how many slots jobs ended after their promise.
Runs that are there already are only read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

JOBS = Path(__file__).resolve().parents[2] / "jobs" / "oasis.toml"
POLICIES = ("oasis", "oasis-elastic", "srtf", "edf", "fifo", "fair", "elasticflow")


def main() -> None:
    """Run what is missing, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--jobs", type=Path, default=JOBS)
    parser.add_argument("--ranks", type=int, default=7)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    options = parser.parse_args()
    rows = [_row(policy, _report(options, policy)) for policy in options.policies]
    write("| policy | utility | of peak | done | refused | latest | bound | ratio | makespan |")
    write("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        write("| " + " | ".join(row) + " |")


def _report(options: argparse.Namespace, policy: str) -> dict[str, Any]:
    """The report of the policy's run, which is made if it is not there."""
    run = options.out / policy
    command = [sys.executable, "-m", "hpcslaq"]
    if not (run / "result.json").exists():
        started = [*command, "run", str(options.jobs), "--ranks", str(options.ranks)]
        started += ["--policy", policy, "--out", str(run), "--quiet"]
        subprocess.run(started, check=True, stdout=subprocess.DEVNULL)
    read = [*command, "report", str(run), "--no-html", "--json"]
    found = subprocess.run(read, check=True, capture_output=True, text=True).stdout
    report: dict[str, Any] = json.loads(found)
    return report


def _row(policy: str, report: dict[str, Any]) -> list[str]:
    jobs, oasis = report["jobs"], report["oasis"]
    states = [job["state"] for job in jobs]
    utility = sum(job["utility"] or 0.0 for job in jobs)
    peak = sum(_peak(job) for job in jobs)
    late = bound = ratio = "-"
    if oasis is not None:
        ends = [job["late_slots"] for job in oasis["jobs"] if job["late_slots"] is not None]
        late = f"{max(ends, default=0):+d} slots"
        bound, ratio = f"{oasis['bound']:.0f}", f"{oasis['certified_ratio']:.2f}"
    return [
        f"`{policy}`",
        f"{utility:.0f}",
        f"{100 * utility / peak:.0f} %" if peak else "-",
        str(states.count("done")),
        str(states.count("rejected")),
        late,
        bound,
        ratio,
        f"{report['run']['makespan_s']:.0f} s",
    ]


def _peak(job: dict[str, Any]) -> float:
    return float(job.get("peak_utility") or 0.0)


def write(line: str) -> None:
    """One line on standard output."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
