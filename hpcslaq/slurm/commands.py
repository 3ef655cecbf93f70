"""Slurm's commands as subprocesses that cannot hang us: an answer, or a problem, in time.

The only place of this package that starts processes. What is asked is in `query`, `submit`
and `allocation`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: How long a question to Slurm may take, s: with the start of Python people wait 5 s at most.
ANSWER_S = 4.0
_PAUSE_S = 0.02
_MAX_ANSWER = 10**6


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said; `problem` is empty where it succeeded, else one line for people."""

    text: str = ""
    problem: str = ""


class Question:
    """A command under way: `poll` until it answers; it never waits.

    A command that takes longer than `timeout_s` is killed with all its children.
    """

    def __init__(self, line: Sequence[str], timeout_s: float = ANSWER_S) -> None:
        self._name = os.path.basename(line[0])
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._answer: Answer | None = None
        if shutil.which(line[0]) is None:
            self._answer = Answer(problem=f"{self._name} is not here (not in PATH)")
            return
        try:
            self._process = subprocess.Popen(
                list(line),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._answer = Answer(problem=f"{self._name} cannot be started: {error.strerror}")

    def poll(self) -> Answer | None:
        """The answer; None while there is none."""
        if self._answer is None:
            assert self._process is not None
            if self._process.poll() is not None:
                self._answer = self._read(self._process)
            elif time.monotonic() > self._until:
                self._kill(self._process)
                text = f"{self._name} did not answer within {self._timeout_s:g} s"
                self._answer = Answer(problem=text)
        return self._answer

    def wait(self) -> Answer:
        """The answer, or the problem that there is none; takes `timeout_s` at most."""
        while (answer := self.poll()) is None:
            time.sleep(_PAUSE_S)
        return answer

    def _read(self, process: subprocess.Popen[bytes]) -> Answer:
        out = _drain(process.stdout)
        err = _drain(process.stderr)
        if process.returncode == 0:
            return Answer(out)
        lines = [line for line in (err or out).splitlines() if line.strip()]
        said = lines[-1].strip() if lines else f"exit code {process.returncode}"
        # Some name themselves, some do not.
        return Answer(out, f"{self._name}: {said.removeprefix(f'{self._name}: ')}"[:500])

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def ask(line: Sequence[str], timeout_s: float = ANSWER_S) -> Answer:
    """Run a command of Slurm; its answer, after `timeout_s` at most."""
    return Question(line, timeout_s).wait()


def _drain(pipe: Any) -> str:
    """What an ended process wrote; a child of it may still hold the pipe open."""
    os.set_blocking(pipe.fileno(), False)
    with pipe:
        data: bytes = pipe.read(_MAX_ANSWER) or b""
    return data.decode(errors="replace")
