"""Evaluate OASiS in simulation: the tables and figures of the paper's section V, and more.

    python scripts/evaluate_oasis.py --out runs/oasis            # full size, about an hour
    python scripts/evaluate_oasis.py --out runs/oasis --quick    # small, some minutes
    python scripts/evaluate_oasis.py --out runs/all --merge runs/a runs/b    # made in pieces

Tables (CSV and JSON, one row per run, and means in summary.json): utility against jobs,
horizon and servers; lateness of sensitive and critical jobs; ratio to the offline optimum;
mis-estimated U/L; decision time. Each scheduler of the OASiS family knows earlier
workloads of the same kind (other seeds), from which its price bounds are calibrated.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from hpcslaq.policies.oasis.algorithm import Oasis
from hpcslaq.policies.oasis.baselines import Baseline, Dorm, Drf, Edf, Fifo, Rrh, Srtf
from hpcslaq.policies.oasis.calibrate import calibrate
from hpcslaq.policies.oasis.certificate import certify
from hpcslaq.policies.oasis.elastic import ElasticScheduler
from hpcslaq.policies.oasis.evaluate import Scheduler, simulate
from hpcslaq.policies.oasis.instances import (
    JobRanges,
    bursty_arrivals,
    draw_instance,
    poisson_arrivals,
    small_ranges,
)
from hpcslaq.policies.oasis.model import Instance, Job
from hpcslaq.policies.oasis.offline import solve_offline
from hpcslaq.policies.oasis.online import OasisScheduler
from hpcslaq.policies.oasis.prices import paper_bounds
from hpcslaq.policies.oasis.workload import AdmissionLoad, admission_workload

Row = dict[str, object]

#: A policy that lends idle capacity earns most with high prices; low ones are also slow.
LENDING_LOG_RATIOS = (1.0, 1.5, 2.0, 2.5, 3.0)

#: Seeds of earlier workloads, from which price bounds are calibrated, start here.
PAST = 10_000


def main() -> None:
    """Run the chosen tables and write them."""
    options = _options()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
        "jobs": utility_against_jobs,
        "horizon": utility_against_horizon,
        "servers": utility_against_servers,
        "arrivals": utility_against_arrivals,
        "lateness": lateness_against_target,
        "offline": ratio_to_offline,
        "misestimate": misestimated_bounds,
        "time": decision_time,
    }
    summary = {}
    if options.merge:
        for name in tables:
            parts = [part / f"{name}.json" for part in options.merge]
            rows = [row for part in parts if part.exists() for row in json.loads(part.read_text())]
            if rows:
                write(out, name, rows)
                summary[name] = summarise(rows)
    for name in () if options.merge else options.tables or tables:
        rows = []
        for row in tables[name](options):
            rows.append(row)
            say(name, *(f"{k}={_short(v)}" for k, v in row.items()))
        write(out, name, rows)
        summary[name] = summarise(rows)
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    draw(out, summary)


def utility_against_jobs(options: argparse.Namespace) -> Iterator[Row]:
    """T = 300, H = K = 50, 100-400 jobs."""
    for num_jobs in options.loads:
        yield from _compare(options, "num_jobs", num_jobs, num_jobs=num_jobs, horizon=300)


def utility_against_horizon(options: argparse.Namespace) -> Iterator[Row]:
    """200 jobs, T = 100-300."""
    for horizon in (100, 200, 300):
        yield from _compare(options, "horizon", horizon, num_jobs=200, horizon=horizon)


def utility_against_servers(options: argparse.Namespace) -> Iterator[Row]:
    """200 jobs, T = 300, H = K = 25-75."""
    for hosts in (25, 50, 75):
        yield from _compare(
            options, "hosts", hosts, num_jobs=200, horizon=300, num_workers=hosts, num_servers=hosts
        )


def utility_against_arrivals(options: argparse.Namespace) -> Iterator[Row]:
    """300 jobs, T = 300: bursts or a Poisson process; ps, half of each, or all-reduce jobs."""
    for name, draw in (("bursts", bursty_arrivals), ("poisson", poisson_arrivals)):
        for share in (0.0, 0.5, 1.0):
            ranges = JobRanges(allreduce_share=share)
            yield from _compare(
                options,
                "mix",
                f"{name}, {share:.0%} all-reduce",
                num_jobs=300,
                horizon=300,
                ranges=ranges,
                draw_arrivals=draw,
            )


def lateness_against_target(options: argparse.Namespace) -> Iterator[Row]:
    """100 time-sensitive and 100 time-critical jobs, T = 100: end minus target in slots."""
    shape = {
        "num_jobs": 200,
        "horizon": 100,
        "ranges": JobRanges(sensitivity=(0.0, 0.5, 0.5)),
    }
    schedulers = _schedulers(options, **shape)
    for seed in range(options.seeds):
        instance = draw_instance(np.random.default_rng(seed), **shape)
        for scheduler in schedulers:
            result = simulate(instance, scheduler, np.random.default_rng(seed))
            for is_critical in (False, True):
                late = result.lateness(instance.horizon, is_critical)
                for value in late:
                    yield {
                        "kind": "critical" if is_critical else "sensitive",
                        "scheduler": scheduler.name,
                        "seed": seed,
                        "lateness": value,
                    }


def ratio_to_offline(options: argparse.Namespace) -> Iterator[Row]:
    """10 jobs, T = 10, 3-12 servers: offline optimum (or its bound) over what OASiS earns."""
    for servers in (3, 6, 9, 12):
        size = {"num_workers": 2 * servers // 3, "num_servers": servers // 3}
        shape = {"num_jobs": 10, "horizon": 10, "ranges": small_ranges(), **size}
        past = [draw_instance(np.random.default_rng(PAST + i), **shape) for i in range(20)]
        rule = calibrate(past, quantiles=(0.8, 0.9, 1.0))
        for seed in range(options.offline_seeds):
            instance = draw_instance(np.random.default_rng(seed), **shape)
            offline = solve_offline(instance, time_limit_s=options.time_limit, gap=1e-3)
            run = _earn(instance, rule, _jobs(past))
            literal = _earn(instance, paper_bounds, instance.jobs)
            yield {
                "servers": servers,
                "scheduler": "oasis",
                "seed": seed,
                "utility": run.utility,
                "optimum": offline.value,
                "bound": offline.bound,
                "is_optimal": offline.is_optimal,
                "ratio": offline.bound / run.utility if run.utility else float("inf"),
                "ratio_papers_prices": offline.bound / max(literal.utility, 1e-9),
                "promised": 2 * literal.ledger.bounds.alpha,
            }


def misestimated_bounds(options: argparse.Namespace) -> Iterator[Row]:
    """U / L at 20-1000 % of the calibrated value, 100 and 400 jobs."""
    for num_jobs in (100, 400):
        past = _past(options, num_jobs=num_jobs, horizon=300)
        rule, jobs = calibrate(past), _jobs(past)
        for seed in range(options.seeds):
            instance = draw_instance(np.random.default_rng(seed), num_jobs=num_jobs, horizon=300)
            for factor in (0.2, 0.5, 1.0, 3.0, 5.0, 10.0):
                scheduler = OasisScheduler(jobs, rule, factor)
                result = simulate(instance, scheduler, np.random.default_rng(seed))
                yield {
                    "num_jobs": num_jobs,
                    "factor": factor,
                    "scheduler": "oasis",
                    "seed": seed,
                    "utility": result.utility,
                }


def decision_time(options: argparse.Namespace) -> Iterator[Row]:
    """CPU seconds per admission at T = 300, H = K = 50, R = 4, W up to 1,200."""
    for share in (0.0, 1.0):
        for is_hard in (False, True):
            load = AdmissionLoad(allreduce_share=share, is_hard=is_hard)
            oasis, jobs = admission_workload(np.random.default_rng(1), load)
            seconds = []
            for job in jobs:
                start = time.process_time()
                oasis.offer(job)
                seconds.append(time.process_time() - start)
            yield {
                "kind": "allreduce" if share else "ps",
                "is_hard": is_hard,
                "scheduler": "oasis",
                "median_s": float(np.median(seconds)),
                "p99_s": float(np.percentile(seconds, 99)),
                "max_s": max(seconds),
            }


def _compare(
    options: argparse.Namespace, key: str, value: object, **shape: object
) -> Iterator[Row]:
    """Every scheduler on every seed of one shape, with the certificate of the OASiS run."""
    schedulers = _schedulers(options, **shape)
    for seed in range(options.seeds):
        instance = _draw(seed, **shape)
        family = schedulers[0]
        assert isinstance(family, OasisScheduler)
        run = _earn(instance, family.bounds_rule, family.history)
        certificate = certify(run.ledger, instance.jobs, run.utility, options.iterations)
        for scheduler in schedulers:
            start = time.process_time()
            result = simulate(instance, scheduler, np.random.default_rng(seed))
            yield {
                key: value,
                "scheduler": scheduler.name,
                "seed": seed,
                "utility": result.utility,
                "admitted": result.num_admitted,
                "unfinished": result.num_unfinished,
                "changes": sum(outcome.changes for outcome in result.outcomes),
                "bound": certificate.bound,
                "certified_ratio": certificate.bound / max(result.utility, 1e-9),
                "promised_ratio": certificate.promised_ratio,
                "cpu_s": time.process_time() - start,
            }


def _schedulers(options: argparse.Namespace, **shape: object) -> list[Scheduler]:
    """All schedulers; those of the OASiS family are calibrated on earlier workloads."""
    past = _past(options, **shape)
    jobs = _jobs(past)
    schedulers: list[Scheduler] = [
        OasisScheduler(jobs, calibrate(past)),
        ElasticScheduler(
            jobs, calibrate(past, make=ElasticScheduler, log_ratios=LENDING_LOG_RATIOS)
        ),
        OasisScheduler(jobs, paper_bounds, name="oasis-papers-prices"),
    ]
    rules = [Fifo(), Drf(), Rrh(), Srtf(), Edf()]
    schedulers += [Baseline(rule) for rule in rules]
    if not options.without_dorm:
        schedulers.append(Baseline(Dorm()))
    return schedulers


def _past(options: argparse.Namespace, **shape: object) -> list[Instance]:
    seeds = range(PAST, PAST + options.past)
    return [_draw(seed, **shape) for seed in seeds]


def _draw(seed: int, draw_arrivals: Callable | None = None, **shape: object) -> Instance:
    """An instance; its arrivals are bursty unless another process is given."""
    rng = np.random.default_rng(seed)
    if draw_arrivals is not None:
        shape["arrivals"] = draw_arrivals(rng, shape["num_jobs"], shape["horizon"])
    return draw_instance(rng, **shape)


def _jobs(past: list[Instance]) -> tuple[Job, ...]:
    return tuple(job for instance in past for job in instance.jobs)


def _earn(instance: Instance, rule: Callable, history: Sequence[Job]) -> Oasis:
    """Algorithm 1 on an instance, with price bounds from the jobs of `history`."""
    bounds = rule(history, instance.cluster, instance.horizon)
    run = Oasis(instance.cluster, instance.horizon, bounds)
    for job in instance.jobs:
        run.offer(job)
    return run


def write(out: Path, name: str, rows: list[Row]) -> None:
    """One table as CSV and JSON."""
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (out / f"{name}.json").write_text(json.dumps(rows, indent=1))


def summarise(rows: list[Row]) -> list[Row]:
    """Means over the seeds (medians too, of lateness and ratios), by all other keys."""
    keys = [k for k in rows[0] if isinstance(rows[0][k], (str, bool)) and k != "is_optimal"]
    keys += [k for k in ("num_jobs", "horizon", "hosts", "servers", "factor") if k in rows[0]]
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[k] for k in keys)].append(row)
    table = []
    for group, members in groups.items():
        line: Row = dict(zip(keys, group, strict=True))
        line["runs"] = len(members)
        for k in members[0]:
            if k in keys or k == "seed":
                continue
            values = np.array([float(row[k]) for row in members])  # type: ignore[arg-type]
            line[k] = float(values.mean())
            if k in ("lateness", "ratio", "certified_ratio"):
                line[f"{k}_median"] = float(np.median(values))
        table.append(line)
    return table


#: Table -> (x, measure, what a line is, label of x, label of y).
FIGURES = {
    "jobs": ("num_jobs", "utility", "scheduler", "jobs (T = 300)", "total utility"),
    "horizon": ("horizon", "utility", "scheduler", "T (200 jobs)", "total utility"),
    "servers": ("hosts", "utility", "scheduler", "H = K (200 jobs)", "total utility"),
    "offline": ("servers", "ratio", "scheduler", "hosts", "offline bound / utility"),
    "misestimate": ("factor", "utility", "num_jobs", "U / L over its estimate", "total utility"),
}
COLOURS = ("#0072B2", "#D55E00", "#56B4E9", "#999999", "#009E73", "#E69F00", "#CC79A7", "#8C6D31")


def draw(out: Path, summary: dict[str, list[Row]]) -> None:
    """Line figures, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        say("matplotlib is not installed: no figures")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    for name, (key, measure, group, x_label, y_label) in FIGURES.items():
        if name not in summary:
            continue
        figure, axis = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
        lines = dict.fromkeys(row[group] for row in summary[name])
        for colour, value in zip(COLOURS * len(lines), lines, strict=False):
            line = sorted(
                (row for row in summary[name] if row[group] == value), key=lambda row: row[key]
            )
            label = f"{value} jobs" if group == "num_jobs" else str(value)
            x, y = [row[key] for row in line], [row[measure] for row in line]
            axis.plot(x, y, marker="o", markersize=4, color=colour, label=label)
        if name == "misestimate":
            axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.grid(visible=True, color="#E4E4E4")
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
        figure.savefig(out / f"{name}.png", dpi=110)
        pyplot.close(figure)


def say(*words: str) -> None:
    """One line of progress on standard output."""
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="directory for tables and figures")
    parser.add_argument("--tables", nargs="*", help="only these (default: all)")
    parser.add_argument("--merge", type=Path, nargs="*", help="join the tables of these runs")
    parser.add_argument("--seeds", type=int, default=5, help="workloads per point")
    parser.add_argument("--loads", type=int, nargs="*", default=[100, 200, 300, 400])
    parser.add_argument("--past", type=int, default=3, help="earlier workloads to calibrate on")
    parser.add_argument("--offline-seeds", type=int, default=30)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per offline MILP")
    parser.add_argument("--iterations", type=int, default=200, help="steps of the hindsight bound")
    parser.add_argument("--without-dorm", action="store_true", help="leave out the slow baseline")
    parser.add_argument("--quick", action="store_true", help="one seed, short time limits")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.offline_seeds = 1, 5
        options.time_limit, options.iterations, options.past = 5.0, 50, 1
    return options


if __name__ == "__main__":
    main()
