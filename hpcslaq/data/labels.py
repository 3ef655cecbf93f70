"""Labels: collected block by block, then judged as a whole.

Decides between classification and regression and maps class labels of any kind to
0..C-1. Knows nothing of files beyond the name in its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcslaq.errors import DataError

#: With more distinct labels than this the column is a key or a target, not a class.
MAX_CLASSES = 10_000
#: `task = "auto"` takes whole numbers with more distinct values than this for a regression target.
MAX_AUTO_CLASSES = 50


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """All labels of an input. values : (N,) float64, class numbers or targets."""

    task: str
    values: NDArray[np.float64]
    #: The user's labels of the classes 0..C-1; empty unless a classification.
    classes: tuple[int | float | str, ...] = ()


@dataclass(slots=True)
class LabelCollector:
    """Takes the labels of one block after the other. `file` and `where` serve messages."""

    file: str
    where: Callable[[int], str]
    task: str
    _numbers: list[NDArray[np.float64]] = field(default_factory=list)
    _codes: list[NDArray[np.int64]] = field(default_factory=list)
    #: Text labels by order of appearance.
    _texts: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def add(self, y: NDArray[np.generic]) -> None:
        """Add (n,) labels. Raises DataError on a missing label or too many distinct texts."""
        if y.dtype.kind in "fiub":
            numbers = np.ascontiguousarray(y, dtype=np.float64)
            bad = np.flatnonzero(~np.isfinite(numbers))
            if len(bad):
                raise self._error(int(bad[0]), f"the label is {numbers[bad[0]]}")
            self._numbers.append(numbers)
        else:
            self._add_texts([str(text).strip() for text in y.tolist()])
        self._count += len(y)

    def _add_texts(self, texts: list[str]) -> None:
        if "" in texts:
            raise self._error(texts.index(""), "the label is empty")
        codes = self._texts
        block = np.fromiter((codes.setdefault(text, len(codes)) for text in texts), np.int64)
        if len(codes) > MAX_CLASSES:
            raise DataError(
                f"{self.file}: more than {MAX_CLASSES} different text labels; "
                "name another label column"
            )
        self._codes.append(block)

    def finish(self) -> Labels:
        """Judge all labels. Raises DataError when they do not fit the task."""
        if self._codes and self._numbers:
            raise DataError(f"{self.file}: some labels are text and some are numbers")
        if self._codes:
            return self._finish_texts(np.concatenate(self._codes))
        return self._finish_numbers(np.concatenate(self._numbers))

    def _finish_texts(self, codes: NDArray[np.int64]) -> Labels:
        texts = list(self._texts)
        numbers = _as_numbers(texts)
        if numbers is not None:
            return self._finish_numbers(numbers[codes])
        if self.task == "regression":
            raise DataError(
                f"{self.file}: task is regression, but the labels are text: {texts[0]!r}"
            )
        classes = sorted(texts)
        self._check_num_classes(len(classes), classes[0])
        number = {text: float(code) for code, text in enumerate(classes)}
        rank = np.array([number[text] for text in texts])
        return Labels("classification", rank[codes], tuple(classes))

    def _finish_numbers(self, values: NDArray[np.float64]) -> Labels:
        if self.task == "regression":
            return Labels("regression", values)
        distinct, codes = np.unique(values, return_inverse=True)
        is_whole = bool((distinct == np.rint(distinct)).all())
        if self.task == "auto" and not _look_like_classes(len(distinct), len(values), is_whole):
            return Labels("regression", values)
        if not is_whole:
            row = int(np.flatnonzero(values != np.rint(values))[0])
            raise DataError(
                f"{self.file}: {self.where(row)}: the class label {values[row]:g} "
                "is not a whole number"
            )
        self._check_num_classes(len(distinct), f"{distinct[0]:g}")
        return Labels(
            "classification", codes.astype(np.float64), tuple(int(value) for value in distinct)
        )

    def _check_num_classes(self, num: int, first: object) -> None:
        if num < 2:
            raise DataError(f"{self.file}: all labels are {first!s}: there is nothing to learn")
        if num > MAX_CLASSES:
            raise DataError(f"{self.file}: {num} different class labels, at most {MAX_CLASSES}")

    def _error(self, row: int, problem: str) -> DataError:
        return DataError(f"{self.file}: {self.where(self._count + row)}: {problem}")


def _look_like_classes(num_distinct: int, num_rows: int, is_whole: bool) -> bool:
    few = num_distinct <= MAX_AUTO_CLASSES and (num_distinct <= 2 or 2 * num_distinct <= num_rows)
    return is_whole and few


def _as_numbers(texts: list[str]) -> NDArray[np.float64] | None:
    try:
        numbers = np.array([float(text) for text in texts])
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None
