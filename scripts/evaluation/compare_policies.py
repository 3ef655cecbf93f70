#!/usr/bin/env python3
"""Which policy gives better models sooner? All policies on the paper's 160 jobs and 640 workers.

Writes policies.csv/json (means over seeds, 95 % intervals, paired changes against the first
policy), quality over time, times to 50-99 % of the loss reduction, core shares by loss group.

    python scripts/evaluation/compare_policies.py [--seeds 10] [--processes 2] [--load 0.8]
"""

from __future__ import annotations

import common

FRACTIONS = (50, 80, 90, 95, 99)


def main() -> None:
    asked = common.arguments(__doc__).parse_args()
    workload = common.workload_of(asked)
    results = common.run(asked, workload)
    table = common.means(results)
    rows = []
    for policy, cells in table.items():
        for figure, cell in cells.items():
            rows.append({"policy": policy, "figure": figure, **cell})
    common.write(asked, "policies", rows)
    by_policy = {p: [r for r in results if r["policy"] == p] for p in table}
    draw_quality(asked, by_policy)
    draw_times(asked, table)
    draw_shares(asked, by_policy)


def draw_quality(asked, by_policy) -> None:
    for key, words in (("all", "all jobs that have arrived"), ("live", "live jobs")):
        title = f"Mean normalised loss of {words}"
        with common.figure(asked, f"quality_{key}", title, "time, s", "normalised loss") as axes:
            for policy, runs in by_policy.items():
                at = common.mean_curve(run["quality"]["at_s"] for run in runs)
                axes.plot(at, common.mean_curve(r["quality"][key] for r in runs), label=policy)
            axes.set_yscale("log")
            axes.set_ylim(bottom=5e-3)


def draw_times(asked, table) -> None:
    title = "Mean time to a share of the loss reduction"
    with common.figure(asked, "time_to", title, "share of the reduction, %", "s") as axes:
        for policy, cells in table.items():
            times = [cells[f"mean_time_to_{f}"]["mean"] for f in FRACTIONS]
            axes.plot([str(f) for f in FRACTIONS], times, marker="o", label=policy)
        axes.set_yscale("log")


def draw_shares(asked, by_policy) -> None:
    rows = []
    for policy, runs in by_policy.items():
        shares = {
            group: common.mean_curve([[run["shares"][group]] for run in runs])[0]
            for group in ("high", "middle", "low")
        }
        rows.append({"policy": policy, **shares})
    common.write(asked, "shares", rows)
    title = "Workers by loss: highest quarter, second quarter, lower half of the live jobs"
    with common.figure(asked, "shares", title, "", "share of the workers") as axes:
        bottom = [0.0] * len(rows)
        for group in ("high", "middle", "low"):
            heights = [row[group] for row in rows]
            axes.bar([row["policy"] for row in rows], heights, bottom=bottom, label=group)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axes.set_ylim(0.0, 1.15)
        axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
        axes.legend(frameon=False, ncols=3, loc="upper center")
        axes.tick_params(axis="x", rotation=45)


if __name__ == "__main__":
    main()
