"""Blocks and transposes share the memory of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.train.blocks import row_blocks, rows_per_block, transposed


@pytest.mark.parametrize("is_sparse", [False, True])
def test_blocks_are_the_rows_in_order_and_no_copies(is_sparse):
    dense = np.random.default_rng(0).poisson(0.5, (103, 7)).astype(float)
    X = sparse.csr_array(dense) if is_sparse else dense
    cache = {}
    for _ in range(2):
        blocks = list(row_blocks(X, cache, 20))
        assert [(a, b) for a, b, _ in blocks] == [(i, min(i + 20, 103)) for i in range(0, 103, 20)]
        for start, stop, rows in blocks:
            values = rows.toarray() if is_sparse else rows
            np.testing.assert_array_equal(values, dense[start:stop])
            if is_sparse:
                assert np.shares_memory(rows.data, X.data)
                assert np.shares_memory(rows.indices, X.indices)
            else:
                assert np.shares_memory(rows, X)


def test_a_transposed_block_shares_its_values():
    X = sparse.csr_array(np.random.default_rng(0).poisson(0.5, (103, 7)).astype(float))
    _, _, rows = next(row_blocks(X, {}, 20))
    cache = {}
    turned = transposed(rows, cache)
    assert np.shares_memory(turned.data, X.data)
    np.testing.assert_array_equal(turned.toarray(), rows.toarray().T)
    np.testing.assert_array_equal(turned @ np.arange(20.0), rows.toarray().T @ np.arange(20.0))
    assert transposed(rows, cache) is turned


def test_a_block_is_about_a_megabyte():
    assert rows_per_block(128) == 1024
    assert rows_per_block(10**6) == 64
