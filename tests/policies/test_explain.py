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


def test_a_waiting_job_learns_its_rate_and_when_its_patience_ends(
    view_of: View, job_type: Any
) -> None:
    policy = make_policy("quality", patience_rounds=20)
    flat = [1.0 + 1e-6 / k for k in range(1, 21)]
    waiting = job_type(flat, min_workers=2, changed_at=950.0)
    holder = job_type(FALLING, held=2, min_workers=2)
    found = explain_job(policy, view_of(policy, 2, [waiting, holder]), "j0")
    assert found.given == 0 and found.least_rate is not None and found.least_rate >= 0.0
    assert found.first_in_s == 150.0
    text = " ".join(found.sentences)
    assert "per round and worker" in text and "In 150 s it will have waited so long" in text
    assert explain_job(policy, view_of(policy, 2, [waiting, holder]), "j1").first_in_s is None


@pytest.mark.parametrize(
    ("policy", "job", "why"),
    [
        ("quality", {}, "Little is known yet, so it gets the fair share."),
        ("slaq", {}, "Too few losses are known, so it gets the fair share."),
        ("quality", {"losses": [50.0, 10.0, 70.0, 5.0, 90.0, 20.0] * 8}, "predictions were bad"),
        (
            "quality",
            {"losses": FALLING, "work": 16.0, "epochs": 20, "max_epochs": 40, "deadline_s": 1100.0},
            "Its deadline takes",
        ),
        ("fair", {}, ""),
    ],
)
def test_a_number_that_no_gain_decided_has_another_reason(
    policy: str, job: dict[str, Any], why: str, view_of: View, job_type: Any
) -> None:
    chosen = make_policy(policy)
    jobs = [job_type(**job), *[job_type(FALLING[:8], work=20.0)] * 3]
    found = explain_job(chosen, view_of(chosen, 12, jobs), "j0")
    assert why in found.why and bool(why) == bool(found.why)
    assert not why or found.why in found.sentences
    if "fair share" in found.why:
        assert found.gain is None  # nothing is known, so nothing is claimed


def test_one_worker_is_one_worker(view_of: View, job_type: Any) -> None:
    policy = make_policy("fair")
    jobs = [job_type(held=1), job_type(held=1)]
    assert (
        "j0 keeps 1 worker (it can use 1 to 16)."
        in explain_job(policy, view_of(policy, 2, jobs), "j0").sentences
    )


def test_a_job_that_nothing_would_change_is_told_so(view_of: View, job_type: Any) -> None:
    policy = make_policy("fifo")
    jobs = [job_type(held=4), job_type()]
    view = view_of(policy, 4, jobs)
    assert "Neither twice the ranks" in explain_job(policy, view, "j1").sentences[-1]


def test_an_unknown_job_is_not_found(view_of: View, job_type: Any) -> None:
    policy = make_policy("fair")
    with pytest.raises(NotFoundError, match="live: j0"):
        explain_job(policy, view_of(policy, 4, [job_type()]), "zz")
