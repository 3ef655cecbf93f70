"""Explanations agree with what the policy does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpcslaq.core.policy import ClusterView
from hpcslaq.errors import NotFoundError
from hpcslaq.policies.explain import explain_job
from hpcslaq.policies.registry import make_policy, policy_names

View = Callable[..., ClusterView]
FALLING = [1.0 / (0.1 * k + 1.0) + 0.3 for k in range(1, 21)]


@pytest.mark.parametrize("name", policy_names())
def test_what_is_said_to_change_the_allocation_does(
    name: str, view_of: View, job_type: Any
) -> None:
    policy = make_policy(name)
    jobs = [job_type(FALLING, work=9.0), job_type(FALLING[:6], work=9.0), job_type(FALLING[:9])]
    view = view_of(policy, 9, jobs)
    found = explain_job(policy, view, "j0")
    given = policy.allocate(view).get("j0", 0)
    assert found.given == given
    assert found.sentences and "j0" in found.sentences[0]
    if found.ranks_needed is not None:
        more = policy.allocate(replace(view, num_ranks=9 + found.ranks_needed))
        assert more["j0"] > given
    if found.weight_factor_needed is not None:
        spec = replace(view.jobs[0].spec, weight=found.weight_factor_needed)
        heavier = (replace(view.jobs[0], spec=spec), *view.jobs[1:])
        assert policy.allocate(replace(view, jobs=heavier))["j0"] > given


def test_a_job_that_is_too_large_is_told_so(view_of: View, job_type: Any) -> None:
    policy = make_policy("quality")
    view = view_of(policy, 3, [job_type(min_workers=9), job_type(FALLING)])
    found = explain_job(policy, view, "j0")
    assert "needs at least 9 workers, and the cluster has 3" in found.sentences[0]
    assert found.next_worker_to == "j1"


def test_a_waiting_job_learns_what_it_waits_for(view_of: View, job_type: Any) -> None:
    policy = make_policy("fifo")
    view = view_of(policy, 6, [job_type(FALLING, held=6), job_type(min_workers=2)])
    found = explain_job(policy, view, "j1")
    assert found.given == 0 and "waits" in found.sentences[0]
    assert found.ranks_needed is None
    view = view_of(policy, 14, [job_type(FALLING, held=14), job_type(min_workers=2)])
    assert explain_job(policy, view, "j1").ranks_needed == 4


def test_gains_and_the_price_are_named_by_quality(view_of: View, job_type: Any) -> None:
    policy = make_policy("quality")
    jobs = [job_type(FALLING, work=20.0), job_type(FALLING[:6], work=20.0)]
    found = explain_job(policy, view_of(policy, 9, jobs), "j1")
    assert found.gain is not None and found.price is not None and found.gain > found.price > 0.0


def test_an_unknown_job_is_not_found(view_of: View, job_type: Any) -> None:
    policy = make_policy("fair")
    with pytest.raises(NotFoundError, match="live: j0"):
        explain_job(policy, view_of(policy, 4, [job_type()]), "zz")
