#!/usr/bin/env python3
"""Both predictors on validation curves: noisy, not monotone, one point per epoch.

    python scripts/evaluation/validation_curves.py FOLDER [--ahead 10]

FOLDER holds APP/validation-BATCH.csv with a column `metric`: the curves that Pollux was simulated
with (github.com/petuum/adaptdl, branch osdi21-artifact, simulator/traces). Accuracies, F1 and hit
rates become the share that is missed; word error rates and losses stay as they are. Per
application: mean over its curves of sum of |predicted - true drop| over the sum of true drops,
predictions below zero counted as zero; SLAQ's fit with the better of its families for each curve.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path

from hpcslaq.core.jobs import Convergence
from hpcslaq.predict.replay import replay_losses

#: The best value of metrics that rise; the others fall.
BEST = {"bert": 100.0, "cifar10": 1.0, "imagenet": 1.0, "ncf": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ahead", type=int, default=10)
    asked = parser.parse_args()
    totals: dict[str, list[float]] = {"drop": [], "slaq": []}
    print("| application | curves | drop | slaq | holds |")
    print("|---|---|---|---|---|")
    for folder in sorted(path for path in asked.folder.iterdir() if path.is_dir()):
        ours, theirs, holds = [], [], []
        for path in sorted(folder.glob("validation-*.csv")):
            losses = read(path)
            drop = replay_losses(losses, [asked.ahead])[0]
            fits = [
                replay_losses(losses, [asked.ahead], predictor="slaq", convergence=family)[0]
                for family in Convergence
            ]
            errors = [fit.weighted_drop_error for fit in fits]
            if drop.weighted_drop_error is None or drop.coverage_80 is None:
                continue  # too short, or the loss does not fall on the whole
            ours.append(drop.weighted_drop_error)
            holds.append(drop.coverage_80)
            theirs.append(min(error for error in errors if error is not None))
        if ours:
            totals["drop"] += ours
            totals["slaq"] += theirs
            print(
                f"| {folder.name} | {len(ours)} | {statistics.fmean(ours):.3f} | "
                f"{statistics.fmean(theirs):.3f} | {statistics.fmean(holds):.2f} |",
                flush=True,
            )
    means = [statistics.fmean(totals[key]) for key in ("drop", "slaq")]
    print(f"| all | {len(totals['drop'])} | {means[0]:.3f} | {means[1]:.3f} | |")


def read(path: Path) -> list[float]:
    """The metric as a loss, one value per epoch."""
    best = BEST.get(path.parent.name)
    with path.open(newline="") as file:
        metric = [float(row["metric"]) for row in csv.DictReader(file)]
    return metric if best is None else [best - value for value in metric]


if __name__ == "__main__":
    main()
