"""What a job file may ask for, and what a record knows."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import pytest

from hpcslaq.core.jobs import JobRecord, JobSpec, JobState, Sync


def spec_of(**fields) -> JobSpec:
    given = {"name": "a", "model": "m", "data": "d", "num_chunks": 8, "max_epochs": 3, **fields}
    return JobSpec(**given)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "name: '' is not"),
        ({"name": "-a"}, "name: '-a' is not"),
        ({"name": "a/b"}, "name: 'a/b' is not"),
        ({"name": "a\n"}, "name: .* is not"),
        ({"name": "a" * 101}, "name: .* is not"),
        ({"num_chunks": 0}, "num_chunks: 0 < 1"),
        ({"num_chunks": 10**400}, "num_chunks: a number of 1329 bits is too large"),
        ({"max_epochs": 2**63}, "max_epochs: a number of 64 bits is too large"),
        ({"max_workers": 2**63}, "max_workers: a number of 64 bits is too large"),
        ({"seed": -(2**70)}, "seed: a number of 71 bits is too large"),
        ({"max_epochs": 0}, "max_epochs: 0 < 1"),
        ({"min_workers": 0}, "min_workers: 0 < 1"),
        ({"patience": 0}, "patience: 0 < 1"),
        ({"min_workers": 9}, "min_workers: 9 > num_chunks = 8"),
        ({"min_workers": 3, "max_workers": 2}, "max_workers: 2 < min_workers = 3"),
        ({"weight": 0.0}, "weight: 0.0 is not a finite number > 0"),
        ({"weight": float("nan")}, "weight: nan"),
        ({"weight": float("inf")}, "weight: inf"),
        ({"arrival_s": -1.0}, "arrival_s: -1.0"),
        ({"arrival_s": float("inf")}, "arrival_s: inf"),
        ({"target_loss": float("nan")}, "target_loss: nan is not finite"),
        ({"tolerance": float("inf")}, "tolerance: inf is not finite"),
        ({"deadline_s": float("nan")}, "deadline_s: nan is not finite"),
        ({"sync": Sync.PS}, "num_servers: .* either their number or workers_per_server"),
        ({"sync": Sync.PS, "num_servers": 1, "workers_per_server": 2}, "num_servers: .* either"),
        ({"sync": Sync.PS, "num_servers": -1}, "num_servers: -1 < 0"),
        ({"sync": Sync.PS, "workers_per_server": 0.5}, "workers_per_server: 0.5 is not"),
        ({"sync": Sync.PS, "workers_per_server": float("nan")}, "workers_per_server: nan is not"),
        ({"sync": Sync.PS, "num_servers": 1, "staleness": -1}, "staleness: -1 is no whole"),
        ({"sync": Sync.PS, "num_servers": 1, "staleness": 1.5}, "staleness: 1.5 is no whole"),
        ({"sync": Sync.PS, "num_servers": 1, "staleness": math.nan}, "staleness: nan is no whole"),
        ({"num_servers": 2}, 'num_servers: only a job with sync = "ps"'),
        ({"workers_per_server": 2}, 'workers_per_server: only a job with sync = "ps"'),
        ({"staleness": 2}, 'staleness: only a job with sync = "ps"'),
        ({"staleness": math.inf}, 'staleness: only a job with sync = "ps"'),
    ],
)
def test_impossible_values_are_refused_by_name(fields, text) -> None:
    with pytest.raises(ValueError, match=text):
        spec_of(**fields)


@pytest.mark.parametrize("name", ["a", "7", "a.b_c+d=e,f-g", "a" * 100])
def test_names_that_are_safe_as_file_names_are_taken(name) -> None:
    assert spec_of(name=name).name == name


@pytest.mark.parametrize(
    ("chunks", "most", "limit"), [(8, None, 8), (8, 4, 4), (8, 8, 8), (8, 100, 8)]
)
def test_no_job_uses_more_workers_than_chunks(chunks, most, limit) -> None:
    assert spec_of(num_chunks=chunks, max_workers=most).worker_limit == limit


def test_a_spec_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        spec_of().weight = 2.0


def test_attained_rank_seconds_count_the_present_group() -> None:
    record = JobRecord(spec_of(), JobState.WAITING, submitted_at=5.0, held_since=5.0)
    assert record.attained_rank_seconds(100.0) == 0.0
    record = replace(record, members=(3, 1, 2), rank_seconds=7.0, held_since=10.0)
    assert record.num_workers == 3
    assert record.attained_rank_seconds(14.0) == 7.0 + 3 * 4.0


def test_four_states_are_final() -> None:
    final = {state.value for state in JobState if state.is_final}
    assert final == {"done", "failed", "cancelled", "rejected"}


def test_without_servers_ranks_are_workers() -> None:
    spec = spec_of(min_workers=2, max_workers=5)
    assert (spec.min_ranks, spec.rank_limit) == (2, 5)
    assert [spec.workers_among(n) for n in range(1, 6)] == [1, 2, 3, 4, 5]


def test_a_fixed_number_of_servers_comes_on_top_of_the_workers() -> None:
    spec = spec_of(sync=Sync.PS, num_servers=2, min_workers=3)
    assert (spec.min_ranks, spec.rank_limit) == (5, 10)
    assert [spec.workers_among(n) for n in range(5, 11)] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("ratio", [1, 1.5, 2, 3, 7.3, 100])
def test_servers_for_so_many_workers_change_with_the_ranks(ratio) -> None:
    spec = spec_of(num_chunks=40, sync=Sync.PS, workers_per_server=ratio)
    for workers in range(1, 41):
        ranks = spec.ranks_for(workers)
        assert ranks == workers + math.ceil(workers / ratio)
        assert spec.workers_among(ranks) == workers
    for ranks in range(spec.min_ranks, spec.rank_limit + 1):
        workers = spec.workers_among(ranks)
        assert workers <= ratio * (ranks - workers) + 1e-9  # enough servers
        assert spec.ranks_for(workers + 1) > ranks  # and one worker more would be too many


@pytest.mark.parametrize("sync", [{"num_servers": 3}, {"workers_per_server": 2.0}])
def test_a_group_that_lost_members_still_has_a_worker(sync) -> None:
    spec = spec_of(sync=Sync.PS, **sync)
    assert all(1 <= spec.workers_among(n) <= n for n in range(1, 20))
