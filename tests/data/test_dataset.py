"""Chunks, rows and copies of a prepared set: coverage, sharing of memory, read-only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from hpcslaq.data import Dataset, DataSource, open_dataset, prepare
from hpcslaq.data.dataset import csr_view, take_rows

NUM_ROWS, NUM_FEATURES = 211, 9


@pytest.fixture(scope="module", params=["dense", "csr"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A set whose first feature is the row's number in the file and whose label follows from it."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(NUM_ROWS, NUM_FEATURES)) * (rng.random((NUM_ROWS, NUM_FEATURES)) < 0.3)
    X[:, 0] = np.arange(NUM_ROWS)
    root: Path = tmp_path_factory.mktemp("set")
    np.savez(root / "t.npz", X=X, y=np.arange(NUM_ROWS) * 1.5)
    source = DataSource(str(root / "t.npz"), {"layout": request.param, "holdout": 0.1})
    return open_dataset(prepare(source, root / "cache"), verify=True)


def dense(X: object) -> np.ndarray:
    return X if isinstance(X, np.ndarray) else X.toarray()


def test_training_and_held_out_rows_are_all_rows_once(data: Dataset) -> None:
    out = data.holdout()
    assert out.num_rows == 21 and data.num_rows == 190
    numbers = np.concatenate([dense(data.rows(0, 190).X)[:, 0], dense(out.X)[:, 0]])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(NUM_ROWS))
    assert (np.diff(numbers[:190]) < 0).any(), "the rows are shuffled"


@settings(max_examples=60, deadline=None)
@given(num_chunks=st.integers(1, 300))
def test_chunks_cover_every_row_once_and_in_order(data: Dataset, num_chunks: int) -> None:
    batches = [data.chunk(index, num_chunks) for index in range(num_chunks)]
    sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == data.num_rows and max(sizes) - min(sizes) <= 1
    whole = data.rows(0, data.num_rows)
    np.testing.assert_array_equal(np.concatenate([dense(b.X) for b in batches]), dense(whole.X))
    np.testing.assert_array_equal(np.concatenate([b.y for b in batches]), whole.y)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_and_take_agree(data: Dataset, draw: st.DataObject) -> None:
    wanted = draw.draw(st.lists(st.integers(0, data.num_rows - 1), max_size=50))
    batch = data.take(wanted)
    whole = data.rows(0, data.num_rows)
    np.testing.assert_array_equal(dense(batch.X), dense(whole.X)[wanted])
    np.testing.assert_array_equal(batch.y, whole.y[wanted])
    assert batch.y.flags.writeable and dense(batch.X).flags.writeable


def test_labels_stay_with_their_rows(data: Dataset) -> None:
    for batch in (data.rows(0, data.num_rows), data.holdout()):
        np.testing.assert_array_equal(batch.y, dense(batch.X)[:, 0] * 1.5)


def test_chunks_share_the_mapped_file(data: Dataset) -> None:
    batch = data.chunk(3, 64)
    if data.is_sparse:
        assert np.shares_memory(batch.X.data, data.train.data)
        assert np.shares_memory(batch.X.indices, data.train.indices)
        assert batch.X.indices.dtype == batch.X.indptr.dtype == np.int32
        assert batch.X.has_canonical_format
        parts = (batch.X.data, batch.X.indices)
    else:
        assert np.shares_memory(batch.X, data.train.X)
        parts = (batch.X,)
    assert np.shares_memory(batch.y, data.train.y)
    for array in parts:
        assert type(array) is np.ndarray
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_arithmetic_on_a_chunk_works(data: Dataset) -> None:
    X = data.chunk(1, 4).X
    w = np.arange(NUM_FEATURES, dtype=float)
    np.testing.assert_allclose(X @ w, dense(X) @ w, rtol=1e-14)
    np.testing.assert_allclose(X.T @ (X @ w), dense(X).T @ (dense(X) @ w), rtol=1e-14)
    if data.is_sparse:
        np.testing.assert_array_equal((X * 2).toarray(), dense(X) * 2)
        np.testing.assert_array_equal(X[2:5].toarray(), dense(X)[2:5])


@pytest.mark.parametrize(
    "call",
    [
        lambda data: data.chunk(4, 4),
        lambda data: data.chunk(-1, 4),
        lambda data: data.chunk(0, 0),
        lambda data: data.rows(0, data.num_rows + 1),
        lambda data: data.rows(5, 4),
        lambda data: data.rows(-2, 4),
        lambda data: data.take([0, data.num_rows]),
        lambda data: data.take([-1]),
    ],
)
def test_what_is_outside_raises(data: Dataset, call) -> None:
    with pytest.raises(IndexError):
        call(data)


def test_without_shuffling_the_order_is_the_file_s(tmp_path: Path) -> None:
    X = np.arange(20.0).reshape(10, 2)
    np.save(tmp_path / "t.npy", X)
    source = DataSource(str(tmp_path / "t.npy"), {"shuffle": False, "holdout": 0.2})
    data = open_dataset(prepare(source, tmp_path / "cache"))
    first = data.rows(0, 8).X[:, 0]
    assert (np.diff(first) > 0).all() and (np.diff(data.holdout().X[:, 0]) > 0).all()


def test_the_seed_and_max_rows_choose_the_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.arange(200.0).reshape(100, 2))
    kept = {}
    for seed, max_rows in ((0, 0), (1, 0), (0, 30)):
        source = DataSource(str(tmp_path / "t.npy"), {"seed": seed, "max_rows": max_rows})
        data = open_dataset(prepare(source, tmp_path / "cache"))
        kept[seed, max_rows] = data.rows(0, data.num_rows).X
        assert data.holdout().num_rows == 10
    assert len(kept[0, 30]) == 30
    np.testing.assert_array_equal(kept[0, 30], kept[0, 0][:30])
    assert (kept[0, 0] != kept[1, 0]).any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 19), max_size=30))
def test_taken_csr_rows_are_those_of_scipy(seed: int, rows: list[int]) -> None:
    rng = np.random.default_rng(seed)
    X = sparse.csr_array(rng.random((20, 6)) * (rng.random((20, 6)) < 0.4))
    view = csr_view(X.data, X.indices, X.indptr, X.shape)
    taken = take_rows(view, np.array(rows, dtype=np.int64))
    taken.check_format(full_check=True)
    np.testing.assert_array_equal(taken.toarray(), X.toarray()[rows])
