"""Names, creation and small files of a run directory."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcslaq import __version__
from hpcslaq.errors import NotFoundError
from hpcslaq.record.codec import CodecError
from hpcslaq.record.files import LogHandler, open_log
from hpcslaq.record.inbox import CloseRequest, Inbox
from hpcslaq.record.journal import JournalWriter
from hpcslaq.record.rundir import RunDirectory, RunDirectoryError, checked_name
from hpcslaq.record.store import CheckpointStore


def make(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "RUN")
    run.write_run_toml({"run": {"policy": "fair"}})
    return run


def test_a_new_run_directory_is_private_and_has_its_subdirectories(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        run = RunDirectory.create(tmp_path / "deep" / "RUN")
    finally:
        os.umask(old)
    assert run.path.stat().st_mode & 0o777 == 0o700
    for path in (run.inbox, run.checkpoints, run.models, run.logs):
        assert path.is_dir()
        assert path.stat().st_mode & 0o077 == 0


def test_the_user_may_choose_another_mode(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path / "RUN", 0o750).path.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("mode", "of_files"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644), (0o770, 0o660)]
)
def test_files_can_be_read_by_those_who_may_enter(tmp_path: Path, mode: int, of_files: int) -> None:
    old = os.umask(0o022)
    try:
        run = RunDirectory.create(tmp_path / "RUN", mode)
        run.write_run_toml({"run": {}})
        JournalWriter(run.journal).close()
        CheckpointStore(run.checkpoint_directory("a"), {}).save(1, {}, {})
        inbox = Inbox(run.inbox)
        inbox.done(inbox.send(CloseRequest()))
    finally:
        os.umask(old)
    for path in run.path.rglob("*"):
        expected = mode if path.is_dir() else of_files
        assert path.stat().st_mode & 0o777 == expected, path


@pytest.mark.parametrize("mode", [0o000, 0o600, 0o070, 0o777, 0o702, 0o4700])
def test_a_mode_that_locks_the_owner_out_or_lets_everybody_write_is_refused(
    tmp_path: Path, mode: int
) -> None:
    with pytest.raises(RunDirectoryError, match="is none for a run directory"):
        RunDirectory.create(tmp_path / "RUN", mode)
    assert not (tmp_path / "RUN").exists()


def test_a_directory_that_exists_keeps_the_mode_that_the_user_gave_it(tmp_path: Path) -> None:
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN").chmod(0o750)
    run = RunDirectory.create(tmp_path / "RUN")
    assert {path.stat().st_mode & 0o777 for path in (run.path, run.inbox, run.models)} == {0o750}


def test_a_log_is_never_written_through_a_link(tmp_path: Path) -> None:
    run = make(tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("x")
    run.job_log("a").symlink_to(precious)
    run.coordinator_log.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        open_log(run.job_log("a"))
    handler = LogHandler(run.coordinator_log)
    with pytest.raises(OSError, match="symbolic links"):
        handler._open()
    handler.close()
    assert precious.read_text() == "x"


def test_all_names_are_where_the_design_says() -> None:
    run = RunDirectory(Path("/RUN"))
    names = {
        str(path.relative_to("/RUN"))
        for path in (
            run.run_toml,
            run.journal,
            run.inbox,
            run.checkpoint_directory("a=1"),
            run.model_file("a=1"),
            run.job_log("a=1"),
            run.rank_log(3),
            run.coordinator_log,
            run.report_html,
            run.result_json,
        )
    }
    assert names == {
        "run.toml",
        "journal.jsonl",
        "inbox",
        "checkpoints/a=1",
        "models/a=1.h5",
        "logs/job-a=1.log",
        "logs/rank-3.log",
        "logs/coordinator.log",
        "report.html",
        "result.json",
    }


def test_an_empty_directory_and_an_interrupted_creation_are_used(tmp_path: Path) -> None:
    (tmp_path / "RUN").mkdir()
    RunDirectory.create(tmp_path / "RUN")
    RunDirectory.create(tmp_path / "RUN")


@pytest.mark.parametrize("name", ["thesis.tex", "logs/old.log", "checkpoints"])
def test_a_directory_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "RUN" / name
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    with pytest.raises(RunDirectoryError, match="neither empty nor a run directory"):
        RunDirectory.create(tmp_path / "RUN")
    assert file.read_text() == "precious"


def test_a_file_and_an_impossible_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirectoryError, match="is not a directory"):
        RunDirectory.create(tmp_path / "file")
    with pytest.raises(RunDirectoryError, match="cannot be made"):
        RunDirectory.create(tmp_path / "file" / "RUN")


def test_a_run_is_not_created_twice(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        RunDirectory.create(tmp_path / "RUN")


def test_an_existing_run_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path)
    assert RunDirectory.open_existing(run.path) == run
    monkeypatch.chdir(tmp_path)
    assert RunDirectory.open_existing(Path("RUN")) == run


def test_what_is_not_a_run_is_not_found_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="RUN: there is no such run directory"):
        RunDirectory.open_existing(tmp_path / "RUN")
    with pytest.raises(NotFoundError, match=r"it has no run\.toml"):
        RunDirectory.open_existing(tmp_path)


def test_a_subdirectory_that_became_a_link_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    run.models.rmdir()
    run.models.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirectoryError, match="models: is not a directory of this run"):
        RunDirectory.open_existing(run.path)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a\0", "a\n", "-a", "é"])
def test_a_name_that_could_leave_its_directory_is_refused(name: str) -> None:
    run = RunDirectory(Path("/RUN"))
    for method in (run.checkpoint_directory, run.model_file, run.job_log, run.find_model):
        with pytest.raises(RunDirectoryError, match="is not a job name"):
            method(name)


@given(st.text(max_size=20))
def test_no_name_ever_leaves_its_directory(name: str) -> None:
    run = RunDirectory(Path("/RUN"))
    try:
        checked_name(name)
    except RunDirectoryError:
        return
    for path, parent in (
        (run.checkpoint_directory(name), run.checkpoints),
        (run.model_file(name), run.models),
        (run.job_log(name), run.logs),
    ):
        assert os.path.normpath(path) == str(path)
        assert path.parent == parent


def test_run_toml_is_read_back_with_versions(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.write_run_toml({"run": {"policy": "slaq"}, "job": [{"name": "a"}]}, {"mpi": "Open MPI 5"})
    document = run.read_run_toml()
    assert document["run"] == {"policy": "slaq"}
    assert document["job"] == [{"name": "a"}]
    assert document["versions"]["hpcslaq"] == __version__
    assert document["versions"]["mpi"] == "Open MPI 5"
    assert document["versions"]["numpy"][0].isdigit()


def test_a_damaged_run_toml_is_refused_by_its_path(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.run_toml.write_text("format = 1\nrun = = 2\n")
    with pytest.raises(RunDirectoryError, match=r"run\.toml: is damaged.*line 2"):
        run.read_run_toml()
    run.run_toml.write_text("format = 2")
    with pytest.raises(RunDirectoryError, match="format: expected 1, found 2"):
        run.read_run_toml()
    with pytest.raises(RunDirectoryError, match=r"run\.toml: run\.x"):
        run.write_run_toml({"run": {"x": object()}})
    run.run_toml.unlink()
    with pytest.raises(NotFoundError, match=r"run\.toml"):
        run.read_run_toml()
    for versions in ("", "versions = 1", "[versions]\nnumpy = 2"):
        run.run_toml.write_text(f"format = 1\n{versions}\n")
        with pytest.raises(RunDirectoryError, match=r"run\.toml: is damaged: versions"):
            run.read_run_toml()


def test_the_result_is_none_until_it_is_written(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert run.read_result() is None
    run.write_result({"exit_code": 0, "wall_s": 0.1})
    assert run.read_result() == {"exit_code": 0, "wall_s": 0.1}
    run.remove_result()
    run.remove_result()
    assert run.read_result() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": NaN}'])
def test_a_damaged_result_is_refused(tmp_path: Path, text: str) -> None:
    run = make(tmp_path)
    run.result_json.write_text(text)
    with pytest.raises(RunDirectoryError, match=r"result\.json: is damaged"):
        run.read_result()


def test_a_result_that_is_not_json_is_not_written(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(CodecError):
        run.write_result({"loss": math.nan})
    assert run.read_result() is None


def test_a_missing_model_is_not_found_by_its_path(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(NotFoundError, match=r"models/a\.h5: there is no trained model"):
        run.find_model("a")
    run.model_file("a").write_text("x")
    assert run.find_model("a") == run.model_file("a")
