"""What goes wrong in a simulation: ranks that die, jobs whose code raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcslaq.core import events as ev
from hpcslaq.sim.jobs import SimJob


def rank_losses(
    rng: np.random.Generator, num_ranks: int, mean_life_s: float, until_s: float
) -> list[tuple[float, ev.Event]]:
    """(time, RankLost) of every rank whose exponential life ends before `until_s`.

    Rank r gets the r-th draw, so that more ranks leave the lives of the first ones alone. One
    rank, the last to die, is spared: a run without ranks simulates nothing.
    """
    lives = rng.exponential(mean_life_s, num_ranks)
    deaths = [(float(life), rank) for rank, life in enumerate(lives, 1) if life < until_s]
    if len(deaths) == num_ranks:
        deaths.remove(max(deaths))
    return [(at, ev.RankLost(rank, "simulated")) for at, rank in sorted(deaths)]


def with_failures(rng: np.random.Generator, jobs: Sequence[SimJob], share: float) -> list[SimJob]:
    """The jobs, each failing with probability `share` at a uniformly drawn iteration."""
    fails = rng.random(len(jobs)) < share
    places = rng.random(len(jobs))
    return [
        replace(job, fails_at=1 + int(place * job.num_iterations)) if is_bad else job
        for job, is_bad, place in zip(jobs, fails, places, strict=True)
    ]
