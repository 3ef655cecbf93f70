"""Parquet files: numeric columns without missing values, the label may be text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcslaq.data.blocks import Block, Progress, Table, one_line, row_number, rows_per_block
from hpcslaq.data.columns import columns_to_drop, label_column
from hpcslaq.errors import DataError, LaunchError

if TYPE_CHECKING:
    import pyarrow

MISSING_EXTRA = 'needs the extra "data": pip install "hpcslaq[data]"'


def read_parquet(path: Path, options: Mapping[str, object], progress: Progress) -> Table:
    """The rows of a Parquet file. Raises LaunchError when pyarrow is not installed."""
    file = open_parquet(path)
    schema = file.schema_arrow
    try:
        names = tuple(schema.names)
    except UnicodeDecodeError:
        raise DataError(f"{path}: damaged: the name of a column is not UTF-8 text") from None
    num_rows = file.metadata.num_rows
    if not names or num_rows <= 0:
        raise DataError(f"{path}: no rows or no columns")
    if len(set(names)) < len(names):
        raise DataError(f"{path}: two columns have the same name")
    label = label_column(path, options["label"], names, len(names))
    dropped = columns_to_drop(path, options["drop"], names, len(names))
    features = [column for column in range(len(names)) if column not in dropped and column != label]
    for column in features:
        if not _is_number(schema.field(column).type):
            raise DataError(
                f"{path}: column {names[column]!r}: type {schema.field(column).type} is not a "
                "number (leave it out with drop)"
            )
    return Table(
        blocks=_blocks(path, file, features, label, progress),
        is_sparse=False,
        where=row_number,
        num_rows=num_rows,
        num_features=len(features),
        feature_names=tuple(names[column] for column in features),
    )


def open_parquet(path: Path) -> Any:
    """The `pyarrow.parquet.ParquetFile`. Raises LaunchError without pyarrow, DataError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise LaunchError(f"reading Parquet files {MISSING_EXTRA}") from error
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not a usable Parquet file: {one_line(error)}") from error


def _is_number(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _blocks(
    path: Path, file: Any, features: list[int], label: int | None, progress: Progress
) -> Iterator[Block]:
    import pyarrow as pa

    names = file.schema_arrow.names
    start, num_rows = 0, file.metadata.num_rows
    wanted = features if label is None else [*features, label]
    try:
        for batch in file.iter_batches(
            batch_size=rows_per_block(len(features)),
            columns=[names[column] for column in wanted],
            use_threads=False,
        ):
            X = np.empty((batch.num_rows, len(features)))
            for i, column in enumerate(features):
                _check_nulls(path, batch.column(names[column]), names[column], start)
                X[:, i] = batch.column(names[column]).to_numpy(zero_copy_only=False)
            y = None
            if label is not None:
                _check_nulls(path, batch.column(names[label]), names[label], start)
                y = _labels(path, batch.column(names[label]), names[label])
            yield Block(X, y)
            start += batch.num_rows
            progress("read", start / num_rows)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise DataError(f"{path}: row {start} or later: damaged: {one_line(error)}") from error
    if start != num_rows:
        raise DataError(f"{path}: {start} rows, the file declares {num_rows}")


def _check_nulls(path: Path, column: pyarrow.Array, name: str, start: int) -> None:
    if column.null_count:
        row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{path}: {row_number(row)}: column {name!r} is missing")


def _labels(path: Path, column: pyarrow.Array, name: str) -> NDArray[np.generic]:
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_number(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if types.is_string(column.type) or types.is_large_string(column.type):
        return np.array(column.to_pylist())
    raise DataError(f"{path}: label column {name!r}: type {column.type} is no number and no text")
