"""What `status --slurm` shows: the run's Slurm jobs, asked for at most every 30 s."""

from __future__ import annotations

import time
from typing import Any

from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.text import seconds
from hpcslaq.slurm.query import QueueState, job_states
from hpcslaq.slurm.submit import Submission, read_submissions

#: Shortest time between two questions to Slurm, s: its controller serves all users.
ASK_EVERY_S = 30.0


class QueueView:
    """The Slurm jobs of a run directory; says nothing unless `is_asking`."""

    def __init__(self, run: RunDirectory, *, is_asking: bool) -> None:
        #: Jobs that were submitted for the run, oldest first. Raises RunDirectoryError.
        self.submissions: list[Submission] = read_submissions(run)
        self._is_asking = is_asking
        self._asked_at = -float("inf")
        self._state: QueueState | None = None

    def state(self) -> QueueState | None:
        """How the newest job stands; None where nothing was asked or submitted."""
        if not self._is_asking or not self.submissions:
            return None
        if time.monotonic() - self._asked_at >= ASK_EVERY_S:
            self._asked_at = time.monotonic()
            job_id = self.submissions[-1].job_id
            self._state = job_states([job_id])[job_id]
        return self._state

    def lines(self) -> list[str]:
        """The state in words, for people; nothing where nothing was asked."""
        if not self._is_asking:
            return []
        state = self.state()
        if state is None:
            return ["slurm: no job was submitted for this run by `hpcslaq slurm submit`"]
        if state.state is None:
            return [f"slurm: job {state.job_id}: unknown ({state.problem})"]
        # Of a job that has ended or not begun Slurm tells a time, too.
        left_s = state.time_left_s if state.state == "RUNNING" else None
        left = "" if left_s is None else f", {seconds(left_s)} left"
        return [f"slurm: job {state.job_id}: {state.state} {state.where}{left}"]

    def describe(self) -> dict[str, Any] | None:
        """The state as JSON; None where nothing was asked."""
        state = self.state()
        if state is None:
            return None
        return {
            "job_id": state.job_id,
            "state": state.state,
            "where": state.where,
            "time_left_s": state.time_left_s,
            "problem": state.problem,
        }
