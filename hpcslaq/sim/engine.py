"""A deterministic clock for virtual time: a heap of (time, priority, number, action).

Actions of the same time and priority happen in the order in which they were planned, so
that a simulation depends on nothing but its inputs. What happens is the business of
`cluster` and `simulator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush


class Engine:
    """Runs planned actions in the order of their time; knows the time."""

    def __init__(self) -> None:
        #: Virtual time in seconds since run start; never goes back.
        self.now = 0.0
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        #: Actions ever planned; makes heap entries unique, so that actions are not compared.
        self._num_planned = 0

    def plan(self, at: float, action: Callable[[], None], priority: int = 0) -> None:
        """Do `action` at time `at`; at equal times lower priorities come first.

        Raises ValueError for a time that is past, infinite or not a number.
        """
        if not self.now <= at < math.inf:
            raise ValueError(f"at: {at} is not a finite time >= {self.now}")
        self._num_planned += 1
        heappush(self._heap, (at, priority, self._num_planned, action))

    def next_at(self) -> float:
        """Time of the next action; infinity when nothing is planned."""
        return self._heap[0][0] if self._heap else math.inf

    def step(self) -> None:
        """Go to the next action's time and do it; raises IndexError when there is none."""
        self.now, _, _, action = heappop(self._heap)
        action()
