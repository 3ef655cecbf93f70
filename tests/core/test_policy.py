"""The bounds of an allocation, which no policy may break."""

from __future__ import annotations

import pytest

from hpcslaq.core.jobs import JobRecord, JobSpec, JobState
from hpcslaq.core.policy import ClusterView, NoForecast, check_allocation
from hpcslaq.errors import PolicyError


def view_of(num_ranks: int = 8) -> ClusterView:
    """Job a takes 1-4 workers, b 2-8."""
    specs = [
        JobSpec("a", "m", "d", num_chunks=4, max_epochs=1),
        JobSpec("b", "m", "d", num_chunks=8, max_epochs=1, min_workers=2),
    ]
    records = tuple(JobRecord(spec, JobState.WAITING, submitted_at=0.0) for spec in specs)
    return ClusterView(0.0, 10.0, num_ranks, records, NoForecast())


@pytest.mark.parametrize(
    "allocation", [{}, {"a": 0, "b": 0}, {"a": 4}, {"a": 4, "b": 4}, {"b": 8}, {"b": 2}]
)
def test_proposals_within_the_bounds_pass(allocation) -> None:
    check_allocation(allocation, view_of())


@pytest.mark.parametrize(
    ("allocation", "text"),
    [
        ({"c": 1}, "c: given 1 workers, but it is not a live job"),
        ({"c": 0}, "c: given 0 workers, but it is not a live job"),
        ({"a": -1}, "a: given -1 < 0 workers"),
        ({"b": 1}, "b: given 1 < min_workers = 2"),
        ({"a": 5}, "a: given 5 > its limit of 4 workers"),
        ({"a": 3, "b": 6}, "9 workers given, but there are 8"),
    ],
)
def test_a_proposal_beyond_a_bound_is_refused_with_the_numbers(allocation, text) -> None:
    with pytest.raises(PolicyError, match=text):
        check_allocation(allocation, view_of())


def test_a_fraction_of_a_worker_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"a: given 1\.5, which is not a whole number"):
        check_allocation({"a": 1.5}, view_of())


def test_the_capacity_is_what_is_left_after_losses() -> None:
    with pytest.raises(PolicyError, match="4 workers given, but there are 3"):
        check_allocation({"a": 4}, view_of(num_ranks=3))
