"""Random stories: whatever ranks, users and policies do in whatever order, the rules hold.

`World.tell` checks the invariants after every event. Here the events are drawn, and at
the end the ranks only answer what was asked of them: then the run must come to its end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec, JobState
from hpcslaq.core.policy import Admission, ClusterView, NoForecast
from tests.core.world import World, spec_of


@dataclass(frozen=True)
class Whimsical:
    """Legal allocations drawn from (seed, view): pure, and as fickle as can be."""

    seed: int
    name: str = "whimsical"

    def forecaster(self) -> NoForecast:
        return NoForecast()

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        return Admission(spec.seed != 13, "unlucky")

    def allocate(self, view: ClusterView) -> Mapping[str, int]:
        rng = random.Random(f"{self.seed} {view.now!r} {[r.name for r in view.jobs]}")
        left = view.num_ranks
        given: dict[str, int] = {}
        for record in rng.sample(view.jobs, len(view.jobs)):
            spec, most = record.spec, min(record.spec.worker_limit, left)
            if most >= spec.min_workers and (not given or rng.random() < 0.7):
                given[spec.name] = rng.randint(spec.min_workers, most)
                left -= given[spec.name]
        return given


class RandomStory:
    """One random run: `happen` draws what happens next, `come_to_an_end` lets it finish."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(Whimsical(seed), hosts=self.some_hosts())
        self.world.announces = bool(seed % 2)
        self.num_jobs = 0

    def some_hosts(self) -> dict[int, str]:
        num_hosts = self.rng.randint(1, 3)
        return {rank: f"h{rank % num_hosts}" for rank in range(1, self.rng.randint(1, 6) + 1)}

    def is_going(self) -> bool:
        return not self.world.coordinator.is_shut_down

    def happen(self) -> None:
        """Draw and do one thing; the weights make ranks busier than the user."""
        things = [
            (20, self.world.possible_steps(), lambda step: self.world.step(*step)),
            (6, [*self.world.groups], self.train),
            (3, [*self.world.groups], self.world.end),
            (1, [*self.world.groups], self.world.break_down),
            (1, self.world.startable(), self.break_start),
            (5, ["new"], self.submit),
            (2, [*self.world.coordinator._live], self.cancel),
            (2, [*self.world.coordinator._live], self.reweight),
            (3, [ev.RoundElapsed()] * bool(self.world.wake_at), self.world.tell),
            (2, sorted(set(self.world.inbox) - self.world.lost), self.world.kill),
            (2, self.world.regroupable(), self.world.die_at_boundary),
            (0.3, [ev.StopRequested("as you like")], self.world.tell),
            (0.3, ["again"], self.restart),
        ]
        things = [thing for thing in things if thing[1]]
        ((_, choices, do),) = self.rng.choices(things, [weight for weight, _, _ in things])
        do(self.rng.choice(choices))

    def break_start(self, job: str) -> None:
        self.world.break_start(job, ranks_give_up=self.rng.random() < 0.5)

    def submit(self, _: str) -> None:
        self.num_jobs += 1
        least = self.rng.randint(1, 3)
        self.world.submit(
            f"j{self.num_jobs}",
            min_workers=least,
            max_workers=least + self.rng.randint(0, 4),
            seed=self.rng.choice([0, 0, 0, 13]),
        )

    def train(self, job: str) -> None:
        self.world.train(job, self.rng.randint(1, 3))
        if self.rng.random() < 0.5:
            self.world.store(job)

    def cancel(self, job: str) -> None:
        self.world.tell(ev.JobCancelled(job, "as you like"))

    def reweight(self, job: str) -> None:
        self.world.tell(ev.WeightChanged(job, self.rng.choice([0.5, 2.0])))

    def restart(self, _: str) -> None:
        self.world.restart(self.some_hosts())

    def come_to_an_end(self) -> None:
        """No news from outside: ranks answer, train and finish until the run is over."""
        world, rng = self.world, self.rng
        if self.is_going():
            world.tell(ev.ArrivalsClosed())
        for _ in range(3000):
            if not self.is_going():
                return
            steps = world.possible_steps()
            if steps:
                world.step(*rng.choice(steps))
            elif world.groups and rng.random() < 0.5:
                world.end(rng.choice(sorted(world.groups)))
            else:
                assert world.wake_at is not None, "nothing will ever happen again"
                world.tell(ev.RoundElapsed())
        raise AssertionError("the run does not end")


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_the_rules_hold_and_the_run_ends(seed: int) -> None:
    story = RandomStory(seed)
    world = story.world
    for _ in range(story.rng.randint(1, 120)):
        if story.is_going():
            story.happen()
    if not story.is_going() and story.rng.random() < 0.5:
        story.restart("after the end")
    story.come_to_an_end()
    assert not world.groups and not world.waiting
    assert world.replayed() == [orders for _, _, orders in world.journal]
    records = list(world.coordinator.jobs.values())
    if world.exit_code == 75:
        assert all(r.state.is_final or r.state is JobState.WAITING for r in records)
    else:
        assert all(record.state.is_final for record in records)
        bad = (JobState.FAILED, JobState.REJECTED)
        is_any_bad = any(record.state in bad for record in records)
        assert world.exit_code == (1 if is_any_bad else 0)


@pytest.mark.parametrize("seed", range(50))
def test_a_run_without_losses_or_stops_ends_all_jobs_with_code_0(seed: int) -> None:
    rng = random.Random(seed)
    world = World(Whimsical(seed), num_ranks=rng.randint(1, 8))
    world.announces = bool(seed % 2)
    fits = len(world.coordinator.ranks)
    waiting = [
        spec_of(f"j{i}", min_workers=rng.randint(1, min(3, fits)), max_workers=rng.randint(3, 8))
        for i in range(rng.randint(1, 12))
    ]
    for _ in range(5000):
        if world.exit_code is not None:
            break
        steps = world.possible_steps()
        steps += [("end", job) for job in world.groups if rng.random() < 0.1]
        steps += [("train", job) for job in world.groups]
        steps += [("submit", None)] * bool(waiting) + [("elapse", None)] * bool(world.wake_at)
        kind, what = rng.choice(steps)
        if kind == "submit":
            world.tell(ev.JobSubmitted(waiting.pop()))
            if not waiting:
                world.tell(ev.ArrivalsClosed())
        elif kind == "elapse":
            world.tell(ev.RoundElapsed())
        elif kind in ("end", "train"):
            getattr(world, kind)(what)
        else:
            world.step(kind, what)
    assert world.exit_code == 0
    assert {record.state for record in world.coordinator.jobs.values()} == {JobState.DONE}
    assert world.replayed() == [orders for _, _, orders in world.journal]
