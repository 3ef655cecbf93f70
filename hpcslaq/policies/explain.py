"""Why a job has the workers that it has, and what would change that.

Works for every policy, because a policy is a pure function: it is asked again about views that
differ in one thing. Where the policy can tell its plan (`quality`, the oracles) or its gains
(`slaq`), they are named too. Behind `hpcslaq explain`.
"""

from __future__ import annotations

import math
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
    #: Of a job that waits: what it would gain per worker on its minimum, by which it is ranked.
    least_rate: float | None
    #: Why it has this number where no gain decided it (nothing known, a deadline), or "".
    why: str
    #: Seconds until a waiting job has waited so long that it goes first.
    first_in_s: float | None
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
    plan = _plan(policy, view)
    row = plan.demand.names.index(job) if plan and job in plan.demand.names else None
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
        least_rate=None if plan is None or row is None or given else float(plan.least_rate[row]),
        why=_why(policy, view, plan, row, record, given),
        first_in_s=None if given else _first_in_s(policy, view, record),
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
    names, gains, unknown = plan.demand.names, plan.gain.tolist(), plan.is_explored.tolist()
    known = {n: gain for n, gain, hidden in zip(names, gains, unknown, strict=True) if not hidden}
    return known, plan.price


def _why(
    policy: Policy,
    view: ClusterView,
    plan: Plan | None,
    row: int | None,
    record: JobRecord,
    given: int,
) -> str:
    """Why it has `given` workers where no gain decided it."""
    least = record.spec.min_ranks
    if given == 0:
        return ""
    if isinstance(policy, SlaqPolicy):
        is_known = record.spec.name in policy.gains(view, {})
        return "" if is_known else "Too few losses are known, so it gets the fair share."
    if plan is None or row is None:
        return ""
    if plan.is_explored[row]:
        reason = (
            "Its recent predictions were bad" if record.iterations >= 3 else "Little is known yet"
        )
        return f"{reason}, so it gets the fair share."
    if plan.floor[row] > least:
        return f"Its deadline takes {_workers(int(plan.floor[row]))}."
    if given == least and plan.price > 0.0:
        return "That is its minimum: other jobs gain more from further workers."
    return "" if plan.price > 0.0 else "There are workers enough for every predicted gain."


def _first_in_s(policy: Policy, view: ClusterView, record: JobRecord) -> float | None:
    """Seconds until the job's wait passes the policy's patience, where it has one."""
    patience_s = getattr(policy, "patience_rounds", math.inf) * view.round_s
    since = max(record.submitted_at, record.changed_at)
    left = since + patience_s - view.now
    return left if 0.0 < left < math.inf and record.spec.min_ranks <= view.num_ranks else None


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
    said = [_state_sentence(found, record, view, proposal)]
    if found.why:
        said.append(found.why)
    if isinstance(record.plan, JobPlan):
        said.append(_plan_sentence(record.plan, view, found.given))
    if found.taken_by:
        said.append(f"Jobs that gained workers: {_listed(found.taken_by)}.")
    unit = "largest drop in one iteration" if found.policy == "slaq" else "whole drop"
    if found.gain is not None and found.rate is not None:
        said.append(
            f"Its loss is expected to fall by {_percent(found.gain)} of its {unit} (times its "
            f"weight) per round, {_percent(found.rate)} per worker."
        )
    if found.least_rate is not None:
        said.append(
            f"On its minimum its loss would be expected to fall by {_percent(found.least_rate)} "
            f"of its {unit} (times its weight) per round and worker."
        )
    if found.price and found.given:
        said.append(f"Further workers must bring {_percent(found.price)} each.")
    if found.next_worker_to is not None:
        why = (
            "" if found.next_rate is None else f", for a predicted {_percent(found.next_rate)} more"
        )
        said.append(f"{found.next_worker_to} would get the next worker{why}.")
    return said + _changes(found, view)


def _state_sentence(
    found: Explanation, record: JobRecord, view: ClusterView, proposal: Allocation
) -> str:
    """What the job has by this decision."""
    used = sum(proposal.values())
    if record.is_cancel_pending or record.state is JobState.STOPPING:
        return f"{found.job} is being cancelled, so it is planned without workers."
    if found.least > view.num_ranks:
        return (
            f"{found.job} waits: it needs at least {_workers(found.least)}, "
            f"and the cluster has {view.num_ranks}."
        )
    if found.given == 0:
        return (
            f"{found.job} waits: the {_workers(used)} in use went to jobs that {found.policy} "
            f"ranks higher, and its minimum of {found.least} does not fit into the other "
            f"{view.num_ranks - used}."
        )
    change = "keeps" if found.given == found.held else f"goes from {found.held} to"
    return (
        f"{found.job} {change} {_workers(found.given)} (it can use {found.least} to {found.limit})."
    )


def _changes(found: Explanation, view: ClusterView) -> list[str]:
    """What would give the job more."""
    if found.given == found.limit:
        return ["It cannot use more."]
    said = []
    if found.ranks_needed is not None:
        ranks = "rank" if found.ranks_needed == 1 else "ranks"
        said.append(f"With {found.ranks_needed} more {ranks} it would have more.")
    if found.weight_factor_needed is not None:
        said.append(f"With {found.weight_factor_needed:g} times its weight it would have more.")
    if found.first_in_s is not None:
        said.append(f"In {found.first_in_s:.3g} s it will have waited so long that it goes first.")
    if not said and found.least <= view.num_ranks:
        said.append(
            f"Neither twice the ranks nor {_FACTORS[-1]:g} times its weight would give it more."
        )
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


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def _percent(share: float) -> str:
    return "0 %" if share < 1e-8 else f"{100.0 * share:.2g} %" if share < 0.1 else f"{share:.0%}"


def _listed(gained: tuple[tuple[str, int], ...], most: int = 5) -> str:
    text = ", ".join(f"{job} (+{num})" for job, num in gained[:most])
    return text if len(gained) <= most else f"{text} and {len(gained) - most} more"
