"""Where data come from: a built-in set or a file, with options. Value types only.

The options of a source are data (`valid_options`), so that a job file can be checked
and its valid keys listed before anything is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcslaq.data.builtin import BUILTINS
from hpcslaq.data.formats import FORMATS, format_of
from hpcslaq.data.options import Option, check_options

_NAMELESS = re.compile(r"[^A-Za-z0-9._-]+")
_TABLES = ("csv", "parquet")

#: Options of every source, after what the built-in sets or files add.
COMMON_OPTIONS = (
    Option("shuffle", (bool,), True, "store the rows in a fixed random order"),
    Option("seed", (int,), 0, "key of that order and of the choice of held-out rows", minimum=0),
    Option(
        "layout",
        (str,),
        "auto",
        "store the rows dense or as compressed sparse rows; auto: as they come",
        choices=("auto", "dense", "csr"),
    ),
    Option(
        "max_rows",
        (int,),
        0,
        "keep only so many training rows, the first in the random order; 0: all",
        minimum=0,
    ),
)

FILE_OPTIONS = (
    Option(
        "format",
        (str,),
        "auto",
        "file format; auto: by the file's name",
        choices=("auto", *FORMATS),
    ),
    Option(
        "label",
        (str, int),
        "auto",
        "label column or array, by name or number; none: no labels; auto: one called target, "
        "label, class or y, else (CSV, Parquet) the last column",
    ),
    Option(
        "label_file",
        (str,),
        "",
        "NPY file with the labels, one for each row",
        formats=("npy", "npz", "hdf5"),
    ),
    Option(
        "task",
        (str,),
        "auto",
        "what the labels are; auto: classes if they are text or few whole numbers, "
        "else regression targets",
        choices=("auto", "classification", "regression", "unlabelled", "counts"),
    ),
    Option(
        "holdout",
        (float,),
        0.1,
        "fraction of the rows that is held out",
        minimum=0.0,
        below=1.0,
    ),
    *COMMON_OPTIONS,
    Option(
        "standardise",
        (bool,),
        False,
        "scale every column to mean 0 and deviation 1 over the training rows (a sparse column is "
        "not centred)",
    ),
    Option(
        "header",
        (str, bool),
        "auto",
        "whether the first line holds names; auto: if none of its fields is a number",
        choices=("auto", True, False),
        formats=("csv",),
    ),
    Option(
        "delimiter",
        (str,),
        "auto",
        "one character between fields; auto: found in the first line",
        choices=("auto", ",", ";", "\t", "|", " "),
        formats=("csv",),
    ),
    Option("drop", (list,), [], "columns to leave out, by name or number", formats=_TABLES),
    Option(
        "dataset",
        (str,),
        "",
        "name of the array that holds the features",
        formats=("npz", "hdf5"),
    ),
    Option(
        "num_features",
        (int,),
        0,
        "number of features; 0: as the largest index says",
        minimum=0,
        below=2**31 - 1,
        formats=("libsvm",),
    ),
    Option(
        "zero_based",
        (str, bool),
        "auto",
        "whether indices start at 0; auto: if an index 0 occurs",
        choices=("auto", True, False),
        formats=("libsvm",),
    ),
)


def is_builtin(location: str) -> bool:
    """Whether a location names a built-in set; anything else is a path."""
    return location in BUILTINS


def valid_options(location: str) -> tuple[Option, ...]:
    """The options of a source with this location.

    For a file whose name tells its format, only those that the format knows.
    """
    if is_builtin(location):
        return (*BUILTINS[location].options, *COMMON_OPTIONS)
    file_format = format_of(location)
    return tuple(
        option
        for option in FILE_OPTIONS
        if file_format is None or not option.formats or file_format in option.formats
    )


@dataclass(frozen=True, slots=True)
class DataSource:
    """A built-in set by name or a file by path, with options.

    Raises ValueError, starting with the option's name, on an unknown option, an invalid
    value or a format that cannot be told.
    """

    location: str
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        schema = self._schema()
        resolved = check_options(schema, self.options)
        if self.is_builtin:
            return
        task, label = resolved["task"], resolved["label"]
        if task in ("unlabelled", "counts") and label not in ("auto", "none"):
            raise ValueError(f"label: {label!r} goes with no task = {task!r}")
        if task in ("classification", "regression") and label == "none":
            raise ValueError(f"label: none goes with no task = {task!r}")
        if resolved.get("label_file") and label != "auto":
            raise ValueError("label_file: give it or label, not both")

    @property
    def is_builtin(self) -> bool:
        """Whether the location names a built-in set."""
        return is_builtin(self.location)

    @property
    def name(self) -> str:
        """A short name: the built-in set's, or the file's without its suffixes."""
        if self.is_builtin:
            return self.location
        stem = Path(self.location).name.split(".")[0] or "data"
        return _NAMELESS.sub("-", stem)[:60]

    @property
    def file_format(self) -> str:
        """Format of the file, by the option or by its name."""
        asked = self.options.get("format", "auto")
        found = format_of(self.location) if asked == "auto" else str(asked)
        if found is None:
            raise ValueError(
                f"format: cannot be told from the name {self.location!r} "
                f"(valid: {', '.join(FORMATS)})"
            )
        return found

    def resolved(self) -> dict[str, object]:
        """All options, given or default; for a file also the format that was found.

        Without labels (`task` unlabelled or counts) `label` is "none".
        """
        values = check_options(self._schema(), self.options)
        if not self.is_builtin:
            for option in FILE_OPTIONS:
                values.setdefault(option.name, option.default)
            values["format"] = self.file_format
            if values["task"] in ("unlabelled", "counts"):
                values["label"] = "none"
        return values

    def _schema(self) -> tuple[Option, ...]:
        if self.is_builtin:
            return valid_options(self.location)
        file_format = self.file_format
        return tuple(
            option for option in FILE_OPTIONS if not option.formats or file_format in option.formats
        )
