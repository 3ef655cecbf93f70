#!/usr/bin/env python3
"""From underload to overload: when does the choice of the policy matter?

Writes load_sweep.csv/json and two figures: quality and time to 90 % against the load.

    python scripts/evaluation/load_sweep.py [--loads 0.25,0.5,0.8,1.0,1.5] [--seeds 10]
"""

from __future__ import annotations

import common

SHOWN = (
    ("mean_normalised_loss", "Mean normalised loss of all arrived jobs", "normalised loss"),
    ("mean_time_to_90", "Mean time to 90 % of the loss reduction", "s"),
    ("mean_time_to_95", "Mean time to 95 % of the loss reduction", "s"),
)


def main() -> None:
    parser = common.arguments(__doc__, policies="fair,slaq,quality,oracle-quality")
    parser.add_argument("--loads", default="0.25,0.5,0.8,1.0,1.5")
    asked = parser.parse_args()
    loads = [float(text) for text in asked.loads.split(",")]
    rows = []
    for load in loads:
        print(f"load {load}", flush=True)
        table = common.means(common.run(asked, common.workload_of(asked, load=load)))
        for policy, cells in table.items():
            row: dict[str, object] = {"load": load, "policy": policy}
            for key in (*(name for name, _, _ in SHOWN), "mean_jct_s", "num_orders"):
                row.update({f"{key}_{part}": value for part, value in cells[key].items()})
            rows.append(row)
        common.write(asked, "load_sweep", rows)
    for key, title, unit in SHOWN:
        with common.figure(asked, f"load_{key}", title, "load", unit) as axes:
            for policy in dict.fromkeys(row["policy"] for row in rows):
                mine = [row for row in rows if row["policy"] == policy]
                values = [row[f"{key}_mean"] for row in mine]
                axes.plot([row["load"] for row in mine], values, marker="o", label=policy)
            axes.set_yscale("log")


if __name__ == "__main__":
    main()
