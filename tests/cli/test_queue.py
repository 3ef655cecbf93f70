"""How often the login node's commands ask Slurm: rarely, and only if they are told to."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from hpcslaq.cli import queue
from hpcslaq.cli.queue import ASK_EVERY_S, QueueView
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.slurm.submit import record_submission


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A submitted run, and a squeue that notes each call."""
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(f"#!/bin/sh\necho asked >>{tmp_path}/calls\necho '41|RUNNING|9:00|n1'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    made = RunDirectory.create(tmp_path / "run")
    record_submission(made, "41")
    return made


def num_calls(run):
    calls = run.path.parent / "calls"
    return len(calls.read_text().split()) if calls.exists() else 0


def test_slurm_is_asked_at_most_every_30_seconds(run, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    view = QueueView(run, is_asking=True)
    for _ in range(100):  # looks once a second, as `status --watch` does
        assert view.lines() == ["slurm: job 41: RUNNING n1, 9m left"]
        view.describe()
        now[0] += 1.0
    assert ASK_EVERY_S >= 30.0
    assert num_calls(run) == 4


def test_slurm_is_not_asked_unless_wanted(run):
    view = QueueView(run, is_asking=False)
    assert (view.lines(), view.state(), view.describe()) == ([], None, None)
    assert num_calls(run) == 0
