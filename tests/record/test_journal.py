"""Writing, reading, following and repairing journals."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpcslaq.core.commands import Start, WakeAt
from hpcslaq.core.events import JobFailed, ProgressReported, RankLost, RoundElapsed
from hpcslaq.errors import NotFoundError
from hpcslaq.record import journal
from hpcslaq.record.codec import CodecError, Kind
from hpcslaq.record.journal import JournalError, JournalTail, JournalWriter, read_journal

ENTRIES = [
    (0.0, RankLost(1, "killed")),
    (0.5, Start("a", 1, (2, 3))),
    (0.5, WakeAt(3.5)),
    (1.25, ProgressReported("a", 1, 1, (0.5, 0.25), 1, 0.5, 2)),
]


class Torn(list[tuple[int, bytes]]):
    """Collects reports of torn lines."""

    def __call__(self, path: Path, line: int, text: bytes) -> None:
        self.append((line, text))


def write(path: Path) -> None:
    with JournalWriter(path) as writer:
        for now, item in ENTRIES:
            writer.append(now, item)


def pairs(path: Path) -> list[tuple[float, object]]:
    return [(entry.now, entry.item) for entry in read_journal(path)]


def test_a_journal_reads_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    assert pairs(path) == ENTRIES
    kinds = [entry.kind for entry in read_journal(path)]
    assert kinds == [Kind.EVENT, Kind.COMMAND, Kind.COMMAND, Kind.EVENT]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_second_writer_appends(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    write(path)
    assert pairs(path) == ENTRIES * 2


def test_lines_are_with_the_system_after_flush_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path, fsync=True) as writer:
        writer.append(0.0, RoundElapsed(), WakeAt(1.0))
        assert pairs(path) == []
        writer.flush()
        assert pairs(path) == [(0.0, RoundElapsed()), (0.0, WakeAt(1.0))]


def test_a_journal_cut_at_any_byte_gives_a_prefix_and_reports_the_torn_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        torn = Torn()
        found = [(e.now, e.item) for e in read_journal(path, on_torn=torn)]
        complete = whole[:size].count(b"\n")
        assert found == ENTRIES[:complete]
        rest = whole[:size].rpartition(b"\n")[2]
        assert torn == ([(complete + 1, rest)] if rest else [])


def test_the_next_writer_cuts_off_a_torn_line_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    whole = path.read_bytes()
    for size in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:size])
        torn = Torn()
        with JournalWriter(path, on_torn=torn) as writer:
            writer.append(9.0, RoundElapsed())
        complete = whole[:size].count(b"\n")
        assert pairs(path) == [*ENTRIES[:complete], (9.0, RoundElapsed())]
        assert len(torn) == (0 if whole[:size].endswith(b"\n") or size == 0 else 1)


def test_a_long_torn_line_is_cut_off_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    with path.open("ab") as file:
        file.write(b"\0" * 200_000)
    torn = Torn()
    JournalWriter(path, on_torn=torn).close()
    assert pairs(path) == ENTRIES
    assert [line for line, _ in torn] == [len(ENTRIES) + 1]


def test_the_default_report_of_a_torn_line_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    path.write_bytes(path.read_bytes()[:-3])
    assert pairs(path) == ENTRIES[:-1]
    assert "journal.jsonl:4: the last line is torn" in caplog.text


def test_a_bad_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b'{"now": 1.0, "event": {"type": "Nothing"}}\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match=r"journal.jsonl:2: type: unknown 'Nothing'"):
        list(read_journal(path))


def test_an_endless_line_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    monkeypatch.setattr(journal, "MAX_LINE_BYTES", 300)
    path.write_bytes(b"x" * 1000)
    with pytest.raises(JournalError, match=r"journal\.jsonl:1: more than 300 bytes"):
        list(read_journal(path))
    with pytest.raises(JournalError, match="more than 300 bytes"):
        JournalTail(path).poll()
    path.unlink()
    with JournalWriter(path) as writer, pytest.raises(CodecError, match="in one line > 300"):
        writer.append(0.0, JobFailed("a", 1, 1, "m", "x" * 300))
    assert pairs(path) == []


def test_a_missing_journal_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"journal\.jsonl: there is no journal"):
        list(read_journal(tmp_path / "journal.jsonl"))


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path), pytest.raises(JournalError, match="another run is writing"):
        JournalWriter(path)
    JournalWriter(path).close()


def test_a_file_system_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(journal.fcntl, "flock", no_locks)
    write(tmp_path / "journal.jsonl")
    assert pairs(tmp_path / "journal.jsonl") == ENTRIES


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "journal.jsonl").symlink_to(target)
    with pytest.raises(OSError):
        JournalWriter(tmp_path / "journal.jsonl")
    assert target.read_text() == "precious"


def test_a_full_disk_leaves_no_half_line_and_the_lines_are_kept_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    writer = JournalWriter(path)
    writer.append(*ENTRIES[0])
    real_write = os.write
    calls = []

    def full(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real_write(fd, bytes(data)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    assert path.read_bytes() == b""
    monkeypatch.undo()
    writer.append(*ENTRIES[1])
    writer.close()
    writer.close()
    assert pairs(path) == ENTRIES[:2]


def test_a_tail_sees_each_entry_once_and_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    whole = path.read_bytes()
    path.unlink()
    tail = JournalTail(path)
    assert tail.poll() == []
    seen: list[tuple[float, object]] = []
    for start in range(0, len(whole), 11):
        with path.open("ab") as file:
            file.write(whole[start : start + 11])
        seen += [(entry.now, entry.item) for entry in tail.poll()]
        assert seen == ENTRIES[: whole[: start + 11].count(b"\n")]
    assert seen == ENTRIES
    assert tail.poll() == []


def test_a_tail_hands_out_no_more_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    tail = JournalTail(path)
    assert [len(tail.poll(3)) for _ in range(3)] == [3, 1, 0]


def test_a_tail_survives_the_repair_of_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    with path.open("ab") as file:
        file.write(b'{"now": 1')
    tail = JournalTail(path)
    assert len(tail.poll()) == len(ENTRIES)
    with JournalWriter(path, on_torn=Torn()) as writer:
        writer.append(2.0, RoundElapsed())
    assert [entry.item for entry in tail.poll()] == [RoundElapsed()]


def test_a_tail_says_when_the_journal_became_shorter_or_wrong(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    tail = JournalTail(path)
    tail.poll()
    with path.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(JournalError, match=r"journal.jsonl:5: expected now"):
        tail.poll()
    path.write_bytes(b"")
    with pytest.raises(JournalError, match="is shorter"):
        tail.poll()
