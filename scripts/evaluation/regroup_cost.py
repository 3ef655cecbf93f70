#!/usr/bin/env python3
"""What do regroups cost, and how long should a round be?

Varies the seconds that a change of a group takes, and the length of the round, one at a time.

    python scripts/evaluation/regroup_cost.py [--costs 0,0.05,1,5,15] [--rounds 1,3,10,30]
"""

from __future__ import annotations

from dataclasses import replace

import common

from hpcslaq.sim.scaling import Delays


def main() -> None:
    parser = common.arguments(__doc__, policies="fair,slaq,quality", seeds=5)
    parser.add_argument("--costs", default="0,0.05,1,5,15")
    parser.add_argument("--rounds", default="1,3,10,30")
    asked = parser.parse_args()
    base = common.workload_of(asked)
    rows = []
    for key, values in (("cost", asked.costs), ("round", asked.rounds)):
        for text in values.split(","):
            value = float(text)
            print(f"{key} {value} s", flush=True)
            if key == "cost":
                changed = replace(base, delays=Delays(form_s=value, form_per_member_s=0.0))
            else:
                changed = replace(base, shape=replace(base.shape, round_s=value))
            document = {**base.document, f"varied_{key}": value}
            results = common.run(asked, replace(changed, document=document))
            for policy, cells in common.means(results).items():
                figures = {
                    f"{name}_{part}": cells[name][part]
                    for name in ("mean_normalised_loss", "mean_time_to_90", "num_orders")
                    for part in ("mean", "low", "high")
                }
                rows.append({"varied": key, "seconds": value, "policy": policy, **figures})
            common.write(asked, "regroup_cost", rows)
    for key, words in (("cost", "seconds per regroup"), ("round", "round, s")):
        title = "Mean time to 90 % of the loss reduction"
        with common.figure(asked, f"regroup_{key}", title, words, "s") as axes:
            for policy in dict.fromkeys(row["policy"] for row in rows):
                mine = [r for r in rows if r["policy"] == policy and r["varied"] == key]
                times = [r["mean_time_to_90_mean"] for r in mine]
                axes.plot([r["seconds"] for r in mine], times, marker="o", label=policy)
            axes.set_xscale("symlog", linthresh=0.1)


if __name__ == "__main__":
    main()
