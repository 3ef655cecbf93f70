"""Why a job has the workers that it has, and what would change that.

Works for every policy, because a policy is a pure function: it is asked again about views that
differ in one thing. Where the policy can tell its plan (`quality`, the oracles), gains and the
price of a worker are named too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcslaq.core.jobs import JobRecord, JobState
from hpcslaq.core.policy import Allocation, ClusterView, Policy
from hpcslaq.errors import NotFoundError
from hpcslaq.policies.oracle import OracleQualityPolicy, OracleSlaqPolicy
from hpcslaq.policies.quality import Plan, QualityPolicy

#: Factors on the job's weight that are tried.
_FACTORS = (1.5, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One job's allocation and its reasons; None where it does not apply or was not found."""

    job: str
    policy: str
    #: Workers proposed now, workers held, bounds.
    given: int
    held: int
    least: int
    limit: int
    #: Predicted weighted, normalised drop per round on `given`, and the price of a worker.
    gain: float | None
    price: float | None
    #: Who gets the next worker, were there one more.
    next_worker_to: str | None
    #: Additional ranks, at most the cluster again, that would give the job more.
    ranks_needed: int | None
    #: Factor on its weight, at most 16, that would give the job more.
    weight_factor_needed: float | None
    #: The same for people.
    sentences: tuple[str, ...]


def explain_job(policy: Policy, view: ClusterView, job: str) -> Explanation:
    """Explain the policy's proposal for a live job. Raises NotFoundError on another name."""
    record = next((record for record in view.jobs if record.spec.name == job), None)
    if record is None:
        raise NotFoundError(f"{job}: not a live job (live: {', '.join(_names(view)) or 'none'})")
    proposal = policy.allocate(view)
    given = proposal.get(job, 0)
    plan = _plan(policy, view)
    index = plan.demand.names.index(job) if plan and job in plan.demand.names else None
    gain = float(plan.gain[index]) if plan and index is not None else None
    price = plan.price if plan else None
    can_grow = given < record.spec.worker_limit and not record.state.is_final
    found = Explanation(
        job=job,
        policy=policy.name,
        given=given,
        held=record.target,
        least=record.spec.min_workers,
        limit=record.spec.worker_limit,
        gain=gain,
        price=price,
        next_worker_to=_next_worker_to(policy, view, proposal),
        ranks_needed=_ranks_needed(policy, view, job, given) if can_grow else None,
        weight_factor_needed=_factor_needed(policy, view, record, given) if can_grow else None,
        sentences=(),
    )
    return replace(found, sentences=tuple(_sentences(found, record, view, proposal)))


def _plan(policy: Policy, view: ClusterView) -> Plan | None:
    if isinstance(policy, QualityPolicy | OracleSlaqPolicy | OracleQualityPolicy):
        return policy.plan(view)
    return None


def _names(view: ClusterView) -> list[str]:
    return [record.spec.name for record in view.jobs]


def _next_worker_to(policy: Policy, view: ClusterView, proposal: Allocation) -> str | None:
    """The first job that has more with one more rank."""
    more = policy.allocate(replace(view, num_ranks=view.num_ranks + 1))
    return next((name for name in _names(view) if more.get(name, 0) > proposal.get(name, 0)), None)


def _ranks_needed(policy: Policy, view: ClusterView, job: str, given: int) -> int | None:
    """Fewest additional ranks among 1, 2, 4, ... that give the job more."""
    extra = 1
    while extra <= max(view.num_ranks, 1):
        larger = replace(view, num_ranks=view.num_ranks + extra)
        if policy.allocate(larger).get(job, 0) > given:
            return extra
        extra *= 2
    return None


def _factor_needed(
    policy: Policy, view: ClusterView, record: JobRecord, given: int
) -> float | None:
    """Smallest factor tried on the job's weight that gives it more."""
    for factor in _FACTORS:
        spec = replace(record.spec, weight=record.spec.weight * factor)
        jobs = tuple(replace(r, spec=spec) if r is record else r for r in view.jobs)
        if policy.allocate(replace(view, jobs=jobs)).get(spec.name, 0) > given:
            return factor
    return None


def _sentences(
    found: Explanation, record: JobRecord, view: ClusterView, proposal: Allocation
) -> list[str]:
    said = []
    used = sum(proposal.values())
    if record.is_cancel_pending or record.state is JobState.STOPPING:
        said.append(f"{found.job} is being cancelled, so it is planned without workers.")
    elif found.least > view.num_ranks:
        said.append(
            f"{found.job} waits: it needs at least {found.least} workers, "
            f"and the cluster has {view.num_ranks}."
        )
    elif found.given == 0:
        said.append(
            f"{found.job} waits: the {used} workers in use went to jobs that {found.policy} "
            f"ranks higher, and its minimum of {found.least} does not fit into the other "
            f"{view.num_ranks - used}."
        )
    else:
        change = "keeps" if found.given == found.held else f"goes from {found.held} to"
        said.append(f"{found.job} {change} {found.given} workers ({found.least}-{found.limit}).")
        if found.given == found.limit:
            said.append("It cannot use more.")
    if found.gain is not None and found.price is not None and found.given:
        said.append(
            f"Its loss is expected to fall by {found.gain:.2%} of its whole drop (times its "
            f"weight) per round; a further worker must bring {found.price:.2%}."
        )
    if found.next_worker_to == found.job:
        said.append("It would get the next worker.")
    elif found.next_worker_to is not None:
        said.append(f"The next worker would go to {found.next_worker_to}.")
    if found.ranks_needed is not None:
        said.append(f"With {found.ranks_needed} more ranks it would have more.")
    if found.weight_factor_needed is not None:
        said.append(f"With {found.weight_factor_needed:g} times its weight it would have more.")
    return said
