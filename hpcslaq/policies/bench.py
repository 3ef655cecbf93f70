"""A made-up run of any size, on which the time of a decision can be measured.

Behind `hpcslaq bench decision`; the clock is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hpcslaq.core import commands as cmd
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.events import GroupFormed, JobPaused, ProgressReported, RankReleased, RoundElapsed
from hpcslaq.core.jobs import Convergence, JobRecord, JobSpec, JobState
from hpcslaq.core.policy import ClusterView, Forecaster, Policy
from hpcslaq.predict.drop import DropForecaster
from hpcslaq.predict.slaq import SlaqForecaster

#: Jobs whose losses are really observed; the others go on like one of them.
NUM_DISTINCT = 256
_ROUND_S = 10.0
_NUM_CHUNKS = 64
_RANKS_PER_HOST = 32


class SyntheticRun:
    """A run that goes on for ever: `advance` lets a round pass, `decide` is what is timed.

    The coordinator is the real one; only ranks and losses are made up.
    """

    def __init__(self, policy: Policy, num_jobs: int, num_workers: int, *, seed: int = 0) -> None:
        """Start from the policy's own allocation; see `synthetic_view` for the jobs."""
        rng = np.random.default_rng(seed)
        view, self._habits = _make_up(policy, num_jobs, num_workers, rng)
        self._now = view.now
        self._forecaster = view.forecaster
        allocation = policy.allocate(view)
        records, start = [], 1
        for number, record in enumerate(view.jobs, start=1):
            count = allocation.get(record.name, 0)
            records.append(
                replace(
                    record,
                    state=JobState.RUNNING if count else JobState.WAITING,
                    members=tuple(range(start, start + count)),
                    target=count,
                    generation=number,
                )
            )
            start += count
        hosts = {rank: f"h{rank // _RANKS_PER_HOST}" for rank in range(1, num_workers + 1)}
        self._coordinator = Coordinator.amid(policy, _ROUND_S, hosts, records, view.forecaster)
        self._orders: list[cmd.Command] = []

    def decide(self) -> int:
        """A round elapses and the coordinator decides; the number of orders that it gives.

        That is: the view of all jobs, what the forecaster predicts for them, the policy's
        allocation, its check, the ranks of each job that changes, and the orders.
        """
        self._orders = self._coordinator.handle(RoundElapsed(), self._now)
        return len(self._orders) - 1  # without WakeAt

    def advance(self) -> None:
        """Carry out the orders; all jobs report further losses; the next round is due."""
        self._now += 0.5 * _ROUND_S
        # Ranks that are given back may be ordered to join other jobs at once.
        while self._orders:
            orders, self._orders = self._orders, []
            # First all groups change, then the ranks that left report.
            for released in [report for order in orders for report in self._carry_out(order)]:
                self._orders += self._coordinator.handle(released, self._now)
        self._now += 0.5 * _ROUND_S
        for index, record in enumerate(list(self._coordinator.jobs.values())):
            if index >= NUM_DISTINCT:
                _follow_like(self._forecaster, record.spec, index)
            elif record.members:
                self._report(record, self._habits[index])

    def _report(self, record: JobRecord, habit: Habit) -> None:
        """What a job completes in one round, at most five iterations."""
        first, workers = record.iterations + 1, max(1, record.num_workers)
        step = habit.seconds(workers)
        num = int(min(max(_ROUND_S / step, 1.0), 5.0))
        last, losses = first + num - 1, habit.losses(first, num)
        report = ProgressReported(
            record.name, record.generation, first, losses, last, step * num, workers
        )
        self._orders += self._coordinator.handle(report, self._now)

    def _carry_out(self, order: cmd.Command) -> list[RankReleased]:
        """Do as ordered; what the ranks that leave a group by it will report."""
        handle, now = self._coordinator.handle, self._now
        left: tuple[int, ...] = ()
        match order:
            case cmd.Start() | cmd.Regroup():
                self._orders += handle(GroupFormed(order.job, order.generation, order.members), now)
                left = order.leavers if isinstance(order, cmd.Regroup) else ()
            case cmd.Pause():
                record = self._coordinator.jobs[order.job]
                left = record.members
                paused = JobPaused(order.job, order.generation, record.iterations)
                self._orders += handle(paused, now)
            case _:
                return []
        return [RankReleased(rank, order.job, order.generation) for rank in left]


