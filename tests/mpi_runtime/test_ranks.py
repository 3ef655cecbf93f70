"""Starts the tests of tests/mpi/ranks on ranks of each MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.launch

RANKS = Path(__file__).parent / "ranks"


def test_the_tests_that_need_ranks_pass_on_three(mpi, launch):
    program = ["-m", "pytest", "--only-mpi", "-x", "-q", "-p", "no:cacheprovider", str(RANKS)]
    done = launch(mpi, 3, program, timeout_s=120)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "10 passed" in done.stdout
