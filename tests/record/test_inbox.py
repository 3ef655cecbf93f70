"""The inbox from both sides, and files that do not belong there."""

from __future__ import annotations

import json
import os
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcslaq.core.jobs import JobSpec
from hpcslaq.record.inbox import (
    MAX_BYTES,
    CancelRequest,
    CloseRequest,
    Inbox,
    Request,
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


def make_socket(path):
    os.mknod(path, stat.S_IFSOCK | 0o600)


def link(path):
    (path / ".elsewhere").write_bytes(b"{}")
    (path / NAME).symlink_to(path / ".elsewhere")


def hard_link(path):
    (path / ".elsewhere").write_bytes(b'{"type":"CloseRequest"}')
    os.link(path / ".elsewhere", path / NAME)


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
        (lambda path: make_socket(path / NAME), "No such device or address"),
        (hard_link, "has 2 names"),
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


def test_a_device_is_not_read(inbox, tmp_path):
    try:
        os.mknod(tmp_path / NAME, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # endless zeros
    except PermissionError:
        pytest.skip("only root makes devices, and not in every container")
    assert inbox.poll() == []
    reason = (tmp_path / "refused" / f"{NAME}.reason").read_text()
    assert "is not a regular file" in reason or "not permitted" in reason


@pytest.mark.parametrize(
    "name",
    ["x" * 255, "a\nb", "\udcff\udcfe", "é" * 120, "-rf", "x.json\x1b[2J", "a b", "..."],
)
def test_a_file_of_a_strange_name_keeps_nobody_waiting(inbox, tmp_path, name):
    (tmp_path / name).write_text("{}")
    good = inbox.send(CloseRequest())
    assert inbox.poll() == [(good, CloseRequest())]
    # A name that begins with a dot is a file that is still being written.
    assert inbox.poll() == [(good, CloseRequest())]
    assert (tmp_path / name).exists() == name.startswith(".")


def test_two_strange_files_do_not_displace_each_other(inbox, tmp_path):
    for end in "ab":
        (tmp_path / ("x" * 240 + end)).write_text(end)
    inbox.poll()
    kept = [path for path in (tmp_path / "refused").iterdir() if path.suffix != ".reason"]
    assert sorted(path.read_text() for path in kept) == ["a", "b"]


def test_a_file_that_cannot_be_moved_keeps_nobody_waiting(inbox, tmp_path, caplog):
    (tmp_path / "refused" / "0.toml").mkdir(parents=True)
    (tmp_path / "refused" / "0.toml" / "x").touch()
    (tmp_path / "0.toml").mkdir()
    good = inbox.send(CloseRequest())
    assert inbox.poll(1) == []
    assert inbox.poll(1) == [(good, CloseRequest())]
    assert inbox.poll(1) == [(good, CloseRequest())]
    assert caplog.text.count("stays where it is") == 1


def test_a_request_that_waits_for_its_event_may_be_left_out(inbox):
    names = [inbox.send(CloseRequest()) for _ in range(2)]
    assert [name for name, _ in inbox.poll(skip={names[0]})] == names[1:]


def test_a_flood_is_listed_once_and_not_once_for_each_portion(inbox, tmp_path, monkeypatch):
    names = [inbox.send(CloseRequest()) for _ in range(200)]
    num_lists = 0
    listdir = os.listdir

    def counted(path):
        nonlocal num_lists
        num_lists += 1
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    taken = []
    while found := inbox.poll(7):
        for name, _ in found:
            inbox.done(name)
            taken.append(name)
    assert taken == names
    assert num_lists == 2


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "job", "spec", "name", "weight", "data_path", "options"])
            | st.text(max_size=5),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(content=st.binary(max_size=60) | _json.map(lambda value: json.dumps(value).encode()))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_content_is_a_request_or_refused(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    found = Inbox(tmp_path).poll()
    assert all(isinstance(request, Request) for _, request in found)
    assert (tmp_path / NAME).exists() == bool(found)
    assert len((tmp_path / "refused" / f"{NAME}.reason").read_bytes() if not found else b"") <= 500


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_edit_of_a_request_is_a_request_or_refused(tmp_path, data):
    inbox = Inbox(tmp_path)
    name = inbox.send(data.draw(st.sampled_from(REQUESTS)))
    content = bytearray((tmp_path / name).read_bytes())
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 8)))
    content[start:stop] = data.draw(st.binary(max_size=8))
    (tmp_path / name).write_bytes(bytes(content))
    found = Inbox(tmp_path).poll()
    assert len(found) == (tmp_path / name).exists()
    for _, request in found:
        inbox.done(name)
        assert isinstance(request, Request)


def test_a_flood_is_taken_in_portions(inbox):
    names = [inbox.send(CloseRequest()) for _ in range(100)]
    first = [name for name, _ in inbox.poll()]
    assert len(first) < 100
    assert first == names[: len(first)]
