"""Limits on user code, and what it may change."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from hpcslaq.mpi.watch import StepLimitError, StepWatch, contained


@pytest.fixture
def watch():
    watch = StepWatch(0.2, "a")
    yield watch
    watch.close()


def spin(until: threading.Event) -> None:
    while not until.is_set():
        pass


def test_a_call_that_lasts_too_long_gets_an_error_where_it_is(watch):
    with pytest.raises(StepLimitError, match="step_limit") as caught, watch:
        spin(threading.Event())
    assert any(entry.name == "spin" for entry in caught.traceback)


def test_a_call_that_returns_in_time_is_left_alone(watch):
    for _ in range(1000):
        with watch:
            pass
    with pytest.raises(StepLimitError), watch:
        spin(threading.Event())
    with watch:
        pass


def test_code_that_catches_everything_gets_it_again(watch):
    num_caught = 0
    with pytest.raises(StepLimitError), watch:
        while True:
            try:
                spin(threading.Event())
            except StepLimitError:
                num_caught += 1
                if num_caught == 3:
                    raise


def test_outside_of_user_code_nothing_is_raised(watch):
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        pass


def test_code_that_cannot_be_interrupted_ends_the_process():
    program = (
        "import time, hpcslaq.mpi.watch as w\n"
        "w.GRACE_S = 0.3\n"
        "with w.StepWatch(0.1, 'a'): time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=50, check=False)
    assert done.returncode == -9


def test_what_user_code_changes_for_all_is_put_back():
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    directory, errors, filters = os.getcwd(), np.geterr(), list(warnings.filters)
    with contained():
        random.seed(7)
        np.random.seed(7)
        np.seterr(all="raise")
        os.chdir("/")
        warnings.simplefilter("ignore")
    assert (random.random(), np.random.random()) == expected
    assert (os.getcwd(), np.geterr()) == (directory, errors)
    assert list(warnings.filters) == filters


def test_memory_beyond_the_limit_raises_in_the_code_that_asks_for_it():
    program = (
        "import numpy as np, hpcslaq.mpi.watch as w\n"
        "w.limit_memory(600 * 2**20)\n"
        "np.ones(10 * 2**17)\n"
        "try: np.ones(100 * 2**20)\n"
        "except MemoryError: print('no')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout == "no\n", done.stderr


@pytest.mark.launch
def test_only_the_job_that_breaks_a_limit_fails(mpi, place, command):
    jobs = [
        {"name": "endless", "where": "statistics", "deed": "loop", "chunk": 3},
        {"name": "greedy", "where": "update", "deed": "eat"},
        {"name": "changer", "where": "statistics", "deed": "change"},
        {"name": "threads", "where": "statistics", "deed": "thread"},
        {"name": "good", "sleep_s": 0.05},
    ]
    limits = 'step_limit = "2s"\nmemory_limit_mb = 1500'
    done = command(mpi, place.arguments(place.job_file(*jobs, run=limits), 4))
    report = {job["name"]: job for job in json.loads(done.stdout)["jobs"]}
    assert done.returncode == 1, done.stderr
    failed = {name for name, job in report.items() if job["state"] == "failed"}
    assert failed == {"endless", "greedy"}
    assert "did not return within the run's step_limit" in report["endless"]["reason"]
    assert "MemoryError" in report["greedy"]["reason"]
    assert {job["state"] for name, job in report.items() if name not in failed} == {"done"}
    journal = (place.out / "journal.jsonl").read_text()
    assert "rude_models.py" in journal
    # The traceback is where people look for it, too.
    assert "in loop" in (place.out / "logs" / "job-endless.log").read_text()
