"""Replay a recorded loss sequence through a predictor and say how good it was.

Behind `hpcslaq predict`. At every iteration the predictor sees the losses so far and nothing
else; what it says of the loss `horizon` iterations later is compared with what came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError
from hpcslaq.predict.curves import MIN_POINTS
from hpcslaq.predict.history import LossHistory
from hpcslaq.predict.published import published_drops
from hpcslaq.predict.slaq import predict_curve

Floats = NDArray[np.float64]

#: First iteration from which a prediction is judged.
START = 6
PREDICTORS = ("drop", "slaq", "slaq-published")
#: Share of the largest relative errors that is left out of their mean.
_TRIMMED = 0.01


@dataclass(frozen=True, slots=True)
class HorizonErrors:
    """How good the predictions `horizon` iterations ahead were; None where undefined."""

    horizon: int
    num_predictions: int
    #: Mean of |predicted - actual loss| / |actual loss|, the worst 1 % left out.
    mean_relative_error: float | None
    #: Sum of |predicted - true drop| over the sum of true drops; predictions below 0 count as 0.
    weighted_drop_error: float | None
    #: Median of |predicted - true drop| / true drop where the loss fell.
    median_drop_error: float | None
    #: Share of the predictions "no improvement" where the loss fell.
    missed_share: float | None
    #: Share of the outcomes inside the stated 80 % interval; None for predictors without one.
    coverage_80: float | None


def parse_losses(text: str, name: str) -> tuple[float, ...]:
    """Losses from text: one per line, or lines `iteration,loss` in ascending order.

    A heading line with letters, blank lines and lines that start with # are skipped. Raises
    DataError naming `name` and the line where a loss is missing, no number or not finite, or an
    iteration does not follow its predecessor.
    """
    losses: list[float] = []
    previous: float | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        fields = [field.strip() for field in line.split(",")]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            values = [float(field) for field in fields]
        except ValueError:
            if losses or number > 1 or not any(letter.isalpha() for letter in line):
                raise DataError(f"{name}:{number}: {line.strip()[:80]!r} is not a number") from None
            continue
        if len(values) > 2:
            raise DataError(
                f"{name}:{number}: {len(values)} fields, expected loss or iteration,loss"
            )
        if not math.isfinite(values[-1]):
            raise DataError(f"{name}:{number}: loss {values[-1]} is not finite")
        if len(values) == 2:
            if previous is not None and values[0] != previous + 1:
                raise DataError(
                    f"{name}:{number}: iteration {values[0]:g} does not follow {previous:g}"
                )
            previous = values[0]
        losses.append(values[-1])
    if not losses:
        raise DataError(f"{name}: no losses in it")
    return tuple(losses)


def replay_losses(
    losses: Sequence[float],
    horizons: Sequence[int],
    *,
    predictor: str = "drop",
    convergence: Convergence = Convergence.SUBLINEAR,
    target_loss: float | None = None,
) -> tuple[HorizonErrors, ...]:
    """Errors per horizon, predicting from iteration START on.

    `convergence` is the curve family of predictors "slaq" and "slaq-published" (the same fit as the
    authors' code solves it, slowly), `target_loss` serves "drop". Raises ValueError on an unknown
    predictor or a horizon below 1.
    """
    if predictor not in PREDICTORS:
        raise ValueError(f"predictor: {predictor!r} (valid: {', '.join(PREDICTORS)})")
    for horizon in horizons:
        if horizon < 1:
            raise ValueError(f"horizon: {horizon} < 1")
    ahead = np.array(horizons, dtype=np.float64)
    loss = np.asarray(losses, dtype=np.float64)
    widths: Floats | None = None
    if predictor == "drop":
        drops, widths = _follow_drops(loss, ahead, target_loss)
    elif predictor == "slaq":
        drops = _refit_curves(loss, ahead, convergence)
    else:
        drops = np.nan_to_num(published_drops(convergence, loss, ahead)[0])
    return tuple(
        _judge(loss, horizon, drops[:, i], None if widths is None else widths[:, i])
        for i, horizon in enumerate(horizons)
    )


def _follow_drops(loss: Floats, ahead: Floats, target: float | None) -> tuple[Floats, Floats]:
    """Signed drops and half-widths, (N, horizons), row k - 1 after k losses."""
    history = LossHistory(ahead, target)
    drops, widths = np.zeros((len(loss), len(ahead))), np.zeros((len(loss), len(ahead)))
    for index, value in enumerate(loss.tolist()):
        history.observe((value,))
        if index + 1 >= START:
            found = history.answer()
            drops[index], widths[index] = found.drops[0], found.widths[0]
    return drops, widths


def _refit_curves(loss: Floats, ahead: Floats, convergence: Convergence) -> Floats:
    """Drops by SLAQ's fit, made anew after every loss, (N, horizons)."""
    drops = np.zeros((len(loss), len(ahead)))
    k = np.arange(1.0, len(loss) + 1.0)
    for num in range(max(START, MIN_POINTS), len(loss)):
        fit = predict_curve(convergence, k[:num], loss[:num])
        if fit is not None:
            drops[num - 1] = loss[num - 1] - fit(num + ahead)
    return drops


def _judge(loss: Floats, horizon: int, drops: Floats, widths: Floats | None) -> HorizonErrors:
    made = slice(START - 1, max(len(loss) - horizon, START - 1))
    said, last = drops[made], loss[made]
    came = loss[START - 1 + horizon :]
    num = len(said)
    if num == 0:
        return HorizonErrors(horizon, 0, None, None, None, None, None)
    true = last - came
    is_scaled = came != 0.0
    relative = np.sort(np.abs(last - said - came)[is_scaled] / np.abs(came[is_scaled]))
    kept = relative[: math.ceil((1.0 - _TRIMMED) * len(relative))]
    fell = true > 0.0
    misses = np.abs(np.maximum(said, 0.0) - true)
    total = float(true.sum())
    return HorizonErrors(
        horizon=horizon,
        num_predictions=num,
        mean_relative_error=float(kept.mean()) if len(kept) else None,
        weighted_drop_error=float(misses.sum()) / total if total > 0.0 else None,
        median_drop_error=(
            float(np.median(np.abs(said - true)[fell] / true[fell])) if fell.any() else None
        ),
        missed_share=float((said[fell] <= 0.0).mean()) if fell.any() else None,
        coverage_80=(
            None if widths is None else float((np.abs(said - true) <= widths[made]).mean())
        ),
    )
