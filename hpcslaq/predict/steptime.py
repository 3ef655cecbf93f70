"""How long one iteration of a job takes on n workers, learnt from whatever counts occurred.

    t(n) = fixed + per_chunk * ceil(chunks / w(n)) + per_hop * log2(n)

n counts the job's ranks, w(n) those that compute: all but the parameter servers, where there
are any. The middle term is a staircase: a worker holds whole chunks. The last is the depth of an
all-reduce tree. All three are >= 0.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core.jobs import ROUNDING, JobSpec

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: What is believed before anything else is known, as shares of the first step time seen:
#: nearly all of it is work that divides.
_PRIOR_SHARES = (0.05, 0.93, 0.02)
#: Weight of that belief, in reports; each unknown is believed within its own size.
_PRIOR_WEIGHT = 0.1
#: Share of its weight that a report keeps when the next one comes.
_MEMORY = 0.95
#: An observation this many times off its prediction counts as only so many times off.
_CLIP = 2.0
#: Reports that are believed as they are before outliers are clipped.
_TRUSTING = 3
#: Each of the first reports is solved for, then every fourth, and all that surprise.
_EAGER, _SURPRISE = 8, 0.2
#: Steps below this, in seconds, are noise of the clock.
_SHORTEST = 1e-9
_SUBSETS = [s for size in (3, 2, 1) for s in itertools.combinations(range(3), size)]


def step_seconds(timing: Floats, ranks: Floats) -> Floats:
    """t(n) in seconds on `ranks` >= 1.

    timing : (..., 6) fixed, per_chunk and per_hop seconds, the number of chunks, then servers and
    share of `workers_among`; its leading dimensions broadcast with those of `ranks`.
    """
    fixed, per_chunk, per_hop, chunks, servers, share = np.moveaxis(timing, -1, 0)
    workers = ranks
    if np.any(servers > 0.0) or np.any(share < 1.0):
        workers = workers_among(ranks, servers, share)
    return np.asarray(
        fixed + per_chunk * np.ceil(chunks / workers) + per_hop * np.log2(ranks), dtype=np.float64
    )


def workers_among(ranks: Floats, servers: Floats, share: Floats) -> Floats:
    """`JobSpec.workers_among` for arrays: a fixed number of servers, then a share that computes."""
    return np.maximum(np.floor((ranks - servers) * share + ROUNDING), 1.0)


def shape_of(spec: JobSpec) -> tuple[float, float, float]:
    """Chunks, servers and share of a job: the last three columns of a timing."""
    return float(spec.num_chunks), float(spec.num_servers), spec.worker_share


class StepTime:
    """Online fit of t(n) for one job: discounted, relative least squares with a prior."""

    __slots__ = ("_belief", "_centre", "_count", "_moments", "_spec", "_targets", "params")

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._count = 0
        #: Discounted normal equations of what was seen.
        self._moments, self._targets = np.zeros((3, 3)), np.zeros(3)
        #: Precision and centre of the prior; it keeps its weight for what is never seen.
        self._belief, self._centre = np.zeros((3, 3)), np.zeros(3)
        #: fixed, per_chunk, per_hop in seconds; zeros until the first observation.
        self.params = (0.0, 0.0, 0.0)

    def observe(self, seconds: float, num_iterations: int, num_ranks: int) -> None:
        """Take in `num_iterations` that took `seconds` together on `num_ranks`."""
        if num_iterations < 1 or not (math.isfinite(seconds) and seconds > 0.0):
            return
        seen = max(seconds / num_iterations, _SHORTEST)
        features = self._features(num_ranks)
        if self._count == 0:
            self._believe(seen, features)
        expected = float(features @ np.array(self.params))
        if self._count >= _TRUSTING:
            seen = min(max(seen, expected / _CLIP), expected * _CLIP)
        self._count += 1
        scaled = features / expected
        self._moments = _MEMORY * self._moments + np.outer(scaled, scaled)
        self._targets = _MEMORY * self._targets + scaled * (seen / expected)
        if self._count > _EAGER and self._count % 4 and abs(seen / expected - 1.0) < _SURPRISE:
            return  # nothing new: the next fourth report solves for all
        self._solve(self._belief + self._moments, self._belief @ self._centre + self._targets)

    def seconds(self, num_ranks: int) -> float:
        """t(num_ranks) as known now; 0 before the first observation."""
        return float(self._features(num_ranks) @ np.array(self.params))

    def _features(self, num_ranks: int) -> Floats:
        waves = math.ceil(self._spec.num_chunks / self._spec.workers_among(num_ranks))
        return np.array([1.0, waves, math.log2(num_ranks)])

    def _believe(self, seen: float, features: Floats) -> None:
        """Spread the first step time over the terms as the prior says."""
        shares = np.array(_PRIOR_SHARES) * seen
        belief = shares / np.maximum(features, 1.0)
        belief *= seen / float(features @ belief)
        self._belief, self._centre = np.diag(_PRIOR_WEIGHT / belief**2), belief
        self.params = tuple(belief.tolist())

    def _solve(self, moments: Floats, targets: Floats) -> None:
        """The best non-negative parameters: the unconstrained ones, or the best edge."""
        best, found = math.inf, None
        for subset in _SUBSETS:
            index = np.array(subset)
            part = moments[np.ix_(index, index)]
            try:
                x = np.linalg.solve(part, targets[index])
            except np.linalg.LinAlgError:
                continue
            if not (np.isfinite(x).all() and (x >= 0.0).all()):
                continue
            cost = float(x @ part @ x - 2.0 * x @ targets[index])
            if cost < best:
                params = [0.0, 0.0, 0.0]
                for i, value in zip(subset, x.tolist(), strict=True):
                    params[i] = value
                best, found = cost, (params[0], params[1], params[2])
            if len(subset) == 3:
                break  # nothing on an edge is better
        if found is not None and sum(found) > 0.0:
            self.params = found


def useful_counts(
    num_chunks: int, least: int, limit: int, servers: float = 0.0, share: float = 1.0
) -> list[int]:
    """Numbers of ranks worth considering: the first of each stair, between the bounds.

    Above 32 stairs the higher ones are thinned to steps of a tenth; `least` is always there.
    servers, share : as for `workers_among`.
    """
    if not servers and share == 1.0:
        return _stairs(num_chunks, least, limit)
    fewest, most = (
        max(math.floor((ranks - servers) * share + ROUNDING), 1) for ranks in (least, limit)
    )
    stairs = _stairs(num_chunks, fewest, most)
    ranks = [math.ceil(count / share - ROUNDING) + int(servers) for count in stairs[1:]]
    return [least, *[count for count in ranks if count <= limit]]


def _stairs(num_chunks: int, least: int, limit: int) -> list[int]:
    counts = [least]
    per_worker = math.ceil(num_chunks / least)
    while per_worker > 1:
        following = min(per_worker - 1, max(math.ceil(num_chunks / counts[-1]) - 1, 1))
        if len(counts) >= 32:
            following = min(following, max(1, int(math.ceil(num_chunks / counts[-1]) / 1.1)))
        per_worker = following
        count = math.ceil(num_chunks / per_worker)
        if count > limit:
            break
        if count > counts[-1]:
            counts.append(count)
    return counts
