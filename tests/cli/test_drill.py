"""`hpcslaq drill`: what it compares, and the drill itself on each MPI."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from hpcslaq.cli import drill
from hpcslaq.core import events as ev
from hpcslaq.errors import HpcslaqError
from hpcslaq.mpi.launch import Mpi
from hpcslaq.record.journal import JournalWriter

MPI = Mpi("mpich", "MPICH 5", "/nowhere/mpiexec", "/nowhere/python")


def test_iterations_that_are_made_again_are_counted(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal.jsonl") as journal:
        journal.append(0.0, ev.GroupFormed("a", 1, (1,), 0))
        journal.append(1.0, ev.ProgressReported("a", 1, 1, (3.0, 2.0, 1.0), 3, 0.1, 1))
        journal.append(2.0, ev.GroupFormed("a", 2, (1, 2), 3))
        journal.append(3.0, ev.ProgressReported("a", 2, 4, (0.5, 0.4), 5, 0.1, 2))
        journal.append(4.0, ev.GroupFormed("a", 3, (1,), 1))
    assert drill._iterations_again(tmp_path) == 4


def test_a_scenario_that_breaks_or_ends_otherwise_has_lost_something(
    tmp_path: Path, monkeypatch
) -> None:
    def breaks(*_: object) -> None:
        raise HpcslaqError("no end within 60 s")

    def loses(_: drill.Drill, run: Path, outcome: drill.Outcome) -> None:
        run.mkdir()
        (run / "run.toml").touch()
        with JournalWriter(run / "journal.jsonl") as journal:
            journal.append(0.0, ev.JobFinished("first", 1, 1, 1, 0.0, "a", "b", "epochs"))

    scenarios = (("one", "that", breaks), ("two", "this", loses))
    monkeypatch.setattr(drill, "SCENARIOS", scenarios)
    expected = {"first": ("a", "b"), "second": ("a", "b")}
    first, second = drill.drill_all(drill.Drill(tmp_path, MPI, expected))
    assert (first.problem, first.has_survived) == ("no end within 60 s", False)
    assert (second.num_done, second.is_same, second.has_survived) == (1, False, False)


def test_a_drill_inside_a_launch_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    result = CliRunner().invoke(drill.command, [])
    assert result.exit_code == 4
    assert "without mpirun" in result.output
