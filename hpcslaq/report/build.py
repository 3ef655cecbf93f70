"""The report of a run as one JSON-able value; also while the run is still on.

Everything comes from three files of the run directory: `run.toml`, the journal and, once
the run has ended, `result.json`. Text, figures and pages are made from this value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import EXIT_JOB_FAILED, EXIT_OK, EXIT_STOPPED_EARLY
from hpcslaq.core.jobs import JobSpec
from hpcslaq.record.codec import Entry
from hpcslaq.record.jobsummary import JobSummary
from hpcslaq.record.jobsync import sync_document
from hpcslaq.record.journal import JournalTail
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.summary import BUCKETS, RunSummary
from hpcslaq.report.history import History
from hpcslaq.report.oasis import PlanHistory, describe_plans, earned_by

#: Kinds of rank-time of a job in which it does not train.
LOST_KINDS = ("regroup", "checkpoint", "control", "load")

#: State of a job that is planned and has not arrived.
NOT_SUBMITTED = "not submitted"

_RESULT_STATES = {
    EXIT_OK: "finished",
    EXIT_JOB_FAILED: "finished, jobs failed",
    EXIT_STOPPED_EARLY: "stopped early",
}
#: What `result.json` says of the run and the report repeats.
_RESULT_KEYS = (
    "tick_p50_s",
    "tick_p99_s",
    "num_ticks",
    "communicators_made",
    "communicators_peak",
    "communicators_alive",
    "cpu_s",
)


class RunReader:
    """Reads a run from its directory, and goes on reading while the run is on."""

    def __init__(self, run: RunDirectory) -> None:
        """Read the plan. Raises NotFoundError, RunDirectoryError."""
        self.run = run
        self.plan = RunPlan.read(run)
        self.summary = RunSummary(self.plan.policy)
        self.history = History()
        self.plans = PlanHistory()
        self._tail = JournalTail(run.journal)
        self._self_checks = frozenset(self.plan.self_checks)
        self._versions: dict[str, str] = run.read_run_toml()["versions"]
        #: What was said last of jobs that have ended and of which nothing was heard since.
        self._described: dict[str, dict[str, Any]] = {}
        #: Seconds that each regroup of a running job took, in order.
        self._regroup_seconds: list[float] = []

    def poll(self) -> int:
        """Take in what the journal got since the last call: the number of its entries.

        Raises JournalError on a damaged line.
        """
        entries = self._tail.poll()
        for entry in entries:
            self._fold(entry)
        return len(entries)

    def report(self) -> dict[str, Any]:
        """The report on what was read; see `build_report`."""
        return {
            "run": self._describe_run(self.run.read_result()),
            "jobs": [self._describe_job(spec) for spec in self._specs()],
            "oasis": describe_plans(self.plans, self.summary, self.plan.round_s),
            "events": _counts(self.history, ev),
            "commands": _counts(self.history, cmd),
        }

    def _fold(self, entry: Entry) -> None:
        item = entry.item
        self._described.pop(getattr(item, "job", ""), None)
        if isinstance(item, ev.GroupFormed):
            job = self.summary.jobs.get(item.job)
            if job is not None and job.members:
                self._regroup_seconds.append(item.seconds)
        self.summary.fold(*entry)
        self.history.fold(entry.now, item)
        self.plans.fold(item)

    def _specs(self) -> Iterable[JobSpec]:
        """The jobs as planned, then those that were submitted besides."""
        yield from self.plan.jobs
        planned = {spec.name for spec in self.plan.jobs}
        for name, job in self.summary.jobs.items():
            if name not in planned:
                yield job.spec

    def _describe_run(self, result: Mapping[str, Any] | None) -> dict[str, Any]:
        given = result or {}
        summary = self.summary
        exit_code = given.get("exit_code")
        workers = len(summary.hosts)
        return {
            "directory": str(self.run.path),
            "name": self.run.path.name,
            "job_file": self.plan.job_file,
            "state": summary.state if result is None else _result_state(result),
            "is_finished": exit_code in (EXIT_OK, EXIT_JOB_FAILED),
            "has_result": result is not None,
            "exit_code": exit_code,
            "stop_reason": summary.stop_reason,
            "policy": self.plan.policy,
            "policy_options": dict(self.plan.policy_options),
            "round_s": self.plan.round_s,
            "seed": self.plan.seed,
            "ranks": given.get("num_ranks", workers + 1 if workers else 0),
            "workers": workers,
            "hosts": sorted(set(summary.hosts.values())),
            "lost_ranks": {str(rank): why for rank, why in sorted(summary.lost.items())},
            "starts": summary.incarnations,
            "mpi": given.get("mpi"),
            "versions": {**self._versions, **given.get("versions", {})},
            "wall_s": given.get("wall_s", summary.now),
            "makespan_s": summary.makespan_s,
            "regroups": sum(job.regroups for job in summary.jobs.values()),
            "pauses": sum(job.num_pauses for job in summary.jobs.values()),
            "regroup_p50_s": percentile(self._regroup_seconds, 0.5),
            "regroup_p99_s": percentile(self._regroup_seconds, 0.99),
            "regroup_max_s": max(self._regroup_seconds, default=None),
            **{key: given.get(key) for key in _RESULT_KEYS},
            **_rank_time(summary),
        }

    def _utility(self, job: JobSummary | None) -> float | None:
        """What the job earned; None where its file does not say what it is worth."""
        if job is None or job.spec.utility is None:
            return None
        return earned_by(job, self.plan.round_s)

    def _describe_job(self, spec: JobSpec) -> dict[str, Any]:
        known = self._described.get(spec.name)
        if known is not None:
            return dict(known)
        job = self.summary.jobs.get(spec.name)
        described = self._describe(spec, job)
        if job is not None and job.state.is_final:
            # It changes no more: a watched run of thousands of jobs is described every second.
            self._described[spec.name] = dict(described)
        return described

    def _describe(self, spec: JobSpec, job: JobSummary | None) -> dict[str, Any]:
        now = self.summary.now
        described: dict[str, Any] = (JobSummary(spec, now) if job is None else job).to_json(now)
        for key in ("recent_losses", "segments", "failure"):
            described.pop(key, None)
        if job is None:
            described |= {"state": NOT_SUBMITTED, "submitted_at": None}
        jct_s, has_model = described["jct_s"], described["model_digest"] is not None
        model_file = self.run.model_file(spec.name) if has_model else None
        deadline_s = spec.deadline_s
        is_met = None if deadline_s is None or jct_s is None else has_model and jct_s <= deadline_s
        return {
            **described,
            "workers": len(described["members"]),
            "chunks": spec.num_chunks,
            "max_epochs": spec.max_epochs,
            "min_workers": spec.min_workers,
            "max_workers": spec.worker_limit,
            "max_ranks": spec.rank_limit,
            **sync_document(spec),
            "arrival_s": spec.arrival_s,
            "target_loss": spec.target_loss,
            "deadline_s": deadline_s,
            "utility": self._utility(job),
            "peak_utility": None if spec.utility is None else spec.utility.at(0.0),
            "is_deadline_met": is_met,
            "seed": spec.seed,
            "options": {key: _plain(value) for key, value in spec.options.items()},
            "reference": dict(self.plan.references.get(spec.name, {})),
            "is_self_checked": spec.name in self._self_checks,
            "lost_share": lost_share(described["usage_s"]),
            "model_file": str(model_file) if model_file and model_file.is_file() else None,
        }


def build_report(run: RunDirectory) -> dict[str, Any]:
    """What happened in a run: `run`, `jobs` (in the order of the plan), `events`, `commands`.

    `oasis` is None, or what a policy that plans ahead promised and what came of it.

    Times are in seconds (since run start where they end in `_at`). Raises NotFoundError,
    RunDirectoryError or JournalError where the directory cannot be read.
    """
    reader = RunReader(run)
    reader.poll()
    return reader.report()


def lost_share(usage_s: Mapping[str, float]) -> float | None:
    """Share of a job's or a run's held rank-time that was lost outside training.

    `usage_s` : rank-seconds by kind (`summary.BUCKETS`). None where none was reported yet.
    """
    held = math.fsum(usage_s.get(kind, 0.0) for kind in BUCKETS)
    lost = math.fsum(usage_s.get(kind, 0.0) for kind in LOST_KINDS)
    return lost / held if held > 0 else None


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of the values lie; None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _rank_time(summary: RunSummary) -> dict[str, Any]:
    """Rank-seconds by kind, each kind's share of all, and the share lost."""
    total = summary.rank_seconds
    seconds = {kind: summary.usage_s.get(kind, 0.0) for kind in BUCKETS}
    # Held by groups that have not reported yet, and steps between the measured ones.
    rest = total - summary.idle_s - math.fsum(seconds.values())
    seconds |= {"unreported": max(0.0, rest), "idle": summary.idle_s}
    whole = math.fsum(seconds.values())
    return {
        "rank_seconds": total,
        "rank_time_s": seconds,
        "rank_time_share": {
            kind: value / whole if whole > 0 else None for kind, value in seconds.items()
        },
        "lost_share": lost_share(seconds),
    }


def _result_state(result: Mapping[str, Any]) -> str:
    return _RESULT_STATES.get(int(result["exit_code"]), "ended")


def _counts(history: History, module: Any) -> dict[str, int]:
    """How often each class of the module occurred, by name."""
    return {name: num for name, num in sorted(history.counts.items()) if hasattr(module, name)}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
