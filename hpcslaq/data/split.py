"""Which rows train, which are held out, and in which order they are stored.

Pure functions of counts and a seed. Random orders come from the raw words of a bit
generator, whose stream numpy guarantees, not from a distribution method, whose is not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HOLDOUT_STREAM, _ORDER_STREAM = 1, 2


def random_order(num: int, seed: int, stream: int = _ORDER_STREAM) -> NDArray[np.int64]:
    """A permutation of range(num) that depends on (num, seed, stream) only."""
    words = np.random.PCG64(np.random.SeedSequence([seed, stream])).random_raw(num)
    return np.argsort(words, kind="stable").astype(np.int64)


def split_rows(
    num_rows: int,
    fraction: float,
    seed: int,
    *,
    classes: NDArray[np.int64] | None = None,
    groups: NDArray[np.int64] | None = None,
) -> NDArray[np.bool_]:
    """(N,) mask of the held-out rows, about `fraction` of all.

    groups : (N,) rows of one group stay together. Else classes : (N,) every class gives its
    share, and keeps at least one training row. At least one row or group is held out when
    the fraction is positive and there are two, and at least one is left.
    """
    held_out = np.zeros(num_rows, dtype=bool)
    if fraction <= 0:
        return held_out
    if groups is not None:
        return _split_groups(groups, fraction, seed)
    order = random_order(num_rows, seed, _HOLDOUT_STREAM)
    label = np.zeros(num_rows, dtype=np.int64) if classes is None else classes
    by_class = order[np.argsort(label[order], kind="stable")]
    counts = np.bincount(label)
    shares = np.maximum(0, np.minimum(counts - 1, np.floor(counts * fraction + 0.5).astype(int)))
    if shares.sum() == 0 and counts.max() >= 2:
        shares[counts.argmax()] = 1
    starts = np.cumsum(counts) - counts
    for start, share in zip(starts, shares, strict=True):
        held_out[by_class[start : start + share]] = True
    return held_out


def _split_groups(groups: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    names, members = np.unique(groups, return_inverse=True)
    sizes = np.bincount(members)
    order = random_order(len(names), seed, _HOLDOUT_STREAM)
    enough = int(np.searchsorted(np.cumsum(sizes[order]), fraction * len(groups))) + 1
    num_out = min(enough, len(names) - 1)
    chosen = np.zeros(len(names), dtype=bool)
    chosen[order[:num_out]] = True
    return chosen[members]
