"""How much one loss sequence will still fall: several families, weighted by their record.

One `Track` follows one equally spaced sequence of losses and forgets exponentially. It costs a
fixed number of operations per loss. Which sequences are followed for a job, and what a
scheduler reads, is in `drop`.

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

#: Steps ahead at which the experts are judged.
LAGS = np.array([1.0, 2.0, 4.0, 8.0])
#: Share of the outcomes that the interval is to hold.
COVERAGE = 0.8
#: Losses after which a drop can be predicted.
FIRST = 3
_LAG_STEPS = np.array([1, 2, 4, 8])
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
#: Memory of the experts' records, and how sharply the weights follow them.
_RECORD_MEMORY = 0.9
_SHARPNESS = 4.0
#: Steps of the interval's adaptation, in logarithms of its width.
_ADAPT = 0.25
_TINY = 1e-300
#: Answers are kept for judgement at each of the first steps, later at every other.
_OFTEN, _STRIDE = 32, 2
#: How sharply drops beyond the plausible reach are cut.
_DAMPING = 4
_NO_DROP = 1e-3  # a fall below this share of the largest recent one counts as that much


class Track:
    """State of one sequence; see the module. All losses must be finite."""

    __slots__ = (
        "_bank",
        "_errors",
        "_largest",
        "_losses",
        "_lowest",
        "_mixed",
        "_said",
        "_stretch",
        "_trust",
        "_typical",
        "count",
        "floor",
        "noise",
        "skipped",
    )

    def __init__(self, floor: float | None = None, skipped: int = 0) -> None:
        #: Losses seen.
        self.count = 0
        #: Steps of the sequence before the first loss seen.
        self.skipped = skipped
        #: The loss at which the job ends, where the user named one.
        self.floor = floor
        #: Weight, mean x, mean y, spread xx, xy, yy of each regression.
        self._bank = np.zeros((6, len(_KEEP)))
        self._losses = np.full(_RING, np.nan)
        self._lowest = math.inf
        self._largest = 0.0
        #: What each expert said at each of the last steps for each lag.
        self._said = np.full((_RING, len(LAGS), _NUM_EXPERTS), np.nan, dtype=np.float32)
        #: Discounted error and its weight, per expert.
        self._errors = np.zeros((2, _NUM_EXPERTS))
        #: The median's answers, and half-widths of the intervals, at each of the last steps.
        self._mixed = np.full((2, _RING, len(LAGS)), np.nan)
        #: Per lag: mean of the miss relative to the answer, and the multiple of it that is stated.
        self._typical = np.full(len(LAGS), 0.4)
        self._stretch = np.full(len(LAGS), 1.5)
        #: Mean surprise by the next loss.
        self.noise = 0.0
        self._trust = np.zeros(2)

    def observe(self, loss: float) -> None:
        """Take in the next loss."""
        last = float(self._losses[self.count % _RING])
        self.count += 1
        slot = self.count % _RING
        self._losses[slot] = loss
        self._lowest = min(self._lowest, loss)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.count > 1:
                self._judge(slot)
            self._regress(loss, last)
            if not np.isfinite(self._bank).all():
                self.__init__(self.floor, self.skipped + self.count)  # type: ignore[misc]
            elif _speaks(self.count):
                said = self._experts(LAGS)
                self._said[slot] = said.T
                self._mixed[0, slot] = _median(said, self._weights(), LAGS)
                self._mixed[1, slot] = self._widths(self._mixed[0, slot])

    def drops(self, steps: Floats) -> tuple[Floats, Floats]:
        """Predicted drops after `steps : (m,) > 0` more, and half-widths of their intervals.

        Both are finite; a predicted drop may be negative (a noisy loss that is low just now).
        """
        if self.count < FIRST:
            return np.zeros(len(steps)), np.zeros(len(steps))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            drops = _median(self._experts(steps), self._weights(), steps)
            width = np.interp(np.log(steps), np.log(LAGS), self._stretch * self._typical)
        return drops, self._bounded(width * (np.abs(drops) + self.noise))

    @property
    def error(self) -> float:
        """Recent relative error of the predictions in [0, 1]: 0 perfect, 1/3 twofold, 1 useless."""
        return float((self._trust[0] + 0.5) / (self._trust[1] + 1.0))

    def _regress(self, loss: float, last: float) -> None:
        k = float(self.skipped + self.count)
        weight, mean_x, mean_y, xx, xy, yy = self._bank
        x, y = np.empty(len(_KEEP)), np.empty(len(_KEEP))
        drop = last - loss if self.count > 1 else 0.0
        self._largest = max(0.9 * self._largest, abs(drop))
        x[0:_NUM_LINES:2], x[1:_NUM_LINES:2] = k, math.log(k)
        y[:_NUM_LINES] = math.log(max(drop, _NO_DROP * self._largest, _TINY))
        x[_NUM_LINES:].reshape(_NUM_CURVES, -1)[:] = _OFFSETS / (_OFFSETS + k)
        y[_NUM_LINES:] = loss
        weight *= _KEEP
        share = 1.0 / (weight + 1.0)
        weight += 1.0
        dx, dy = x - mean_x, y - mean_y
        mean_x += share * dx
        mean_y += share * dy
        rest = 1.0 - share
        xx *= _KEEP
        xx += rest * dx * dx
        xy *= _KEEP
        xy += rest * dx * dy
        yy *= _KEEP
        yy += rest * dy * dy
        if self.count == 1:
            self._bank[:, :_NUM_LINES] = 0.0  # there was no drop yet

    def _experts(self, steps: Floats) -> Floats:
        """What each expert predicts, (_NUM_EXPERTS, m); NaN from those that have not joined."""
        said = np.zeros((_NUM_EXPERTS, len(steps)))
        self._say_lines(said, steps)
        self._say_curves(said, steps)
        loss = float(self._losses[self.count % _RING])
        if self.floor is not None:
            return np.minimum(said, max(loss - self.floor, 0.0))
        return _damp(said, self._reach(loss)) if self._lowest >= 0.0 else said

    def _say_lines(self, said: Floats, steps: Floats) -> None:
        """Lines in log(drop): the drop at step i is level * e^(-rate i), or * (1 + i/k)^-rate."""
        if not self._losses[(self.count - 1) % _RING] > self._losses[self.count % _RING]:
            return
        k = float(self.skipped + self.count)
        _, mean_x, mean_y, xx, xy, _ = self._bank[:, :_NUM_LINES].tolist()
        start, end = math.log1p(0.5 / k), np.log1p((steps + 0.5) / k)
        for line in range(_NUM_LINES):
            x = math.log(k) if line % 2 else k
            slope = xy[line] / (xx[line] + 1e-12)
            level = math.exp(min(mean_y[line] + slope * (x - mean_x[line]), 700.0))
            rate = min(max(-slope, 1e-9), 700.0)
            if line % 2:
                power = 1.0 - rate if abs(1.0 - rate) > 1e-6 else 1e-6
                level *= k / power
                np.multiply(np.exp(power * end) - math.exp(power * start), level, out=said[line])
            else:
                level *= math.exp(-rate) / math.expm1(-rate)
                np.multiply(np.expm1(-rate * steps), level, out=said[line])

    def _say_curves(self, said: Floats, steps: Floats) -> None:
        """Curves A c/(c + k) + d: the likelihood of each offset c weighs it."""
        rows = said[_NUM_LINES:-1]
        if self.count < _CURVE_FIRST:
            rows[:] = np.nan
            return
        k, shape = float(self.skipped + self.count), (_NUM_CURVES, len(_OFFSETS))
        weight, mean_x, mean_y, xx, xy, yy = (
            row.reshape(shape) for row in self._bank[:, _NUM_LINES:]
        )
        amplitude = np.maximum(xy / np.maximum(xx, _TINY), 0.0)
        misfit = np.maximum(yy - 2.0 * amplitude * xy + amplitude * amplitude * xx, 0.0)
        likelihood = -0.5 * weight * np.log(misfit + 1e-12 * yy + _TINY)
        share = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        now = _OFFSETS / (_OFFSETS + k)
        ahead = _OFFSETS[:, None] / (_OFFSETS[:, None] + k + steps)
        rows[:] = (share * amplitude) @ (now[:, None] - ahead)
        fitted = (share * (mean_y + amplitude * (now - mean_x))).sum(axis=1)
        rows[1:] += (float(self._losses[self.count % _RING]) - fitted)[1:, None]

    def _reach(self, loss: float) -> float:
        """How far the loss can plausibly fall: half of it, nearer to all of it if it just did."""
        past = float(self._losses[(self.count - 10) % _RING])
        fallen = 1.0 - loss / past if self.count > 10 and past > 0.0 else 0.0
        return loss * 0.5 * (1.0 + max(fallen, 0.0))

    def _judge(self, slot: int) -> None:
        """Compare what was said 1, 2, 4 and 8 steps ago with what came."""
        known = [_speaks(self.count - lag) for lag in _LAG_STEPS.tolist()]
        if not any(known):
            return
        then = (self.count - _LAG_STEPS) % _RING
        loss = float(self._losses[slot])
        came = np.where(known, self._losses[then] - loss, np.nan)
        lags = np.arange(len(LAGS))
        error = _relative(self._said[then, lags], came[:, None]) * LAGS[:, None]
        is_known = np.isfinite(error)
        self._errors *= _RECORD_MEMORY
        self._errors[0] += np.where(is_known, error, 0.0).sum(axis=0)
        self._errors[1] += (is_known * LAGS[:, None]).sum(axis=0)
        mixed, width = self._mixed[0, then, lags], self._mixed[1, then, lags]
        miss = np.abs(came - mixed)
        is_known = np.isfinite(miss)
        hit = np.where(miss <= width, COVERAGE - 1.0, COVERAGE)
        self._stretch *= np.exp(_ADAPT * np.where(is_known, hit, 0.0))
        self._stretch = self._stretch.clip(0.1, 100.0)
        relative = np.minimum(miss / (np.abs(mixed) + self.noise + _TINY), 10.0)
        self._typical += np.where(is_known, 0.1 * (relative - self._typical), 0.0)
        self._trust *= _RECORD_MEMORY
        self._trust[0] += np.where(is_known, _relative(mixed, came) * LAGS, 0.0).sum()
        self._trust[1] += (is_known * LAGS).sum()
        if is_known[0]:
            self.noise += 0.2 * (float(miss[0]) - self.noise)

    def _weights(self) -> Floats:
        """Weight of each expert, (_NUM_EXPERTS,): a power of its mean relative error."""
        total, weight = self._errors
        typical = (float(total.sum()) + 0.5) / (float(weight.sum()) + 1.0)
        return np.asarray(((total + typical) / (weight + 1.0) + 0.01) ** -_SHARPNESS)

    def _widths(self, drops: Floats) -> Floats:
        return self._bounded(self._stretch * self._typical * (np.abs(drops) + self.noise))

    def _bounded(self, widths: Floats) -> Floats:
        """A loss that never was negative will hardly change by more than itself."""
        return np.minimum(widths, self._losses[self.count % _RING]) if self._lowest >= 0 else widths


def _speaks(count: int) -> bool:
    """Whether the answers after `count` losses are kept for judgement."""
    return count >= FIRST and (count <= _OFTEN or count % _STRIDE == 0)


def _relative(said: NDArray[np.floating], came: Floats) -> Floats:
    """|said - came| / (|said| + |came|), in [0, 1]; NaN where either is."""
    return np.asarray(np.abs(said - came) / (np.abs(said) + np.abs(came) + _TINY))


def _damp(said: Floats, reach: float) -> Floats:
    """Drops below `reach` stay nearly as they are, larger ones approach it."""
    ratio = np.minimum(np.maximum(said, 0.0) / max(reach, _TINY), 1e70)
    damped = said / (1.0 + ratio**_DAMPING) ** (1.0 / _DAMPING)
    return np.asarray(np.where(said > 0.0, damped, said))


def _median(said: Floats, weights: Floats, steps: Floats) -> Floats:
    """Weighted median over the experts that said a number, (m,); 0 where none did."""
    columns = np.arange(len(steps))
    order = said.argsort(axis=0)  # NaN last
    values = said[order, columns]
    share = weights[order]
    share[~np.isfinite(values)] = 0.0
    share = share.cumsum(axis=0)
    middle = (share < 0.5 * share[-1]).sum(axis=0)
    median: Floats = values[np.minimum(middle, len(said) - 1), columns]
    median[~np.isfinite(median)] = 0.0
    return median
