"""Requests become events only where they are legal, once, and survive a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.jobs import JobSpec
from hpcslaq.mpi import requests
from hpcslaq.mpi.requests import RequestDesk
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.inbox import (
    CancelRequest,
    CloseRequest,
    Inbox,
    SubmitRequest,
    WeightRequest,
)
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

SPEC = JobSpec("late", "logistic", "rows", 8, 60)
PLANNED = replace(SPEC, name="planned", arrival_s=1000.0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(requests, "LOOK_EVERY_S", 0.0)


class Desk:
    """A run directory, its coordinator and its desk; `take` does as rank 0 does."""

    def __init__(self, path):
        self.run = RunDirectory.create(path)
        self.plan = RunPlan("fair", (PLANNED,), {"rows": "/x"}, is_serving=True)
        self.plan.write(self.run)
        self.run.journal.touch()
        self.inbox = Inbox(self.run.inbox)
        self.data = path / "models"
        self.restart()

    def restart(self, *, forget=False):
        if forget or not hasattr(self, "coordinator"):
            self.coordinator = Coordinator(make_policy("fair"), 1.0)
        self.coordinator.handle(ev.RunStarted({1: "a", 2: "a"}), 0.0)
        self.desk = RequestDesk(self.run, self.plan, self.coordinator)

    def take(self, now=5.0, is_done=True):
        taken = []
        for name, event in self.desk.events(now):
            self.coordinator.handle(event, now)
            taken.append(event)
            if is_done:
                self.desk.done(name)
        return taken


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "run")


def test_a_submitted_job_arrives_now_with_its_own_data(desk):
    desk.inbox.send(SubmitRequest(SPEC, str(desk.data)))
    assert desk.take(now=7.0) == [ev.JobSubmitted(replace(SPEC, arrival_s=7.0))]
    assert desk.desk.data_path("late") == str(desk.data)
    assert desk.desk.data_path("planned") is None
    assert desk.take() == []


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (CancelRequest("nobody"), "there is no job 'nobody' in this run (there are: late)"),
        (CancelRequest("planned"), "it arrives later"),
        (WeightRequest("late", -1.0), "not a finite number > 0"),
        (WeightRequest("nobody", 1.0), "there is no job"),
        (SubmitRequest(replace(SPEC, num_chunks=2), "/"), "there is a job 'late' in this run"),
        (SubmitRequest(PLANNED, "/"), "there is a job 'planned'"),
        (SubmitRequest(replace(SPEC, name="b"), "/nowhere"), "its prepared data are not there"),
    ],
)
def test_an_impossible_request_is_refused_and_changes_nothing(desk, request_, reason):
    desk.inbox.send(SubmitRequest(SPEC, str(desk.data)))
    desk.take()
    name = desk.inbox.send(request_)
    assert desk.take() == []
    assert reason in str(desk.inbox.answer(name))


def test_a_cancel_and_a_weight_reach_the_job_and_a_second_cancel_is_told(desk):
    desk.inbox.send(SubmitRequest(SPEC, str(desk.data)))
    desk.inbox.send(WeightRequest("late", 3.0))
    # Before the coordinator has started it, a job ends at once.
    assert desk.take() == [
        ev.JobSubmitted(replace(SPEC, arrival_s=5.0)),
        ev.WeightChanged("late", 3.0),
    ]
    desk.inbox.send(CancelRequest("late", "enough"))
    assert desk.take() == [ev.JobCancelled("late", "enough")]


def test_a_request_whose_file_was_not_moved_is_recognised_after_a_restart(desk):
    name = desk.inbox.send(SubmitRequest(SPEC, str(desk.data)))
    assert len(desk.take(is_done=False)) == 1
    desk.restart()
    assert desk.take() == []
    assert desk.inbox.answer(name) == ""
    assert desk.desk.data_path("late") == str(desk.data)


def test_an_accepted_job_that_the_journal_lost_is_submitted_again(desk):
    desk.inbox.send(SubmitRequest(SPEC, str(desk.data)))
    desk.take()
    assert desk.desk.missing == []
    desk.restart(forget=True)
    assert desk.desk.missing == [SPEC]


def test_a_closed_run_stays_closed_after_a_restart(desk):
    assert desk.desk.is_serving
    desk.inbox.send(CloseRequest())
    assert desk.take() == [ev.ArrivalsClosed()]
    assert not desk.desk.is_serving
    desk.restart()
    assert not desk.desk.is_serving


def test_a_file_that_cannot_be_moved_is_carried_out_once(desk, monkeypatch):
    desk.inbox.send(SubmitRequest(SPEC, str(desk.data)))

    def refuse(self, name):
        raise OSError("no space left")

    monkeypatch.setattr(Inbox, "done", refuse)
    assert len(desk.take()) == 1
    assert desk.take() == []


def test_an_inbox_that_is_gone_is_no_reason_to_end_the_run(desk):
    desk.run.inbox.rmdir()
    assert desk.take() == []


def test_a_flood_of_requests_and_of_junk_is_taken_in_order_and_in_short_looks(desk, monkeypatch):
    monkeypatch.setattr(requests, "_LOOK_S", 0.0)
    monkeypatch.setattr(requests, "LOOK_EVERY_S", 3600.0)
    desk.desk._look_at = 0.0
    for number in range(20):
        desk.inbox.send(SubmitRequest(replace(SPEC, name=f"job-{number}"), str(desk.data)))
        (desk.run.inbox / f"junk-{number}").write_text("?")
    looks = [desk.take() for _ in range(40)]
    assert not desk.desk._inbox.has_more
    assert max(map(len, looks)) == 1
    assert [event.spec.name for (event,) in filter(None, looks)] == [
        f"job-{number}" for number in range(20)
    ]
    assert len(list((desk.run.inbox / "refused").glob("junk-*.reason"))) == 20


def test_no_request_is_looked_at_between_two_looks(desk, monkeypatch):
    monkeypatch.setattr(requests, "LOOK_EVERY_S", 3600.0)
    assert desk.take() == []
    desk.inbox.send(CloseRequest())
    assert desk.take() == []


@pytest.mark.parametrize("damage", ["{", '{"type":"CloseRequest"}x', ""])
def test_a_damaged_file_of_an_accepted_job_costs_that_job_only(desk, damage, caplog):
    names = [
        desk.inbox.send(SubmitRequest(replace(SPEC, name=job), str(desk.data))) for job in "ab"
    ]
    desk.take()
    (desk.run.inbox / "done" / names[0]).write_text(damage)
    desk.restart()
    assert desk.desk.data_path("b") == str(desk.data)
    assert desk.desk.data_path("a") is None
    assert f"done/{names[0]}: is damaged" in caplog.text


def test_the_data_of_a_job_are_known_before_its_request_is_looked_at_again(desk):
    # Killed after the journal was written and before the file was moved.
    desk.inbox.send(SubmitRequest(SPEC, str(desk.data)))
    desk.take(is_done=False)
    desk.inbox.send(SubmitRequest(replace(SPEC, name="new"), str(desk.data)))
    desk.inbox.send(CloseRequest())
    desk.restart()
    assert desk.desk.data_path("late") == str(desk.data)
    assert desk.desk.data_path("new") is None
    assert desk.desk.is_serving
    assert desk.take() == [
        ev.JobSubmitted(replace(SPEC, name="new", arrival_s=5.0)),
        ev.ArrivalsClosed(),
    ]


def test_submissions_that_come_together_say_so_but_for_the_last(desk, monkeypatch):
    monkeypatch.setattr(requests, "_LOOK_S", 3600.0)
    for name in "abc":
        desk.inbox.send(SubmitRequest(replace(SPEC, name=name), str(desk.data)))
    desk.inbox.send(CancelRequest("a"))
    desk.inbox.send(SubmitRequest(replace(SPEC, name="d"), str(desk.data)))
    # What follows is refused: a job of that name, no data.
    desk.inbox.send(SubmitRequest(replace(SPEC, name="d", num_chunks=2), str(desk.data)))
    desk.inbox.send(SubmitRequest(replace(SPEC, name="e"), str(desk.data)))
    desk.inbox.send(SubmitRequest(replace(SPEC, name="f"), "/nowhere"))
    said = [
        (event.spec.name, event.is_followed) if isinstance(event, ev.JobSubmitted) else None
        for event in desk.take()
    ]
    expected = [("a", True), ("b", True), ("c", False), None, ("d", False), ("e", False)]
    assert said == expected
