"""What holds for every policy: bounds, liveness, no waste, the same answer twice, no starving."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core.policy import ClusterView, check_allocation
from hpcslaq.policies.registry import make_policy, policy_names, policy_parameters

EVERY = pytest.mark.parametrize("name", policy_names())
#: Policies that serve a job that waited `patience_rounds` rounds; those that admit do not.
AGEING = tuple(
    name
    for name in policy_names()
    if "patience_rounds" in {parameter.name for parameter in policy_parameters(name)}
)
PATIENT = pytest.mark.parametrize("name", AGEING)
#: Policies that leave workers idle rather than slow a job down with them.
THRIFTY = frozenset({"quality", "oracle-slaq", "oracle-quality", "elasticflow"})


@EVERY
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_an_allocation_keeps_every_bound_and_wastes_nothing(
    name: str, data: st.DataObject, view_of: Callable[..., ClusterView], any_job: Any
) -> None:
    jobs = data.draw(st.lists(any_job, max_size=8))
    num_ranks = data.draw(st.integers(0, 40))
    policy = make_policy(name)
    view = view_of(policy, num_ranks, jobs)
    allocation = policy.allocate(view)
    check_allocation(allocation, view)
    assert dict(allocation) == dict(policy.allocate(view))
    left = num_ranks - sum(allocation.values())
    for record in view.jobs:
        given_to = allocation.get(record.name, 0)
        if given_to == 0:
            assert record.spec.min_ranks > left, "a waiting job would have fitted"
        elif name not in THRIFTY:
            assert left == 0 or given_to == record.spec.rank_limit, "workers were wasted"
        elif left and given_to < record.spec.rank_limit:
            outlook = view.forecaster.predict((record.name,))
            steps = outlook.seconds(
                np.zeros(left, dtype=np.int64),
                np.arange(given_to + 1.0, given_to + 1.0 + left).clip(max=record.spec.rank_limit),
            )
            now = outlook.seconds(np.array([0]), np.array([float(given_to)]))
            assert steps.min() >= 0.999 * now[0], "workers that would have helped were wasted"


@EVERY
def test_no_jobs_or_no_ranks_give_an_empty_allocation(
    name: str, view_of: Callable[..., ClusterView], job_type: Any
) -> None:
    policy = make_policy(name)
    assert not policy.allocate(view_of(policy, 4, []))
    assert not policy.allocate(view_of(policy, 0, [job_type(), job_type([2.0, 1.0])]))


@EVERY
def test_a_job_that_is_larger_than_the_cluster_waits_and_blocks_nobody(
    name: str, view_of: Callable[..., ClusterView], job_type: Any
) -> None:
    policy = make_policy(name)
    jobs = [job_type(min_workers=9), job_type([3.0, 2.0, 1.5])]
    assert policy.allocate(view_of(policy, 4, jobs)) == {"j1": 4}


@PATIENT
def test_a_job_that_waited_too_long_is_served_first(
    name: str, view_of: Callable[..., ClusterView], job_type: Any
) -> None:
    policy = make_policy(name, patience_rounds=5)
    falling = [1.0 / k + 0.1 for k in range(1, 30)]
    jobs = [
        job_type(falling, held=2, min_workers=2),
        job_type([0.5] * 29, min_workers=2, changed_at=940.0, served=9e9),
        job_type(falling, held=2, min_workers=2),
    ]
    assert policy.allocate(view_of(policy, 4, jobs, now=1000.0))["j1"] >= 2
    if name in ("slaq", "fair", "quality", "las"):
        assert "j1" not in policy.allocate(view_of(policy, 4, jobs, now=985.0))


@PATIENT
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_nobody_waits_longer_than_patience_and_one_round_per_job(
    name: str, data: st.DataObject, view_of: Callable[..., ClusterView], any_job: Any
) -> None:
    jobs = data.draw(st.lists(any_job, min_size=2, max_size=6))
    num_ranks = data.draw(st.integers(4, 24))
    patience, round_s = 3, 10.0
    policy = make_policy(name, patience_rounds=patience)
    view = view_of(policy, num_ranks, jobs, round_s=round_s)
    records = [replace(r, submitted_at=1000.0, changed_at=1000.0) for r in view.jobs]
    waits = dict.fromkeys((r.name for r in records if r.spec.min_ranks <= num_ranks), 0)
    for number in range(20):
        now = 1000.0 + number * round_s
        allocation = policy.allocate(replace(view, now=now, jobs=tuple(records)))
        for index, record in enumerate(records):
            given_to = allocation.get(record.name, 0)
            if record.name in waits:
                waits[record.name] = 0 if given_to else waits[record.name] + 1
            if given_to != record.target:
                records[index] = replace(
                    record, target=given_to, members=tuple(range(given_to)), changed_at=now
                )
        assert max(waits.values(), default=0) <= patience + len(jobs) + 1


def test_every_policy_can_bound_the_waiting_but_those_that_keep_promises() -> None:
    assert set(policy_names()) - set(AGEING) == {"elasticflow", "oasis", "oasis-elastic"}
    assert "no bound on waiting" in (type(make_policy("elasticflow")).__doc__ or "")


@pytest.mark.parametrize("name", ["fifo", "srtf", "edf"])
def test_the_classical_orders_have_no_patience_unless_they_are_given_some(
    name: str, view_of: Callable[..., ClusterView], job_type: Any
) -> None:
    def served(**params: float) -> set[str]:
        policy = make_policy(name, **params)
        jobs = [
            job_type([2.0, 1.0], held=4, max_epochs=5, epochs=2, deadline_s=2000.0),
            job_type([2.0, 1.0], max_epochs=500, epochs=2, changed_at=10.0),
        ]
        return set(policy.allocate(view_of(policy, 4, jobs, now=1000.0)))

    assert served() == {"j0"}
    assert served(patience_rounds=5) == {"j1"}
    with pytest.raises(ValueError, match="patience_rounds: 0"):
        make_policy(name, patience_rounds=0)
