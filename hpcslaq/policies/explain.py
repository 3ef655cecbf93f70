"""Why a job has the workers that it has, and what would change that.

Works for every policy, because a policy is a pure function: it is asked again about views that
differ in one thing. Where the policy can tell its plan (`quality`, the oracles) or its gains
(`slaq`), they are named too. Behind `hpcslaq explain`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcslaq.core.jobs import JobRecord, JobState
from hpcslaq.core.policy import Allocation, ClusterView, Policy
from hpcslaq.errors import NotFoundError
from hpcslaq.policies.oasis.present import JobPlan, Standing, slot_of
from hpcslaq.policies.oracle import OracleQualityPolicy, OracleSlaqPolicy
from hpcslaq.policies.quality import Plan, QualityPolicy
from hpcslaq.policies.slaq import SlaqPolicy

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
    #: Predicted weighted, normalised drop per round on `given`; per worker; the price of a worker.
    gain: float | None
    rate: float | None
    price: float | None
    #: Jobs that gained workers by this decision, with how many, the largest first; where this
    #: job lost some.
    taken_by: tuple[tuple[str, int], ...]
    #: Who gets the next worker, were there one more, and what it is predicted to gain per worker.
    next_worker_to: str | None
    next_rate: float | None
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
    gains, price = _gains(policy, view, proposal)
    gain = gains.get(job) if given else None
    following = _next_worker_to(policy, view, proposal)
    can_grow = given < record.spec.rank_limit
    found = Explanation(
        job=job,
        policy=policy.name,
        given=given,
        held=record.target,
        least=record.spec.min_ranks,
        limit=record.spec.rank_limit,
        gain=gain,
        rate=None if gain is None else gain / given,
        price=price,
        taken_by=_taken_by(view, proposal) if given < record.target else (),
        next_worker_to=following,
        next_rate=_next_rate(policy, view, proposal, following),
        ranks_needed=_ranks_needed(policy, view, job, given) if can_grow else None,
        weight_factor_needed=_factor_needed(policy, view, record, given) if can_grow else None,
        sentences=(),
    )
    return replace(found, sentences=tuple(_sentences(found, record, view, proposal)))


def _gains(
    policy: Policy, view: ClusterView, proposal: Allocation
) -> tuple[dict[str, float], float | None]:
    """Predicted gains per round on the proposed workers, and the price of a worker, if known."""
    if isinstance(policy, SlaqPolicy):
        return policy.gains(view, proposal), None
    plan = _plan(policy, view)
    if plan is None:
        return {}, None
    return dict(zip(plan.demand.names, plan.gain.tolist(), strict=True)), plan.price


def _taken_by(view: ClusterView, proposal: Allocation) -> tuple[tuple[str, int], ...]:
    """Jobs that gain workers, with how many, the largest first."""
    more = [(r.name, proposal.get(r.name, 0) - r.target) for r in view.jobs]
    return tuple(sorted([(job, num) for job, num in more if num > 0], key=lambda m: -m[1]))


def _next_rate(
    policy: Policy, view: ClusterView, proposal: Allocation, job: str | None
) -> float | None:
    """What `job` would gain per worker by what one rank more gives it, if that is known."""
    if job is None:
        return None
    larger = replace(view, num_ranks=view.num_ranks + 1)
    more = policy.allocate(larger)
    before, after = _gains(policy, view, proposal)[0], _gains(policy, larger, more)[0]
    if job not in after:
        return None
    return (after[job] - before.get(job, 0.0)) / (more[job] - proposal.get(job, 0))


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
    if isinstance(record.plan, JobPlan):
        said.append(_plan_sentence(record.plan, view, found.given))
    if found.taken_by:
        said.append(f"Jobs that gained workers: {_listed(found.taken_by)}.")
    if found.gain is not None and found.rate is not None:
        unit = "largest drop in one iteration" if found.policy == "slaq" else "whole drop"
        said.append(
            f"Its loss is expected to fall by {found.gain:.2%} of its {unit} (times its "
            f"weight) per round, {found.rate:.2%} per worker."
        )
    if found.price is not None and found.given:
        said.append(f"Further workers must bring {found.price:.2%} each.")
    if found.next_worker_to is not None:
        who = "It" if found.next_worker_to == found.job else found.next_worker_to
        why = "" if found.next_rate is None else f", for a predicted {found.next_rate:.2%} more"
        said.append(f"{who} would get the next worker{why}.")
    if found.ranks_needed is not None:
        ranks = "rank" if found.ranks_needed == 1 else "ranks"
        said.append(f"With {found.ranks_needed} more {ranks} it would have more.")
    if found.weight_factor_needed is not None:
        said.append(f"With {found.weight_factor_needed:g} times its weight it would have more.")
    return said


def _plan_sentence(plan: JobPlan, view: ClusterView, given: int) -> str:
    """What a policy that plans ahead thinks of the job."""
    match plan.standing:
        case Standing.OPEN:
            return "Nothing is known of its steps yet: it trains on idle ranks until it is offered."
        case Standing.WAITING:
            return "It was worth less than its ranks cost, and waits for lower prices."
        case Standing.REFUSED:
            return "It is worth less than its ranks cost: it ends as soon as it is paused."
        case _:
            slot = slot_of(view.now, view.round_s)
            reserved = plan.reserved(slot)
            lent = f", {given - reserved} of its workers are lent" if given > reserved else ""
            promised = "planned"
            if plan.promised is not None:
                promised = f"promised its end in slot {plan.promised}"
            return f"It is {promised}; it reserved {reserved} in the present slot {slot}{lent}."


def _listed(gained: tuple[tuple[str, int], ...], most: int = 5) -> str:
    text = ", ".join(f"{job} (+{num})" for job, num in gained[:most])
    return text if len(gained) <= most else f"{text} and {len(gained) - most} more"
