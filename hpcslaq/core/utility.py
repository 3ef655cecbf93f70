"""What a job is worth to its user, by the time that it takes.

Values never rise with time. Only policies that earn utility (`oasis`) look at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class UtilityKind(Enum):
    """Forms of a utility. Source: OASiS, section V (sigmoid, constant); the others are usual."""

    CONSTANT = "constant"  # peak, whenever the job ends
    SIGMOID = "sigmoid"  # peak / (1 + exp(steepness (delay - target)))
    LINEAR = "linear"  # from peak at once down to 0 at the target
    STEP = "step"  # peak up to the target, 0 after it
    TABLE = "table"  # values[i] from i * every on, the last one for ever


@dataclass(frozen=True, slots=True)
class UtilityCurve:
    """A utility by delay, s after submission. Raises ValueError, naming the field."""

    kind: UtilityKind
    #: Largest value (not of a table).
    peak: float = 1.0
    #: s; half of the peak is left (sigmoid), or nothing from then on (linear) or later (step).
    target_s: float | None = None
    #: 1/s, of a sigmoid.
    steepness: float | None = None
    #: Of a table: never rising, >= 0.
    values: tuple[float, ...] = ()
    #: s for which each value of a table holds.
    every_s: float | None = None

    def __post_init__(self) -> None:
        kind = self.kind
        given = {
            "target_s": self.target_s is not None,
            "steepness": self.steepness is not None,
            "values": bool(self.values),
            "every_s": self.every_s is not None,
        }
        for key, is_given in given.items():
            is_used = kind in _USERS[key]
            if is_given != is_used:
                what = "is missing" if is_used else "is not used"
                raise ValueError(f"{key}: {what} ({kind.value} utility)")
        if not (math.isfinite(self.peak) and self.peak > 0):
            raise ValueError(f"peak: {self.peak} is not a finite number > 0")
        for key in ("target_s", "steepness", "every_s"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{key}: {value} is not a finite number > 0")
        if any(not (math.isfinite(value) and value >= 0) for value in self.values):
            raise ValueError(f"values: {list(self.values)} are not finite numbers >= 0")
        if any(b > a for a, b in zip(self.values, self.values[1:], strict=False)):
            raise ValueError(f"values: {list(self.values)} rise")

    def at(self, delay_s: float) -> float:
        """The value of ending `delay_s` >= 0 after the submission."""
        match self.kind:
            case UtilityKind.SIGMOID:
                assert self.target_s is not None and self.steepness is not None
                exponent = min(self.steepness * (delay_s - self.target_s), 700.0)
                return self.peak / (1.0 + math.exp(exponent))
            case UtilityKind.LINEAR:
                assert self.target_s is not None
                return self.peak * max(0.0, 1.0 - delay_s / self.target_s)
            case UtilityKind.STEP:
                assert self.target_s is not None
                return self.peak if delay_s <= self.target_s * (1 + 1e-9) else 0.0
            case UtilityKind.TABLE:
                assert self.every_s is not None
                index = math.floor(delay_s / self.every_s + 1e-9)
                return self.values[min(index, len(self.values) - 1)]
            case _:
                return self.peak


_USERS = {
    "target_s": (UtilityKind.SIGMOID, UtilityKind.LINEAR, UtilityKind.STEP),
    "steepness": (UtilityKind.SIGMOID,),
    "values": (UtilityKind.TABLE,),
    "every_s": (UtilityKind.TABLE,),
}
