"""The report as plain tables of text; how they are drawn is the command line's business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcslaq.record.times import format_duration
from hpcslaq.report.build import LOST_KINDS

#: Kinds of rank-time in words, in the order in which they are shown.
KINDS = {
    "compute": "computing",
    "reduce": "waiting for the sum",
    "regroup": "regrouping",
    "checkpoint": "checkpoints, models",
    "control": "orders, reports",
    "load": "opening data",
    "unreported": "between reports",
    "idle": "idle",
}

_NONE = "-"


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text. `is_number[i]`: column i is set flush right."""

    columns: tuple[str, ...]
    is_number: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Characters that each column needs."""
        return tuple(
            max(len(name), *(len(row[place]) for row in self.rows), 0)
            for place, name in enumerate(self.columns)
        )

    def fitted(self, width: int, spare: Sequence[str], gap: int = 2) -> TextTable:
        """The table without as many of its `spare` columns (first the first) as make it fit."""
        table = self
        for name in spare:
            if sum(table.widths) + gap * (len(table.columns) - 1) <= width:
                break
            kept = [place for place, column in enumerate(table.columns) if column != name]
            table = TextTable(
                tuple(table.columns[place] for place in kept),
                tuple(table.is_number[place] for place in kept),
                tuple(tuple(row[place] for place in kept) for row in table.rows),
            )
        return table


def headline(report: Mapping[str, Any]) -> str:
    """One sentence: what ran, how it ended, how long it took."""
    run, jobs = report["run"], report["jobs"]
    num_done = sum(job["state"] == "done" for job in jobs)
    return (
        f"{run['name']}: {run['state']}; {num_done} of {len(jobs)} jobs done in "
        f"{seconds(run['wall_s'])} on 1 + {run['workers']} ranks under {run['policy']}"
    )


def facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is worth knowing of the run as a whole: (label, value)."""
    run = report["run"]
    found = [
        ("makespan", seconds(run["makespan_s"])),
        ("regroups of running jobs", _regroups(run)),
        ("rank-time lost outside training", percent(run["lost_share"], 2)),
        ("idle rank-time", percent(run["rank_time_share"]["idle"], 1)),
    ]
    if run["tick_p50_s"] is not None:
        ticks = f"{seconds(run['tick_p50_s'])} (p50), {seconds(run['tick_p99_s'])} (p99)"
        found.append(("coordinator's tick", ticks))
        found.append(("job communicators", _communicators(run)))
    if report["oasis"] is not None:
        found += _plan_facts(report["oasis"])
    elif any(job["utility"] is not None for job in report["jobs"]):
        earned = sum(job["utility"] or 0.0 for job in report["jobs"])
        found.append(("utility", f"{number(earned)} earned"))
    if run["starts"] > 1:
        found.append(("starts", str(run["starts"])))
    if run["stop_reason"]:
        found.append(("stopped because of", run["stop_reason"]))
    for rank, reason in run["lost_ranks"].items():
        found.append((f"lost rank {rank}", reason or "no reason known"))
    return found


