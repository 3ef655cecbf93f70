"""Limits on what user code may take on a rank, and what it may leave changed behind itself.

A call of user code that lasts longer than the run's `step_limit` gets an error raised inside it,
from a thread of its own; where that does not help (it is not in Python code, or it goes on all
the same) the process ends, as if it had been killed. Nothing here makes an MPI call.
"""

from __future__ import annotations

import ctypes
import logging
import os
import random
import resource
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

import numpy as np

from hpcslaq.errors import TrainingError
from hpcslaq.mpi.launch import die

log = logging.getLogger(__name__)

#: After so long without effect, s, the process ends.
GRACE_S = 10.0

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc


class StepLimitError(TrainingError):
    """User code did not return in time; raised inside it, where it happens to be."""

    def __init__(self) -> None:
        super().__init__("user code did not return within the run's step_limit")


class StepWatch:
    """A context manager around each call of user code in the thread that made it.

    `limit_s` : how long a call may last; the watching thread lives as long as the process.
    """

    def __init__(self, limit_s: float, job: str) -> None:
        self._limit_s = limit_s
        self._job = job
        self._caller = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        #: When the present call must have returned (time.monotonic); None: there is none.
        self._until: float | None = None
        self._is_raised = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="step limit", daemon=True)
        self._thread.start()

    def __enter__(self) -> None:
        self._until = time.monotonic() + self._limit_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._until = None
            if self._is_raised:
                # What was not delivered in time must not hit anything else.
                _raise_in_thread(self._caller, None)
                self._is_raised = False

    def close(self) -> None:
        """Watch no more."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(min(self._limit_s / 10, 0.5)):
            with self._lock:
                if self._until is None:
                    continue
                late_s = time.monotonic() - self._until
                if late_s > GRACE_S:
                    log.critical("%s: user code does not end: this rank does", self._job)
                    die()
                if late_s > 0:
                    # Again and again: user code may catch whatever is raised.
                    self._is_raised = True
                    _raise_in_thread(self._caller, ctypes.py_object(StepLimitError))


def limit_memory(num_bytes: int) -> None:
    """Let this process take no more (private) memory: beyond it, Python raises MemoryError."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        num_bytes = min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, hard))


@contextmanager
def contained() -> Iterator[None]:
    """Put back what user code may change for the whole process, and so for later jobs.

    The global random states, numpy's error handling, the filters of warnings and the current
    directory; models draw from their own generators, but may use others.
    """
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    numbers, arrays = random.getstate(), np.random.get_state()
    with warnings.catch_warnings(), np.errstate():
        try:
            yield
        finally:
            random.setstate(numbers)
            np.random.set_state(arrays)
            with suppress(OSError):
                os.fchdir(directory)
            os.close(directory)
