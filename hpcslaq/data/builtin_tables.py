"""Built-in sets made of tables: census, protein homology, flights.

Categories become one-hot columns; numeric columns are standardised by the writer over
the training rows.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hpcslaq.data.blocks import Block, Progress, Table, row_number, row_ranges
from hpcslaq.data.packages import NYCFLIGHTS, THEMIS, WIDEDEEP, locate
from hpcslaq.data.parquet import open_parquet
from hpcslaq.errors import DataError

_ROWS_AT_ONCE = 10_000


class _Levels(dict[str, int]):
    """Numbers the values of a category in order of appearance."""

    def __missing__(self, value: str) -> int:
        self[value] = len(self)
        return self[value]

    def encode(self, values: Iterable[str]) -> NDArray[np.int32]:
        return np.fromiter(map(self.__getitem__, values), np.int32)


class _Categories:
    """Some categorical columns, collected piece by piece, as one-hot columns."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._levels = [_Levels() for _ in names]
        self._codes: list[list[NDArray[np.int32]]] = [[] for _ in names]

    def add(self, columns: list[Iterable[str]]) -> None:
        for levels, codes, values in zip(self._levels, self._codes, columns, strict=True):
            codes.append(levels.encode(values))

    def one_hot(self) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """(N, categories) numbers of the one-hot columns that are 1, and all their names."""
        names: list[str] = []
        ones = []
        for name, levels, codes in zip(self._names, self._levels, self._codes, strict=True):
            ordered = sorted(levels)
            place = {value: len(names) + i for i, value in enumerate(ordered)}
            names += [f"{name}={value}" for value in ordered]
            column_of_code = np.array([place[value] for value in levels], dtype=np.int32)
            ones.append(column_of_code[np.concatenate(codes)])
        return np.stack(ones, axis=1), tuple(names)


# Census


#: Columns of the files: numbers, the survey's weight of a row (no feature), the label.
_CENSUS_NUMBERS = (0, 5, 16, 17, 18, 30, 39)
_CENSUS_WEIGHT, _CENSUS_LABEL = 24, 41
_CENSUS_ROWS = 299_285


def read_census(options: Mapping[str, object], progress: Progress) -> Table:
    """(299285, 510) CSR: 7 standardised numbers, then one-hot categories.

    The published training and test parts follow one another. Class 1: income over 50,000.
    """
    skipped = {*_CENSUS_NUMBERS, _CENSUS_WEIGHT, _CENSUS_LABEL}
    texts = [column for column in range(_CENSUS_LABEL) if column not in skipped]
    categories = _Categories([f"c{column}" for column in texts])
    numbers, y = [], []
    parts = (locate(THEMIS, f"census_income_1994_1995_{part}.csv") for part in ("train", "test"))
    for count, columns in enumerate(_column_pieces(parts, _CENSUS_LABEL + 1), start=1):
        categories.add([columns[column] for column in texts])
        numbers.append(
            np.array([columns[column] for column in _CENSUS_NUMBERS], dtype=np.float64).T
        )
        y.append(np.array([value.startswith("50000+") for value in columns[_CENSUS_LABEL]]))
        progress("read", min(1.0, count * _ROWS_AT_ONCE / _CENSUS_ROWS))
    ones, names = categories.one_hot()
    num_numbers = len(_CENSUS_NUMBERS)
    width = num_numbers + len(names)
    return Table(
        blocks=_sparse_blocks(np.concatenate(numbers), ones, np.concatenate(y), width),
        is_sparse=True,
        where=row_number,
        num_rows=len(ones),
        num_features=width,
        feature_names=(*(f"c{column}" for column in _CENSUS_NUMBERS), *names),
        standardise=np.arange(width) < num_numbers,
    )


def _column_pieces(paths: Iterable[Path], num_columns: int) -> Iterator[list[tuple[str, ...]]]:
    """Columns of some thousand lines after the other of several CSV files."""
    for path in paths:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.reader(stream, skipinitialspace=True)
            while piece := list(islice(reader, _ROWS_AT_ONCE)):
                if any(len(row) != num_columns for row in piece):
                    raise DataError(f"{path}: a line before {reader.line_num} is damaged")
                yield list(zip(*piece, strict=True))


def _sparse_blocks(
    numbers: NDArray[np.float64], ones: NDArray[np.int32], y: NDArray[np.bool_], width: int
) -> Iterator[Block]:
    """Every number is stored, also a zero, so that its column can be centred."""
    num_numbers = numbers.shape[1]
    entries = num_numbers + ones.shape[1]
    for start, stop in row_ranges(len(ones), 2 * entries):
        num = stop - start
        values = np.ones((num, entries))
        values[:, :num_numbers] = numbers[start:stop]
        indices = np.empty((num, entries), dtype=np.int32)
        indices[:, :num_numbers] = np.arange(num_numbers)
        indices[:, num_numbers:] = ones[start:stop] + num_numbers
        indptr = np.arange(num + 1, dtype=np.int32) * entries
        X = csr_array((values.reshape(-1), indices.reshape(-1), indptr), shape=(num, width))
        yield Block(X, y[start:stop])


# Protein homology


