"""Ranks that outlive their run end by themselves: orphans must not write on.

A rank is an orphan when its launcher is gone (Open MPI's ranks live on after their daemon was
killed), or when a later start of the run has taken over its directory (a node that Slurm gave
up, but whose processes still reach the shared file system). Neither needs MPI to be noticed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from hpcslaq.record.rundir import RunDirectory

log = logging.getLogger(__name__)

#: Exit code of an orphan; the run's is that of the start which took over.
EXIT_ORPHAN = 1
#: How often a rank looks whether its launcher still lives, s.
_LOOK_EVERY_S = 1.0
#: How often rank 0 looks whose the directory is, s.
_CHECK_EVERY_S = 2.0


def end_with_launcher() -> None:
    """End this process, from a thread, soon after the one that started it has ended.

    Works also while the rank waits inside MPI for somebody who will not come.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        log.critical("the launcher is gone: this rank ends")
        os._exit(EXIT_ORPHAN)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


class Fence:
    """Knows which start of a run this rank belongs to; made when the run is begun."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._owner = run.read_owner()

    def check(self) -> None:
        """Before something is written: end this process where a later start owns the run."""
        owner = self._run.read_owner()
        # Unreadable is not taken over: a file server may have been away for a moment.
        if owner is not None and owner != self._owner:
            log.critical("another start of the run has taken over: this rank ends")
            os._exit(EXIT_ORPHAN)

    def around(self, ask: Callable[[], str]) -> Callable[[], str]:
        """The same function, which also checks now and then."""
        checked_at = time.monotonic()

        def asked() -> str:
            nonlocal checked_at
            if time.monotonic() - checked_at >= _CHECK_EVERY_S:
                self.check()
                checked_at = time.monotonic()
            return ask()

        return asked
