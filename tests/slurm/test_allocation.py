"""When a run has to stop because its allocation ends; told by pretended clocks and answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcslaq.slurm.allocation import ASK_EVERY_S, Allocation, EndWatch, find_allocation
from hpcslaq.slurm.commands import Answer


@dataclass
class World:
    """A clock that tests move, and a Slurm that says how much time is left."""

    now: float = 1_000_000.0
    end_at: float | None = None
    problem: str = ""
    #: Answers come this long after the question, s.
    delay_s: float = 0.0
    asked_at: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def ask(self, job_id: str) -> World.Question:
        assert job_id == "7"
        self.asked_at.append(self.now)
        return World.Question(self, self.now + self.delay_s)

    @dataclass
    class Question:
        world: World
        ready_at: float

        def poll(self) -> Answer | None:
            world = self.world
            if world.now < self.ready_at:
                return None
            if world.problem or world.end_at is None:
                return Answer(problem=world.problem or "no end")
            left = int(world.end_at - world.now)
            return Answer(f"7|RUNNING|{left // 60}:{left % 60:02}|n1")

    def watch(self, before_s: float, known_end_at: float | None = None) -> EndWatch:
        allocation = Allocation("7", 2, 4, end_at=known_end_at)
        return EndWatch(allocation, before_s, clock=self.clock, ask=self.ask)

    def stops_at(self, watch: EndWatch, until: float, step: float = 1.0) -> float | None:
        """The first time, within `until` seconds from now, at which the watch says to stop."""
        begin = self.now
        while self.now < begin + until:
            if watch():
                return self.now - begin
            self.now += step
        return None


def test_the_allocation_is_read_from_the_environment():
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "8",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_JOB_END_TIME": "1800000000",
    }
    assert find_allocation(environ) == Allocation("7", 2, 8, 1, 1800000000.0)
    assert find_allocation({"SLURM_JOB_ID": "7"}) == Allocation("7", 1, 1)
    assert find_allocation({}) is None
    assert find_allocation({"SLURM_JOB_ID": "x"}) is None


def test_an_end_in_the_environment_is_confirmed_before_it_is_acted_on():
    world = World()
    world.end_at = world.now + 1000
    watch = world.watch(60, known_end_at=world.end_at)
    stopped = world.stops_at(watch, 2000)
    assert stopped is not None
    assert 940 <= stopped <= 943
    assert "the allocation ends in 5" in watch()


def test_an_end_that_the_environment_does_not_tell_is_asked_for_at_once():
    world = World()
    world.end_at = world.now + 1000
    stopped = world.stops_at(world.watch(60), 2000)
    assert stopped is not None
    assert 940 <= stopped <= 943


def test_slurm_is_asked_rarely():
    world = World()
    world.end_at = world.now + 10_000
    assert world.stops_at(world.watch(60), 9000) is None
    assert len(world.asked_at) <= 9000 / ASK_EVERY_S + 1


def test_a_limit_that_was_extended_is_noticed_even_in_the_last_moment():
    world = World()
    world.end_at = world.now + 1000
    watch = world.watch(60, known_end_at=world.end_at)
    assert world.stops_at(watch, 930) is None
    world.end_at += 5000
    stopped = world.stops_at(watch, 20_000)
    assert stopped is not None
    assert 930 + stopped >= 5940


def test_a_limit_that_was_shortened_is_noticed():
    world = World()
    world.end_at = world.now + 100_000
    watch = world.watch(60)
    assert world.stops_at(watch, 1000) is None
    world.end_at = world.now + 1000
    stopped = world.stops_at(watch, 2000)
    assert stopped is not None
    assert 940 <= stopped <= 943


def test_a_slurm_that_does_not_answer_leaves_the_known_end_in_force():
    world = World(problem="squeue did not answer within 5 s", delay_s=5.0)
    end_at = world.now + 1000
    stopped = world.stops_at(world.watch(60, known_end_at=end_at), 2000)
    assert stopped is not None
    assert 940 <= stopped <= 950


def test_without_any_known_end_the_run_goes_on():
    world = World(problem="no Slurm here")
    assert world.stops_at(world.watch(60), 3600) is None
    assert len(world.asked_at) <= 3600 / 60 + 1


def test_of_a_short_allocation_half_is_used():
    world = World()
    world.end_at = world.now + 60
    stopped = world.stops_at(world.watch(120, known_end_at=world.end_at), 60, step=0.25)
    assert stopped is not None
    assert 30 <= stopped <= 32


def test_a_reason_once_given_stays():
    world = World()
    world.end_at = world.now + 100
    watch = world.watch(60)
    assert world.stops_at(watch, 100) is not None
    world.end_at += 10_000
    world.now += 500
    assert watch()
