#!/usr/bin/env python3
"""How well are the drops of recorded losses predicted, 1, 5 and 10 iterations ahead?

For every curve, from iteration 6 on, with only the losses seen so far: the sum of |predicted -
true drop| over the sum of true drops. Predictors: SLAQ's weighted fits (`slaq`), and ours (`drop`,
behind `quality`) with the share of outcomes inside its stated 80 % interval.

    python scripts/evaluation/prediction_error.py [--curves DIR]
"""

from __future__ import annotations

import common
import numpy as np

from hpcslaq.predict.replay import replay_losses
from hpcslaq.sim.curves import read_curves, recorded_curves

AHEAD = (1, 5, 10)
PREDICTORS = ("drop", "slaq")


def main() -> None:
    asked = common.arguments(__doc__).parse_args()
    curves = {} if asked.curves else dict(recorded_curves())
    for path in asked.curves:
        curves.update(read_curves(path))
    rows = []
    for name, curve in curves.items():
        row: dict[str, object] = {"curve": name, "iterations": int(curve.losses.size)}
        for predictor in PREDICTORS:
            found = replay_losses(
                curve.losses.tolist(), AHEAD, predictor=predictor, convergence=curve.convergence
            )
            for errors in found:
                row[f"{predictor}_{errors.horizon}"] = errors.weighted_drop_error
                if errors.coverage_80 is not None:
                    row[f"coverage_{errors.horizon}"] = errors.coverage_80
        rows.append(row)
        print(row, flush=True)
    keys = [key for key in rows[0] if key not in ("curve", "iterations")]
    mean = {key: float(np.mean([r[key] for r in rows if r[key] is not None])) for key in keys}
    rows.append({"curve": "mean", **mean})
    print(rows[-1])
    common.write(asked, "prediction_error", rows)
    title = "Error of the predicted drop over 10 iterations"
    with common.figure(asked, "prediction_error", title, "", "sum |error| / sum of drops") as axes:
        at = np.arange(len(rows))
        for shift, predictor in zip((-0.2, 0.2), PREDICTORS, strict=True):
            heights = [row[f"{predictor}_10"] or 0.0 for row in rows]
            axes.bar(at + shift, heights, 0.4, label=predictor)
        axes.set_xticks(at, [row["curve"] for row in rows], rotation=60, ha="right", fontsize=7)


if __name__ == "__main__":
    main()
