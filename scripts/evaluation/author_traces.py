#!/usr/bin/env python3
"""Our predictors, and SLAQ's published method, on loss traces that SLAQ's authors recorded.

    python scripts/evaluation/author_traces.py FOLDER [--published] [--starts 1 0.5 2]

FOLDER holds gbt.txt, lda.txt and so on, one loss per line: the files plotting/NAME/losses.txt of
the public repository andrewor14/spark, branch andrew-as, commit 1d5261910b. Without options: the
errors ten iterations ahead of `drop` and `slaq`, as `hpcslaq predict` computes them.

With --published also the authors' own table (plotting/prediction_error_all.dat, same commit)
beside what their method gives here: it takes minutes, since their solver is slow. --starts
repeats it with the solver started from other values, which shows how far an entry is defined.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from hpcslaq.core.jobs import Convergence
from hpcslaq.predict.curves import MIN_POINTS
from hpcslaq.predict.published import published_drops
from hpcslaq.predict.replay import parse_losses, replay_losses

AHEAD = (1, 5, 10)
SUB, SUPER = Convergence.SUBLINEAR, Convergence.SUPERLINEAR
#: Family of each trace in the authors' evaluation.
FAMILIES = {"gbt": SUB, "lda": SUB, "linreg0.1": SUPER, "mlpc": SUPER, "svm-epsilon": SUB}
#: The authors' table: for each of AHEAD the last-delta rule, the unweighted and the weighted fit.
PUBLISHED = {
    "gbt": ((0.00016, 0.0021, 0.0023), (0.0012, 0.0025, 0.0023), (0.0042, 0.0041, 0.0035)),
    "lda": ((0.00003, 0.00011, 0.00007), (0.00032, 0.00024, 0.00016), (0.0012, 0.00047, 0.00039)),
    "linreg0.1": ((0.00007, 0.011, 0.0001), (0.0024, 0.014, 0.0007), (0.011, 0.018, 0.0018)),
    "mlpc": ((0.0058, 0.463, 0.014), (0.032, 0.527, 0.041), (0.115, 0.609, 0.085)),
    "svm-epsilon": ((0.00016, 0.0090, 0.0012), (0.0029, 0.012, 0.0028), (0.012, 0.017, 0.0060)),
}
COLUMNS = ("last delta", "unweighted fit", "weighted fit")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--starts", type=float, nargs="+", default=[1.0])
    asked = parser.parse_args()
    traces = {
        name: np.array(parse_losses((asked.folder / f"{name}.txt").read_text(), name))
        for name in FAMILIES
        if (asked.folder / f"{name}.txt").exists()
    }
    ten_ahead(traces)
    if asked.published:
        for name, loss in traces.items():
            published_table(name, loss, asked.starts)


def ten_ahead(traces: dict[str, np.ndarray]) -> None:
    """The table of our two predictors."""
    print("| trace | predictor | relative error | weighted drop error | median | holds |")
    print("|---|---|---|---|---|---|")
    for name, loss in traces.items():
        for predictor in ("drop", "slaq"):
            found = replay_losses(
                loss.tolist(), [10], predictor=predictor, convergence=FAMILIES[name]
            )[0]
            holds = "-" if found.coverage_80 is None else f"{found.coverage_80:.2f}"
            print(
                f"| {name} | {predictor} | {found.mean_relative_error:.2g} | "
                f"{found.weighted_drop_error:.3f} | {found.median_drop_error:.2g} | {holds} |"
            )


def published_table(name: str, loss: np.ndarray, starts: list[float]) -> None:
    """One trace of the authors' table: published, and their method run here."""
    ahead = np.arange(1.0, max(AHEAD) + 1.0)
    last = np.full((len(loss), len(ahead)), np.nan)
    for num in range(MIN_POINTS, len(loss) + 1):
        last[num - 1] = (loss[num - 2] - loss[num - 1]) * ahead
    runs: dict[str, list[np.ndarray]] = {COLUMNS[0]: [last]}
    for column, decay in zip(COLUMNS[1:], (1.0, 0.8), strict=True):
        for start in starts:
            drops, restarts = published_drops(FAMILIES[name], loss, ahead, decay=decay, start=start)
            runs.setdefault(column, []).append(drops)
            print(f"{name}, {column}, start {start:g}: {restarts} of {len(loss) - 4} restarted")
    for index, horizon in enumerate(AHEAD):
        cells = []
        for position, column in enumerate(COLUMNS):
            theirs = PUBLISHED[name][index][position]
            ours = [authors_error(loss, drops, horizon) for drops in runs[column]]
            cells.append(f"{theirs:.2g} | {' / '.join(f'{error:.2g}' for error in ours)}")
        print(f"| {name} | {horizon} | {' | '.join(cells)} |", flush=True)


def authors_error(loss: np.ndarray, drops: np.ndarray, horizon: int) -> float:
    """Mean relative error as the authors' plotting script counts it.

    Every iteration with a prediction counts; where none was made `horizon` iterations before, the
    oldest one does. The worst 1 % (above the 99th percentile) are left out.
    """
    errors = []
    for now in range(MIN_POINTS, len(loss)):
        ahead = min(horizon, now + 1 - MIN_POINTS)
        said = loss[now - ahead] - drops[now - ahead, ahead - 1]
        if np.isfinite(said):
            errors.append(abs(said - loss[now]) / abs(loss[now]))
    kept = np.array(errors)
    return float(kept[kept <= np.percentile(kept, 99)].mean())


if __name__ == "__main__":
    main()
