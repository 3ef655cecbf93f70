"""The log that user code's prints go to: whole lines, with the rank, bounded, never raising."""

from __future__ import annotations

from contextlib import redirect_stdout

from hpcslaq.mpi import prints as prints_module
from hpcslaq.mpi.prints import Prints


def test_lines_are_written_whole_and_with_the_rank(tmp_path):
    path = tmp_path / "job.log"
    with Prints(path, 3) as prints, redirect_stdout(prints):
        print("a", end="")
        assert not path.exists()
        print("b\nc")
        assert path.read_text() == "rank 3: ab\nrank 3: c\n"
        print("no end, \udc80", end="")
    assert path.read_text().splitlines()[-1] == "rank 3: no end, \\udc80"


def test_two_ranks_share_a_log(tmp_path):
    path = tmp_path / "job.log"
    with Prints(path, 1) as one, Prints(path, 2) as two:
        one.write("x\n")
        two.write("y\n")
        one.write("z\n")
    assert path.read_text() == "rank 1: x\nrank 2: y\nrank 1: z\n"


def test_the_log_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(prints_module, "MAX_BYTES", 100)
    path = tmp_path / "job.log"
    with Prints(path, 1) as prints:
        for _ in range(1000):
            prints.write("0123456789\n")
    assert path.stat().st_size < 200
    assert path.read_text().endswith("(no more is kept)\n")


def test_a_log_that_cannot_be_written_disturbs_nobody(tmp_path):
    with Prints(tmp_path / "no" / "such" / "folder.log", 1) as prints:
        prints.write("x\n")
        prints.write("y\n")
