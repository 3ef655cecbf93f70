"""`hpcslaq explain`: why a job has the workers that it has, from the run's journal.

The journal holds events and orders, not the numbers behind a decision. But a replay of the
events through a fresh coordinator takes the same decisions again, so the state of the
predictor at any of them can be had: once to find the job's last decisions, once to explain them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import click

from hpcslaq import __version__
from hpcslaq.cli.output import emit_json, json_option, reports_errors
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.events import Event
from hpcslaq.core.jobs import JobRecord, JobSpec, JobState
from hpcslaq.core.policy import Admission, Allocation, ClusterView, Forecaster, Planner, Policy
from hpcslaq.errors import InvalidTransition, NotFoundError
from hpcslaq.policies.explain import Explanation, explain_job
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.codec import Entry, Kind
from hpcslaq.record.journal import JournalError, JournalTail
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.text import seconds


@click.command("explain")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("job")
@json_option
@reports_errors
def command(run: Path, job: str, as_json: bool) -> None:
    """Say why JOB of the run in directory RUN has the workers that it has, or waits.

    Works while the run is on and after its end: then the last decision about the job is told,
    and the last one that changed its workers.
    """
    value = explain(RunDirectory.open_existing(run), job)
    if as_json:
        emit_json(value)
        return
    click.echo(value["summary"])
    for decision in value["decisions"]:
        click.echo(f"\n{decision['what']} at {seconds(decision['at'])}, as it was then:")
        for sentence in decision["explanation"]["sentences"]:
            click.echo(f"  {sentence}")


def explain(run: RunDirectory, job: str) -> dict[str, Any]:
    """The job's state in words, and the explained decisions, the newest first.

    Raises NotFoundError where the run has no such job.
    """
    plan = RunPlan.read(run)
    entries = JournalTail(run.journal).poll()
    policy = make_policy(plan.policy, **plan.policy_options)
    watch = PlanWitness if isinstance(policy, Planner) else Witness
    witness = watch(policy, job)
    coordinator = _replay(run.journal, plan, witness, entries)
    spec = next((spec for spec in plan.jobs if spec.name == job), None)
    record = coordinator.jobs.get(job)
    if record is None and spec is None:
        names = ", ".join(dict.fromkeys([*(s.name for s in plan.jobs), *coordinator.jobs]))
        raise NotFoundError(f"{run.path}: there is no job {job!r} (jobs: {names})")
    now = entries[-1].now if entries else 0.0
    wanted = {n for n in (witness.last, witness.last_change) if n is not None}
    again = watch(policy, job, wanted)
    if wanted:
        _replay(run.journal, plan, again, entries)
    decisions = [
        {
            "what": "last decision" if number == witness.last else "last change",
            "at": at,
            "explanation": asdict(explanation),
        }
        for number, (at, explanation) in sorted(again.explained.items(), reverse=True)
    ]
    is_over = coordinator.is_shut_down
    return {
        "run": str(run.path),
        "job": job,
        "policy": plan.policy,
        "now": now,
        "state": record.state.value if record else "not submitted",
        "workers": record.num_workers if record else 0,
        "summary": _summary(job, spec, record, now, is_over, coordinator.is_stopping),
        "decisions": decisions,
    }


@dataclass
class Witness:
    """A policy that notes the decisions about one job, and else is the one that it watches."""

    policy: Policy
    job: str
    #: Decisions, counted from 0, that are to be explained.
    wanted: set[int] = field(default_factory=set)
    #: The last decision in which the job took part, and the last that changed its workers.
    last: int | None = None
    last_change: int | None = None
    #: Time and explanation of each decision that was wanted.
    explained: dict[int, tuple[float, Explanation]] = field(default_factory=dict)
    _num_decisions: int = 0

    @property
    def name(self) -> str:
        """The watched policy's."""
        return self.policy.name

    def forecaster(self) -> Forecaster:
        """The watched policy's."""
        return self.policy.forecaster()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        """The watched policy's."""
        return self.policy.admit(spec, view)

    def allocate(self, view: ClusterView) -> Allocation:
        """The watched policy's; noted where it concerns the job."""
        proposal = self.policy.allocate(view)
        record = next((record for record in view.jobs if record.spec.name == self.job), None)
        if record is not None:
            self.last = self._num_decisions
            if proposal.get(self.job, 0) != record.target:
                self.last_change = self._num_decisions
            if self._num_decisions in self.wanted:
                told = explain_job(self.policy, view, self.job)
                self.explained[self._num_decisions] = (view.now, told)
        self._num_decisions += 1
        return proposal


