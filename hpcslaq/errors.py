"""The errors of the project, split by whose fault they are.

Everything that hpcslaq raises on purpose derives from `HpcslaqError` and carries
the exit code with which a command ends because of it (design: 2 usage, 3 not
found, 4 wrong environment, 1 a job failed).
"""

from __future__ import annotations

from collections.abc import Iterable


class HpcslaqError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what a command ends with."""

    exit_code = 1


class JobFileError(HpcslaqError):
    """A job file is wrong: says which file, which key, which value, what would be valid."""

    exit_code = 2

    def __init__(
        self,
        file: str,
        key: str,
        problem: str,
        *,
        value: object = None,
        valid: Iterable[object] = (),
    ) -> None:
        self.file, self.key, self.problem, self.value = file, key, problem, value
        self.valid = tuple(valid)
        text = f"{file}: {key}: {problem}"
        if value is not None:
            text += f", got {value!r}"
        if self.valid:
            text += f" (valid: {', '.join(str(v) for v in self.valid)})"
        super().__init__(text)


class DataError(HpcslaqError):
    """A data file cannot be used: names the file and the line, row or field."""

    exit_code = 2


class NotFoundError(HpcslaqError):
    """A run, a job, a model or a file that was named does not exist."""

    exit_code = 3


class LaunchError(HpcslaqError):
    """The environment does not fit: launcher, MPI library, number of ranks, missing extra."""

    exit_code = 4


class PolicyError(HpcslaqError):
    """A policy proposed an allocation outside the bounds: names the bound and the numbers."""


class InvalidTransition(HpcslaqError):
    """An event that is illegal in the present state; the state is unchanged."""


class CheckpointError(HpcslaqError):
    """A checkpoint or model file is refused: path, what was expected, what was found."""


class TrainingError(HpcslaqError):
    """A job cannot go on: a non-finite loss or statistic, a wrong shape, a bad option value."""
