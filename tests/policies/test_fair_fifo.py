"""Fair shares, arrival order, and the even-sharing routine behind them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core.policy import ClusterView
from hpcslaq.policies.demand import share_evenly
from hpcslaq.policies.fair import FairPolicy
from hpcslaq.policies.fifo import FifoPolicy

View = Callable[..., ClusterView]


@settings(max_examples=300, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 12), st.sampled_from([0.5, 1.0, 2.0, 3.0])),
        min_size=1,
        max_size=8,
    ),
    extra=st.integers(0, 60),
)
def test_even_sharing_equals_giving_one_after_the_other(
    jobs: list[tuple[int, int, float]], extra: int
) -> None:
    lower = np.array([low for low, _, _ in jobs])
    upper = lower + np.array([more for _, more, _ in jobs])
    weight = np.array([w for _, _, w in jobs])
    budget = int(lower.sum()) + extra
    expected = lower.copy()
    for _ in range(extra):
        open_jobs = [j for j in range(len(jobs)) if expected[j] < upper[j]]
        if not open_jobs:
            break
        expected[min(open_jobs, key=lambda j: ((expected[j] + 1) / weight[j], j))] += 1
    assert share_evenly(lower, upper, weight, budget).tolist() == expected.tolist()


def test_fair_shares_follow_the_weights_and_the_limits(view_of: View, job_type: Any) -> None:
    policy = FairPolicy()
    jobs = [job_type(weight=2.0), job_type(), job_type(max_workers=1)]
    assert policy.allocate(view_of(policy, 10, jobs)) == {"j0": 6, "j1": 3, "j2": 1}


def test_fair_lets_jobs_take_turns_where_minima_do_not_fit(view_of: View, job_type: Any) -> None:
    policy = FairPolicy(patience_rounds=10)
    jobs = [
        job_type(held=3, min_workers=3, served=700.0),
        job_type(min_workers=3, served=200.0, changed_at=999.0),
    ]
    assert policy.allocate(view_of(policy, 4, jobs)) == {"j1": 4}


def test_fifo_serves_in_order_of_arrival_up_to_the_limit(view_of: View, job_type: Any) -> None:
    policy = FifoPolicy()
    jobs = [job_type(max_workers=3), job_type(min_workers=2), job_type()]
    assert policy.allocate(view_of(policy, 8, jobs)) == {"j0": 3, "j1": 5}
    assert policy.allocate(view_of(policy, 4, jobs)) == {"j0": 3, "j2": 1}
