"""The drill that users can run passes on each MPI."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.launch, pytest.mark.long]


@pytest.mark.timeout(400)
def test_nothing_is_lost_in_the_drill(mpi, command):
    done = command(mpi, ["drill", "--json"], timeout_s=300)
    report = json.loads(done.stdout)
    assert [item["scenario"] for item in report["scenarios"] if not item["has_survived"]] == []
    assert done.returncode == 0, done.stdout + done.stderr
    ways = {item["scenario"]: item["way"] for item in report["scenarios"]}
    survived = "the survivors went on" if mpi.is_fault_tolerant else "restarted from checkpoints"
    assert ways["worker"] == survived
