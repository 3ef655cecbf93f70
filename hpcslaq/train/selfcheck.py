"""The self-check: now and then another member computes a chunk again, and all compare.

Every member knows from the pass's number which chunk is looked at and who looks: nothing has
to be agreed upon. The owner and the checker put a CRC of each statistic into the MAX
reduction that the pass makes anyway, as a pair (largest, -least). The pair's maxima differ
exactly if the CRCs do, and all members see it at once.
"""

from __future__ import annotations

import zlib

import numpy as np

from hpcslaq.train.exact import MAX_SEGMENTS, Array, Layout, Statistics
from hpcslaq.train.model import keyed_rng

#: A chunk is checked in every n-th pass, the first included.
EVERY_PASSES = 8
#: Places that the self-check needs in the MAX reduction.
NUM_PLACES = 2 * MAX_SEGMENTS


class SelfCheck:
    """One member's part in the self-check of a pass."""

    __slots__ = ("_crcs", "chunk", "is_checker")

    def __init__(self) -> None:
        #: The chunk that is looked at in this pass; None: it is not a pass with a check.
        self.chunk: int | None = None
        #: Whether this member computes it again.
        self.is_checker = False
        #: CRCs of each statistic, in their order, from each time that they were computed here.
        self._crcs: list[list[int]] = []

    def begin(self, seed: int, passes: int, num_chunks: int, member: int, num_members: int) -> None:
        """Choose the chunk of pass number `passes`, and who looks at it."""
        self._crcs = []
        self.chunk, self.is_checker = None, False
        if passes % EVERY_PASSES == 0:
            self.chunk = int(keyed_rng(seed, passes, 1 << 43).integers(num_chunks))
            self.is_checker = member == checker_of(self.chunk, num_chunks, num_members)

    def note(self, statistics: Statistics) -> None:
        """The statistics of the chunk, as owner or as checker."""
        self._crcs.append([_crc(value) for value in statistics.values()])

    def fill(self, places: Array) -> None:
        """Write this member's CRCs into its places (2 * MAX_SEGMENTS,) of the MAX reduction."""
        places[:] = -np.inf
        for crcs in self._crcs:
            for i, crc in enumerate(crcs[:MAX_SEGMENTS]):
                places[2 * i] = max(places[2 * i], crc)
                places[2 * i + 1] = max(places[2 * i + 1], -crc)

    def verdict(self, places: Array, layout: Layout) -> str | None:
        """What is wrong, from the reduced places; the same on all members. None: nothing."""
        if self.chunk is None:
            return None
        pairs = places.reshape(-1, 2)[: len(layout.names)]
        wrong = [
            name
            for name, (most, least) in zip(layout.names, pairs, strict=True)
            if most != -least and np.isfinite(most)
        ]
        if not wrong:
            return None
        return (
            f"self-check: statistics {', '.join(map(repr, wrong))} of chunk {self.chunk} are "
            "other bits when they are computed again: they depend on more than state, chunk and "
            "draw (a clock, a generator of their own, the order of a set, what is in the cache), "
            "or the processors differ"
        )


def checker_of(chunk: int, num_chunks: int, num_members: int) -> int:
    """The member after the one that holds a chunk (by `trainer.chunk_share`)."""
    size, rest = divmod(num_chunks, num_members)
    longer = rest * (size + 1)
    owner = chunk // (size + 1) if chunk < longer else rest + (chunk - longer) // size
    return (owner + 1) % num_members


def _crc(value: object) -> int:
    # + 0.0: the two zeros are the same number, and no sum tells them apart.
    return zlib.crc32((np.asarray(value, dtype=np.float64) + 0.0).tobytes())
