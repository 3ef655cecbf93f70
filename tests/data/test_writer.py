"""Scaling and layouts of the stored arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.data import DataSource, open_dataset, prepare


def test_standardised_columns_have_mean_0_and_deviation_1_over_training_rows(
    tmp_path: Path,
) -> None:
    X = np.random.default_rng(0).normal(5.0, 3.0, size=(500, 4)) * [1, 1e-6, 1e6, 0] + [0, 0, 0, 7]
    np.save(tmp_path / "t.npy", X)
    source = DataSource(str(tmp_path / "t.npy"), {"standardise": True})
    data = open_dataset(prepare(source, tmp_path / "cache"))
    train = data.rows(0, data.num_rows).X
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(train.std(axis=0), [1, 1, 1, 0], rtol=1e-12, atol=1e-12)
    back = np.concatenate([train, data.holdout().X]) * data.scale + data.center
    np.testing.assert_allclose(np.sort(back, axis=0), np.sort(X, axis=0), rtol=1e-12)


def test_a_sparse_column_is_scaled_but_stays_sparse(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(2.0, 1.0, size=(300, 3)) * (rng.random((300, 3)) < [1.0, 0.2, 0.0])
    sparse.save_npz(tmp_path / "t.npz", sparse.csr_array(X))
    options = {"standardise": True, "holdout": 0.0, "shuffle": False}
    data = open_dataset(prepare(DataSource(str(tmp_path / "t.npz"), options), tmp_path / "cache"))
    stored = data.rows(0, 300).X
    assert stored.nnz == np.count_nonzero(X)
    full, some, none = stored.toarray().T
    np.testing.assert_allclose([full.mean(), full.std()], [0, 1], atol=1e-12)
    np.testing.assert_allclose(some, X[:, 1] / np.sqrt(np.mean(X[:, 1] ** 2)), rtol=1e-12)
    assert not none.any()


@pytest.mark.parametrize("standardise", [False, True])
def test_both_layouts_hold_the_same_numbers(standardise: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)) * (rng.random((300, 5)) < 0.3)
    sparse.save_npz(tmp_path / "s.npz", sparse.csr_array(X))
    np.save(tmp_path / "d.npy", X)
    got = []
    for name in ("s.npz", "d.npy"):
        for layout in ("csr", "dense"):
            if name == "d.npy" and layout == "dense" and standardise:
                continue  # The only one that may centre.
            options = {"layout": layout, "standardise": standardise}
            source = DataSource(str(tmp_path / name), options)
            data = open_dataset(prepare(source, tmp_path / "cache"), verify=True)
            assert data.is_sparse == (layout == "csr")
            batch = data.rows(0, data.num_rows).X
            got.append(batch.toarray() if data.is_sparse else batch)
    for other in got[1:]:
        np.testing.assert_allclose(other, got[0], rtol=1e-12)


def test_many_blocks_are_written_like_one(tmp_path: Path, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(997, 5)) * (rng.random((997, 5)) < 0.5)
    np.savez(tmp_path / "t.npz", X=X, y=rng.normal(size=997))
    results = []
    for block_bytes in (16 << 20, 200):
        monkeypatch.setattr("hpcslaq.data.blocks.BLOCK_BYTES", block_bytes)
        for layout in ("dense", "csr"):
            source = DataSource(str(tmp_path / "t.npz"), {"layout": layout})
            root = tmp_path / f"cache{block_bytes}"
            data = open_dataset(prepare(source, root), verify=True)
            results.append(data.rows(0, data.num_rows))
    for small, large in zip(results[:2], results[2:], strict=True):
        a, b = (x if isinstance(x, np.ndarray) else x.toarray() for x in (small.X, large.X))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(small.y, large.y)
