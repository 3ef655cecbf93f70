"""The inbox from both sides, and files that do not belong there."""

from __future__ import annotations

import os

import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.record.inbox import (
    MAX_BYTES,
    CancelRequest,
    CloseRequest,
    Inbox,
    RequestError,
    SubmitRequest,
    WeightRequest,
)

SPEC = JobSpec("a", "logistic", "rows", 8, 60, options={"l2": 1e-3})
REQUESTS = [
    SubmitRequest(SPEC, "/data/rows"),
    CancelRequest("a", "a mistake"),
    WeightRequest("a", 2.0),
    CloseRequest(),
]


@pytest.fixture
def inbox(tmp_path):
    return Inbox(tmp_path)


def test_requests_arrive_in_the_order_in_which_they_were_sent(inbox):
    names = [inbox.send(request) for request in REQUESTS]
    assert inbox.poll() == list(zip(names, REQUESTS, strict=True))


def test_a_request_waits_until_it_is_done(inbox):
    name = inbox.send(REQUESTS[0])
    assert inbox.answer(name) is None
    assert len(inbox.poll()) == len(inbox.poll()) == 1
    inbox.done(name)
    assert inbox.poll() == []
    assert inbox.answer(name) == ""
    assert list(inbox.accepted()) == [REQUESTS[0]]


def test_a_refused_request_keeps_its_reason(inbox):
    name = inbox.send(REQUESTS[1])
    inbox.refuse(name, "there is no such job")
    assert inbox.poll() == []
    assert inbox.answer(name) == "there is no such job"
    assert list(inbox.accepted()) == []


NAME = f"{7:020d}-0123abcd.json"


def link(path):
    (path / ".elsewhere").write_bytes(b"{}")
    (path / NAME).symlink_to(path / ".elsewhere")


def too_large(path):
    (path / NAME).write_bytes(b" " * (MAX_BYTES + 1))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: (path / NAME).write_text("{"), "not JSON"),
        (lambda path: (path / NAME).write_text('{"type":"Shutdown"}'), "unknown"),
        (lambda path: (path / NAME).write_text('{"type":"JobSpec"}'), "missing"),
        (lambda path: (path / NAME).write_bytes(b"\xff\xfe"), "not JSON"),
        (lambda path: (path / NAME).mkdir(), "is not a regular file"),
        (lambda path: os.mkfifo(path / NAME), "is not a regular file"),
        (too_large, f"more than {MAX_BYTES}"),
    ],
)
def test_a_file_that_is_no_request_is_moved_aside_with_a_reason(inbox, tmp_path, make, reason):
    make(tmp_path)
    good = inbox.send(CloseRequest())
    assert inbox.poll() == [(good, CloseRequest())]
    assert reason in (tmp_path / "refused" / f"{NAME}.reason").read_text()
    assert os.path.lexists(tmp_path / "refused" / NAME)


def test_a_job_alone_is_no_request(inbox, tmp_path):
    from hpcslaq.record.codec import Codec

    (tmp_path / NAME).write_bytes(Codec([JobSpec]).encode(SPEC))
    assert inbox.poll() == []
    assert "holds a JobSpec" in str(inbox.answer(NAME))


def test_a_link_is_not_followed(inbox, tmp_path):
    link(tmp_path)
    assert inbox.poll() == []
    assert os.path.lexists(tmp_path / "refused" / NAME)
    assert (tmp_path / ".elsewhere").read_bytes() == b"{}"


def test_a_file_of_another_name_is_refused_and_one_being_written_is_left_alone(inbox, tmp_path):
    (tmp_path / "job.toml").write_text("")
    (tmp_path / ".tmp-x").write_text("")
    assert inbox.poll() == []
    assert "is not the name of a request" in (tmp_path / "refused/job.toml.reason").read_text()
    assert (tmp_path / ".tmp-x").exists()


def test_a_file_of_another_user_is_refused(inbox, tmp_path, monkeypatch):
    name = inbox.send(CloseRequest())
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert inbox.poll() == []
    assert f"belongs to user {owner}" in str(inbox.answer(name))


def test_a_request_that_is_too_large_is_not_sent(inbox, tmp_path):
    with pytest.raises(RequestError, match="more than"):
        inbox.send(CancelRequest("a", "x" * MAX_BYTES))
    assert os.listdir(tmp_path) == []


def test_a_flood_is_taken_in_portions(inbox):
    names = [inbox.send(CloseRequest()) for _ in range(100)]
    first = [name for name, _ in inbox.poll()]
    assert len(first) < 100
    assert first == names[: len(first)]
