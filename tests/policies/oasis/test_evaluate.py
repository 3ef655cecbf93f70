from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from hpcslaq.errors import PolicyError
from hpcslaq.policies.oasis.baselines import paper_baselines
from hpcslaq.policies.oasis.calibrate import calibrate
from hpcslaq.policies.oasis.certificate import certify
from hpcslaq.policies.oasis.elastic import ElasticScheduler
from hpcslaq.policies.oasis.evaluate import compare, simulate
from hpcslaq.policies.oasis.instances import draw_instance
from hpcslaq.policies.oasis.model import (
    Cluster,
    Constant,
    Instance,
    Job,
    JobKind,
    Sigmoid,
    SlotPlan,
    Step,
)
from hpcslaq.policies.oasis.online import OasisScheduler
from hpcslaq.policies.oasis.prices import paper_bounds


@dataclass(frozen=True)
class _Script:
    """Plays fixed plans; admits the named jobs."""

    plans: tuple[dict[str, SlotPlan], ...]
    admitted: tuple[str, ...] = ("a",)
    name: str = "script"

    def begin(self, cluster: Cluster, horizon: int, rng: np.random.Generator) -> _Script:
        return self

    def arrive(self, job: Job) -> bool:
        return job.name in self.admitted

    def plan(self, slot: int, left: Mapping[str, int]) -> dict[str, SlotPlan]:
        return self.plans[slot] if slot < len(self.plans) else {}

    def finish(self, job: Job, slot: int) -> None:
        pass


def _job(name: str, work: int = 3, utility=None, arrival: int = 0) -> Job:
    return Job(
        name,
        arrival,
        JobKind.ALLREDUCE,
        work,
        np.arange(4),
        np.ones(1),
        np.zeros(1),
        utility or Constant(5.0),
    )


def _plan(slot: int, count: int, host: int = 0) -> SlotPlan:
    return SlotPlan(slot, ((host, count),), (), count)


def _simulate(script: _Script, *jobs: Job, horizon: int = 4):
    cluster = Cluster(np.array([[3.0]]), np.ones((1, 1)))
    return simulate(Instance(cluster, horizon, jobs), script, np.random.default_rng(0))


def test_work_is_counted_slot_by_slot_and_delays_from_the_arrival():
    job = _job("a", utility=Sigmoid(10.0, 1.0, 2.0), arrival=1)
    result = _simulate(_Script(({}, {"a": _plan(1, 1)}, {"a": _plan(2, 2)})), job)
    (outcome,) = result.outcomes
    assert outcome.completion == 2
    assert outcome.worker_slots == 3
    assert outcome.lateness == -1.0
    assert outcome.utility == pytest.approx(10 / (1 + np.exp(-1.0)))


def test_unfinished_jobs_earn_nothing_and_are_counted():
    result = _simulate(_Script(({"a": _plan(0, 1)},)), _job("a"), _job("b"))
    assert result.utility == 0.0
    assert result.num_unfinished == 1 and result.num_admitted == 1


def test_changes_count_each_change_of_the_workers_of_an_unfinished_job():
    plans = ({"a": _plan(0, 1)}, {}, {"a": _plan(2, 1)}, {"a": _plan(3, 1)})
    (outcome,) = _simulate(_Script(plans), _job("a")).outcomes
    assert outcome.changes == 3  # start, pause, resume


def test_lateness_separates_critical_from_sensitive_jobs():
    jobs = [
        _job("a", work=1, utility=Sigmoid(10.0, 5.0, 2.0)),
        _job("b", work=1, utility=Sigmoid(10.0, 0.5, 1.0)),
        _job("c", work=9, utility=Step(3.0, 1.0)),
        _job("d", work=1),
    ]
    script = _Script(({"a": _plan(0, 1), "b": _plan(0, 1)},), admitted=("a", "b", "c", "d"))
    result = _simulate(script, *jobs)
    assert result.lateness(4, is_critical=True) == [-2.0]
    assert result.lateness(4, is_critical=False) == [-1.0, 3.0]


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        (({"a": _plan(0, 2), "b": _plan(0, 2)},), r"\(4\)"),
        (({"z": _plan(0, 1)},), "not live"),
        (({"a": _plan(1, 1)},), "not live"),
        (({"a": SlotPlan(0, ((0, 1),), (), 2)},), "cannot do"),
    ],
)
def test_proposals_out_of_bounds_are_refused(plans, message):
    with pytest.raises(PolicyError, match=message):
        _simulate(_Script(plans), _job("a"), _job("b"))


def test_a_finished_job_may_not_be_planned_again():
    plans = ({"a": _plan(0, 3)}, {"a": _plan(1, 1)})
    with pytest.raises(PolicyError, match="not live"):
        _simulate(_Script(plans), _job("a"))


def test_oasis_carries_out_its_schedules_to_the_slot():
    instance = draw_instance(np.random.default_rng(1), num_jobs=40, horizon=60, num_workers=10)
    scheduler = OasisScheduler(instance.jobs, paper_bounds)
    session = scheduler.begin(instance.cluster, 60, np.random.default_rng(0))
    planned = {}
    for job in instance.jobs:
        if session.arrive(job):
            planned[job.name] = session.oasis.decisions[-1].schedule.completion
    result = simulate(instance, scheduler, np.random.default_rng(0))
    actual = {o.job.name: o.completion for o in result.outcomes if o.is_admitted}
    assert actual == planned and len(actual) >= 8
    assert result.utility == pytest.approx(session.oasis.utility)
    assert result.num_unfinished == 0


