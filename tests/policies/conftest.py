"""Views that a policy can be asked about, drawn at random or written by hand."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import strategies as st

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import Convergence, JobRecord, JobSpec, JobState, Sync
from hpcslaq.core.policy import ClusterView, Policy


class Job:
    """A job of a story: what it asked for and the losses that it reported so far."""

    def __init__(
        self,
        losses: Sequence[float] = (),
        *,
        held: int = 0,
        work: float = 1.0,
        changed_at: float = 0.0,
        served: float = 0.0,
        state: JobState | None = None,
        epochs: int = 0,
        chunks: int = 16,
        max_epochs: int = 100,
        **spec: object,
    ) -> None:
        self.losses, self.held, self.work = tuple(losses), held, work
        self.changed_at, self.served, self.epochs = changed_at, served, epochs
        self.state = state or (JobState.RUNNING if held else JobState.WAITING)
        self.chunks, self.max_epochs, self.spec = chunks, max_epochs, spec

    def build(self, index: int) -> tuple[JobSpec, JobRecord]:
        spec = JobSpec(f"j{index}", "m", "d", self.chunks, self.max_epochs, **self.spec)  # type: ignore[arg-type]
        drops = [a - b for a, b in zip(self.losses, self.losses[1:], strict=False)]
        record = JobRecord(
            spec,
            self.state,
            submitted_at=spec.arrival_s,
            members=tuple(range(self.held)),
            target=self.held,
            iterations=len(self.losses),
            epochs=self.epochs,
            first_loss=self.losses[0] if self.losses else None,
            last_loss=self.losses[-1] if self.losses else None,
            largest_drop=max([0.0, *drops]),
            rank_seconds=self.served,
            held_since=1000.0,
            changed_at=self.changed_at,
        )
        return spec, record


def make_view(
    policy: Policy, num_ranks: int, jobs: Sequence[Job], *, now: float = 1000.0, round_s: float = 10
) -> ClusterView:
    """The view after each job reported its losses, three at a time."""
    forecaster, records = policy.forecaster(), []
    for index, job in enumerate(jobs):
        spec, record = job.build(index)
        forecaster.add(spec)
        records.append(record)
        workers = max(1, job.held)
        for first in range(0, len(job.losses), 3):
            losses = job.losses[first : first + 3]
            seconds = len(losses) * job.work / workers
            forecaster.observe(
                ProgressReported(spec.name, 1, first + 1, losses, job.epochs, seconds, workers)
            )
    return ClusterView(now, round_s, num_ranks, tuple(records), forecaster)


#: Mostly without parameter servers.
SYNCS: tuple[dict[str, object], ...] = (
    {},
    {},
    {"sync": Sync.PS, "num_servers": 2},
    {"sync": Sync.PS, "workers_per_server": 2.5},
)


def curve(kind: int, num: int, scale: float) -> list[float]:
    """Losses of one of several habits: fast, slow, flat, rising, jumping, negative."""
    k = np.arange(1.0, num + 1.0)
    shapes = (
        1.0 / (0.3 * k + 1.0) + 0.2,
        0.7**k + 0.1,
        np.full(num, 0.5),
        0.1 * k,
        np.where(k % 5 == 0, 3.0, 1.0 / k),
        -np.log1p(k),
    )
    return (scale * shapes[kind]).tolist()


@st.composite
def jobs_of_a_view(draw: st.DrawFn) -> Job:
    """A job with any bounds and habit."""
    chunks = draw(st.integers(1, 20))
    least = draw(st.integers(1, chunks))
    limit = draw(st.none() | st.integers(least, 25))
    sync = draw(st.sampled_from(SYNCS))
    smallest = JobSpec("j", "m", "d", chunks, 1, least, limit, **sync).min_ranks  # type: ignore[arg-type]
    held = draw(st.sampled_from([0, smallest]))
    losses = curve(draw(st.integers(0, 5)), draw(st.integers(0, 30)), draw(st.floats(0.01, 100)))
    return Job(
        losses,
        held=held,
        work=draw(st.floats(0.01, 50.0)),
        changed_at=draw(st.floats(0.0, 1000.0)),
        served=draw(st.floats(0.0, 1e4)),
        epochs=draw(st.integers(0, 10)),
        chunks=chunks,
        min_workers=least,
        max_workers=limit,
        weight=draw(st.sampled_from([0.5, 1.0, 1.0, 3.0])),
        arrival_s=draw(st.floats(0.0, 900.0)),
        deadline_s=draw(st.none() | st.floats(1.0, 2000.0)),
        target_loss=draw(st.none() | st.floats(0.0, 1.0)),
        convergence=draw(st.sampled_from(Convergence)),
        **sync,
    )


@pytest.fixture(scope="session")
def view_of() -> Callable[..., ClusterView]:
    """`make_view`."""
    return make_view


@pytest.fixture(scope="session")
def job_type() -> type[Job]:
    """`Job`."""
    return Job


@pytest.fixture(scope="session")
def any_job() -> st.SearchStrategy[Job]:
    """Jobs with any bounds and habit."""
    return jobs_of_a_view()
