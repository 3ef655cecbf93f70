"""The simulator: virtual time, the real coordinator, exact arithmetic of iterations."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.jobs import JobState
from hpcslaq.errors import InvalidTransition, PolicyError
from hpcslaq.sim.metrics import tracks_of
from hpcslaq.sim.scaling import Delays
from hpcslaq.sim.simulator import Reports, SimResult, Simulator
from hpcslaq.sim.workload import poisson_arrivals, synthetic_jobs
from tests.core.test_coordinator_random import Whimsical
from tests.core.world import check_invariants
from tests.sim.pretend import PROMPT, EvenSplit, Listening, job_of


def simulate(jobs, num_ranks: int = 4, round_s: float = 5.0, **more) -> SimResult:
    policy = more.pop("policy", EvenSplit())
    return Simulator(policy, jobs, num_ranks, round_s, **more).run()


def events(result: SimResult, kind: type) -> list[tuple[float, ev.Event]]:
    return [(now, event) for now, event, _ in result.journal if isinstance(event, kind)]


# -- times -----------------------------------------------------------------------------


def test_a_job_alone_takes_its_iterations_after_the_start() -> None:
    delays = Delays(message_s=0.5, form_s=1.0, form_per_member_s=0.25, load_s=2.0)
    result = simulate([job_of(num_iterations=10, arrival_s=7.0)], delays=delays)
    record = result.records["a"]
    assert record.state is JobState.DONE
    assert record.started_at == 7.0 + 0.5 + 2.0 + 1.0 + 4 * 0.25
    assert record.finished_at == record.started_at + 10 * 1.0
    assert result.exit_code == 0
    assert result.ended_at == record.finished_at + 0.5  # the last rank's release


@pytest.mark.parametrize("round_s", [0.3, 1.0, 7.0, 1000.0])
def test_rounds_do_not_slow_a_job_down(round_s: float) -> None:
    job = job_of(num_iterations=10, chunk_s=0.7)
    result = simulate([job], round_s=round_s, delays=PROMPT)
    assert result.records["a"].finished_at == pytest.approx(7.0)


@pytest.mark.parametrize("reports", list(Reports))
def test_how_often_jobs_report_changes_nothing_for_a_policy_that_does_not_listen(reports) -> None:
    rng = np.random.default_rng(1)
    jobs = synthetic_jobs(rng, poisson_arrivals(rng, 12, 20.0), num_chunks=8)
    plain = simulate(jobs, 8, 3.0, noise=0.2)
    result = simulate(jobs, 8, 3.0, noise=0.2, reports=reports)
    assert [r.finished_at for r in result.records.values()] == [
        r.finished_at for r in plain.records.values()
    ]


def test_a_loss_is_reported_only_when_its_iteration_has_ended() -> None:
    rng = np.random.default_rng(2)
    jobs = synthetic_jobs(rng, poisson_arrivals(rng, 8, 30.0), num_chunks=8)
    result = simulate(jobs, 8, 1.0, policy=Listening(), noise=0.3)
    times = {track.name: track.times for track in result.tracks}
    reports = events(result, ev.ProgressReported)
    assert len(reports) > 100
    for now, report in reports:
        newest = report.first_iteration + len(report.losses) - 1
        assert times[report.job][newest - 1] <= now + 1e-6
        if newest < len(times[report.job]):
            assert times[report.job][newest] > now - 1e-6


def test_a_listening_policy_knows_all_losses_before_it_decides() -> None:
    jobs = [job_of("a", num_iterations=20), job_of("b", arrival_s=6.5)]
    result = simulate(jobs, round_s=100.0, policy=Listening(), delays=PROMPT)
    (now, report), *_ = events(result, ev.ProgressReported)
    assert (now, report.losses) == (6.5, tuple(1.0 / k for k in range(1, 7)))
    assert (report.seconds, report.num_workers) == (6.0, 4)


def test_noise_moves_iterations_the_same_way_under_every_allocation() -> None:
    alone = simulate([job_of(num_iterations=50)], num_ranks=1, noise=0.4, delays=PROMPT)
    wide = simulate([job_of(num_iterations=50)], num_ranks=4, noise=0.4, delays=PROMPT)
    slow, fast = (np.diff(result.tracks[0].times) for result in (alone, wide))
    assert np.allclose(slow, 4.0 * fast)
    assert slow.std() > 0.5


# -- regroups --------------------------------------------------------------------------


def test_a_job_is_regrouped_at_the_end_of_a_pass_and_nothing_of_it_is_lost() -> None:
    jobs = [
        job_of("a", num_iterations=20, per_epoch=5),
        job_of("b", num_iterations=9, arrival_s=6.5, chunks=2),
    ]
    result = simulate(jobs, round_s=100.0, delays=PROMPT)
    # a: 4 workers until 10 s (2 passes), then 2 workers (2 s per iteration).
    assert np.allclose(result.tracks[0].times[:12], [*range(1, 11), 12, 14])
    formed = [(now, e.members) for now, e in events(result, ev.GroupFormed) if e.job == "a"]
    assert formed[:2] == [(0.0, (1, 2, 3, 4)), (10.0, (1, 2))]
    # b gets the two ranks at 10 s and runs 9 iterations of 1 s; a grows at the next pass.
    assert result.records["b"].finished_at == pytest.approx(19.0)
    assert formed[2] == (pytest.approx(20.0), (1, 2, 3, 4))
    assert result.records["a"].finished_at == pytest.approx(25.0)


def test_a_regroup_costs_what_the_delays_say() -> None:
    delays = Delays(0.0, form_s=3.0, form_per_member_s=0.0, load_s=0.0, checkpoint_s=0.0)
    jobs = [job_of("a", num_iterations=20), job_of("b", arrival_s=6.5, chunks=2)]
    result = simulate(jobs, round_s=100.0, delays=delays)
    # 3 s to start, iterations 1-4 until 7 s, 3 s to shrink, then 2 s each.
    assert np.allclose(result.tracks[0].times[:6], [4, 5, 6, 7, 12, 14])


def test_a_job_that_ends_before_its_boundary_dismisses_the_joiners() -> None:
    jobs = [
        job_of("a", num_iterations=10, per_epoch=10, chunks=2),
        job_of("b", num_iterations=10, per_epoch=10, chunks=8, chunk_s=0.5),
    ]
    result = simulate(jobs, num_ranks=4, round_s=100.0, delays=PROMPT)
    # b: 2 workers, 2 s per iteration, until 20 s; a ends at 10 s and its ranks are promised.
    dismissed = [o for _, _, orders in result.journal for o in orders if isinstance(o, cmd.Dismiss)]
    assert [(order.job, order.ranks) for order in dismissed] == [("b", (1, 2))]
    assert result.records["b"].finished_at == pytest.approx(20.0)
    assert result.exit_code == 0


class Alternating(EvenSplit):
    """All workers to one job per round, by turns."""

    def allocate(self, view):
        names = sorted(record.name for record in view.jobs)
        return {names[int(view.now // view.round_s) % len(names)]: min(4, view.num_ranks)}


def test_paused_jobs_go_on_where_they_were() -> None:
    jobs = [job_of("a", num_iterations=30), job_of("b", num_iterations=30)]
    result = simulate(jobs, round_s=5.0, policy=Alternating(), delays=Delays())
    pauses = events(result, ev.JobPaused)
    assert len(pauses) >= 6
    for track in result.tracks:
        assert len(track.times) == 30 and (np.diff(track.times) > 0.999).all()
    assert not any(record.regroups for record in result.records.values())


# -- happenings ------------------------------------------------------------------------


def test_the_survivors_redo_only_the_iteration_under_way() -> None:
    delays = Delays(0.0, 0.0, 0.0, 0.0, 0.0, repair_s=2.0)
    happenings = [(5.5, ev.RankLost(2))]
    result = simulate([job_of()], delays=delays, happenings=happenings, round_s=100.0)
    # Five iterations of 1 s, repair until 7.5 s, then three workers: two waves of 1 s.
    assert np.allclose(result.tracks[0].times, [1, 2, 3, 4, 5, 9.5, 11.5, 13.5, 15.5, 17.5])
    assert result.exit_code == 0


def test_a_job_that_lost_all_ranks_goes_on_from_its_last_checkpoint() -> None:
    job = job_of(num_iterations=12, per_epoch=4, chunks=1, max_workers=1)
    happenings = [(6.5, ev.RankLost(1))]
    result = simulate([job], 2, 100.0, delays=PROMPT, happenings=happenings)
    # Six iterations were complete and known; four were stored; 5 and 6 are done again.
    assert np.allclose(result.tracks[0].times, [1, 2, 3, 4, 5, 6, *(6.5 + k for k in range(3, 9))])
    record = result.records["a"]
    assert (record.iterations, record.state) == (12, JobState.DONE)


def test_a_run_without_ranks_ends_with_code_75() -> None:
    happenings = [(2.5, ev.RankLost(1)), (3.5, ev.RankLost(2))]
    result = simulate([job_of()], 2, delays=PROMPT, happenings=happenings)
    assert (result.exit_code, result.ended_at) == (75, 3.5)


def test_a_cancelled_job_stops_at_its_next_iteration() -> None:
    job = job_of(num_iterations=20, per_epoch=10)
    happenings = [(3.2, ev.JobCancelled("a", "no use")), (50.0, ev.JobCancelled("a"))]
    result = simulate([job], delays=PROMPT, happenings=happenings)
    record = result.records["a"]
    assert (record.state, record.finished_at, record.reason) == (JobState.CANCELLED, 4.0, "no use")


def test_a_stop_request_pauses_all_at_their_boundaries() -> None:
    jobs = [
        job_of("a", num_iterations=20, per_epoch=4, max_workers=2),
        job_of("b", num_iterations=20, per_epoch=10, chunks=2),
    ]
    result = simulate(jobs, 4, delays=PROMPT, happenings=[(3.2, ev.StopRequested())])
    paused = [(now, event.job, event.iterations) for now, event in events(result, ev.JobPaused)]
    assert paused == [(8.0, "a", 4), (10.0, "b", 10)]
    assert (result.exit_code, result.ended_at) == (75, 10.0)
    assert {r.state for r in result.records.values()} == {JobState.WAITING}


def test_a_run_can_be_cut_off() -> None:
    result = simulate([job_of(num_iterations=100)], delays=PROMPT, max_s=20.5)
    assert result.exit_code is None
    assert result.ended_at <= 20.5
    assert result.tracks[0].ended_at is None


class Miser(EvenSplit):
    """Gives nothing."""

    def allocate(self, view):
        return {}


def test_a_policy_that_lets_all_jobs_wait_for_ever_is_named() -> None:
    with pytest.raises(PolicyError, match="even split: gave no workers for 10000 rounds"):
        simulate([job_of()], policy=Miser())


def test_a_run_that_can_neither_go_on_nor_end_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(Coordinator, "_wake_or_end", lambda self, now: [])
    with pytest.raises(InvalidTransition, match="nothing will ever happen"):
        simulate([job_of()])


def test_a_rank_is_lost_once_even_in_the_middle_of_a_checkpoint() -> None:
    delays = Delays(0.0, 0.0, 0.0, 0.0, checkpoint_s=2.0, repair_s=0.0)
    happenings = [(2.5, ev.StopRequested()), (4.0, ev.RankLost(2)), (4.5, ev.RankLost(2))]
    result = simulate([job_of()], delays=delays, happenings=happenings)
    # The boundary is at 3 s; the survivors begin the checkpoint again at 4 s.
    paused = [(now, event.iterations) for now, event in events(result, ev.JobPaused)]
    assert paused == [(6.0, 3)]
    assert (result.exit_code, len(events(result, ev.RankLost))) == (75, 1)


def test_a_run_without_jobs_ends_at_once() -> None:
    result = simulate([])
    assert (result.exit_code, result.ended_at, result.tracks) == (0, 0.0, [])


# -- the journal -----------------------------------------------------------------------


def test_every_entry_is_passed_on_as_it_comes() -> None:
    heard = []
    result = simulate([job_of()], on_record=lambda *entry: heard.append(entry))
    assert heard == result.journal and len(heard) == result.num_events
    silent = simulate([job_of()], keep_journal=False)
    assert silent.journal == [] and silent.num_events == result.num_events


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_policy_and_the_losses_the_rules_hold(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [
        job_of(
            f"j{i}",
            num_iterations=rng.choice([6, 12, 24]),
            per_epoch=rng.choice([1, 2, 6]),
            chunk_s=rng.uniform(0.2, 2.0),
            arrival_s=rng.uniform(0.0, 40.0),
            min_workers=rng.choice([1, 1, 2]),
        )
        for i in range(8)
    ]
    ranks = rng.sample(range(1, 7), 6)
    happenings: list = [(rng.uniform(0.0, 60.0), ev.RankLost(rank)) for rank in ranks[:3]]
    happenings += [(rng.uniform(0.0, 60.0), ev.JobCancelled(f"j{i}")) for i in (1, 2)]
    if seed % 4 == 0:
        happenings.append((rng.uniform(20.0, 60.0), ev.StopRequested()))
    policy, delays = Whimsical(seed), Delays(message_s=0.3, form_s=0.2, load_s=0.5)
    simulator = Simulator(
        policy,
        jobs,
        6,
        4.0,
        seed=seed,
        noise=0.2,
        delays=delays,
        happenings=happenings,
        reports=rng.choice(list(Reports)),
        on_record=lambda now, event, orders: check_invariants(simulator.coordinator),
    )
    result = simulator.run()
    assert result.exit_code == 0 or (seed % 4 == 0 and result.exit_code == 75)
    for record, track in zip(result.records.values(), result.tracks, strict=True):
        assert record.name == track.name
        assert len(track.times) >= record.iterations
        assert (np.diff(track.times) > 0).all()
        if record.state is JobState.DONE:
            assert len(track.times) == record.iterations
            assert record.last_loss == track.losses[-1]
            assert record.finished_at >= track.times[-1] - 1e-9
    fresh = Coordinator(policy, 4.0)
    assert [fresh.handle(event, now) for now, event, _ in result.journal] == [
        orders for _, _, orders in result.journal
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_same_arguments_give_the_same_journal(seed: int) -> None:
    def once() -> SimResult:
        rng = np.random.default_rng(seed)
        jobs = synthetic_jobs(rng, poisson_arrivals(rng, 6, 10.0), num_chunks=4)
        return simulate(jobs, 6, policy=Whimsical(seed), noise=0.1, seed=seed)

    assert once().journal == once().journal


def test_tracks_from_the_journal_are_late_by_less_than_an_iteration() -> None:
    rng = np.random.default_rng(3)
    jobs = synthetic_jobs(rng, poisson_arrivals(rng, 10, 20.0), num_chunks=8)
    result = simulate(jobs, 8, 2.0, policy=Listening())
    for exact, rough in zip(result.tracks, tracks_of(result.journal), strict=True):
        assert exact.name == rough.name and exact.arrived_at == rough.arrived_at
        assert exact.ended_at == rough.ended_at
        assert np.array_equal(exact.losses, rough.losses)
        late = rough.times - exact.times
        longest = jobs[0].step_time.seconds(1) if not len(exact.times) else np.inf
        slowest = max(job.step_time.seconds(1) for job in jobs if job.name == exact.name)
        assert late.min() > -1e-6 and late.max() < min(longest, slowest)
        assert rough.best_loss == pytest.approx(exact.best_loss, abs=0.0)
    assert math.isclose(result.ended_at, result.journal[-1][0])


# -- what can be told of a job besides ---------------------------------------------------


def test_a_job_that_fails_gives_no_loss_of_the_iteration_in_which_it_does() -> None:
    job = dataclasses.replace(job_of(num_iterations=10), fails_at=4)
    result = simulate([job, job_of("b", num_iterations=3, arrival_s=1.0)], delays=PROMPT)
    record = result.records["a"]
    assert record.state is JobState.FAILED
    assert record.iterations == 3
    assert record.reason == "iteration 4: as planned"
    assert [len(track.times) for track in result.tracks] == [3, 3]
    assert result.records["b"].state is JobState.DONE
    assert result.exit_code == 1


def test_a_failure_after_the_end_of_a_job_never_comes() -> None:
    job = dataclasses.replace(job_of(num_iterations=10), fails_at=11)
    assert simulate([job]).records["a"].state is JobState.DONE


def test_iterations_may_take_unlike_time() -> None:
    efforts = np.array([1.0, 4.0, 0.5])
    job = dataclasses.replace(job_of(num_iterations=3), efforts=efforts)
    result = simulate([job], delays=PROMPT)
    assert result.tracks[0].times == pytest.approx([1.0, 5.0, 5.5])


@dataclasses.dataclass(frozen=True)
class Spread:
    """An iteration takes as many seconds as there are hosts."""

    def seconds(self, num_workers: int) -> float:
        raise AssertionError("the placement is known")

    def seconds_on(self, per_host: tuple[int, ...]) -> float:
        return float(len(per_host))


def test_a_step_time_may_depend_on_the_placement() -> None:
    job = dataclasses.replace(job_of(num_iterations=5), step_time=Spread())
    hosts = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert simulate([job], hosts=hosts, delays=PROMPT).ended_at == pytest.approx(10.0)
    hosts = dict.fromkeys(hosts, "a")
    assert simulate([job], hosts=hosts, delays=PROMPT).ended_at == pytest.approx(5.0)


def test_a_leader_that_still_writes_keeps_only_itself_busy() -> None:
    job = dataclasses.replace(job_of(num_iterations=4), finish_s=5.0)
    result = simulate([job, job_of("b", num_iterations=4, arrival_s=1.0)], delays=PROMPT)
    ((dissolved_at, _),) = events(result, ev.GroupDissolved)
    record = result.records["a"]
    assert record.state is JobState.DONE
    assert record.finished_at == pytest.approx(dissolved_at + 5.0)
    grown = [e for now, e in events(result, ev.GroupFormed) if e.job == "b" and now >= dissolved_at]
    assert len(grown[0].members) == 3  # all but the leader, while it writes


def test_a_job_may_take_its_own_time_to_load() -> None:
    job = dataclasses.replace(job_of(num_iterations=4), load_s=2.5)
    assert simulate([job], delays=PROMPT).records["a"].started_at == 2.5


def test_parts_of_an_iteration_carry_over_where_they_may() -> None:
    # Alone on 4 workers for 2.5 iterations of 1 s, then on 2 (2 s each) next to b.
    a = dataclasses.replace(job_of(num_iterations=6), is_divisible=True)
    b = job_of("b", num_iterations=50, arrival_s=2.5)
    times = simulate([a, b], delays=PROMPT).tracks[0].times
    assert times == pytest.approx([1.0, 2.0, 3.5, 5.5, 7.5, 9.5], abs=1e-4)
    whole = simulate([dataclasses.replace(a, is_divisible=False), b], delays=PROMPT)
    assert whole.tracks[0].times == pytest.approx([1.0, 2.0, 3.0, 5.0, 7.0, 9.0])


def test_a_divisible_job_does_the_same_work_however_often_it_is_moved() -> None:
    rng = np.random.default_rng(5)
    jobs = synthetic_jobs(rng, poisson_arrivals(rng, 10, 6.0), num_iterations=(20, 40))
    jobs = [dataclasses.replace(job, is_divisible=True) for job in jobs]
    moves = simulate(jobs, 8, 1.0, policy=Whimsical(3), noise=0.3, max_s=5000.0)
    for track, job in zip(moves.tracks, jobs, strict=True):
        assert (np.diff(track.times) > 0).all()
        assert len(track.times) == job.num_iterations


def test_a_lost_rank_costs_a_divisible_job_the_iteration_under_way() -> None:
    job = dataclasses.replace(job_of(num_iterations=4), is_divisible=True)
    result = simulate([job], delays=PROMPT, happenings=[(1.5, ev.RankLost(2))])
    # Three workers are left: four chunks take two waves.
    assert result.tracks[0].times == pytest.approx([1.0, 3.5, 5.5, 7.5])
