"""Damaged files of a run directory are read or refused, in one line and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import HpcslaqError
from hpcslaq.record.journal import JournalTail, JournalWriter, read_journal
from hpcslaq.record.modelfile import ModelInfo, SavedModel, read_model, write_model
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.store import CheckpointStore
from hpcslaq.record.summary import RunSummary
from tests.hostile import damaged

SPEC = JobSpec("a", "m", "d", 2, 4, options={"l2": 0.1, "sizes": [1, 2]})
ITEMS = (
    ev.RunStarted({1: "n", 2: "n"}),
    ev.JobSubmitted(SPEC),
    cmd.Start("a", 1, (1, 2)),
    ev.GroupFormed("a", 1, (1, 2)),
    ev.ProgressReported("a", 1, 1, (1.0, 0.5), 1, 0.1, 2),
    ev.CheckpointWritten("a", 2, 1, 10, 0.1),
    ev.RankLost(2, "killed"),
    ev.GroupDissolved("a", 1),
    ev.JobFailed("a", 1, 1, "why", "Traceback"),
    ev.RankReleased(1, "a", 1, {"compute": 1.0}),
    cmd.Shutdown(1),
)


def journal(path: Path) -> None:
    with JournalWriter(path) as writer:
        for number, item in enumerate(ITEMS):
            writer.append(float(number), item)


def plan(path: Path) -> None:
    options = {"optimism": 0.1}
    RunPlan("quality", (SPEC,), {"d": "/d"}, options, job_file="x.toml").write(RunDirectory(path))


def result(path: Path) -> None:
    RunDirectory(path).write_result({"exit_code": 0, "wall_s": 1.5, "cpu_s": {"0": {"user_s": 1}}})


def model(path: Path) -> None:
    info = ModelInfo("a", "logistic", {"l2": 0.1}, {"num_features": 3}, (0, 1))
    write_model(path, SavedModel(info, {"weights": np.arange(4.0)}))


def fold(path: Path) -> None:
    summary = RunSummary("fair")
    summary.fold_all(read_journal(path, on_torn=lambda *args: None))
    json.dumps(summary.to_json(series=True), allow_nan=False)
    JournalTail(path).poll()


#: File, how it is written, how it is read; the last two get the file or its directory.
FILES: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], object], bool]] = {
    "journal": ("journal.jsonl", journal, fold, True),
    "plan": ("run.toml", plan, lambda path: RunPlan.read(RunDirectory(path)), True),
    "result": ("result.json", result, lambda path: RunDirectory(path).read_result(), True),
    "model": ("a.h5", model, read_model, False),
}


@pytest.mark.parametrize("kind", FILES)
@given(data=st.data())
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_damaged_file_is_read_or_refused_in_one_line(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    name, write, read, is_text = FILES[kind]
    file = tmp_path / name
    place = tmp_path if kind in ("plan", "result") else file
    sample = tmp_path / "sample"
    if not sample.exists():
        write(place)
        file.rename(sample)
    file.write_bytes(data.draw(damaged(sample.read_bytes(), is_text=is_text)))
    try:
        read(place)
    except HpcslaqError as error:
        assert str(file) in str(error)
        assert "\n" not in str(error)
        assert len(str(error)) < 1500


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_damage_to_the_newest_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, data: st.DataObject
) -> None:
    store = CheckpointStore(tmp_path / "a", {"job": "a"}, keep=2)
    newest = tmp_path / "a" / "iteration-0000000020.h5"
    sample = tmp_path / "sample"
    if not sample.exists():
        for iteration in (10, 20):
            store.save(iteration, {"w": np.full(40, float(iteration))}, {})
        sample.write_bytes(newest.read_bytes())
    newest.write_bytes(data.draw(damaged(sample.read_bytes())))
    loaded = CheckpointStore(tmp_path / "a", {"job": "a"}, keep=2).load_newest()
    assert loaded is not None
    assert loaded.iteration in (10, 20)
    assert (loaded.arrays["w"] == loaded.iteration).all()
    assert len(loaded.refused) == (loaded.iteration == 10)


@pytest.mark.parametrize("version", [0, 2, 99, -1])
def test_checkpoints_of_another_version_are_passed_over(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path / "a", {"job": "a"})
    store.save(10, {"w": np.zeros(3)}, {})
    monkeypatch.setattr("hpcslaq.record.checkpoint.VERSION", version)
    store.save(20, {"w": np.ones(3)}, {})
    monkeypatch.undo()
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded.iteration == 10
    assert f"expected version 1, found {version}" in caplog.text


def test_a_checkpoint_that_may_not_be_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path / "a", {"job": "a"})
    for iteration in (10, 20):
        store.save(iteration, {"w": np.zeros(3)}, {})
    open_file = Path.open

    def refuse(path: Path, *args: object, **kwargs: object) -> object:
        if path.name.endswith("20.h5"):
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded.iteration == 10
    assert "cannot be read: Permission denied" in caplog.text
