"""`[job.sweep]`: one table becomes a grid of jobs with readable names.

`lr = [0.1, 1]` and `seed = [1, 2]` turn the job `a` into `a-lr=0.1-seed=1`,
`a-lr=0.1-seed=2`, ... A key of the job itself is swept as such, any other is an option of
the model; `options.KEY` always means the option.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from hpcslaq.record.schema import Place, as_table

#: Most jobs that one job file may ask for.
MAX_JOBS = 50_000

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+,-]")


@dataclass(frozen=True, slots=True)
class _Axis:
    """One swept key and its values."""

    key: str
    is_option: bool
    values: list[object]


def expand_sweep(
    table: object, job_keys: Collection[str], place: Place
) -> Iterator[tuple[str, dict[str, object], dict[str, object]]]:
    """Yield (suffix of the name, values of the job, options) for every point of the grid.

    The last key varies fastest. Raises JobFileError, naming the key, on anything that is not
    a table of non-empty lists, and on a grid of more than MAX_JOBS points.
    """
    axes = list(_axes(as_table(table, place), job_keys, place))
    num_points = math.prod(len(axis.values) for axis in axes)
    if num_points > MAX_JOBS:
        raise place.error(f"gives {num_points} jobs, at most {MAX_JOBS} are possible")
    labels = [[_label(axis.key, value) for value in axis.values] for axis in axes]
    for axis, texts in zip(axes, labels, strict=True):
        if len(set(texts)) < len(texts):
            (twice, _), *_ = Counter(texts).most_common(1)
            raise place.at(axis.key).error(f"two values give the same name {twice!r}")
    for indices in itertools.product(*(range(len(axis.values)) for axis in axes)):
        job: dict[str, object] = {}
        options: dict[str, object] = {}
        suffix = ""
        for axis, texts, index in zip(axes, labels, indices, strict=True):
            (options if axis.is_option else job)[axis.key] = axis.values[index]
            suffix += f"-{texts[index]}"
        yield suffix, job, options


def _axes(table: Mapping[str, object], job_keys: Collection[str], place: Place) -> Iterator[_Axis]:
    for key, values in table.items():
        if key == "options":
            for option, option_values in as_table(values, place.at(key)).items():
                yield _axis(option, True, option_values, place.at(key).at(option))
        elif key in ("name", "sweep"):
            raise place.at(key).error("cannot be swept", valid=sorted(job_keys))
        else:
            yield _axis(key, key not in job_keys, values, place.at(key))


def _axis(key: str, is_option: bool, values: object, place: Place) -> _Axis:
    if not isinstance(values, list) or not values:
        raise place.error("must be a list of at least one value", value=values)
    if len(values) > MAX_JOBS:
        raise place.error(f"has {len(values)} values, at most {MAX_JOBS} are possible")
    return _Axis(key, is_option, values)


def _label(key: str, value: object) -> str:
    """`key=value` in the letters that a job's name may have."""
    return f"{_NOT_IN_NAMES.sub('_', key)}={_NOT_IN_NAMES.sub('_', _text(value))}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_text(element) for element in value)
    if isinstance(value, int) and abs(value) >= 2**63:
        return "extreme"
    return str(value)
