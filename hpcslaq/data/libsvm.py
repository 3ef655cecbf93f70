"""libsvm / svmlight text: `label index:value index:value ... # comment`, plain or gzip.

Blocks of lines are parsed with array operations; only when the counts of fields do not
fit, the lines are looked at singly to name the first bad one. `qid:n` is ignored.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hpcslaq.data.blocks import Block, Progress, Table
from hpcslaq.data.lines import RowLines, line_blocks
from hpcslaq.errors import DataError

#: Largest index without `num_features`: a weight vector of 1 GB. A larger one is more likely
#: a damaged line than meant.
_MAX_INDEX = 2**27
_COMMENT = re.compile(rb"#[^\n]*")
_QUERY = re.compile(rb"(?<=[ \t])qid:\d+(?=\s)")
_TAB, _NEWLINE, _RETURN, _BLANK, _COLON = b"\t\n\r :"


@dataclass(slots=True)
class _Reader:
    path: Path
    #: "auto": decided at the end, by whether an index 0 occurs.
    zero_based: object
    #: As the option says; 0: find out.
    num_features: int
    lines: RowLines
    smallest: int = 1

    @property
    def first_column(self) -> int:
        if self.zero_based == "auto":
            return min(1, self.smallest)
        return 0 if self.zero_based else 1

    @property
    def index_limit(self) -> int:
        """Exclusive bound of the indices as they stand in the file."""
        if not self.num_features:
            return _MAX_INDEX
        return self.num_features + (self.zero_based is not True)


def read_libsvm(path: Path, options: Mapping[str, object], progress: Progress) -> Table:
    """The rows of a libsvm file. Raises DataError, with the line, on the first bad one."""
    num_features = options["num_features"]
    assert isinstance(num_features, int)
    reader = _Reader(path, options["zero_based"], num_features, RowLines())
    return Table(
        blocks=_blocks(reader, options["label"] != "none", progress),
        is_sparse=True,
        where=reader.lines.where,
        num_features=num_features or None,
        first_column=lambda: reader.first_column,
    )


def _blocks(reader: _Reader, is_labelled: bool, progress: Progress) -> Iterator[Block]:
    for number, block in line_blocks(reader.path, progress):
        cleaned = _COMMENT.sub(b"", block) if b"#" in block else block
        cleaned = _QUERY.sub(b"", cleaned) if b"qid:" in cleaned else cleaned
        parsed = _parse(cleaned)
        if parsed is None:
            raise _first_bad_line(reader.path, number, cleaned)
        labels, line_of_row, lengths, indices, values = parsed
        if not len(labels):
            continue
        numbers = (line_of_row + number).tolist()

        def place(entry: int, lengths=lengths, numbers=numbers) -> str:  # type: ignore[no-untyped-def]
            row = int(np.searchsorted(np.cumsum(lengths), entry, side="right"))
            return f"{reader.path}: line {numbers[row]}"

        _check_indices(reader, indices, place)
        X = _sorted_rows(lengths, indices.astype(np.int64), values, place)
        reader.lines.add(numbers)
        yield Block(X, labels if is_labelled else None)


def _parse(
    block: bytes,
) -> (
    tuple[
        NDArray[np.float64],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.float64],
        NDArray[np.float64],
    ]
    | None
):
    """(labels, line of each row, entries of each row, indices, values), None if a line is bad.

    A token is a run of bytes without blanks, a field one without blanks and colons. The
    block is good when each line's first token has no colon and each other one has one
    colon between two fields, and when there are exactly as many numbers as fields.
    """
    text = np.frombuffer(block, dtype=np.uint8)
    is_blank = (text == _BLANK) | ((text >= _TAB) & (text <= _RETURN))
    is_colon = text == _COLON
    starts = _run_starts(~is_blank)
    if not len(starts):
        empty, none = np.zeros(0), np.zeros(0, dtype=np.int64)
        return empty, none, none, empty, empty
    is_field_start = np.zeros(len(text), dtype=bool)
    is_field_start[_run_starts(~(is_blank | is_colon))] = True
    num_colons = np.add.reduceat(is_colon, starts, dtype=np.int64)
    num_fields = np.add.reduceat(is_field_start, starts, dtype=np.int64)
    line_of_token = np.searchsorted(np.flatnonzero(text == _NEWLINE), starts)
    is_label = np.ones(len(starts), dtype=bool)
    is_label[1:] = line_of_token[1:] != line_of_token[:-1]
    if (num_colons != ~is_label).any() or (num_fields != num_colons + 1).any():
        return None
    numbers = _numbers(block.replace(b":", b" "))
    if numbers is None or len(numbers) != num_fields.sum():
        return None
    first_field = np.cumsum(num_fields) - num_fields
    entries = first_field[~is_label]
    row_starts = np.flatnonzero(is_label)
    lengths = np.diff(np.append(row_starts, len(starts))) - 1
    labels = numbers[first_field[is_label]]
    line_of_row = line_of_token[is_label]
    return labels, line_of_row, lengths, numbers[entries], numbers[entries + 1]


def _run_starts(inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    before = np.zeros(len(inside), dtype=bool)
    before[1:] = inside[:-1]
    return np.flatnonzero(inside & ~before)


def _numbers(text: bytes) -> NDArray[np.float64] | None:
    """All numbers of a text that holds nothing else but blanks, None otherwise."""
    with warnings.catch_warnings():
        # Older versions of numpy warn where newer ones raise, and stop at the bad field.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return np.fromstring(text.decode("latin-1"), dtype=np.float64, sep=" ")
        except ValueError:
            return None


def _check_indices(
    reader: _Reader, indices: NDArray[np.float64], place: Callable[[int], str]
) -> None:
    if not len(indices):
        return
    # Written so that NaN fails too.
    is_good = (indices >= 0) & (indices < reader.index_limit) & (indices == np.floor(indices))
    if reader.zero_based is False:
        is_good &= indices >= 1
    if not is_good.all():
        entry = int(np.flatnonzero(~is_good)[0])
        first = 1 if reader.zero_based is False else 0
        raise DataError(
            f"{place(entry)}: the index {indices[entry]:.17g} is not a whole number in "
            f"{first}..{reader.index_limit - 1}"
            + ("" if reader.num_features else " (set num_features if it is meant)")
        )
    reader.smallest = min(reader.smallest, int(indices.min()))
    if reader.zero_based == "auto" and reader.num_features and reader.smallest == 0:
        entry = int(indices.argmax())
        if indices[entry] >= reader.num_features:
            raise DataError(
                f"{place(entry)}: the index {indices[entry]:.0f} is not below num_features = "
                f"{reader.num_features}, and indices start at 0"
            )


def _sorted_rows(
    lengths: NDArray[np.int64],
    indices: NDArray[np.int64],
    values: NDArray[np.float64],
    place: Callable[[int], str],
) -> csr_array:
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    width = int(indices.max()) + 1 if len(indices) else 1
    row = np.repeat(np.arange(len(lengths)), lengths)
    if ((np.diff(indices) <= 0) & (np.diff(row) == 0)).any():
        order = np.lexsort((indices, row))
        indices, values = indices[order], values[order]
        repeated = np.flatnonzero((np.diff(indices) == 0) & (np.diff(row) == 0))
        if len(repeated):
            entry = int(repeated[0])
            raise DataError(f"{place(entry)}: the index {indices[entry]} occurs twice")
    return csr_array((values, indices, indptr), shape=(len(lengths), width))


def _first_bad_line(path: Path, number: int, block: bytes) -> DataError:
    lines = block.split(b"\n")[:-1]
    for line_number, line in enumerate(lines, start=number):
        if line.strip() and _parse(line + b"\n") is None:
            return DataError(f"{path}: line {line_number}: {_complaint(line)}")
    return DataError(f"{path}: lines {number} to {number + len(lines) - 1}: not libsvm text")


def _complaint(line: bytes) -> str:
    for position, token in enumerate(line.split()):
        shown = token[:40].decode("utf-8", "replace")
        if position == 0 and (b":" in token or _numbers(token) is None):
            return f"the label {shown!r} is not a number"
        if position > 0 and (token.count(b":") != 1 or _parse(b"0 " + token + b"\n") is None):
            return f"{shown!r} is not index:value"
    return "not `label index:value index:value ...`"
