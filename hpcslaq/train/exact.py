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
from typing import Any

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
        if tuple(statistics) != self.names:
            return False
        for value, shape in zip(statistics.values(), self.shapes, strict=True):
            if type(value) is float:
                own: tuple[int, ...] = ()
            else:
                own = np.shape(value)
            if own != shape:
                return False
        return True

    def difference(self, statistics: Statistics) -> str:
        """In words, how the statistics differ from this layout."""
        if tuple(statistics) != self.names:
            return (
                f"statistics: names {list(statistics)} differ from another chunk's "
                f"{list(self.names)}"
            )
        shapes = {name: np.shape(value) for name, value in statistics.items()}
        pairs = zip(shapes.items(), self.shapes, strict=True)
        return "; ".join(
            f"statistics: {name!r} has shape {shape}, another chunk's {known}"
            for (name, shape), known in pairs
            if shape != known
        )

    def views(self, vector: Array) -> list[Any]:
        """Views of the segments in a packed vector, in their shapes."""
        return [
            vector[self.offsets[i] : self.offsets[i + 1]].reshape(shape)
            for i, shape in enumerate(self.shapes)
        ]

    def unpack(self, vector: Array) -> dict[str, Array | float]:
        """The segments by name: views of `vector`, or floats where the shape is ()."""
        views = zip(self.names, self.shapes, self.views(vector), strict=True)
        return {name: view if shape else float(view) for name, shape, view in views}


class ExactSum:
    """The exact sum over one member's chunks in one pass.

    `begin` a pass, `add` each chunk, then look at `layout`, `maxima` and `total`. When the
    maxima over all members do not fit the grid (`misfits`), do it again with better bounds.
    """

    __slots__ = (
        "_bounds",
        "_is_rounding",
        "_known",
        "_limits",
        "_magic",
        "_parts",
        "_scalars",
        "_scratch",
        "_total",
        "layout",
        "levels",
        "maxima",
    )

    def __init__(self, num_chunks: int) -> None:
        #: ceil(log2) of the number of chunks of the whole job, at least 2.
        self.levels = max((num_chunks - 1).bit_length(), 2)
        #: Layout of this pass; None before the first chunk.
        self.layout: Layout | None = None
        #: Largest absolute value of each segment so far, inf if one is not finite.
        self.maxima: list[float] = []
        self._bounds: Mapping[str, int] = {}
        #: Layout of the last pass: mostly that of the next, too.
        self._known: Layout | None = None
        #: Whether `_total` is right so far: every value was within its segment's limit.
        self._is_rounding = False
        #: 1.5 * 2^52 u and 2^B of each segment; without a grid nothing but zero is within.
        self._magic: list[float] = []
        self._limits: list[float] = []
        self._total: Array = np.zeros(0)
        #: Sums of the segments of shape (): one Python addition instead of a ufunc call.
        self._scalars: list[float] = []
        #: For each segment of another shape: views of scratch space and of `_total`.
        self._scratch: list[Any] = []
        self._parts: list[Any] = []

    def begin(self, bounds: Mapping[str, int]) -> None:
        """Forget all chunks. `bounds[name]` is the exponent B of each segment that has one."""
        self._bounds = bounds
        self.layout = None

    def add(self, statistics: Statistics) -> None:
        """Add one chunk. Raises TrainingError if names or shapes differ from the last chunk's."""
        layout = self.layout
        if layout is None:
            layout = self._open(statistics)
        elif not layout.fits(statistics):
            raise TrainingError(layout.difference(statistics))
        for i, (name, value) in enumerate(statistics.items()):
            if layout.shapes[i]:
                self._add_array(i, name, value)
            else:
                self._add_scalar(i, float(value))

    def _add_scalar(self, i: int, value: float) -> None:
        if self._note(i, abs(value)):
            self._scalars[i] += (value + self._magic[i]) - self._magic[i]

    def _add_array(self, i: int, name: str, value: Any) -> None:
        array = _as_float64(name, value)
        scratch, magic = self._scratch[i], self._magic[i]
        np.abs(array, out=scratch)
        if self._note(i, float(np.maximum.reduce(scratch, axis=None))):
            np.add(array, magic, out=scratch)
            scratch -= magic
            self._parts[i] += scratch

    def _note(self, i: int, size: float) -> bool:
        """Keep the maximum; whether the value can be added to a total that is right so far."""
        if not size <= _TOO_LARGE:  # also true of NaN; MPI_MAX may lose a NaN, no infinity
            size = math.inf
        if size > self.maxima[i]:
            self.maxima[i] = size
        if size > self._limits[i]:
            self._is_rounding = False
        return self._is_rounding

    @property
    def total(self) -> Array:
        """Sum of the rounded values, packed (layout.size,); meaningless if maxima do not fit."""
        layout = self.layout
        assert layout is not None
        for i, shape in enumerate(layout.shapes):
            if not shape:
                self._total[layout.offsets[i]] = self._scalars[i]
        return self._total

    def _open(self, statistics: Statistics) -> Layout:
        layout = self._known
        if layout is None or not layout.fits(statistics):
            self._known = layout = Layout.of(statistics)
            self._scratch = layout.views(np.empty(layout.size))
        self.layout = layout
        # A new vector each pass: the model may keep what it was handed.
        self._total = np.zeros(layout.size)
        self._parts = layout.views(self._total)
        self._scalars = [0.0] * len(layout.names)
        self.maxima = [0.0] * len(layout.names)
        bounds = [self._bounds.get(name) for name in layout.names]
        self._limits = [0.0 if bound is None else 2.0**bound for bound in bounds]
        self._magic = [1.5 * 2.0 ** ((bound or 0) + self.levels - 1) for bound in bounds]
        self._is_rounding = True
        return layout


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


def _as_float64(name: str, value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype == np.float64:
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TrainingError(f"statistics: {name!r} has type {array.dtype}, not float64")
    return array.astype(np.float64)
