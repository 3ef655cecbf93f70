"""Who held the workers when: core shares by loss group, and how jobs were moved.

`ShareWatch.note` is an `on_record` of the simulator; shares are worked out afterwards, with
the hindsight of the tracks. Source of the grouping: SLAQ, section 5 (the quarter of the jobs
with the highest normalised loss, the second quarter, the lower half).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.sim.metrics import Track, normalised_loss

#: At most so many instants are looked at.
_MAX_INSTANTS = 400


class ShareWatch:
    """Notes the workers of every job over time; see the module."""

    def __init__(self) -> None:
        #: Per job: instants at which its number of workers changed, and the numbers.
        self._times: dict[str, list[float]] = {}
        self._counts: dict[str, list[int]] = {}
        self._rounds: list[float] = []
        self._num_orders = 0
        self._regroup_s = 0.0

    def note(self, now: float, event: ev.Event, orders: Sequence[cmd.Command]) -> None:
        """Take in one entry of the journal."""
        match event:
            case ev.GroupFormed():
                self._set(event.job, now, len(event.members))
                self._regroup_s += event.seconds * len(event.members)
            case ev.JobPaused() | ev.JobFinished() | ev.JobFailed() | ev.JobStopped():
                self._set(event.job, now, 0)
            case ev.RoundElapsed():
                self._rounds.append(now)
        self._num_orders += sum(isinstance(o, cmd.Start | cmd.Regroup | cmd.Pause) for o in orders)

    def figures(self) -> dict[str, float]:
        """How many orders moved workers, and the rank-seconds that forming groups took."""
        return {"num_orders": self._num_orders, "regroup_rank_s": self._regroup_s}

    def shares(self, tracks: Sequence[Track]) -> dict[str, float | None]:
        """Mean share of the held workers by loss group, over instants with >= 4 live jobs."""
        step = max(1, len(self._rounds) // _MAX_INSTANTS)
        at = np.array(self._rounds[::step])
        names = [track.name for track in tracks]
        if not at.size or not names:
            return {"high": None, "middle": None, "low": None}
        losses = np.stack([normalised_loss(track, at) for track in tracks])
        held = np.array([[self._held(name, now) for now in at] for name in names], float)
        is_live = np.stack(
            [
                (at >= track.arrived_at)
                & (at < (np.inf if track.ended_at is None else track.ended_at))
                for track in tracks
            ]
        )
        sums = []
        for column in range(at.size):
            live = np.flatnonzero(is_live[:, column])
            total = held[live, column].sum()
            if live.size < 4 or total == 0:
                continue
            order = live[np.argsort(-losses[live, column], kind="stable")]
            quarter, half = live.size // 4, live.size // 2
            parts = (order[:quarter], order[quarter:half], order[half:])
            sums.append([held[part, column].sum() / total for part in parts])
        if not sums:
            return {"high": None, "middle": None, "low": None}
        mean = np.mean(sums, axis=0).tolist()
        return dict(zip(("high", "middle", "low"), mean, strict=True))

    def _set(self, job: str, now: float, count: int) -> None:
        self._times.setdefault(job, []).append(now)
        self._counts.setdefault(job, []).append(count)

    def _held(self, job: str, now: float) -> int:
        place = bisect_right(self._times.get(job, ()), now)
        return self._counts[job][place - 1] if place else 0