class PlanWitness(Witness):
    """`Witness` of a policy that plans ahead."""

    def revise(self, view: ClusterView) -> Mapping[str, Admission]:
        """The watched policy's."""
        assert isinstance(self.policy, Planner)
        return self.policy.revise(view)


def _replay(journal: Path, plan: RunPlan, policy: Policy, entries: list[Entry]) -> Coordinator:
    """The coordinator after all events; raises JournalError where they do not fit."""
    coordinator = Coordinator(policy, plan.round_s)
    for entry in entries:
        if entry.kind is Kind.EVENT:
            try:
                coordinator.handle(cast(Event, entry.item), entry.now)
            except InvalidTransition as error:
                problem = (
                    f"does not replay: {error}; was it written by another version "
                    f"than {__version__} (see versions in run.toml)?"
                )
                raise JournalError(journal, 0, problem) from None
    return coordinator


def _summary(
    job: str,
    spec: JobSpec | None,
    record: JobRecord | None,
    now: float,
    is_over: bool,
    is_stopping: bool,
) -> str:
    """How the job stands, in one sentence or two."""
    if record is None:
        assert spec is not None
        if is_over:
            return f"{job} was never submitted: the run ended before {seconds(spec.arrival_s)}."
        arrives = f"it arrives at {seconds(spec.arrival_s)}, now it is {seconds(now)}"
        return f"{job} was not submitted yet: {arrives}."
    if record.state.is_final:
        return _final_summary(record)
    if is_over:
        return f"{job} is unfinished: the run ended early; the same command again goes on with it."
    if is_stopping:
        return f"{job} is {record.state.value}: the run is stopping, and all jobs are saved."
    return f"{job} {_doing(record)}."


def _final_summary(record: JobRecord) -> str:
    at = seconds(record.finished_at or 0.0)
    why = f": {record.reason}" if record.reason else ""
    if record.state is JobState.REJECTED:
        return f"{record.name} was not admitted at {at}{why}."
    if record.state is JobState.FAILED:
        return f"{record.name} failed at {at} after {record.iterations} iterations{why}."
    if record.state is JobState.CANCELLED:
        return f"{record.name} was cancelled at {at}{why}."
    return f"{record.name} finished at {at} after {record.iterations} iterations{why}."


def _doing(record: JobRecord) -> str:
    """What a live job does, as a verb phrase."""
    since, held = seconds(record.changed_at), _workers(record.num_workers)
    if record.state is JobState.WAITING:
        if record.target:
            return f"waits for the {_workers(record.target)} that it was given to become free"
        if record.started_at is None:
            return f"waits without workers since it arrived at {seconds(record.submitted_at)}"
        return f"was paused at {since} after {record.iterations} iterations and waits for workers"
    if record.state is JobState.STARTING:
        return f"starts on {_workers(len(record.forming))}"
    if record.state is JobState.REGROUPING:
        return f"goes from {held} to {len(record.forming)} at the end of its epoch"
    if record.state is JobState.PAUSING:
        return f"is paused: it gives back its {held} at the end of its epoch"
    if record.state is JobState.STOPPING:
        return "is being cancelled"
    if record.state is JobState.FINISHING:
        return "has trained to its end; its leader evaluates and writes the model"
    if record.target > record.num_workers:
        return f"runs on {held} since {since}, and gets {record.target} when they are free"
    return f"runs on {held} since {since}"


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
