"""OASiS with the real coordinator in virtual time: promises, reservations, lending, retries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec, JobState, Sync
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.policies.oasis.live import OasisElasticPolicy, OasisPolicy
from hpcslaq.policies.oasis.present import JobPlan, Standing
from hpcslaq.sim.foresight import foretold
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import Delays, ScalingModel
from hpcslaq.sim.simulator import SimResult, Simulator

SLOT_S = 5.0
HOSTS = {rank: f"h{(rank - 1) // 3}" for rank in range(1, 7)}


def job(
    name: str, *, alone_s: float = 30.0, epochs: int = 60, kind: str = "m", **spec: object
) -> SimJob:
    """A job of `alone_s` seconds of work on one rank; jobs of one kind are alike."""
    given = JobSpec(name, kind, "d", 12, epochs, **spec)  # type: ignore[arg-type]
    model = ScalingModel(12, chunk_s=alone_s / epochs / 12)
    return SimJob(given, 1.0 / np.arange(1.0, epochs + 1.0), model)


def sigmoid(peak: float, target_s: float, steepness: float = 0.2) -> UtilityCurve:
    return UtilityCurve(UtilityKind.SIGMOID, peak, target_s, steepness)


def run(policy: object, jobs: Sequence[SimJob], **options: object) -> SimResult:
    given = {"hosts": HOSTS, "delays": Delays(), **options}
    return Simulator(policy, jobs, 6, SLOT_S, **given).run()  # type: ignore[arg-type]


def notes(result: SimResult, what: str) -> list[tuple[float, str]]:
    return [
        (now, order.job)
        for now, _, orders in result.journal
        for order in orders
        if isinstance(order, cmd.Note) and order.facts["what"] == what
    ]


def end_slot(result: SimResult, name: str) -> int:
    ended = result.records[name].finished_at
    assert ended is not None
    return int((ended - 1e-9) // SLOT_S)


def test_a_job_of_an_unknown_kind_is_profiled_and_then_accepted() -> None:
    result = run(OasisPolicy(), [job("a", alone_s=120.0, utility=sigmoid(50.0, 60.0))])
    (profiled, _), (accepted, _) = notes(result, "profiling")[0], notes(result, "accepted")[0]
    assert profiled == 0.0 < accepted <= 2 * SLOT_S
    assert result.records["a"].state is JobState.DONE


def test_a_job_like_an_earlier_one_is_decided_on_arrival() -> None:
    jobs = [
        job("a", utility=sigmoid(50.0, 60.0)),
        job("b", arrival_s=21.0, utility=sigmoid(50.0, 60.0)),
    ]
    result = run(OasisPolicy(), jobs)
    assert [name for _, name in notes(result, "profiling")] == ["a"]
    assert (21.0, "b") in notes(result, "accepted")


@pytest.mark.parametrize("policy", [OasisPolicy(), OasisElasticPolicy()], ids=lambda p: p.name)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_accepted_jobs_end_within_a_slot_of_the_promise_if_steps_are_known(
    policy: OasisPolicy, data: st.DataObject
) -> None:
    jobs, at = [], 0.0
    for index in range(data.draw(st.integers(2, 7))):
        curve = sigmoid(
            data.draw(st.floats(1.0, 100.0)), data.draw(st.floats(10.0, 80.0)),
            data.draw(st.floats(0.02, 1.0)),
        )  # fmt: skip
        alone_s = data.draw(st.floats(20.0, 150.0))
        jobs.append(
            job(f"j{index}", alone_s=alone_s, arrival_s=at, utility=curve, kind=f"m{index}")
        )
        at += data.draw(st.floats(0.0, 20.0))
    result = run(foretold(policy, jobs), jobs)
    for name, record in result.records.items():
        plan = record.plan
        assert isinstance(plan, JobPlan) and record.state.is_final
        if plan.standing is Standing.ACCEPTED and plan.promised is not None:
            assert record.state is JobState.DONE
            assert end_slot(result, name) <= plan.promised + 1


def test_reservations_never_exceed_the_ranks_of_a_host() -> None:
    jobs = [
        job(f"j{i}", alone_s=80.0, arrival_s=3.0 * i, utility=sigmoid(10.0 + i, 90.0, 0.05))
        for i in range(8)
    ]
    simulator = Simulator(OasisPolicy(), jobs, 6, SLOT_S, hosts=HOSTS)
    seen = []

    def look(now: float, event: ev.Event, orders: list[cmd.Command]) -> None:
        held: dict[tuple[int, int], int] = {}
        for record in simulator.coordinator.jobs.values():
            if isinstance(record.plan, JobPlan) and not record.state.is_final:
                for slot in record.plan.slots:
                    for host, count in slot.workers:
                        held[slot.slot, host] = held.get((slot.slot, host), 0) + count
        assert all(count <= 3 for count in held.values())
        seen.append(max(held.values(), default=0))

    simulator._on_record = look
    simulator.run()
    assert max(seen) == 3


def test_what_nobody_reserved_is_lent() -> None:
    # Alone on the cluster the job gets all ranks from the start, whatever its plan says.
    result = run(OasisPolicy(), [job("a", alone_s=90.0, utility=sigmoid(50.0, 200.0))])
    assert result.ended_at < 90.0 / 6 + 2 * SLOT_S


def test_a_job_worth_less_than_its_ranks_is_refused_and_with_retry_it_waits() -> None:
    def jobs() -> list[SimJob]:
        rich = [
            job(f"r{i}", alone_s=60.0, arrival_s=6.0 * i, utility=sigmoid(100.0, 40.0))
            for i in range(3)
        ]
        poor = job(
            "poor", alone_s=60.0, arrival_s=13.0, utility=UtilityCurve(UtilityKind.CONSTANT, 2.0)
        )
        return [*rich, poor]

    refused = run(OasisPolicy(), jobs())
    assert refused.records["poor"].state is JobState.REJECTED
    assert "worth less" in refused.records["poor"].reason
    waited = run(OasisPolicy(retry=True), jobs())
    assert (waited.records["poor"].state, notes(waited, "waiting")) == (
        JobState.DONE,
        [(13.0, "poor")],
    )


def test_a_job_that_falls_behind_is_planned_anew() -> None:
    # Every epoch of the second half takes three times as long as those that were profiled.
    slow = job("a", alone_s=120.0, utility=sigmoid(50.0, 40.0, 0.05))
    efforts = np.where(np.arange(60) < 30, 1.0, 3.0)
    slow = SimJob(slow.spec, slow.losses, slow.step_time, efforts=efforts)
    other = job("b", alone_s=100.0, kind="n", utility=sigmoid(60.0, 40.0, 0.05))
    result = run(OasisPolicy(), [slow, other])
    assert [name for _, name in notes(result, "replanned")].count("a") >= 1
    assert {record.state for record in result.records.values()} == {JobState.DONE}


def test_a_lost_host_is_survived() -> None:
    jobs = [
        job(f"j{i}", alone_s=60.0, arrival_s=4.0 * i, utility=sigmoid(50.0, 90.0, 0.05))
        for i in range(3)
    ]
    losses = [(11.0, ev.RankLost(rank, "gone")) for rank in (1, 2, 3)]
    result = run(OasisPolicy(), jobs, happenings=losses)
    assert all(record.state.is_final for record in result.records.values())
    assert sum(record.state is JobState.DONE for record in result.records.values()) >= 2


@pytest.mark.parametrize("policy", [OasisPolicy(), OasisElasticPolicy()], ids=lambda p: p.name)
def test_a_job_that_needs_more_ranks_than_are_left_waits_for_the_next_start(
    policy: OasisPolicy,
) -> None:
    large = job("large", alone_s=120.0, min_workers=5, utility=sigmoid(50.0, 90.0, 0.05))
    small = job("small", alone_s=60.0, kind="n", arrival_s=2.0, utility=sigmoid(50.0, 90.0, 0.05))
    losses = [(11.0, ev.RankLost(rank, "gone")) for rank in (1, 2, 3)]
    result = run(policy, [large, small], happenings=losses)
    assert result.exit_code == 75 and not result.records["large"].state.is_final
    assert result.records["small"].state is JobState.DONE


def test_a_job_with_parameter_servers_gets_ranks_for_workers_and_servers() -> None:
    served = job(
        "served", alone_s=60.0, sync=Sync.PS, num_servers=2, utility=sigmoid(60.0, 60.0, 0.05)
    )
    plain = job("plain", alone_s=90.0, kind="n", utility=sigmoid(50.0, 60.0, 0.05))
    again = job(
        "again", alone_s=60.0, arrival_s=12.0, sync=Sync.PS, num_servers=2,
        utility=sigmoid(60.0, 60.0, 0.05),
    )  # fmt: skip
    result = run(OasisPolicy(), [served, plain, again])
    assert {record.state for record in result.records.values()} == {JobState.DONE}
    for name in ("served", "again"):
        plan = result.records[name].plan
        assert isinstance(plan, JobPlan) and plan.job is not None
        # Two ranks serve, so that one or two do no work at all.
        assert plan.job.rates[:3].tolist() == [0, 0, 0] and plan.job.rates[3] > 0
    counts = {
        len(order.members)
        for _, _, orders in result.journal
        for order in orders
        if isinstance(order, cmd.Start | cmd.Regroup) and order.job in ("served", "again")
    }
    assert min(counts) >= 3


def test_the_same_view_gives_the_same_revisions_and_changes_nothing() -> None:
    jobs = [
        job(f"j{i}", alone_s=80.0, arrival_s=4.0 * i, utility=sigmoid(40.0, 60.0)) for i in range(5)
    ]
    policy = OasisElasticPolicy()
    simulator = Simulator(policy, jobs, 6, SLOT_S, hosts=HOSTS)
    num_revisions = 0

    def ask_twice(now: float, event: ev.Event, orders: list[cmd.Command]) -> None:
        nonlocal num_revisions
        view = simulator.coordinator.view(now + SLOT_S)
        first, second = policy.revise(view), policy.revise(view)
        assert {name: admission.facts for name, admission in first.items()} == {
            name: admission.facts for name, admission in second.items()
        }
        assert dict(policy.allocate(view)) == dict(policy.allocate(view))
        num_revisions += len(first)

    simulator._on_record = ask_twice
    simulator.run()
    assert num_revisions > 0
