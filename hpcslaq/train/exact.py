"""Sums over chunks that are the same bits for any grouping of the chunks.

Each chunk's statistics are rounded to a common grid before they are added. With grid
unit u, `q = (x + 1.5 * 2^52 u) - 1.5 * 2^52 u` is the multiple of u nearest to x, and sums
of multiples of u that stay within 2^53 u are exact in float64, hence associative: the
number of members, the distribution of the chunks and the order of the additions do not
matter. A named statistic is a *segment* with its own grid. The grid of a segment with
`|x| <= 2^B` in every one of C chunks has `u = 2^(B + max(ceil(log2 C), 2) - 53)`.

Precision: a chunk's rounding error is at most u/2. With the head-room of 2 bits, the sum
over 16 chunks is off by 2e-14 of the largest element of the segment in any chunk (root mean
square; 1.2e-13 at the very worst). Each further bit by which the maxima fell since the grid
was chosen doubles that, until `SLACK` bits, when a new grid is made.

Who sends what to whom is the business of `trainer`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.errors import TrainingError

Array = NDArray[np.float64]
#: What a model returns for a chunk: sums over the chunk's rows, by name.
Statistics = Mapping[str, "Array | float"]

#: Bits that a maximum may grow between two passes before the pass is made again.
HEADROOM = 2
#: Bits that a maximum may fall below its bound (head-room apart) before that.
SLACK = 10
#: Most segments of a job: their maxima travel in a buffer of fixed length.
MAX_SEGMENTS = 48

#: Bounds are kept within these, so that neither 2^52 u overflows nor u is subnormal.
_LOWEST, _HIGHEST = -950, 1000
_TOO_LARGE = 2.0**_HIGHEST


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and places of the segments in one packed float64 vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    #: Segment i is `vector[offsets[i] : offsets[i + 1]]`; one entry more than segments.
    offsets: tuple[int, ...]
    #: A number that differs between different layouts (CRC-32).
    signature: float

    @classmethod
    def of(cls, statistics: Statistics) -> Layout:
        """The layout of a model's statistics. Raises TrainingError if they are unusable."""
        if not 0 < len(statistics) <= MAX_SEGMENTS:
            raise TrainingError(
                f"statistics: {len(statistics)} named values, 1 to {MAX_SEGMENTS} are possible; "
                "join arrays into one"
            )
        shapes = []
        offsets = [0]
        for name, value in statistics.items():
            shape = np.shape(value)
            if math.prod(shape) == 0:
                raise TrainingError(f"statistics: {name!r} has shape {shape}, no elements")
            shapes.append(shape)
            offsets.append(offsets[-1] + math.prod(shape))
        names = tuple(statistics)
        signature = float(zlib.crc32(repr((names, shapes)).encode()))
        return cls(names, tuple(shapes), tuple(offsets), signature)

    @property
    def size(self) -> int:
        """Elements of the packed vector."""
        return self.offsets[-1]

    def fits(self, statistics: Statistics) -> bool:
        """Whether the statistics have this layout."""
        shapes = tuple(np.shape(value) for value in statistics.values())
        return tuple(statistics) == self.names and shapes == self.shapes

    def check(self, statistics: Statistics) -> None:
        """Raises TrainingError if the statistics have another layout."""
        if self.fits(statistics):
            return
        if tuple(statistics) != self.names:
            raise TrainingError(
                f"statistics: names {list(statistics)} differ from another chunk's "
                f"{list(self.names)}"
            )
        for (name, value), shape in zip(statistics.items(), self.shapes, strict=True):
            if np.shape(value) != shape:
                raise TrainingError(
                    f"statistics: {name!r} has shape {np.shape(value)}, another chunk's {shape}"
                )

    def unpack(self, vector: Array) -> dict[str, Array | float]:
        """The segments by name: views of `vector`, or floats where the shape is ()."""
        segments: dict[str, Array | float] = {}
        for i, (name, shape) in enumerate(zip(self.names, self.shapes, strict=True)):
            part = vector[self.offsets[i] : self.offsets[i + 1]]
            segments[name] = part.reshape(shape) if shape else float(part[0])
        return segments


