"""The coordinator told as stories: events in, commands out, against a pretend cluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.jobs import JobState
from hpcslaq.core.policy import ClusterView, NoForecast
from hpcslaq.core.transitions import RankState
from hpcslaq.errors import InvalidTransition, PolicyError
from tests.core.world import Scripted, World, snapshot, spec_of


def world_of(num_ranks: int = 4, **targets: int) -> World:
    return World(Scripted(targets), num_ranks)


def running(num_ranks: int = 4, **targets: int) -> World:
    """A world in which these jobs run on these many workers."""
    world = world_of(num_ranks, **targets)
    for job in targets:
        world.submit(job)
        world.form(job)
    return world


def orders_for(job: str, orders: list[cmd.Command]) -> list[cmd.Command]:
    return [order for order in orders if getattr(order, "job", None) == job]


# -- starting, growing, shrinking ------------------------------------------------------


def test_a_submitted_job_starts_on_the_ranks_that_the_policy_gives() -> None:
    world = world_of(a=3)
    assert world.submit("a") == [cmd.Start("a", 1, (1, 2, 3)), cmd.WakeAt(world.now + 10.0)]
    assert world.job("a").state is JobState.STARTING
    assert world.form("a") == []
    assert world.job("a").state is JobState.RUNNING
    assert world.job("a").members == (1, 2, 3)
    assert world.job("a").started_at == world.now
    assert world.idle() == {4}


def test_a_job_starts_again_with_what_is_known_of_its_checkpoints() -> None:
    world = running(4, a=2)
    world.tell(ev.CheckpointWritten("a", 7, 1, 100, 0.1))
    world.tell(ev.CheckpointFailed("a", 9, "No space left on device"))
    world.restart({1: "h", 2: "h"})
    _, event, orders = world.journal[-1]
    assert isinstance(event, ev.RunStarted)
    assert orders[0] == cmd.Start("a", 2, (1, 2), 0, 7)


class Counting(Scripted):
    """Counts how often it is asked."""

    num_asked = 0

    def allocate(self, view: ClusterView) -> Mapping[str, int]:
        self.num_asked += 1
        return super().allocate(view)


def test_a_decision_is_taken_at_arrivals_ends_and_rounds_and_at_nothing_else() -> None:
    world = World(Counting(), 4)

    def decided(policy: Counting = world.policy) -> int:
        since, policy.num_asked = policy.num_asked, 0
        return since

    decided()
    world.policy.targets = {"a": 3, "b": 1}
    world.submit("a")
    assert decided() == 1
    world.form("a")
    world.train("a", 5)
    world.release()
    assert decided() == 0  # what a report says counts at the next decision
    world.submit("b")
    assert decided() == 1
    world.form("b")
    world.policy.targets = {"a": 4}
    orders = world.finish("b")
    assert decided() == 1
    orders += world.release()
    assert orders_for("a", orders) == [cmd.Regroup("a", 3, (1, 2, 3, 4), (4,), ())]
    assert decided() == 0
    world.tell(ev.RoundElapsed())
    assert decided() == 1
    world.tell(ev.JobCancelled("a", "enough"))
    assert decided() == 1


def test_jobs_that_come_together_are_decided_about_once() -> None:
    world = world_of(a=2, b=1, c=1)
    assert world.tell(ev.JobSubmitted(spec_of("a"), is_followed=True)) == [
        cmd.WakeAt(world.now + 10.0)
    ]
    assert world.tell(ev.JobSubmitted(spec_of("b"), is_followed=True)) == []
    assert [world.job(name).target for name in "ab"] == [0, 0]
    orders = world.tell(ev.JobSubmitted(spec_of("c")))
    assert [order.job for order in orders] == ["a", "b", "c"]  # type: ignore[union-attr]
    assert world.replayed() == [orders for _, _, orders in world.journal]


def test_a_job_that_is_refused_among_others_that_come_together_is_told_at_once() -> None:
    world = world_of(a=2)
    spec = spec_of("big", min_workers=8)
    assert world.tell(ev.JobSubmitted(spec, is_followed=True))[0] == cmd.Reject(
        "big", "needs 8 workers, the run has 4"
    )
    assert world.submit("a")[0] == cmd.Start("a", 1, (1, 2))


def test_the_next_round_decides_where_the_submission_that_should_follow_is_lost() -> None:
    world = world_of(a=2)
    world.tell(ev.JobSubmitted(spec_of("a"), is_followed=True))
    assert world.tell(ev.RoundElapsed())[0] == cmd.Start("a", 1, (1, 2))


def test_a_job_starts_with_fewer_workers_than_its_target_and_grows_later() -> None:
    world = running(4, a=3)
    world.give(a=2, b=2)
    assert orders_for("b", world.submit("b")) == [cmd.Start("b", 3, (4,))]
    world.form("b")
    world.form("a")
    assert world.release() == [cmd.Regroup("b", 4, (4, 3), (3,), ())]


def test_a_job_does_not_start_below_its_minimum() -> None:
    world = running(4, a=3)
    world.policy.targets = {"a": 1, "b": 3}
    assert orders_for("b", world.submit("b", min_workers=3)) == []
    world.form("a")
    assert orders_for("b", world.release(2)) == []
    assert orders_for("b", world.release(3)) == [cmd.Start("b", 3, (2, 3, 4))]


def test_ranks_given_back_join_another_job_only_when_they_are_idle() -> None:
    world = running(4, a=3, b=1)
    assert world.give(a=1, b=3)[:-1] == [cmd.Regroup("a", 3, (1,), (), (2, 3))]
    assert world.form("a") == []
    assert world.job("b").state is JobState.RUNNING
    assert world.idle() == set()
    assert world.release(3) == []  # the other one will be there in a moment
    assert world.release(2) == [cmd.Regroup("b", 4, (4, 2, 3), (2, 3), ())]
    world.form("b")
    assert world.job("b").members == (4, 2, 3)
    assert world.job("b").regroups == 1


def test_a_round_puts_an_end_to_waiting_for_ranks_that_do_not_report() -> None:
    world = running(4, a=3, b=1)
    world.give(a=1, b=3)
    world.form("a")
    assert world.release(3) == []
    assert orders_for("b", world.give(a=1, b=3)) == [cmd.Regroup("b", 4, (4, 3), (3,), ())]
    assert world.release(2) == []  # one order at a time
    assert world.form("b") == [cmd.Regroup("b", 5, (4, 3, 2), (2,), ())]


def test_a_job_whose_ranks_are_all_there_does_not_wait_for_others_on_their_way() -> None:
    world = running(4, a=2, b=1)
    world.finish("a")
    world.policy.targets = {"b": 1, "c": 1}
    assert world.submit("c") == [cmd.Start("c", 3, (4,))]


def test_the_leader_stays_when_a_job_shrinks_and_grows() -> None:
    world = World(Scripted({"a": 2}), hosts={1: "x", 2: "y", 3: "y", 4: "y"})
    world.submit("a")
    world.form("a")
    leader = world.job("a").members[0]
    for target in (4, 1, 3, 2, 1, 4):
        world.give(a=target)
        world.form("a")
        world.release()
        assert world.job("a").members[0] == leader
        assert len(world.job("a").members) == target


def test_a_job_whose_share_did_not_change_notices_nothing() -> None:
    world = running(6, a=2, b=2)
    orders = world.give(a=2, b=1)
    assert orders_for("a", orders) == []
    world.form("b")
    assert orders_for("a", world.release()) == []


def test_jobs_without_ranks_come_before_jobs_that_grow() -> None:
    world = running(5, a=1, c=2)
    world.policy.targets = {"a": 2, "b": 2, "c": 1}
    assert world.submit("b") == [
        cmd.Regroup("c", 3, (2,), (), (3,)),
        cmd.Start("b", 4, (4, 5)),
    ]


def test_waiting_jobs_start_in_the_order_of_their_arrival() -> None:
    world = running(4, c=4)
    world.submit("a")
    world.submit("b")
    world.give(b=2)
    world.give(a=2, b=2)
    world.pause("c")
    assert world.release() == [cmd.Start("a", 2, (1, 2)), cmd.Start("b", 3, (3, 4))]


def test_the_job_that_misses_the_largest_share_grows_first() -> None:
    world = running(6, a=2, b=1, c=2)  # one rank is idle
    orders = world.give(a=3, b=3, c=0)
    assert orders_for("a", orders) == []
    assert orders_for("b", orders) == [cmd.Regroup("b", 4, (4, 3), (3,), ())]


def test_targets_that_change_under_way_are_followed_when_the_order_is_through() -> None:
    world = running(4, a=1)
    world.give(a=4)
    assert orders_for("a", world.give(a=2)) == []
    assert world.form("a") == [cmd.Regroup("a", 3, (1, 2), (), (3, 4))]
    assert orders_for("a", world.give(a=0)) == []
    assert world.form("a") == [cmd.Pause("a", 3, 1)]


def test_a_record_keeps_the_mean_cost_of_the_changes_of_its_group() -> None:
    world = running(a=4)
    costs = []
    for count, seconds in ((2, 0.3), (3, 0.9)):
        (order,) = orders_for("a", world.give(a=count))
        assert isinstance(order, cmd.Regroup)
        record = world.coordinator.jobs["a"]
        formed = ev.GroupFormed("a", order.generation, order.members, seconds=seconds)
        costs.append(record.regroup_s)
        world.tell(formed)
        for rank in order.leavers:
            world.tell(ev.RankReleased(rank, "a", order.generation))
    assert costs == [0.0, 0.3]
    assert world.job("a").regroup_s == pytest.approx((2 * 0.3 + 0.9) / 3)


def test_rank_seconds_count_each_group_from_its_formation() -> None:
    world = running(4, a=2)
    formed_at = world.now
    world.tell(ev.WeightChanged("a", 2.0), after=10.0)
    assert world.job("a").attained_rank_seconds(formed_at + 10.0) == 20.0
    world.give(a=4)
    world.form("a")
    changed_at = world.now
    world.tell(ev.WeightChanged("a", 1.0), after=10.0)
    expected = 2 * (changed_at - formed_at) + 4 * 10.0
    assert world.job("a").attained_rank_seconds(world.now) == pytest.approx(expected)


# -- ends ------------------------------------------------------------------------------


def test_a_job_that_finishes_during_a_regroup_dismisses_the_joiners() -> None:
    world = running(4, a=1)
    world.give(a=3)
    assert world.finish("a") == [cmd.Dismiss("a", 2, (2, 3))]
    world.release()
    assert world.idle() == {1, 2, 3, 4}
    assert world.job("a").state is JobState.DONE


def test_a_job_that_fails_while_starting_gives_its_ranks_back() -> None:
    world = world_of(a=2)
    world.submit("a")
    world.release()
    world.break_start("a", ranks_give_up=False)
    assert world.release() == [cmd.Dismiss("a", 1, (1, 2))]
    world.release()
    assert world.idle() == {1, 2, 3, 4}
    assert world.job("a").state is JobState.FAILED
    assert world.job("a").reason == "cannot load"


def test_a_release_may_overtake_the_report_of_the_jobs_end() -> None:
    world = running(4, a=3, b=1)
    world.end("a")
    world.policy.targets = {"b": 4}
    assert world.release(2, 3) == []  # the leader's JobFinished is still on its way
    assert world.job("a").state is JobState.RUNNING
    assert world.idle() == set()
    assert world.deliver(1) == []
    assert world.idle() == {2, 3}
    assert world.release(1) == [cmd.Regroup("b", 3, (4, 1, 2, 3), (1, 2, 3), ())]


def test_a_release_may_overtake_the_report_of_the_regroup() -> None:
    world = running(4, a=3)
    world.give(a=1)
    world.release()
    world.boundary("a")
    world.release(2, 3)
    assert world.idle() == {4}
    world.deliver(1)
    assert world.idle() == {2, 3, 4}
    assert world.job("a").members == (1,)


def test_a_release_may_overtake_even_the_report_of_the_start() -> None:
    world = world_of(a=2)
    world.submit("a")
    world.release()
    world.boundary("a")
    world.end("a")
    world.release(2)
    assert world.idle() == {3, 4}
    world.release(1)
    assert world.idle() == {1, 2, 3, 4}


def test_ranks_that_gave_up_a_broken_start_may_say_so_before_the_leader() -> None:
    world = world_of(a=3)
    world.submit("a")
    world.release()
    world.break_start("a", ranks_give_up=True)
    world.release(3)
    assert world.idle() == {4}
    assert world.deliver(1) == [cmd.Dismiss("a", 1, (1, 2))]
    assert world.idle() == {3, 4}
    world.release()
    assert world.idle() == {1, 2, 3, 4}


def test_a_late_checkpoint_report_is_welcome_after_the_jobs_end() -> None:
    world = running(4, a=1)
    world.finish("a")
    assert world.tell(ev.CheckpointWritten("a", 10, 1, 100, 0.1)) == []


def test_a_run_ends_with_code_0_when_all_jobs_are_done() -> None:
    world = running(4, a=2)
    world.tell(ev.ArrivalsClosed())
    assert world.finish("a") == []
    assert world.release(2) == []
    assert world.release(1) == [cmd.Shutdown(0)]


def test_a_run_ends_with_code_1_when_a_job_failed() -> None:
    world = running(4, a=1, b=1)
    world.tell(ev.ArrivalsClosed())
    world.fail("a")
    world.finish("b")
    assert world.release()[-1] == cmd.Shutdown(1)


def test_a_cancelled_job_does_not_spoil_the_exit_code() -> None:
    world = world_of(a=0)
    world.submit("a")
    world.tell(ev.JobCancelled("a"))
    assert world.tell(ev.ArrivalsClosed()) == [cmd.Shutdown(0)]


def test_a_rejected_job_was_not_done_and_the_exit_code_says_so() -> None:
    world = world_of()
    world.submit("big", min_workers=8)
    assert world.tell(ev.ArrivalsClosed()) == [cmd.Shutdown(1)]


def test_a_run_without_jobs_ends_when_arrivals_are_closed() -> None:
    assert world_of().tell(ev.ArrivalsClosed()) == [cmd.Shutdown(0)]


def test_a_run_with_open_arrivals_waits_for_jobs_without_rounds() -> None:
    world = running(4, a=1)
    world.finish("a")
    world.release()
    assert world.give() == []
    assert world.exit_code is None


# -- cancelling ------------------------------------------------------------------------


def test_cancelling_a_waiting_job_ends_it_at_once() -> None:
    world = world_of(a=0)
    world.submit("a")
    world.tell(ev.JobCancelled("a", "no use"))
    assert (world.job("a").state, world.job("a").reason) == (JobState.CANCELLED, "no use")


def test_cancelling_a_running_job_stops_it() -> None:
    world = running(4, a=2)
    assert world.tell(ev.JobCancelled("a")) == [cmd.Stop("a", 1, 1)]
    assert world.job("a").state is JobState.STOPPING
    world.stop("a")
    world.release()
    assert world.job("a").state is JobState.CANCELLED
    assert world.idle() == {1, 2, 3, 4}


def test_cancelling_a_starting_job_stops_it_when_it_has_started() -> None:
    world = world_of(a=2)
    world.submit("a")
    assert world.tell(ev.JobCancelled("a")) == []
    assert world.form("a") == [cmd.Stop("a", 1, 1)]


def test_cancelling_a_regrouping_job_stops_its_new_group() -> None:
    world = running(4, a=2)
    world.give(a=4)
    assert world.tell(ev.JobCancelled("a")) == []
    assert world.form("a") == [cmd.Stop("a", 2, 1)]


def test_cancelling_a_pausing_job_ends_it_when_it_has_paused() -> None:
    world = running(4, a=2)
    world.give(a=0)
    assert world.tell(ev.JobCancelled("a", "no use")) == []
    world.pause("a")
    assert (world.job("a").state, world.job("a").reason) == (JobState.CANCELLED, "no use")


def test_cancelling_a_stopping_job_again_changes_nothing() -> None:
    world = running(4, a=2)
    world.tell(ev.JobCancelled("a", "first"))
    assert world.tell(ev.JobCancelled("a", "second")) == []
    assert world.job("a").reason == "first"


def test_a_job_that_finishes_before_it_can_be_stopped_is_done() -> None:
    world = running(4, a=2)
    world.tell(ev.JobCancelled("a", "no use"))
    world.finish("a")
    assert world.job("a").state is JobState.DONE
    assert world.job("a").reason == "epochs"


# -- pausing and stopping the run ------------------------------------------------------


def test_a_job_without_a_share_pauses_and_resumes_with_what_it_knew() -> None:
    world = running(4, a=2)
    world.train("a", 3)
    world.deliver(1)
    assert orders_for("a", world.give(a=0)) == [cmd.Pause("a", 1, 1)]
    world.pause("a")
    world.release()
    assert world.job("a").state is JobState.WAITING
    assert orders_for("a", world.give(a=1)) == [
        cmd.Start("a", 2, (1,), known_iterations=3, stored_iterations=3)
    ]
    world.form("a")
    assert world.job("a").iterations == 3
    assert world.job("a").regroups == 0


def test_a_stop_request_pauses_all_jobs_and_ends_with_code_75() -> None:
    world = running(4, a=2, b=1)
    world.submit("c")
    assert world.tell(ev.StopRequested("time limit")) == [
        cmd.Pause("a", 1, 1),
        cmd.Pause("b", 2, 3),
    ]
    world.pause("a")
    world.pause("b")
    assert world.release()[-1] == cmd.Shutdown(75)
    assert {record.state for record in world.coordinator.jobs.values()} == {JobState.WAITING}


def test_a_stop_request_waits_for_a_start_under_way() -> None:
    world = world_of(a=2)
    world.submit("a")
    assert world.tell(ev.StopRequested()) == []
    assert world.form("a") == [cmd.Pause("a", 1, 1)]


def test_a_stopping_run_that_finishes_its_last_job_ends_with_code_0() -> None:
    world = running(4, a=2)
    world.tell(ev.ArrivalsClosed())
    world.tell(ev.StopRequested())
    world.finish("a")
    assert world.release()[-1] == cmd.Shutdown(0)


def test_a_stopping_run_starts_no_further_job() -> None:
    world = running(4, a=2)
    world.tell(ev.StopRequested())
    world.policy.targets = {"a": 2, "b": 2}
    assert world.submit("b") == []
    assert world.job("b").state is JobState.WAITING


def test_after_a_restart_unfinished_jobs_wait_and_start_anew() -> None:
    world = running(4, a=2, b=1)
    world.train("a", 4)
    world.deliver(1)
    world.store("a")
    world.finish("b")
    orders = world.restart({1: "x", 2: "x"})
    assert orders == [cmd.Start("a", 3, (1, 2), known_iterations=4), cmd.WakeAt(world.now + 10)]
    assert world.job("a").changed_at == world.now
    assert world.job("b").state is JobState.DONE


def test_after_a_restart_cancelled_jobs_are_not_begun_again() -> None:
    world = running(4, a=1, b=1)
    world.tell(ev.JobCancelled("a"))  # stopping
    world.give(a=1, b=0)
    world.tell(ev.JobCancelled("b"))  # pausing
    world.restart({1: "x"})
    assert world.job("a").state is world.job("b").state is JobState.CANCELLED


def test_a_run_that_was_shut_down_can_be_started_again() -> None:
    world = running(4, a=1)
    world.tell(ev.StopRequested())
    world.pause("a")
    assert world.release()[-1] == cmd.Shutdown(75)
    assert orders_for("a", world.restart({1: "x"})) == [cmd.Start("a", 2, (1,))]


# -- admission -------------------------------------------------------------------------


def test_a_job_that_needs_more_workers_than_there_are_is_rejected() -> None:
    world = world_of(4)
    reason = "needs 5 workers, the run has 4"
    assert world.submit("a", min_workers=5) == [cmd.Reject("a", reason)]
    assert (world.job("a").state, world.job("a").reason) == (JobState.REJECTED, reason)


def test_the_policy_may_refuse_a_job_with_a_reason() -> None:
    world = World(Scripted(refusal="too late"))
    assert world.submit("a") == [cmd.Reject("a", "too late")]
    assert world.coordinator.view(0.0).jobs == ()


def test_a_second_job_of_the_same_name_is_refused_even_when_the_first_has_ended() -> None:
    world = running(4, a=1)
    world.finish("a")
    with pytest.raises(InvalidTransition, match="a: submitted, but there is a job of that name"):
        world.submit("a")


def test_a_policy_that_breaks_a_bound_is_named() -> None:
    world = world_of(4)
    world.policy.allocate = lambda view: {"a": 5}
    with pytest.raises(PolicyError, match="5 workers given, but there are 4"):
        world.submit("a")


def test_a_new_weight_reaches_the_policy() -> None:
    world = running(4, a=1)
    world.tell(ev.WeightChanged("a", 3.0))
    assert [record.spec.weight for record in world.coordinator.view(0.0).jobs] == [3.0]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_new_weight_must_be_positive(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        ev.WeightChanged("a", weight)


# -- progress --------------------------------------------------------------------------


class Listener(NoForecast):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def add(self, spec) -> None:
        self.heard.append(spec.name)

    def observe(self, report) -> None:
        self.heard.append((report.first_iteration, report.losses, report.seconds))

    def discard(self, job) -> None:
        self.heard.append(f"-{job}")


def progress(first: int, *losses: float, epochs: int = 0) -> ev.ProgressReported:
    return ev.ProgressReported("a", 1, first, losses, epochs, float(len(losses)), 1)


def test_progress_keeps_first_and_last_loss_and_the_largest_drop() -> None:
    world = running(4, a=1)
    world.tell(progress(1, 8.0, 7.0))
    world.tell(progress(3, 4.0, 5.0, 4.5, epochs=2))
    record = world.job("a")
    assert (record.first_loss, record.last_loss, record.largest_drop) == (8.0, 4.5, 3.0)
    assert (record.iterations, record.epochs) == (5, 2)


def test_repeated_iterations_are_trimmed_and_their_share_of_the_time_too() -> None:
    listener = Listener()
    policy = Scripted({"a": 1})
    policy.forecaster = lambda: listener
    world = World(policy)
    world.submit("a")
    world.form("a")
    world.tell(progress(1, 8.0, 7.0, 6.0))
    world.tell(progress(2, 7.0, 6.0))
    world.tell(progress(2, 7.0, 6.0, 5.0, 4.0))
    world.finish("a")
    assert listener.heard == ["a", (1, (8.0, 7.0, 6.0), 3.0), (4, (5.0, 4.0), 2.0), "-a"]
    assert world.job("a").last_loss == 1.0


def test_a_gap_in_the_iterations_is_refused() -> None:
    world = running(4, a=1)
    world.tell(progress(1, 8.0))
    before = snapshot(world.coordinator)
    with pytest.raises(InvalidTransition, match="a: iteration 3 reported after 1"):
        world.tell(progress(3, 7.0))
    assert snapshot(world.coordinator) == before


# -- losses ----------------------------------------------------------------------------


def test_a_job_goes_on_with_its_survivors_and_grows_again() -> None:
    world = running(4, a=3)
    assert world.kill(2) == [cmd.Regroup("a", 2, (1, 3, 4), (4,), ())]
    world.form("a")
    assert world.job("a").members == (1, 3, 4)


def test_a_job_without_survivors_starts_again_elsewhere() -> None:
    world = running(2, a=1)
    assert world.kill(1) == [cmd.Start("a", 2, (2,))]


def test_an_order_that_died_with_the_leader_is_repeated_to_the_survivors() -> None:
    world = running(4, a=3)
    world.give(a=2)
    world.release()
    assert world.kill(1) == [cmd.Regroup("a", 2, (2,), (), (3,))]
    world.form("a")
    assert world.job("a").members == (2,)


@pytest.mark.parametrize(
    ("ask", "order"),
    [
        (lambda world: world.give(a=0), cmd.Pause("a", 1, 2)),
        (lambda world: world.tell(ev.JobCancelled("a")), cmd.Stop("a", 1, 2)),
    ],
)
def test_a_pause_or_stop_that_died_with_the_leader_is_repeated(ask, order) -> None:
    world = running(4, a=3)
    ask(world)
    assert world.kill(1) == [order]


def test_a_start_is_repeated_without_the_lost_rank() -> None:
    world = world_of(a=3)
    world.submit("a")
    world.policy.targets = {"a": 2}
    assert world.kill(1) == [cmd.Start("a", 1, (2, 3))]
    world.form("a")
    assert world.job("a").members == (2, 3)


def test_when_all_that_were_to_stay_are_lost_one_that_was_to_leave_stays() -> None:
    world = running(3, a=3)
    world.give(a=1)
    assert world.kill(1) == [cmd.Regroup("a", 2, (2,), (), (3,))]
    world.form("a")
    world.release()
    assert world.job("a").members == (2,)
    assert world.idle() == {3}


def test_joiners_without_a_member_to_hand_the_state_on_are_dismissed() -> None:
    world = running(3, a=1)
    world.give(a=3)
    assert world.kill(1) == [cmd.Dismiss("a", 2, (2, 3))]
    assert world.job("a").state is JobState.WAITING
    assert world.release(2, 3) == [cmd.Start("a", 3, (2, 3))]


def test_a_group_formed_with_a_rank_that_was_lost_meanwhile_counts_without_it() -> None:
    world = world_of(a=3)
    world.submit("a")
    world.release()
    world.boundary("a")
    world.policy.targets = {"a": 2}
    world.kill(3)
    world.deliver(1)
    assert world.job("a").members == (1, 2)


def test_the_loss_of_a_rank_on_its_way_out_does_not_touch_its_old_job() -> None:
    world = running(4, a=3)
    world.give(a=0)
    world.pause("a")
    before = world.job("a")
    world.coordinator.handle(ev.RankLost(3), world.now)
    assert world.job("a") == before
    assert world.coordinator.ranks[3].state is RankState.LOST


def test_a_group_whose_ranks_have_all_left_without_a_report_waits_again() -> None:
    world = running(3, a=3)
    world.give(a=1)
    for rank in (2, 3):
        world.tell(ev.RankReleased(rank, "a", 1))
    world.policy.targets = {"a": 0}
    world.lost.add(1)
    world.tell(ev.RankLost(1))  # it died between the boundary and its report
    assert world.job("a").state is JobState.WAITING
    assert world.idle() == {2, 3}


def test_when_only_leavers_outlive_the_boundary_the_job_starts_anew() -> None:
    world = running(3, a=3)
    world.give(a=1)
    world.release()
    # They have left, but the coordinator cannot know: it asks one of them to stay.
    assert world.die_at_boundary("a") == [cmd.Regroup("a", 2, (2,), (), (3,))]
    assert world.release(2) == []
    assert world.release(3) == [cmd.Start("a", 3, (2,))]


def test_a_run_whose_ranks_are_all_lost_ends_with_code_75() -> None:
    world = running(2, a=2)
    world.kill(1)
    assert world.kill(2) == [cmd.Shutdown(75)]
    assert world.job("a").state is JobState.WAITING


def test_a_run_ends_with_code_75_when_too_few_ranks_are_left_for_its_jobs() -> None:
    world = world_of(3, b=1)
    world.submit("a", min_workers=3)
    world.submit("b")
    world.form("b")
    world.tell(ev.ArrivalsClosed())
    world.kill(3)
    world.finish("b")
    assert world.release() == [cmd.Shutdown(75)]
    assert world.job("a").state is JobState.WAITING


# -- rounds ----------------------------------------------------------------------------


def test_one_round_is_outstanding_while_jobs_live() -> None:
    world = world_of(4, a=1, b=1)
    assert cmd.WakeAt(world.now + 10.5) in world.submit("a")
    assert not any(isinstance(order, cmd.WakeAt) for order in world.submit("b"))
    assert world.tell(ev.RoundElapsed()) == [cmd.WakeAt(world.now + 10)]


@pytest.mark.parametrize("round_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_round_has_a_length(round_s: float) -> None:
    with pytest.raises(ValueError, match="round_s"):
        Coordinator(Scripted(), round_s)


# -- illegal events --------------------------------------------------------------------


def _paused(world: World) -> None:
    world.give(a=0)
    world.pause("a")


#: How a job gets into each state; the world has job a (2 workers) running on 1 and 2.
TO_STATE = {
    JobState.WAITING: _paused,
    JobState.STARTING: lambda w: (_paused(w), w.release(), w.give(a=2)),
    JobState.RUNNING: lambda w: None,
    JobState.REGROUPING: lambda w: w.give(a=3),
    JobState.PAUSING: lambda w: w.give(a=0),
    JobState.STOPPING: lambda w: w.tell(ev.JobCancelled("a")),
    JobState.FINISHING: lambda w: w.tell(ev.GroupDissolved("a", w.job("a").generation)),
    JobState.DONE: lambda w: w.finish("a"),
    JobState.FAILED: lambda w: w.fail("a"),
    JobState.CANCELLED: lambda w: (w.tell(ev.JobCancelled("a")), w.stop("a")),
    JobState.REJECTED: None,
}

#: Events about the job, right in every detail, that each state takes.
LEGAL = {
    JobState.WAITING: {"JobCancelled", "WeightChanged", "CheckpointWritten", "CheckpointFailed"},
    JobState.STARTING: {
        *(
            "JobCancelled",
            "WeightChanged",
            "CheckpointWritten",
            "CheckpointFailed",
            "GroupFormed",
            "JobFailed",
        ),
    },
    JobState.RUNNING: {
        *(
            "JobCancelled",
            "WeightChanged",
            "CheckpointWritten",
            "CheckpointFailed",
            "ProgressReported",
        ),
        *("JobFinished", "JobFailed", "GroupDissolved"),
    },
    JobState.REGROUPING: {
        *(
            "JobCancelled",
            "WeightChanged",
            "CheckpointWritten",
            "CheckpointFailed",
            "ProgressReported",
        ),
        *("JobFinished", "JobFailed", "GroupFormed", "GroupDissolved"),
    },
    JobState.PAUSING: {
        *(
            "JobCancelled",
            "WeightChanged",
            "CheckpointWritten",
            "CheckpointFailed",
            "ProgressReported",
        ),
        *("JobFinished", "JobFailed", "JobPaused", "GroupDissolved"),
    },
    JobState.STOPPING: {
        *(
            "JobCancelled",
            "WeightChanged",
            "CheckpointWritten",
            "CheckpointFailed",
            "ProgressReported",
        ),
        *("JobFinished", "JobFailed", "JobStopped", "GroupDissolved"),
    },
    JobState.FINISHING: {
        *(
            "JobCancelled",
            "WeightChanged",
            "CheckpointWritten",
            "CheckpointFailed",
            "ProgressReported",
        ),
        *("JobFinished", "JobFailed"),
    },
    JobState.DONE: {"CheckpointWritten", "CheckpointFailed"},
    JobState.FAILED: {"CheckpointWritten", "CheckpointFailed"},
    JobState.CANCELLED: {"CheckpointWritten", "CheckpointFailed"},
    JobState.REJECTED: set(),
}


def job_events(job: str, generation: int, members: tuple[int, ...]) -> list[ev.Event]:
    """One event of every kind that is about a job."""
    return [
        ev.JobCancelled(job),
        ev.WeightChanged(job, 2.0),
        ev.GroupFormed(job, generation, members),
        ev.GroupDissolved(job, generation),
        ev.ProgressReported(job, generation, 1, (1.0,), 0, 1.0, 2),
        ev.CheckpointWritten(job, 1, 1, 100, 0.1),
        ev.CheckpointFailed(job, 1, "full"),
        ev.JobPaused(job, generation, 1),
        ev.JobFinished(job, generation, 1, 1, 1.0, "0", "0", "epochs"),
        ev.JobStopped(job, generation),
        ev.JobFailed(job, generation, 1, "no"),
    ]


def world_in(state: JobState) -> World:
    if state is JobState.REJECTED:
        world = world_of(4)
        world.submit("a", min_workers=8)
    else:
        world = running(4, a=2)
        TO_STATE[state](world)
    assert world.job("a").state is state
    return world


def refuses(world: World, event: ev.Event) -> bool:
    """Whether the event is illegal; then nothing may have changed."""
    coordinator = copy.deepcopy(world.coordinator)
    before = snapshot(coordinator)
    try:
        coordinator.handle(event, world.now)
    except InvalidTransition:
        assert snapshot(coordinator) == before, f"{event} was refused, but left traces"
        return True
    return False


def test_a_dissolved_group_frees_its_members_before_its_leader_has_finished() -> None:
    world = running(3, a=3)
    world.submit("b")
    world.give(a=3, b=3)
    world.announces = True
    world.finish("a")
    assert world.job("a").state is JobState.FINISHING
    assert world.job("a").members == (1,)
    world.release(2, 3)
    assert world.job("b").state is JobState.STARTING
    world.release()
    assert world.job("a").state is JobState.DONE


def test_a_job_whose_leader_dies_while_it_finishes_waits_again() -> None:
    world = running(3, a=3)
    world.tell(ev.GroupDissolved("a", 1))
    world.kill(1)
    assert world.job("a").state in (JobState.WAITING, JobState.STARTING)


@pytest.mark.parametrize("state", list(JobState))
def test_each_state_takes_its_events_and_refuses_all_others_without_a_trace(state) -> None:
    world = world_in(state)
    record = world.job("a")
    members = record.forming or record.members or (1, 2)
    taken = {
        type(event).__name__
        for event in job_events("a", record.generation, members)
        if not refuses(world, event)
    }
    assert taken == LEGAL[state]


@pytest.mark.parametrize("state", list(JobState))
def test_events_of_other_jobs_generations_and_groups_are_refused(state) -> None:
    world = world_in(state)
    record = world.job("a")
    strange = job_events("nobody", record.generation, (1, 2))
    strange += [
        event
        for event in job_events("a", record.generation + 1, record.forming or (1, 2))
        if hasattr(event, "generation") and not isinstance(event, ev.ProgressReported)
    ]
    strange += [ev.GroupFormed("a", record.generation, members) for members in ((), (4,), (2, 1))]
    strange += [ev.JobSubmitted(spec_of("a"))]
    for event in strange:
        assert refuses(world, event), f"{event} was taken"


@pytest.mark.parametrize("state", list(JobState))
def test_releases_and_losses_of_ranks_that_are_not_concerned_are_refused(state) -> None:
    world = world_in(state)
    for event in (
        ev.RankReleased(9, "a", 1),
        ev.RankReleased(4, "a", 1),
        ev.RankReleased(1, "nobody", 1),
        ev.RankLost(9),
    ):
        assert refuses(world, event), f"{event} was taken"
    world.kill(4)
    assert refuses(world, ev.RankLost(4))


def test_a_rank_is_released_only_once() -> None:
    world = running(4, a=2)
    world.tell(ev.RankReleased(2, "a", 1))
    assert refuses(world, ev.RankReleased(2, "a", 1))


def all_events() -> list[ev.Event]:
    return [
        *job_events("a", 1, (1, 2)),
        *(ev.JobSubmitted(spec_of("new")), ev.ArrivalsClosed(), ev.RankReleased(1, "a", 1)),
        *(ev.RankLost(1), ev.RoundElapsed(), ev.StopRequested()),
    ]


def test_nothing_but_a_new_start_is_legal_after_the_shutdown() -> None:
    world = running(4, a=2)
    world.tell(ev.StopRequested())
    world.pause("a")
    world.release()
    assert world.exit_code == 75
    assert all(refuses(world, event) for event in all_events())
    assert not refuses(world, ev.RunStarted({1: "x"}))


def test_nothing_but_a_start_with_ranks_is_legal_at_first() -> None:
    coordinator = Coordinator(Scripted(), 10.0)
    for event in (*all_events(), ev.RunStarted({})):
        before = snapshot(coordinator)
        with pytest.raises(InvalidTransition):
            coordinator.handle(event, 0.0)
        assert snapshot(coordinator) == before