class Habit:
    """How one job's losses fall and how long its steps take, drawn at random."""

    def __init__(self, convergence: Convergence, rng: np.random.Generator) -> None:
        self._rng = rng
        self._is_sublinear = convergence is Convergence.SUBLINEAR
        self._scale, self._slope = float(rng.uniform(0.5, 2.0)), float(rng.uniform(0.02, 0.5))
        self._ratio = float(rng.uniform(0.8, 0.99))
        self._work_s = float(rng.uniform(0.5, 20.0))

    def losses(self, first: int, num: int) -> tuple[float, ...]:
        """The losses of iterations first, ..., first + num - 1, with noise of a thousandth."""
        k = np.arange(float(first), float(first + num))
        falling = 1.0 / (self._slope * k + 1.0) + 0.3 if self._is_sublinear else self._ratio**k
        noisy = self._scale * (falling + 0.2 + 1e-3 * self._rng.standard_normal(num))
        return tuple(noisy.tolist())

    def seconds(self, workers: int) -> float:
        """Seconds per iteration."""
        return self._work_s * (0.05 + 0.95 / workers)


def synthetic_view(
    policy: Policy, num_jobs: int, num_workers: int, *, seed: int = 0
) -> ClusterView:
    """A view of `num_jobs` running jobs on `num_workers` ranks, with an up-to-date forecaster.

    Jobs of both convergence classes with 5 to 60 losses, noise of a thousandth, step times
    over a factor of 40, 64 chunks, holding an even share now. `policy.allocate` on it is the
    whole of a decision but for placement. Raises ValueError where a number is below 1.
    """
    return _make_up(policy, num_jobs, num_workers, np.random.default_rng(seed))[0]


def _make_up(
    policy: Policy, num_jobs: int, num_workers: int, rng: np.random.Generator
) -> tuple[ClusterView, list[Habit]]:
    """The view and the habits of its first NUM_DISTINCT jobs."""
    for key, value in (("num_jobs", num_jobs), ("num_workers", num_workers)):
        if value < 1:
            raise ValueError(f"{key}: {value} < 1")
    forecaster = policy.forecaster()
    held = min(num_workers // num_jobs, _NUM_CHUNKS)
    records: list[JobRecord] = []
    habits: list[Habit] = []
    for index in range(num_jobs):
        spec = _spec(index)
        if index < NUM_DISTINCT:
            forecaster.add(spec)
            habits.append(Habit(spec.convergence, rng))
            losses = habits[index].losses(1, int(rng.integers(5, 60)))
            for report in _reports(spec.name, losses, habits[index], rng):
                forecaster.observe(report)
        else:
            losses = ()
            _follow_like(forecaster, spec, index)
        like = records[index % NUM_DISTINCT] if index >= NUM_DISTINCT else None
        num = like.iterations if like else len(losses)
        records.append(
            JobRecord(
                spec,
                JobState.RUNNING if held else JobState.WAITING,
                submitted_at=float(index % 100),
                members=tuple(range(held)),
                target=held,
                iterations=num,
                epochs=num,
                first_loss=like.first_loss if like else losses[0],
                last_loss=like.last_loss if like else losses[-1],
            )
        )
    return ClusterView(1000.0, _ROUND_S, num_workers, tuple(records), forecaster), habits


def _reports(
    job: str, losses: tuple[float, ...], habit: Habit, rng: np.random.Generator
) -> Iterator[ProgressReported]:
    """These losses, five to a report, as on changing numbers of workers."""
    for start in range(0, len(losses), 5):
        part, workers = losses[start : start + 5], int(rng.integers(1, 9))
        seconds = habit.seconds(workers) * len(part)
        yield ProgressReported(job, 1, start + 1, part, start + 5, seconds, workers)


def _follow_like(forecaster: Forecaster, spec: JobSpec, index: int) -> None:
    """Expect of a job what is expected of its model among the first NUM_DISTINCT."""
    if isinstance(forecaster, DropForecaster | SlaqForecaster):
        forecaster.add_like(spec, f"job{index % NUM_DISTINCT}")


def _spec(index: int) -> JobSpec:
    family = Convergence.SUBLINEAR if index % 2 else Convergence.SUPERLINEAR
    return JobSpec(f"job{index}", "model", "data", _NUM_CHUNKS, 200, convergence=family)