def environment(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """With what the run was made: (label, value)."""
    run = report["run"]
    options = ", ".join(f"{key} = {value}" for key, value in run["policy_options"].items())
    return [
        ("run directory", run["directory"]),
        ("job file", run["job_file"] or _NONE),
        ("policy", run["policy"] + (f" ({options})" if options else "")),
        ("round", seconds(run["round_s"])),
        ("seed", str(run["seed"])),
        ("ranks", f"1 + {run['workers']} on {', '.join(run['hosts']) or _NONE}"),
        ("MPI", run["mpi"] or _NONE),
        *((name, version) for name, version in run["versions"].items()),
    ]


def job_table(report: Mapping[str, Any], *, all_metrics: bool = False) -> TextTable:
    """A row for each job: what it cost and what came of it.

    Where a job file gives references for held-out measures, they have a column of their own.
    """
    has_references = any(job["reference"] for job in report["jobs"])
    columns = {
        "job": False,
        "model": False,
        "state": False,
        "epochs": True,
        "loss": True,
        "held-out": False,
        **({"reference": False} if has_references else {}),
        "regroups": True,
        "rank-s": True,
        "queued": True,
        "JCT": True,
        "lost": True,
    }
    cells = (_job_cells(job, all_metrics=all_metrics) for job in report["jobs"])
    rows = tuple(tuple(row[column] for column in columns) for row in cells)
    return TextTable(tuple(columns), tuple(columns.values()), rows)


def result_table(report: Mapping[str, Any]) -> TextTable:
    """A row for each job: its data, why it ended, and the digests of losses and model."""
    columns = ("job", "data", "iterations", "ended by", "loss digest", "model digest")
    rows = tuple(
        (
            job["name"],
            job["data"],
            str(job["iterations"]),
            job["reason"] or _NONE,
            *_digests(job),
        )
        for job in report["jobs"]
    )
    return TextTable(columns, (False, False, True, False, False, False), rows)


def plan_table(report: Mapping[str, Any]) -> TextTable:
    """A row for each job that was offered a schedule: promised and actual end, utility."""
    columns = (
        *("job", "decision", "arrived", "decided", "promised", "ended", "late", "replanned"),
        *("peak", "planned utility", "utility"),
    )
    rows = tuple(
        (
            job["name"],
            job["standing"],
            *(
                _NONE if job[key] is None else str(job[key])
                for key in (
                    "arrival_slot",
                    "decided_slot",
                    "promised_slot",
                    "end_slot",
                    "late_slots",
                    "revisions",
                )
            ),
            f"{job['peak']:.4g}",
            number(job["planned_utility"]),
            number(job["utility"]),
        )
        for job in report["oasis"]["jobs"]
    )
    return TextTable(columns, (False, False, *([True] * 9)), rows)


def _plan_facts(oasis: Mapping[str, Any]) -> list[tuple[str, str]]:
    bound, ratio = oasis["bound"], oasis["certified_ratio"]
    utility = f"{number(oasis['utility'])} earned, {number(oasis['planned_utility'])} planned"
    if bound is not None:
        utility += f"; no schedule earns more than {number(bound)}"
    promised = "-" if oasis["promised_ratio"] is None else f"{oasis['promised_ratio']:.2f}"
    certified = _NONE if ratio is None else f"{ratio:.3f}"
    return [
        ("utility", utility),
        ("certified ratio", f"{certified} (2 alpha = {promised})"),
    ]


def _digests(job: Mapping[str, Any]) -> tuple[str, str]:
    """Digests of losses and model, or why another run would have others."""
    if job["loss_digest"] is None:
        return _NONE, _NONE
    if job["staleness"]:
        why = f"none: staleness {job['staleness']}"
        return why, why
    return job["loss_digest"], job["model_digest"]


def rank_time_table(report: Mapping[str, Any]) -> TextTable:
    """Where the workers' time went."""
    run = report["run"]
    rows = [
        (
            label,
            "lost" if kind in LOST_KINDS else "",
            f"{run['rank_time_s'][kind]:,.2f}",
            percent(run["rank_time_share"][kind], 2),
        )
        for kind, label in KINDS.items()
    ]
    return TextTable(("rank-time", "", "s", "share"), (False, False, True, True), tuple(rows))


def problems(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(job, why) of those that failed, were refused or cancelled, or cannot be checkpointed."""
    bad = ("failed", "rejected", "cancelled")
    ended = [(job["name"], job["reason"]) for job in report["jobs"] if job["state"] in bad]
    return ended + checkpoint_problems(report)


def checkpoint_problems(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(job, why and how old the last good one is) of live jobs without fresh checkpoints."""
    found = []
    for job in report["jobs"]:
        if job["checkpoint_problem"] is None or job["finished_at"] is not None:
            continue
        last = "there is no earlier one"
        if job["checkpoint_age_s"] is not None:
            age = seconds(job["checkpoint_age_s"])
            last = f"the last good one, of iteration {job['checkpoint_iterations']}, is {age} old"
        problem = f"no checkpoint can be written ({job['checkpoint_problem']}); {last}"
        found.append((job["name"], problem))
    return found


def seconds(value: float | None) -> str:
    """A duration for people: three digits are enough."""
    return _NONE if value is None else format_duration(float(f"{max(0.0, value):.3g}"))


def percent(share: float | None, digits: int) -> str:
    """A share (0 to 1) in per cent."""
    return _NONE if share is None else f"{100 * share:.{digits}f} %"


def number(value: float | None) -> str:
    """A loss with five digits."""
    return _NONE if value is None else f"{value:#.5g}"


def _job_cells(job: Mapping[str, Any], *, all_metrics: bool) -> dict[str, str]:
    """The cells of a job's row by column."""
    references = job["reference"]
    found = {name: value for name, value in job["metrics"].items() if value is not None}
    # What is compared comes first: it is what a narrow table shows.
    names = sorted(found, key=lambda name: name not in references)
    shown = names if all_metrics else names[: max(1, len(references))]
    loss = job["last_loss"] if job["final_loss"] is None else job["final_loss"]
    return {
        "job": job["name"],
        "model": job["model"],
        "state": job["state"],
        "epochs": f"{job['epochs']}/{job['max_epochs']}",
        "loss": number(loss),
        "held-out": ", ".join(f"{name} {found[name]:.4g}" for name in shown) or _NONE,
        "reference": ", ".join(f"{n} {value:.4g}" for n, value in references.items()) or _NONE,
        "regroups": str(job["regroups"]),
        "rank-s": f"{job['rank_seconds']:,.1f}",
        "queued": seconds(job["queue_s"]),
        "JCT": seconds(job["jct_s"]),
        "lost": percent(job["lost_share"], 1),
    }


def _regroups(run: Mapping[str, Any]) -> str:
    text = str(run["regroups"])
    if run["regroup_p50_s"] is not None:
        text += f" ({seconds(run['regroup_p50_s'])} p50, {seconds(run['regroup_max_s'])} longest)"
    pauses = run["pauses"]
    return f"{text}; {pauses} {'pause' if pauses == 1 else 'pauses'}" if pauses else text


def _communicators(run: Mapping[str, Any]) -> str:
    return (
        f"{run['communicators_made']} made, at most {run['communicators_peak']} at once on a "
        f"rank, {run['communicators_alive']} left"
    )
