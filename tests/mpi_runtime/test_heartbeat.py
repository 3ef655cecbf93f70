"""A rank that stands still is found and ended; one that works is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from hpcslaq.mpi import heartbeat
from hpcslaq.mpi.heartbeat import Heartbeat, Watchman

PROGRAM = """
import sys, os
from pathlib import Path
import hpcslaq.mpi.heartbeat as heartbeat
heartbeat.PERIOD_S = 0.02
path, rank, pids = Path(sys.argv[1]), int(sys.argv[2]), [0, 0, 0]
pids[rank] = os.getpid()
hosts = ["elsewhere"] * 3
hosts[rank] = "here"
beat = heartbeat.Heartbeat(path, rank, hosts, pids)
print("on", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.02)
    path = tmp_path / "heartbeats"
    Heartbeat.prepare(path, 3)
    return path


@pytest.fixture
def start(path):
    """`start(rank)`: a process that gives signs of life."""
    processes = []

    def run(rank):
        line = [sys.executable, "-c", PROGRAM, str(path), str(rank)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True)
        assert process.stdout.readline() == "on\n"
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def wait_until(is_true, timeout_s=30.0):
    until = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def test_a_stopped_process_is_ended_and_a_working_one_is_not(path, start):
    working, stopped = start(1), start(2)
    own = Heartbeat(path, 0, ["here"] * 3, [os.getpid(), working.pid, stopped.pid])
    watchman = Watchman(own, 0.5)
    stopped.send_signal(signal.SIGSTOP)

    def has_ended():
        watchman.look()
        return stopped.poll() is not None

    wait_until(has_ended)
    assert stopped.returncode == -signal.SIGKILL
    assert working.poll() is None
    own.close()


def test_one_on_another_host_is_ended_by_a_process_there(path, start):
    # The other process on host "there" is rank 1, which knows rank 2 as itself only.
    other = start(2)
    hosts = ["here", "there", "there"]
    own = Heartbeat(path, 0, hosts, [os.getpid(), 0, other.pid])
    own.condemn(2)
    # This process is on another host: it is the condemned one that hears of it.
    wait_until(lambda: other.poll() is not None)
    assert other.returncode == -signal.SIGKILL
    own.close()


def test_a_watchman_who_stood_still_himself_judges_nobody(path, monkeypatch):
    class Silent:
        condemned: tuple[int, ...] = ()

        def counts(self):
            return {0: 5, 1: 5}

        def condemn(self, rank):
            self.condemned += (rank,)

    now = 100.0
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    silent = Silent()
    watchman = Watchman(silent, 10.0)
    watchman.look()
    now += 1000
    watchman.look()
    assert silent.condemned == ()
    for _ in range(12):
        now += 1.0
        watchman.look()
    assert silent.condemned == (1,)


def test_a_file_that_cannot_be_read_condemns_nobody(path):
    own = Heartbeat(path, 0, ["here"] * 3, [os.getpid(), 0, 0])
    own.close()
    assert own.counts() == {}
