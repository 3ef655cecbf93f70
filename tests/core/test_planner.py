"""Policies that plan ahead: their plans are kept, noted, revised, and can end a waiting job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.jobs import JobSpec, JobState
from hpcslaq.core.policy import Admission, ClusterView, NoForecast, Planner
from hpcslaq.errors import InvalidTransition
from tests.core.world import Scripted, spec_of

HOSTS = {1: "a", 2: "a", 3: "b"}


@dataclass
class Scheming(Scripted):
    """Plans what the test wrote down, and remembers the views it was asked about."""

    revisions: dict[str, Admission] = field(default_factory=dict)
    views: list[ClusterView] = field(default_factory=list)

    def forecaster(self) -> NoForecast:
        return NoForecast()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        self.views.append(view)
        return Admission(not self.refusal, self.refusal, plan="first", facts={"what": "offer"})

    def revise(self, view: ClusterView) -> Mapping[str, Admission]:
        self.views.append(view)
        revisions, self.revisions = self.revisions, {}
        return revisions


def started(policy: Scheming) -> Coordinator:
    coordinator = Coordinator(policy, 10.0)
    coordinator.handle(ev.RunStarted(HOSTS), 0.0)
    return coordinator


def test_only_a_policy_with_revise_is_a_planner() -> None:
    assert isinstance(Scheming(), Planner) and not isinstance(Scripted(), Planner)


def test_the_plan_of_an_admission_is_kept_and_its_facts_are_ordered_into_the_journal() -> None:
    coordinator = started(Scheming())
    orders = coordinator.handle(ev.JobSubmitted(spec_of()), 3.0)
    assert orders[0] == cmd.Note("a", {"what": "offer"})
    assert coordinator.jobs["a"].plan == "first"


def test_a_refused_job_leaves_its_plan_and_a_note_too() -> None:
    coordinator = started(Scheming(refusal="too dear"))
    orders = coordinator.handle(ev.JobSubmitted(spec_of()), 3.0)
    assert orders[:2] == [cmd.Note("a", {"what": "offer"}), cmd.Reject("a", "too dear")]
    assert coordinator.jobs["a"].plan == "first"


def test_rounds_begin_at_multiples_of_their_length() -> None:
    coordinator = started(Scheming())
    orders = coordinator.handle(ev.JobSubmitted(spec_of()), 3.0)
    assert orders[-1] == cmd.WakeAt(10.0)
    # A timer may fire a hair too early; the round after it is still the next one.
    assert coordinator.handle(ev.RoundElapsed(), 10.0 - 1e-9)[-1] == cmd.WakeAt(20.0)


def test_the_view_of_a_planner_holds_hosts_and_all_jobs_ever() -> None:
    policy = Scheming(refusal="no")
    coordinator = started(policy)
    coordinator.handle(ev.JobSubmitted(spec_of("a")), 0.0)
    policy.refusal = ""
    coordinator.handle(ev.JobSubmitted(spec_of("b")), 1.0)
    coordinator.handle(ev.RankLost(3, "gone"), 2.0)
    view = policy.views[-1]
    assert list(view.history) == ["a", "b"] and view.history["a"].state is JobState.REJECTED
    assert view.hosts == {"a": 2, "b": 0}


def test_a_revision_replaces_the_plan_and_can_refuse_a_job_that_waits() -> None:
    policy = Scheming()
    coordinator = started(policy)
    coordinator.handle(ev.JobSubmitted(spec_of("a")), 0.0)
    policy.revisions = {"a": Admission(True, plan="second", facts={"what": "replanned"})}
    orders = coordinator.handle(ev.RoundElapsed(), 10.0)
    assert orders[0] == cmd.Note("a", {"what": "replanned"})
    assert coordinator.jobs["a"].plan == "second"
    policy.revisions = {"a": Admission(False, "not worth it", plan="third")}
    assert cmd.Reject("a", "not worth it") in coordinator.handle(ev.RoundElapsed(), 20.0)
    record = coordinator.jobs["a"]
    assert (record.state, record.reason) == (JobState.REJECTED, "not worth it")


def test_a_revision_cannot_refuse_a_job_that_holds_ranks_or_name_an_unknown_one() -> None:
    policy = Scheming({"a": 2})
    coordinator = started(policy)
    coordinator.handle(ev.JobSubmitted(spec_of("a")), 0.0)
    policy.revisions = {"a": Admission(False, "too late")}
    with pytest.raises(InvalidTransition, match="refused by the policy"):
        coordinator.handle(ev.RoundElapsed(), 10.0)
    policy.revisions = {"b": Admission(True)}
    with pytest.raises(InvalidTransition, match="no job of that name"):
        coordinator.handle(ev.RoundElapsed(), 20.0)