def read_protein(options: Mapping[str, object], progress: Progress) -> Table:
    """(145751, 74) standardised; the rows of one query protein are one group.

    The wheel has the columns EXAMPLE_ID and BLOCK_ID swapped; the block is the one with fewer
    distinct values.
    """
    file = open_parquet(locate(WIDEDEEP, "bio_train.parquet.brotli"))
    keys = ("EXAMPLE_ID", "BLOCK_ID")
    ids = file.read(columns=list(keys)).to_pydict()
    block_key = min(keys, key=lambda key: len(set(ids[key])))
    groups = np.array(ids[block_key], dtype=np.int64)
    names = [name for name in file.schema_arrow.names if name not in (*keys, "target")]
    return Table(
        blocks=_protein_blocks(file, names, groups, progress),
        is_sparse=False,
        where=row_number,
        num_rows=len(groups),
        num_features=len(names),
        standardise=np.ones(len(names), dtype=bool),
    )


def _protein_blocks(
    file: object, names: list[str], groups: NDArray[np.int64], progress: Progress
) -> Iterator[Block]:
    start = 0
    for batch in file.iter_batches(columns=[*names, "target"], use_threads=False):  # type: ignore[attr-defined]
        stop = start + batch.num_rows
        X = np.stack([batch.column(name).to_numpy() for name in names], axis=1)
        yield Block(X, batch.column("target").to_numpy(), groups[start:stop])
        start = stop
        progress("read", stop / len(groups))


# Flights


_WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
_PLANE = ("year", "seats", "engines")
_FLIGHT_CATEGORIES = ("carrier", "origin", "dest", "month", "hour")
_FLIGHT_ROWS = 336_776
_MISSING = {"", "NA"}


def read_flights(options: Mapping[str, object], progress: Progress) -> Table:
    """(327346, 173): 12 standardised numbers and one-hot categories; y: arrival delay, minutes.

    Flights that did not arrive are left out, missing numbers replaced by the median. The
    flights of one day are one group.
    """
    weather = _lookup("weather.csv", ("origin", "month", "day", "hour"), _WEATHER)
    planes = _lookup("planes.csv", ("tailnum",), _PLANE)
    own = ("distance", "dep_delay") if options["dep_delay"] else ("distance",)
    categories = _Categories([*_FLIGHT_CATEGORIES, "weekday"])
    numbers, y, days = [], [], []
    for done, piece in _flight_pieces():
        arrived = [row for row in piece if row["arr_delay"] not in _MISSING]
        texts: list[Iterable[str]] = [[row[key] for row in arrived] for key in _FLIGHT_CATEGORIES]
        categories.add([*texts, [_weekday(row) for row in arrived]])
        numbers.append(np.array([_flight_numbers(row, own, weather, planes) for row in arrived]))
        y.append(np.array([float(row["arr_delay"]) for row in arrived]))
        days.append(np.array([32 * int(row["month"]) + int(row["day"]) for row in arrived]))
        progress("read", min(1.0, done / _FLIGHT_ROWS))
    ones, names = categories.one_hot()
    table = np.concatenate(numbers)
    np.copyto(table, np.nanmedian(table, axis=0), where=np.isnan(table))
    titles = (*own, *_WEATHER, *_PLANE)
    return Table(
        blocks=_dense_blocks(table, ones, np.concatenate(y), np.concatenate(days), len(names)),
        is_sparse=False,
        where=row_number,
        num_rows=len(ones),
        num_features=len(titles) + len(names),
        feature_names=(*titles, *names),
        standardise=np.arange(len(titles) + len(names)) < len(titles),
    )


def _lookup(
    name: str, keys: tuple[str, ...], values: tuple[str, ...]
) -> dict[tuple[str, ...], list[float]]:
    """Numbers of the first line with each key."""
    found: dict[tuple[str, ...], list[float]] = {}
    path = locate(NYCFLIGHTS, f"data/{name}")
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            found.setdefault(tuple(row[key] for key in keys), [_number(row[k]) for k in values])
    return found


def _number(text: str) -> float:
    return float("nan") if text in _MISSING else float(text)


def _flight_pieces() -> Iterator[tuple[int, list[dict[str, str]]]]:
    with zipfile.ZipFile(locate(NYCFLIGHTS, "data/flights.csv.zip")) as archive:
        with archive.open("flights.csv") as raw:
            reader = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
            while piece := list(islice(reader, _ROWS_AT_ONCE)):
                yield reader.line_num, piece


def _weekday(row: dict[str, str]) -> str:
    return str(date(int(row["year"]), int(row["month"]), int(row["day"])).weekday())


def _flight_numbers(
    row: dict[str, str],
    own: tuple[str, ...],
    weather: dict[tuple[str, ...], list[float]],
    planes: dict[tuple[str, ...], list[float]],
) -> list[float]:
    nan = float("nan")
    at_hour = weather.get((row["origin"], row["month"], row["day"], row["hour"]))
    plane = planes.get((row["tailnum"],))
    return list(
        chain(
            (_number(row[key]) for key in own),
            at_hour if at_hour is not None else [nan] * len(_WEATHER),
            plane if plane is not None else [nan] * len(_PLANE),
        )
    )


def _dense_blocks(
    numbers: NDArray[np.float64],
    ones: NDArray[np.int32],
    y: NDArray[np.float64],
    groups: NDArray[np.int64],
    num_one_hot: int,
) -> Iterator[Block]:
    num_numbers = numbers.shape[1]
    for start, stop in row_ranges(len(ones), num_numbers + num_one_hot):
        X = np.zeros((stop - start, num_numbers + num_one_hot))
        X[:, :num_numbers] = numbers[start:stop]
        np.put_along_axis(X, ones[start:stop] + num_numbers, 1.0, axis=1)
        yield Block(X, y[start:stop], groups[start:stop])