def test_the_elastic_policy_without_its_additions_is_oasis():
    instance = draw_instance(np.random.default_rng(2), num_jobs=60, horizon=60, num_workers=10)
    bare = ElasticScheduler(
        instance.jobs,
        window=0,
        has_retry=False,
        has_backfill=False,
        has_lending=False,
        has_replanning=False,
    )
    results = compare(instance, [OasisScheduler(instance.jobs), bare], seed=0)
    ends = [[o.completion for o in result.outcomes] for result in results.values()]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "addition", ["has_retry", "has_backfill", "has_lending", "has_replanning", "window"]
)
def test_every_elastic_addition_keeps_all_constraints(addition):
    off = dict.fromkeys(["has_retry", "has_backfill", "has_lending", "has_replanning"], False)
    options = {**off, "window": 0, addition: 30 if addition == "window" else True}
    if addition in ("has_retry", "has_replanning"):
        options["has_backfill"] = True  # nothing is released otherwise
    instance = draw_instance(np.random.default_rng(3), num_jobs=80, horizon=60, num_workers=10)
    plain = simulate(instance, OasisScheduler(instance.jobs), np.random.default_rng(0))
    policy = ElasticScheduler(instance.jobs, **options)
    result = simulate(instance, policy, np.random.default_rng(0))
    assert result.utility >= 0.9 * plain.utility
    accepted = [o for o in result.outcomes if o.is_admitted]
    if addition != "has_lending":
        assert all(o.completion is not None for o in accepted)


def test_the_elastic_policy_earns_a_tenth_more_on_a_crowded_cluster():
    past, instance = _scaled_down(11, 90), _scaled_down(1, 90)
    rule = calibrate([past], log_ratios=[2.0, 2.5, 3.0])
    lending = calibrate([past], make=ElasticScheduler, log_ratios=[1.5, 2.0])
    policies = [OasisScheduler(past.jobs, rule), ElasticScheduler(past.jobs, lending)]
    results = compare(instance, policies, seed=0)
    assert results["oasis-elastic"].utility > 1.1 * results["oasis"].utility


def test_a_high_switching_penalty_forbids_replans_that_change_more():
    instance = draw_instance(np.random.default_rng(5), num_jobs=100, horizon=60, num_workers=10)
    changes = []
    for penalty in (0.0, 1e9):
        policy = ElasticScheduler(instance.jobs, switching_penalty=penalty, has_lending=False)
        result = simulate(instance, policy, np.random.default_rng(0))
        changes.append(sum(outcome.changes for outcome in result.outcomes))
    assert changes[1] <= changes[0]


def _scaled_down(seed: int, num_jobs: int) -> Instance:
    return draw_instance(
        np.random.default_rng(seed), num_jobs=num_jobs, horizon=100, num_workers=17, num_servers=17
    )


@pytest.mark.parametrize(("num_jobs", "num_seeds"), [(15, 4), (45, 1)])
def test_oasis_earns_more_than_the_papers_baselines_when_scaled_down(num_jobs, num_seeds):
    total: dict[str, float] = {}
    for seed in range(1, num_seeds + 1):
        past, instance = _scaled_down(100 + seed, num_jobs), _scaled_down(seed, num_jobs)
        baselines = [b for b in paper_baselines() if b.name in ("fifo", "drf", "rrh")]
        schedulers = [OasisScheduler(past.jobs, calibrate([past])), *baselines]
        for name, result in compare(instance, schedulers, seed).items():
            total[name] = total.get(name, 0.0) + result.utility
    assert total["oasis"] == max(total.values()), total


def test_the_certified_ratio_is_below_two_when_scaled_down():
    past, instance = _scaled_down(100, 45), _scaled_down(1, 45)
    session = OasisScheduler(past.jobs, calibrate([past])).begin(
        instance.cluster, instance.horizon, np.random.default_rng(0)
    )
    for job in instance.jobs:
        session.arrive(job)
    certificate = certify(session.oasis.ledger, instance.jobs, session.oasis.utility, 100)
    assert 1.0 <= certificate.ratio <= 2.0


@pytest.mark.long
@pytest.mark.parametrize("num_jobs", [100, 400])
def test_oasis_earns_more_than_every_baseline_at_the_papers_scale(num_jobs):
    past = [draw_instance(np.random.default_rng(10_000), num_jobs=num_jobs, horizon=300)]
    instance = draw_instance(np.random.default_rng(0), num_jobs=num_jobs, horizon=300)
    jobs = past[0].jobs
    baselines = [b for b in paper_baselines() if b.name != "dorm"]
    family = [
        OasisScheduler(jobs, calibrate(past)),
        ElasticScheduler(jobs, calibrate(past, make=ElasticScheduler, log_ratios=[1.5, 2.0, 3.0])),
    ]
    earned = {k: v.utility for k, v in compare(instance, [*family, *baselines], 0).items()}
    assert all(earned["oasis"] > earned[b.name] for b in baselines), earned
    if num_jobs == 400:
        assert earned["oasis-elastic"] > 1.1 * earned["oasis"]
