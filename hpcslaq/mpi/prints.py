"""Where the prints of user code go: the log of its job, with the rank, and not without end."""

from __future__ import annotations

import io
from pathlib import Path

from hpcslaq.record.files import open_log

#: A rank writes at most so much to the log of a job in one membership; then it says so.
MAX_BYTES = 2**20


class Prints(io.TextIOBase):
    """A text file for `redirect_stdout`: whole lines, each with its rank, appended to a log.

    The log is opened at the first line. Ranks share it: each line is one write at its end.
    Never raises: a full disk must not fail a job that only wanted to say something.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path
        self._rank = rank
        self._file: io.FileIO | None = None
        self._rest = ""
        self._num_bytes = 0

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str, /) -> int:
        """Take text; what ends with a newline is written."""
        if self._num_bytes >= MAX_BYTES:
            return len(text)
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            self._append(lines)
        elif len(self._rest) > MAX_BYTES:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write a line that has not ended, too."""
        if self._rest and self._num_bytes < MAX_BYTES:
            lines, self._rest = [self._rest], ""
            self._append(lines)

    def close(self) -> None:
        """Write what is left and close the log."""
        if not self.closed:
            self.flush()
            if self._file is not None:
                self._file.close()
        super().close()

    def _append(self, lines: list[str]) -> None:
        data = b"".join(
            f"rank {self._rank}: {line}\n".encode(errors="backslashreplace") for line in lines
        )
        self._num_bytes += len(data)
        if self._num_bytes >= MAX_BYTES:
            data = data[:MAX_BYTES] + f"\nrank {self._rank}: ... (no more is kept)\n".encode()
        try:
            if self._file is None:
                self._file = io.FileIO(open_log(self._path), "a")
            self._file.write(data)
        except OSError:
            self._num_bytes = MAX_BYTES
