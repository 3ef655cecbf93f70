"""Every policy with the real coordinator in virtual time: bounds, liveness, no starving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import DECISIVE, Coordinator
from hpcslaq.core.jobs import Convergence, JobRecord, JobSpec, JobState
from hpcslaq.core.policy import Admission, Allocation, ClusterView, Forecaster, Policy
from hpcslaq.policies.oasis.present import JobPlan, Standing
from hpcslaq.policies.registry import make_policy, policy_names, policy_parameters
from hpcslaq.predict.oracle import OracleForecaster
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import ScalingModel
from hpcslaq.sim.simulator import Simulator
from tests.core.world import check_invariants

ROUND_S = 2.0
#: Policies that serve a job that waited `patience_rounds` rounds; those that admit do not.
PATIENT = tuple(
    name
    for name in policy_names()
    if "patience_rounds" in {parameter.name for parameter in policy_parameters(name)}
)
PATIENCE = 4
FINAL = {JobState.DONE, JobState.REJECTED}


class Seer(OracleForecaster):
    """Knows the future of each job from its arrival on."""

    def __init__(self, jobs: Mapping[str, SimJob]) -> None:
        super().__init__()
        self._jobs = jobs

    def add(self, spec: JobSpec) -> None:
        super().add(spec)
        model = self._jobs[spec.name].step_time
        assert isinstance(model, ScalingModel)
        losses = np.asarray(self._jobs[spec.name].losses, dtype=np.float64)
        self.reveal(spec.name, losses, (model.serial_s, model.chunk_s, model.latency_s))


@dataclass
class Told:
    """An oracle that is told the truth."""

    policy: Policy
    jobs: Mapping[str, SimJob]

    @property
    def name(self) -> str:
        return self.policy.name

    def forecaster(self) -> Forecaster:
        return Seer(self.jobs)

    def admit(self, spec: JobSpec, view: ClusterView) -> Admission:
        return self.policy.admit(spec, view)

    def allocate(self, view: ClusterView) -> Allocation:
        return self.policy.allocate(view)


def policy_for(name: str, jobs: list[SimJob]) -> Policy:
    policy = make_policy(name, **({"patience_rounds": PATIENCE} if name in PATIENT else {}))
    return Told(policy, {job.name: job for job in jobs}) if name.startswith("oracle") else policy


def is_refused(record: JobRecord) -> bool:
    """Whether OASiS has decided against a job that still runs."""
    return isinstance(record.plan, JobPlan) and record.plan.standing is Standing.REFUSED


@dataclass
class Watch:
    """Looks at the coordinator after every event."""

    coordinator: Coordinator
    #: Since when each job has had a share of nothing.
    without_since: dict[str, float] = field(default_factory=dict)
    longest_wait_s: float = 0.0

    def __call__(self, now: float, event: ev.Event, orders: list[cmd.Command]) -> None:
        check_invariants(self.coordinator)
        live = [r for r in self.coordinator.jobs.values() if not r.state.is_final]
        usable = self.coordinator.ranks.num_usable
        if isinstance(event, DECISIVE):
            able = [r for r in live if r.spec.min_workers <= usable and not is_refused(r)]
            at_work = [r for r in able if r.target or r.members or r.forming]
            assert at_work or not able, "jobs and workers exist, but nothing runs"
        for record in live:
            if record.target or record.members or record.forming:
                self.without_since.pop(record.name, None)
            else:
                since = self.without_since.setdefault(record.name, now)
                self.longest_wait_s = max(self.longest_wait_s, now - since)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, list[SimJob]]:
    """Ranks, and jobs of any bounds, speeds and habits."""
    num_ranks, jobs = draw(st.integers(1, 9)), []
    for index in range(draw(st.integers(1, 6))):
        chunks = draw(st.integers(1, 8))
        least = draw(st.integers(1, chunks))
        num, per_epoch = draw(st.integers(1, 30)), draw(st.sampled_from([1, 1, 3]))
        k = np.arange(1.0, num * per_epoch + 1.0)
        habits = [1.0 / k + 0.1, 0.8**k, np.full(len(k), 0.5), np.where(k % 4 == 0, 2.0, 1.0 / k)]
        spec = JobSpec(
            f"j{index}",
            "m",
            "d",
            chunks,
            num,
            min_workers=least,
            max_workers=draw(st.none() | st.integers(least, 10)),
            weight=draw(st.sampled_from([0.5, 1.0, 1.0, 4.0])),
            arrival_s=draw(st.sampled_from([0.0, 0.0, 1.0, 5.5, 12.0])),
            deadline_s=draw(st.none() | st.floats(1.0, 60.0)),
            target_loss=draw(st.none() | st.just(0.2)),
            convergence=draw(st.sampled_from(Convergence)),
        )
        model = ScalingModel(chunks, chunk_s=draw(st.sampled_from([0.05, 0.2, 0.7])))
        jobs.append(SimJob(spec, draw(st.sampled_from(habits)), model, per_epoch))
    return num_ranks, jobs


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=15, deadline=None)
@given(workload=workloads())
def test_all_jobs_end_and_nothing_is_wasted_or_given_twice(
    name: str, workload: tuple[int, list[SimJob]]
) -> None:
    num_ranks, jobs = workload
    policy = policy_for(name, jobs)
    simulator = Simulator(policy, jobs, num_ranks, ROUND_S, on_record=lambda *a: watch(*a))
    watch = Watch(simulator.coordinator)
    result = simulator.run()
    assert {record.state for record in result.records.values()} <= FINAL
    rejected = {r.name for r in result.records.values() if r.state is JobState.REJECTED}
    too_large = {job.name for job in jobs if job.spec.min_workers > num_ranks}
    # OASiS also turns away what is worth too little.
    assert rejected >= too_large if name.startswith("oasis") else rejected == too_large
    # Same events, same view, same answer: a fresh coordinator gives the same orders.
    fresh = Coordinator(policy, ROUND_S)
    for now, event, orders in result.journal:
        assert fresh.handle(event, now) == orders


@pytest.mark.parametrize("name", PATIENT)
@settings(max_examples=15, deadline=None)
@given(workload=workloads())
def test_no_job_is_without_a_share_for_longer_than_its_patience_allows(
    name: str, workload: tuple[int, list[SimJob]]
) -> None:
    num_ranks, jobs = workload
    simulator = Simulator(
        policy_for(name, jobs), jobs, num_ranks, ROUND_S, on_record=lambda *a: watch(*a)
    )
    watch = Watch(simulator.coordinator)
    simulator.run()
    # Impatient jobs that do not fit beside one another take turns of a round each.
    assert watch.longest_wait_s <= (PATIENCE + len(jobs) + 1) * ROUND_S


def test_a_policy_that_starves_a_job_would_be_found() -> None:
    slow = JobSpec("slow", "m", "d", 1, 100)
    first = JobSpec("first", "m", "d", 1, 100, arrival_s=0.0)
    losses = np.linspace(1.0, 0.5, 100)
    jobs = [SimJob(s, losses, ScalingModel(1, chunk_s=0.5)) for s in (first, slow)]
    simulator = Simulator(make_policy("fifo"), jobs, 1, ROUND_S, on_record=lambda *a: watch(*a))
    watch = Watch(simulator.coordinator)
    simulator.run()
    assert watch.longest_wait_s > (PATIENCE + 3) * ROUND_S
