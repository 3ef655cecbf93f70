"""How much loss sequences will still fall: several families, weighted by their record.

One track follows one equally spaced sequence of losses and forgets exponentially. It costs a
fixed number of operations per loss. `Tracks` follows many sequences, one row each, so that the
newest losses of many jobs are taken in at once; what is computed for a row does not depend on
the others. Which sequences are followed for a job is in `history`, what a scheduler reads in
`drop`.

Eight experts predict the drop over the next n steps.

- Two fit log(drop) by a line in k (a geometric curve) and two by a line in log k (a power law),
  each with a short and a longer memory. Real losses have noise in proportion to their drops,
  which is even in the logarithm.
- Three fit the loss itself by A/(k + c) + d, with c from a fixed set, weighted by its
  likelihood: with a short memory from the newest loss, and with two longer ones from the fitted
  curve, which is what sees through the noise of mini-batches.
- One says that nothing falls any more.

Each is weighted by its relative error at 1, 2, 4 and 8 steps ahead in the recent past; the
answer is the weighted median, which no single wild expert moves. Nothing is known of the
curve's floor at first: a drop to more than half of what is left above zero is damped, unless the
job has just shown that it can fall faster. The width of the interval adapts so that it holds
as often as it says (adaptive conformal inference).

Source: own. The ingredients are discounted regression (Brown), prediction with expert advice
(Cesa-Bianchi and Lugosi), adaptive conformal inference (Gibbs and Candes, 2021).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

#: Steps ahead at which the experts are judged.
LAGS = np.array([1.0, 2.0, 4.0, 8.0])
#: Share of the outcomes that the interval is to hold.
COVERAGE = 0.8
#: Losses after which a drop can be predicted.
FIRST = 3
_LAG_STEPS, _LAG_INDEX = np.array([1, 2, 4, 8]), np.arange(4)
_RING = 16
#: Memory (share kept per step) of the log-drop lines and of the loss curves.
_LOG_MEMORY = (0.7, 0.9)
_CURVE_MEMORY = (0.64, 0.9, 0.97)
_OFFSETS = np.array([1.0, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0, 129.0])
#: A curve in the loss has twice as many unknowns, and joins when it has seen enough of it.
_CURVE_FIRST = 10
_NUM_LINES = 2 * len(_LOG_MEMORY)
_NUM_CURVES = len(_CURVE_MEMORY)
_NUM_EXPERTS = _NUM_LINES + _NUM_CURVES + 1
_KEEP = np.concatenate(
    [np.repeat(_LOG_MEMORY, 2), np.repeat(_CURVE_MEMORY, len(_OFFSETS))], dtype=np.float64
)
_TILED = np.tile(_OFFSETS, _NUM_CURVES)
#: Memory of the experts' records, and how sharply the weights follow them.
_RECORD_MEMORY = 0.9
_SHARPNESS = 4.0
#: Steps of the interval's adaptation, in logarithms of its width.
_ADAPT = 0.25
_NARROWER, _WIDER = np.exp(_ADAPT * np.array([COVERAGE - 1.0, COVERAGE])).tolist()
_TINY = 1e-300
#: Answers are kept for judgement at each of the first steps, later at every other.
_OFTEN, _STRIDE = 32, 2
_NO_DROP = 1e-3  # a fall below this share of the largest recent one counts as that much


class Tracks:
    """State of many sequences by row; see the module. All losses must be finite."""

    def __init__(self) -> None:
        #: Rows that nobody uses, the next one last.
        self._free: list[int] = []
        #: Losses seen, and steps of the sequence before the first of them: (rows,).
        self.count: Counts = np.zeros(0, dtype=np.int64)
        self._skipped: Counts = np.zeros(0, dtype=np.int64)
        #: The loss at which the job ends, NaN where the user named none.
        self._floor: Floats = np.zeros(0)
        #: (rows, 6, regressions): weight, mean x, mean y, spread xx, xy, yy.
        self._bank: Floats = np.zeros((0, 6, len(_KEEP)))
        #: (rows, _RING): the newest losses; loss k is at k % _RING.
        self._losses: Floats = np.zeros((0, _RING))
        self._lowest: Floats = np.zeros(0)
        #: Largest recent change in one step.
        self._largest: Floats = np.zeros(0)
        #: (rows, _RING, lags, experts): what each expert said at each of the last steps.
        self._said: NDArray[np.float32] = np.zeros((0, _RING, 4, _NUM_EXPERTS), np.float32)
        #: (rows, 2, experts): discounted error and its weight.
        self._errors: Floats = np.zeros((0, 2, _NUM_EXPERTS))
        #: (rows, 2, _RING, lags): the median's answers, and half-widths of the intervals.
        self._mixed: Floats = np.zeros((0, 2, _RING, 4))
        #: (rows, lags): mean of the miss relative to the answer, the multiple of it that is stated.
        self._typical: Floats = np.zeros((0, 4))
        self._stretch: Floats = np.zeros((0, 4))
        #: Mean surprise by the next loss.
        self.noise: Floats = np.zeros(0)
        #: (rows, 2): discounted relative error of the answers and its weight.
        self._trust: Floats = np.zeros((0, 2))

    def add(self, floor: float | None = None) -> int:
        """A fresh row."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._floor[row] = math.nan if floor is None else floor
        self.reset(np.array([row]), np.zeros(1, dtype=np.int64))
        return row

    def discard(self, row: int) -> None:
        """Free a row."""
        self._free.append(row)

    def reset(self, rows: Rows, skipped: Counts) -> None:
        """Forget all losses; the sequence goes on `skipped : (m,)` steps after its start."""
        self.count[rows] = 0
        self._skipped[rows] = skipped
        self._bank[rows] = 0.0
        self._losses[rows] = math.nan
        self._lowest[rows] = math.inf
        self._largest[rows] = 0.0
        self._said[rows] = math.nan
        self._errors[rows] = 0.0
        self._mixed[rows] = math.nan
        self._typical[rows] = 0.4
        self._stretch[rows] = 1.5
        self.noise[rows] = 0.0
        self._trust[rows] = 0.0

    def observe(self, rows: Rows, loss: Floats) -> None:
        """Take in the next loss, (m,), of different rows."""
        count = self.count[rows] + 1
        slot = count % _RING
        last = self._losses[rows, (count - 1) % _RING]
        self.count[rows] = count
        self._losses[rows, slot] = loss
        self._lowest[rows] = np.minimum(self._lowest[rows], loss)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._judge(rows, count, loss)
            is_finite = self._regress(rows, count, loss, last)
            if not is_finite.all():
                self.reset(rows[~is_finite], (self._skipped[rows] + count)[~is_finite])
            speaks = is_finite & _speaks(count)
            if not speaks.all():
                rows, slot = rows[speaks], slot[speaks]
            if len(rows):
                said = self._experts(rows, LAGS)
                mixed = _median(said, self._weights(rows))
                self._said[rows, slot] = said
                self._mixed[rows, 0, slot] = mixed
                self._mixed[rows, 1, slot] = self._bounded(
                    rows, self._multiples(rows) * (np.abs(mixed) + self.noise[rows, None])
                )

    def drops(self, rows: Rows, steps: Floats) -> tuple[Floats, Floats]:
        """Predicted drops after `steps : (h,) or (m, h), > 0` more, and interval half-widths.

        Both are (m, h) and finite; a predicted drop may be negative (a noisy loss that is low
        just now). Zero while fewer than FIRST losses are known.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            drops = _median(self._experts(rows, steps), self._weights(rows))
            width = _between_lags(steps, self._multiples(rows))
            width = self._bounded(rows, width * (np.abs(drops) + self.noise[rows, None]))
        is_young = self.count[rows] < FIRST
        drops[is_young], width[is_young] = 0.0, 0.0
        return drops, width

    def error(self, rows: Rows) -> Floats:
        """Recent relative error of the predictions in [0, 1]: 0 perfect, 1/3 twofold, 1 useless."""
        return np.asarray((self._trust[rows, 0] + 0.5) / (self._trust[rows, 1] + 1.0))

    def _regress(self, rows: Rows, count: Counts, loss: Floats, last: Floats) -> Mask:
        """Take the loss into the regressions; whether all their sums are finite, (m,)."""
        k = (self._skipped[rows] + count).astype(np.float64)
        drop = np.where(count > 1, last - loss, 0.0)
        largest = np.maximum(0.9 * self._largest[rows], np.abs(drop))
        self._largest[rows] = largest
        #: x and y of each regression.
        point = np.empty((len(rows), 2, len(_KEEP)))
        point[:, 0, 0:_NUM_LINES:2] = k[:, None]
        point[:, 0, 1:_NUM_LINES:2] = np.log(k)[:, None]
        level = np.log(np.maximum(np.maximum(drop, _NO_DROP * largest), _TINY))
        point[:, 1, :_NUM_LINES] = level[:, None]
        point[:, 0, _NUM_LINES:] = _TILED / (_TILED + k[:, None])
        point[:, 1, _NUM_LINES:] = loss[:, None]
        bank = self._bank[rows]
        weight, means, spreads = bank[:, 0], bank[:, 1:3], bank[:, 3:]
        weight *= _KEEP
        weight += 1.0
        share = 1.0 / weight
        point -= means
        means += share[:, None] * point
        rest = (1.0 - share)[:, None] * point
        spreads *= _KEEP
        spreads[:, 0] += rest[:, 0] * point[:, 0]
        spreads[:, 1] += rest[:, 0] * point[:, 1]
        spreads[:, 2] += rest[:, 1] * point[:, 1]
        bank[count == 1, :, :_NUM_LINES] = 0.0  # there was no drop yet
        self._bank[rows] = bank
        # The sum is finite only if all are; it may overflow where all are.
        total = bank.reshape(len(rows), -1).sum(axis=1)
        return np.asarray(np.isfinite(total) | np.isfinite(bank).all(axis=(1, 2)))

    def _experts(self, rows: Rows, steps: Floats) -> Floats:
        """What each expert predicts, (m, h, experts); NaN from those that have not joined."""
        steps = np.atleast_2d(steps)
        k = (self._skipped[rows] + self.count[rows]).astype(np.float64)
        slot = self.count[rows] % _RING
        loss = self._losses[rows, slot]
        bank = self._bank[rows]
        said = np.zeros((len(rows), steps.shape[1], _NUM_EXPERTS))
        has_fallen = self._losses[rows, (slot - 1) % _RING] > loss
        _say_lines(said, bank[:, :, :_NUM_LINES], k, steps)
        said[~has_fallen, :, :_NUM_LINES] = 0.0
        _say_curves(said, bank[:, :, _NUM_LINES:], k, steps, loss)
        said[self.count[rows] < _CURVE_FIRST, :, _NUM_LINES:-1] = math.nan
        floor = self._floor[rows]
        has_floor = ~np.isnan(floor)
        if not has_floor.all():
            damped = _damp(said, self._reach(rows, slot, loss)[:, None, None])
            is_damped = ~has_floor & (self._lowest[rows] >= 0.0)
            said = np.where(is_damped[:, None, None], damped, said)
        if has_floor.any():
            left = np.maximum(loss - floor, 0.0)
            bounded = np.minimum(said, left[:, None, None])
            said = np.where(has_floor[:, None, None], bounded, said)
        return said

    def _reach(self, rows: Rows, slot: Counts, loss: Floats) -> Floats:
        """How far the losses can plausibly fall: half of it, nearer to all of it if it just did."""
        past = self._losses[rows, (slot - 10) % _RING]
        has_past = (self.count[rows] > 10) & (past > 0.0)
        fallen = np.where(has_past, 1.0 - loss / past, 0.0)
        return np.asarray(loss * 0.5 * (1.0 + np.maximum(fallen, 0.0)))

    def _judge(self, rows: Rows, count: Counts, loss: Floats) -> None:
        """Compare what was said 1, 2, 4 and 8 steps ago with what came."""
        is_due = _speaks(count[:, None] - _LAG_STEPS)
        some = is_due.any(axis=1)
        if not some.all():
            rows, count, loss, is_due = rows[some], count[some], loss[some], is_due[some]
        if not len(rows):
            return
        at = rows[:, None]
        then = (count[:, None] - _LAG_STEPS) % _RING
        came = np.where(is_due, self._losses[at, then] - loss[:, None], math.nan)
        error = _relative(self._said[at, then, _LAG_INDEX], came[:, :, None]) * LAGS[:, None]
        is_known = np.isfinite(error)
        errors = self._errors[rows]
        errors *= _RECORD_MEMORY
        errors[:, 0] += _sum_lags(np.where(is_known, error, 0.0))
        errors[:, 1] += _sum_lags(is_known * LAGS[:, None])
        self._errors[rows] = errors
        self._calibrate(rows, came, self._mixed[at, :, then, _LAG_INDEX])

    def _calibrate(self, rows: Rows, came: Floats, said: Floats) -> None:
        """Adapt the interval and the trust; said : (m, lags, 2) holds answers and half-widths."""
        mixed, width = said[..., 0], said[..., 1]
        noise = self.noise[rows]
        miss = np.abs(came - mixed)
        is_known = np.isfinite(miss)
        stretch, typical = self._stretch[rows], self._typical[rows]
        wider = stretch * np.where(miss <= width, _NARROWER, _WIDER)
        relative = np.minimum(miss / (np.abs(mixed) + noise[:, None] + _TINY), 10.0)
        self._stretch[rows] = np.where(is_known, np.clip(wider, 0.1, 100.0), stretch)
        self._typical[rows] = np.where(is_known, typical + 0.1 * (relative - typical), typical)
        missed = np.where(is_known, miss / (np.abs(mixed) + np.abs(came) + _TINY) * LAGS, 0.0)
        trust = _RECORD_MEMORY * self._trust[rows]
        trust[:, 0] += _sum_lags(missed)
        trust[:, 1] += _sum_lags(is_known * LAGS)
        self._trust[rows] = trust
        surprise = np.where(is_known[:, 0], miss[:, 0] - noise, 0.0)
        self.noise[rows] = noise + 0.2 * surprise

    def _weights(self, rows: Rows) -> Floats:
        """Weight of each expert, (m, experts): a power of its mean relative error."""
        total, weight = self._errors[rows, 0], self._errors[rows, 1]
        typical = (_sum_last(total) + 0.5) / (_sum_last(weight) + 1.0)
        return np.asarray(((total + typical[:, None]) / (weight + 1.0) + 0.01) ** -_SHARPNESS)

    def _multiples(self, rows: Rows) -> Floats:
        """Half-width of the interval relative to the answer, (m, lags)."""
        return np.asarray(self._stretch[rows] * self._typical[rows])

    def _bounded(self, rows: Rows, widths: Floats) -> Floats:
        """A loss that never was negative will hardly change by more than itself; (m, h)."""
        loss = self._losses[rows, self.count[rows] % _RING]
        most = np.where(self._lowest[rows] >= 0.0, loss, math.inf)
        return np.minimum(widths, most[:, None])

    def _grow(self) -> None:
        old = len(self.count)
        new = max(16, 2 * old)
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                grown = np.zeros((new, *array.shape[1:]), dtype=array.dtype)
                grown[:old] = array
                setattr(self, name, grown)
        self._free.extend(range(new - 1, old - 1, -1))


class Track:
    """One sequence on its own: a single row of `Tracks`."""

    def __init__(self, floor: float | None = None) -> None:
        self._tracks = Tracks()
        self._row = np.array([self._tracks.add(floor)])

    def observe(self, loss: float) -> None:
        """Take in the next loss."""
        self._tracks.observe(self._row, np.array([loss]))

    def drops(self, steps: Floats) -> tuple[Floats, Floats]:
        """Predicted drops after `steps : (h,) > 0` more, and half-widths of their intervals."""
        drops, widths = self._tracks.drops(self._row, steps)
        return drops[0], widths[0]

    @property
    def error(self) -> float:
        """Recent relative error of the predictions in [0, 1]; see `Tracks.error`."""
        return float(self._tracks.error(self._row)[0])


def _speaks(count: Counts) -> Mask:
    """Whether the answers after `count` losses are kept for judgement."""
    return np.asarray((count >= FIRST) & ((count <= _OFTEN) | (count % _STRIDE == 0)))


def _say_lines(said: Floats, bank: Floats, k: Floats, steps: Floats) -> None:
    """Lines in log(drop): the drop at step i is level * e^(-rate i), or * (1 + i/k)^-rate.

    said : (m, h, experts); bank : (m, 6, lines), those in k and those in log k in turn.
    """
    mean_x, mean_y, xx, xy = bank[:, 1], bank[:, 2], bank[:, 3], bank[:, 4]
    x = np.empty_like(mean_x)
    x[:, 0::2], x[:, 1::2] = k[:, None], np.log(k)[:, None]
    slope = xy / (xx + 1e-12)
    level = np.exp(np.minimum(mean_y + slope * (x - mean_x), 700.0))
    rate = np.clip(-slope, 1e-9, 700.0)
    geometric, power = rate[:, 0::2], 1.0 - rate[:, 1::2]
    scale = level[:, 0::2] * np.exp(-geometric) / np.expm1(-geometric)
    fall = np.expm1(-geometric[:, None] * steps[:, :, None])
    said[..., 0:_NUM_LINES:2] = scale[:, None] * fall
    power = np.where(np.abs(power) > 1e-6, power, 1e-6)
    start, end = np.log1p(0.5 / k), np.log1p((steps + 0.5) / k[:, None])
    rise = np.exp(power[:, None] * end[:, :, None]) - np.exp(power * start[:, None])[:, None]
    said[..., 1:_NUM_LINES:2] = (level[:, 1::2] * k[:, None] / power)[:, None] * rise


def _say_curves(said: Floats, bank: Floats, k: Floats, steps: Floats, loss: Floats) -> None:
    """Curves A c/(c + k) + d: the likelihood of each offset c weighs it.

    said : (m, h, experts); bank : (m, 6, curves * offsets); loss : (m,) the newest ones.
    """
    shape = (len(k), _NUM_CURVES, len(_OFFSETS))
    weight, mean_x, mean_y, xx, xy, yy = (bank[:, i].reshape(shape) for i in range(6))
    amplitude = np.maximum(xy / np.maximum(xx, _TINY), 0.0)
    misfit = np.maximum(yy - 2.0 * amplitude * xy + amplitude * amplitude * xx, 0.0)
    likelihood = -0.5 * weight * np.log(misfit + 1e-12 * yy + _TINY)
    share = np.exp(likelihood - likelihood.max(axis=2, keepdims=True))
    share /= _sum_last(share)[:, :, None]
    now = _OFFSETS / (_OFFSETS + k[:, None])
    ahead = _OFFSETS / (_OFFSETS + (k[:, None] + steps)[:, :, None])
    fall = now[:, None] - ahead
    weighted = share * amplitude
    rows = said[..., _NUM_LINES:-1]
    for curve in range(_NUM_CURVES):
        rows[..., curve] = _sum_last(weighted[:, None, curve] * fall)
    fitted = _sum_last(share * (mean_y + amplitude * (now[:, None] - mean_x)))
    rows[..., 1:] += (loss[:, None] - fitted)[:, None, 1:]


def _relative(said: NDArray[np.floating], came: Floats) -> Floats:
    """|said - came| / (|said| + |came|), in [0, 1]; NaN where either is."""
    return np.asarray(np.abs(said - came) / (np.abs(said) + np.abs(came) + _TINY))


def _damp(said: Floats, reach: Floats) -> Floats:
    """Drops below `reach` stay nearly as they are, larger ones approach it: x/(1 + (x/r)^4)^1/4."""
    ratio = np.minimum(np.maximum(said, 0.0) / np.maximum(reach, _TINY), 1e70)
    square = ratio * ratio
    return np.asarray(said / np.sqrt(np.sqrt(1.0 + square * square)))


def _median(said: Floats, weights: Floats) -> Floats:
    """Weighted median over the experts that said a number, (m, h); 0 where none did.

    said : (m, h, experts); weights : (m, experts).
    """
    num, width, _ = said.shape
    # Flat indices: a fraction of the time of `take_along_axis`.
    cells = (np.arange(num * width) * _NUM_EXPERTS).reshape(num, width)
    order = said.argsort(axis=2)  # NaN last
    values = said.ravel()[order + cells[..., None]]
    share = weights.ravel()[order + (np.arange(num) * _NUM_EXPERTS)[:, None, None]]
    share[~np.isfinite(values)] = 0.0
    share = np.add.accumulate(share, axis=2)
    middle = np.add.reduce(share < 0.5 * share[..., -1:], axis=2)
    middle = np.minimum(middle, _NUM_EXPERTS - 1)
    median: Floats = values.ravel()[cells + middle]
    median[~np.isfinite(median)] = 0.0
    return median


def _between_lags(steps: Floats, values: Floats) -> Floats:
    """Values at the lags, (m, lags), between them: linear in log(steps), constant outside."""
    place = np.clip(np.log2(steps), 0.0, len(LAGS) - 1.0)
    left = np.minimum(place.astype(np.int64), len(LAGS) - 2)
    share = place - left
    if steps.ndim == 1:
        return np.asarray(values[:, left] * (1.0 - share) + values[:, left + 1] * share)
    low = np.take_along_axis(values, left, axis=1)
    high = np.take_along_axis(values, left + 1, axis=1)
    return np.asarray(low * (1.0 - share) + high * share)


def _sum_lags(values: Floats) -> Floats:
    """Sum over the lags, the second axis, in one order whatever the number of rows."""
    return np.asarray(values[:, 0] + values[:, 1] + values[:, 2] + values[:, 3])


def _sum_last(values: Floats) -> Floats:
    return np.asarray(np.add.reduce(values, axis=-1))