class ExactSum:
    """The exact sum over one member's chunks in one pass.

    `begin` a pass, `add` each chunk, then look at `layout`, `maxima` and `total`. When the
    maxima over all members do not fit the grid (`misfits`), do it again with better bounds.
    """

    __slots__ = (
        "_bounds",
        "_is_rounding",
        "_last_layout",
        "_magic",
        "_scratch",
        "layout",
        "levels",
        "maxima",
        "total",
    )

    def __init__(self, num_chunks: int) -> None:
        #: ceil(log2) of the number of chunks of the whole job, at least 2.
        self.levels = max((num_chunks - 1).bit_length(), 2)
        #: Layout of this pass; None before the first chunk.
        self.layout: Layout | None = None
        self._last_layout: Layout | None = None
        #: Largest absolute value of each segment so far, inf if one is not finite. (k,)
        self.maxima: Array = np.zeros(0)
        #: Sum of the rounded chunk values; meaningless if the maxima do not fit. (layout.size,)
        self.total: Array = np.zeros(0)
        self._bounds: Mapping[str, int] = {}
        self._magic: tuple[float, ...] = ()
        self._is_rounding = False
        self._scratch: Array = np.zeros(0)

    def begin(self, bounds: Mapping[str, int]) -> None:
        """Forget all chunks. `bounds[name]` is the exponent B of each segment that has one."""
        self._bounds = bounds
        self.layout = None

    def add(self, statistics: Statistics) -> None:
        """Add one chunk. Raises TrainingError if names or shapes differ from the last chunk's."""
        layout = self.layout
        if layout is None:
            layout = self._open(statistics)
        else:
            layout.check(statistics)
        scratch, offsets = self._scratch, layout.offsets
        flat = [_flat(name, value) for name, value in statistics.items()]
        for i, values in enumerate(flat):
            np.abs(values, out=scratch[offsets[i] : offsets[i + 1]])
        chunk_maxima = np.maximum.reduceat(scratch, offsets[:-1])
        # Not <= is also true of NaN. MPI_MAX may lose a NaN, never an infinity.
        chunk_maxima[~(chunk_maxima <= _TOO_LARGE)] = math.inf
        np.maximum(self.maxima, chunk_maxima, out=self.maxima)
        if not self._is_rounding or self._cannot_fit(chunk_maxima):
            self._is_rounding = False
            return
        for i, (values, magic) in enumerate(zip(flat, self._magic, strict=True)):
            part = scratch[offsets[i] : offsets[i + 1]]
            np.add(values, magic, out=part)
            part -= magic
        self.total += scratch

    def _open(self, statistics: Statistics) -> Layout:
        layout = self._last_layout
        if layout is None or not layout.fits(statistics):
            layout = Layout.of(statistics)
        self.layout = self._last_layout = layout
        if self._scratch.size != layout.size:
            self._scratch = np.empty(layout.size)
        # A new vector each pass: the model may keep what it was handed.
        self.total = np.zeros(layout.size)
        self.maxima = np.zeros(len(layout.names))
        # Without a grid only the maxima are of use, unless everything is zero.
        self._magic = tuple(
            1.5 * 2.0 ** (self._bounds.get(name, _HIGHEST) + self.levels - 1)
            for name in layout.names
        )
        self._is_rounding = True
        return layout

    def _cannot_fit(self, chunk_maxima: Array) -> bool:
        assert self.layout is not None
        for name, maximum in zip(self.layout.names, chunk_maxima.tolist(), strict=True):
            if maximum == 0:
                continue
            bound = self._bounds.get(name)
            if bound is None or maximum > 2.0**bound:
                return True
        return False


def exponent(maximum: float) -> int:
    """The least B with `maximum < 2^B`, kept within the range of usable grids."""
    return min(max(math.frexp(maximum)[1], _LOWEST), _HIGHEST)


def not_finite(layout: Layout, maxima: Iterable[float]) -> list[str]:
    """Names of the segments with an infinite, undefined or enormous (> 2^1000) element."""
    return [
        name
        for name, maximum in zip(layout.names, maxima, strict=True)
        if not maximum <= _TOO_LARGE
    ]


def misfits(layout: Layout, maxima: Iterable[float], bounds: Mapping[str, int]) -> list[str]:
    """Names of the segments whose grid is unknown, too narrow or far too coarse.

    maxima : finite, over all members. A segment that is zero everywhere fits any grid.
    """
    names = []
    for name, maximum in zip(layout.names, maxima, strict=True):
        if maximum == 0:
            continue
        bound = bounds.get(name)
        if bound is None or not bound - SLACK - HEADROOM <= exponent(maximum) <= bound:
            names.append(name)
    return names


def tight_bounds(layout: Layout, maxima: Iterable[float]) -> dict[str, int]:
    """Bounds for doing a pass again whose maxima are known exactly."""
    pairs = zip(layout.names, maxima, strict=True)
    return {name: exponent(maximum) for name, maximum in pairs if maximum > 0}


def next_bounds(
    layout: Layout, maxima: Iterable[float], bounds: Mapping[str, int]
) -> dict[str, int]:
    """Bounds for the next pass: this pass's maxima with head-room; other segments keep theirs."""
    result = dict(bounds)
    for name, bound in tight_bounds(layout, maxima).items():
        result[name] = min(bound + HEADROOM, _HIGHEST)
    return result


def _flat(name: str, value: object) -> Array | float:
    if type(value) is float:
        return value
    array = np.asarray(value)
    if array.dtype != np.float64:
        if array.dtype.kind not in "fiub":
            raise TrainingError(f"statistics: {name!r} has type {array.dtype}, not float64")
        array = array.astype(np.float64)
    return array.reshape(-1)
