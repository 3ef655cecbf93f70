"""Journals add up to the right states and figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.core.jobs import JobSpec, JobState
from hpcslaq.record.codec import Kind
from hpcslaq.record.jobsummary import NUM_RECENT, Segment
from hpcslaq.record.journal import JournalWriter, read_journal
from hpcslaq.record.summary import BUCKETS, RunSummary


def spec(name: str, **change: object) -> JobSpec:
    values: dict[str, object] = {"model": "logreg", "data": "census", "num_chunks": 8}
    return JobSpec(name=name, **{**values, "max_epochs": 9, **change})  # type: ignore[arg-type]


class Story:
    """Folds entries as a run would journal them."""

    def __init__(self, num_workers: int = 4, **options: bool) -> None:
        self.summary = RunSummary("slaq", **options)
        self(0.0, ev.RunStarted(dict.fromkeys(range(1, num_workers + 1), "h")))

    def __call__(self, now: float, item: ev.Event | cmd.Command) -> None:
        is_command = type(item).__module__ == cmd.__name__
        self.summary.fold(Kind.COMMAND if is_command else Kind.EVENT, now, item)

    def start(self, now: float, job: str, *members: int, generation: int = 1) -> None:
        self(now, cmd.Start(job, generation, members))
        self(now + 0.5, ev.GroupFormed(job, generation, members, 0, 0.5))

    def progress(self, now: float, job: str, first: int, *losses: float) -> None:
        self(now, ev.ProgressReported(job, 1, first, losses, first // 5, 0.1 * len(losses), 1))

    def state(self, job: str) -> JobState:
        return self.summary.jobs[job].state


def finish(job: str, iterations: int = 4, loss: float = 0.1) -> ev.JobFinished:
    return ev.JobFinished(job, 1, iterations, 2, loss, "l" * 64, "m" * 64, "epochs", {"auc": 0.9})


def test_a_job_from_submission_to_its_end() -> None:
    run = Story()
    run(1.0, ev.JobSubmitted(spec("a", weight=2.0)))
    run.start(2.0, "a", 1, 2)
    run.progress(4.0, "a", 1, 0.9, 0.5)
    run(4.0, cmd.Regroup("a", 2, (1, 3, 4), (3, 4), (2,)))
    assert run.state("a") is JobState.REGROUPING
    run.progress(5.0, "a", 3, 0.3)
    run(5.5, ev.RankReleased(2, "a", 1, {"compute": 2.0, "reduce": 1.0}))
    run(6.0, ev.GroupFormed("a", 2, (1, 3, 4), 3, 0.25))
    run(7.0, ev.CheckpointWritten("a", 3, 1, 4096, 0.01))
    run(10.5, finish("a"))
    for rank in (1, 3, 4):
        run(10.5, ev.RankReleased(rank, "a", 2, {"compute": 3.0}))
    run(11.0, cmd.Shutdown(0))
    row = run.summary.to_json(series=True)["jobs"][0]
    assert row["name"] == "a"
    assert row["state"] == "done"
    assert (row["epochs"], row["iterations"], row["regroups"]) == (2, 4, 1)
    assert (row["final_loss"], row["first_loss"], row["last_loss"]) == (0.1, 0.9, 0.1)
    assert (row["loss_digest"], row["model_digest"]) == ("l" * 64, "m" * 64)
    assert (row["jct_s"], row["queue_s"]) == (9.5, 1.5)
    assert row["segments"] == [[2.5, 6.0, [1, 2]], [6.0, 10.5, [1, 3, 4]]]
    assert row["rank_seconds"] == 2 * 3.5 + 3 * 4.5
    assert row["usage_s"] == {"compute": 11.0, "reduce": 1.0}
    assert row["recent_losses"] == [0.9, 0.5, 0.3]
    assert (row["checkpoints"], row["checkpoint_bytes"], row["checkpoint_at"]) == (1, 4096, 7.0)
    assert row["metrics"] == {"auc": 0.9}
    assert (row["reason"], row["failure"], row["weight"]) == ("epochs", None, 2.0)
    assert row["series"] == []


def test_a_dissolved_group_holds_only_its_leader_until_the_job_is_done() -> None:
    run = Story()
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(0.5, "a", 1, 2)
    run(3.0, ev.GroupDissolved("a", 1))
    assert run.state("a") is JobState.FINISHING
    run(5.0, finish("a"))
    assert run.state("a") is JobState.DONE
    assert run.summary.jobs["a"].rank_seconds(9.0) == pytest.approx(2 * 2.0 + 2.0)


def test_the_run_adds_up_its_time_and_its_jobs() -> None:
    run = Story()
    run(1.0, ev.JobSubmitted(spec("a")))
    run(2.0, ev.JobSubmitted(spec("b")))
    run.start(2.0, "a", 1, 2)
    assert run.summary.makespan_s is None
    run(6.0, finish("a"))
    run(6.0, ev.RankReleased(1, "a", 1, {"compute": 4.0}))
    run(7.0, ev.RankReleased(2, "a", 1, {"compute": 3.0, "control": 1.0}))
    run(8.0, ev.JobCancelled("b"))
    run(10.0, cmd.Shutdown(1))
    figures = run.summary.to_json()
    assert (figures["policy"], figures["ranks"], figures["workers"]) == ("slaq", 5, 4)
    assert (figures["state"], figures["exit_code"]) == ("ended", 1)
    assert (figures["wall_s"], figures["makespan_s"], figures["rank_seconds"]) == (10, 7, 40)
    # Rank 1 was promised or a member from 2 to 6, rank 2 from 2 to 7.
    assert figures["usage_s"]["idle"] == 40 - 4 - 5
    assert figures["usage_s"]["compute"] == 7
    assert set(figures["usage_s"]) == {*BUCKETS, "idle"}
    assert (figures["events"], figures["commands"], figures["ignored"]) == (8, 2, 0)
    assert (figures["regroup_s"], figures["regroups"], figures["incarnations"]) == (0.5, 0, 1)
    assert figures["counts"]["done"] == figures["counts"]["cancelled"] == 1
    assert sum(figures["counts"].values()) == 2


def test_the_keys_that_users_rely_on_are_there() -> None:
    run = Story()
    run(0.0, ev.JobSubmitted(spec("a")))
    row = run.summary.to_json()["jobs"][0]
    wanted = "name state epochs iterations final_loss loss_digest model_digest regroups"
    assert {*wanted.split(), "rank_seconds", "jct_s"} <= set(row)
    assert row["jct_s"] is row["final_loss"] is row["queue_s"] is None


@pytest.mark.parametrize(
    ("items", "state"),
    [
        ([], JobState.WAITING),
        ([cmd.Reject("a", "full")], JobState.REJECTED),
        ([ev.JobCancelled("a", "no")], JobState.CANCELLED),
        ([cmd.Start("a", 1, (1,))], JobState.STARTING),
        ([cmd.Start("a", 1, (1,)), ev.RankLost(1)], JobState.WAITING),
        ([cmd.Start("a", 1, (1, 2)), ev.RankLost(1)], JobState.STARTING),
        ([cmd.Start("a", 1, (1, 2)), ev.RankLost(1), cmd.Dismiss("a", 1, (2,))], JobState.WAITING),
        ([cmd.Start("a", 1, (1,)), ev.JobFailed("a", 1, 1, "bad", "trace")], JobState.FAILED),
    ],
)
def test_a_job_that_never_formed_a_group_ends_in_its_state(
    items: list[ev.Event | cmd.Command], state: JobState
) -> None:
    run = Story()
    run(1.0, ev.JobSubmitted(spec("a")))
    for item in items:
        run(2.0, item)
    assert run.state("a") is state
    assert run.summary.num_ignored == 0
    row = run.summary.to_json()["jobs"][0]
    assert row["jct_s"] == (1.0 if state.is_final else None)
    assert row["rank_seconds"] == 0


@pytest.mark.parametrize(
    ("items", "state"),
    [
        ([cmd.Pause("a", 1, 1)], JobState.PAUSING),
        ([cmd.Pause("a", 1, 1), ev.JobPaused("a", 1, 3)], JobState.WAITING),
        ([cmd.Stop("a", 1, 1)], JobState.STOPPING),
        ([cmd.Stop("a", 1, 1), ev.JobStopped("a", 1)], JobState.CANCELLED),
        ([ev.JobFailed("a", 1, 2, "NaN loss", "trace")], JobState.FAILED),
        ([ev.RankLost(2, "killed")], JobState.RUNNING),
        ([ev.RankLost(2), ev.RankLost(1)], JobState.WAITING),
        ([cmd.Stop("a", 1, 1), ev.RankLost(2), ev.RankLost(1)], JobState.CANCELLED),
        ([ev.RunStarted({1: "h"})], JobState.WAITING),
        ([cmd.Stop("a", 1, 1), ev.RunStarted({1: "h"})], JobState.CANCELLED),
        ([ev.JobCancelled("a", "no")], JobState.RUNNING),
        ([finish("a"), ev.CheckpointWritten("a", 4, 1, 9, 0.1)], JobState.DONE),
    ],
)
def test_a_running_job_moves_as_the_table_says(
    items: list[ev.Event | cmd.Command], state: JobState
) -> None:
    run = Story()
    run(1.0, ev.JobSubmitted(spec("a")))
    run.start(1.0, "a", 1, 2)
    for item in items:
        run(2.5, item)
    assert run.state("a") is state
    assert run.summary.num_ignored == 0
    assert bool(run.summary.jobs["a"].members) is (not state.is_final and state != JobState.WAITING)


def test_a_pause_and_a_new_start_are_no_regroups_but_the_pause_is_counted() -> None:
    run = Story()
    run(1.0, ev.JobSubmitted(spec("a")))
    run.start(1.0, "a", 1, 2)
    run(2.0, cmd.Pause("a", 1, 1))
    run(2.5, ev.JobPaused("a", 1, 3))
    run(3.0, cmd.Start("a", 2, (1,)))
    run(3.5, ev.GroupFormed("a", 2, (1,), 3))
    figures = run.summary.to_json()
    assert (figures["regroups"], figures["pauses"]) == (0, 1)
    assert (figures["jobs"][0]["regroups"], figures["jobs"][0]["pauses"]) == (0, 1)


def test_a_failure_keeps_its_message_and_details() -> None:
    run = Story()
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(1.0, "a", 1)
    run(2.0, ev.JobFailed("a", 1, 1, "NaN loss in iteration 3", "Traceback"))
    row = run.summary.to_json()["jobs"][0]
    assert row["failure"] == row["reason"] == "NaN loss in iteration 3"
    assert row["details"] == "Traceback"


def test_a_lost_rank_leaves_the_group_and_the_capacity() -> None:
    run = Story(2)
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(0.5, "a", 1, 2)
    run(4.0, ev.RankLost(2, "killed"))
    run(4.25, ev.GroupFormed("a", 2, (1,), 7, 0.25))
    run(6.0, finish("a"))
    run(6.0, ev.RankReleased(1, "a", 2))
    run(8.0, cmd.Shutdown(0))
    summary = run.summary
    assert summary.lost == {2: "killed"}
    assert summary.rank_seconds == 8 + 4
    assert summary.idle_s == 12 - (4 - 0.5) - (6 - 0.5)
    job = summary.jobs["a"]
    assert job.segments == [Segment(1.0, 4.0, (1, 2)), Segment(4.0, 6.0, (1,))]
    assert job.regroups == 1
    assert summary.num_ignored == 0


def test_a_restart_ends_the_groups_and_rewinds_to_the_checkpoint() -> None:
    run = Story(2, keep_series=True)
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(0.5, "a", 1, 2)
    run.progress(2.0, "a", 1, 0.9, 0.8, 0.7)
    run(10.0, ev.RunStarted({1: "h", 2: "h", 3: "h"}))
    job = run.summary.jobs["a"]
    assert job.state is JobState.WAITING
    # The time between the last sign of life and the restart belongs to nobody.
    assert job.rank_seconds(10.0) == 2 * 1.0
    run(10.0, cmd.Start("a", 2, (3,)))
    run(11.0, ev.GroupFormed("a", 2, (3,), 1, 0.5))
    assert job.iterations == 1
    assert list(job.recent) == [0.9]
    run.progress(12.0, "a", 2, 0.8, 0.7, 0.6)
    assert job.iterations == 4
    assert [(n, loss) for n, _, loss in job.series or ()] == [
        (1, 0.9),
        (2, 0.8),
        (3, 0.7),
        (4, 0.6),
    ]
    assert job.regroups == 0
    assert job.queue_s == 1.0
    figures = run.summary.to_json()
    assert figures["incarnations"] == 2
    assert figures["workers"] == 3
    assert figures["rank_seconds"] == 2 * 2.0 + 3 * 2.0


def test_the_losses_of_a_report_are_spread_over_its_time() -> None:
    run = Story(1, keep_series=True)
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(0.5, "a", 1)
    run.progress(3.0, "a", 1, 0.9, 0.8, 0.7)
    row = run.summary.to_json(series=True)["jobs"][0]
    assert [n for n, _, _ in row["series"]] == [1, 2, 3]
    assert [at for _, at, _ in row["series"]] == pytest.approx([2.8, 2.9, 3.0])


def test_only_so_many_recent_losses_are_kept() -> None:
    run = Story(1)
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(0.5, "a", 1)
    for number in range(300):
        run.progress(1.0, "a", number + 1, float(number))
    job = run.summary.jobs["a"]
    assert list(job.recent) == [float(n) for n in range(300 - NUM_RECENT, 300)]
    assert job.series is None


def test_entries_that_the_coordinator_refused_change_nothing() -> None:
    run = Story()
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(1.0, "a", 1)
    run(2.0, finish("a"))
    before = run.summary.to_json()
    refused = [
        ev.JobSubmitted(spec("a", weight=9.0)),
        ev.JobCancelled("a"),
        ev.JobCancelled("b"),
        ev.WeightChanged("a", 3.0),
        ev.WeightChanged("b", 3.0),
        ev.GroupFormed("a", 1, (1,)),
        ev.GroupFormed("b", 1, (1,)),
        ev.ProgressReported("a", 1, 9, (0.0,), 1, 0.1, 1),
        ev.ProgressReported("b", 1, 9, (0.0,), 1, 0.1, 1),
        ev.JobFailed("a", 1, 1, "x"),
        ev.RankLost(99),
        cmd.Start("a", 2, (1,)),
        cmd.Start("b", 2, (1,)),
        cmd.Reject("a", "x"),
        cmd.Dismiss("b", 1, (1,)),
    ]
    for item in refused:
        run(2.0, item)
    after = run.summary.to_json()
    assert after.pop("ignored") == len(refused)
    assert after["jobs"] == before["jobs"]
    assert after["usage_s"] == before["usage_s"]


def test_a_group_of_an_older_generation_is_left_out() -> None:
    run = Story()
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(1.0, "a", 1, generation=5)
    run(2.0, cmd.Regroup("a", 6, (1, 2), (2,), ()))
    run(2.0, ev.GroupFormed("a", 5, (1,)))
    assert run.state("a") is JobState.REGROUPING
    assert run.summary.num_ignored == 1


def test_the_run_says_whether_it_waits_runs_stops_or_has_ended() -> None:
    assert RunSummary().state == "waiting"
    run = Story()
    states = [run.summary.state]
    for item in (ev.StopRequested("SIGUSR1"), cmd.Shutdown(75), ev.RunStarted({1: "h"})):
        run(1.0, item)
        states.append(run.summary.state)
    assert states == ["running", "stopping", "ended", "running"]


def test_non_finite_numbers_become_null() -> None:
    run = Story()
    run(0.0, ev.JobSubmitted(spec("a")))
    run.start(1.0, "a", 1)
    run.progress(2.0, "a", 1, math.nan, math.inf)
    run(2.5, ev.RankReleased(1, "a", 1, {"compute": math.inf}))
    row = run.summary.to_json()["jobs"][0]
    assert row["recent_losses"] == [None, None]
    json.dumps(run.summary.to_json(series=True), allow_nan=False)


def test_a_journal_is_folded_as_it_is_read(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        writer.append(0.0, ev.RunStarted({1: "h"}), ev.JobSubmitted(spec("a")))
        writer.append(1.0, cmd.Start("a", 1, (1,)))
    summary = RunSummary()
    summary.fold_all(read_journal(tmp_path / "journal.jsonl"))
    assert summary.jobs["a"].state is JobState.STARTING
    assert (summary.num_events, summary.num_commands, summary.wall_s) == (2, 1, 1.0)


_job = st.sampled_from(["a", "b"])
_rank = st.integers(1, 4)
_ranks = st.lists(_rank, min_size=1, max_size=3, unique=True).map(tuple)
_small = st.integers(0, 5)
_loss = st.floats()
_usage = st.dictionaries(st.sampled_from(BUCKETS), st.floats(0, 9), max_size=2)
_items = st.one_of(
    st.builds(ev.RunStarted, st.just({1: "h", 2: "h", 3: "h", 4: "h"})),
    st.builds(ev.JobSubmitted, _job.map(spec)),
    st.builds(ev.JobCancelled, _job),
    st.builds(ev.WeightChanged, _job, st.floats(0.1, 9)),
    st.builds(ev.GroupFormed, _job, _small, _ranks, _small, st.floats(0, 1)),
    st.builds(
        ev.ProgressReported,
        _job,
        _small,
        st.integers(1, 9),
        st.lists(_loss, max_size=3).map(tuple),
        _small,
        st.floats(0, 1),
        _rank,
    ),
    st.builds(ev.CheckpointWritten, _job, _small, _small, _small, st.floats(0, 1)),
    st.builds(ev.CheckpointFailed, _job, _small, st.just("full")),
    st.builds(ev.JobPaused, _job, _small, _small),
    st.builds(finish, _job, _small, _loss),
    st.builds(ev.JobStopped, _job, _small),
    st.builds(ev.JobFailed, _job, _small, _rank, st.text(max_size=3)),
    st.builds(ev.RankReleased, _rank, _job, _small, _usage),
    st.builds(ev.RankLost, _rank),
    st.builds(ev.StopRequested),
    st.builds(ev.RoundElapsed),
    st.builds(cmd.Start, _job, _small, _ranks),
    st.builds(cmd.Regroup, _job, _small, _ranks, _ranks, st.just(())),
    st.builds(cmd.Pause, _job, _small, _rank),
    st.builds(cmd.Stop, _job, _small, _rank),
    st.builds(cmd.Dismiss, _job, _small, _ranks),
    st.builds(cmd.Reject, _job),
    st.builds(cmd.Shutdown, _small),
)


@given(st.lists(st.tuples(st.floats(0, 3), _items), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_order_of_entries_keeps_the_books_straight(
    steps: list[tuple[float, ev.Event | cmd.Command]],
) -> None:
    run = Story(keep_series=True)
    now = 0.0
    for step, item in steps:
        now += step
        ended = {n: j.to_json(0) for n, j in run.summary.jobs.items() if j.state.is_final}
        run(now, item)
        for name, figures in ended.items():
            assert run.summary.jobs[name].state.value == figures["state"]
            assert run.summary.jobs[name].finished_at == figures["finished_at"]
    figures = run.summary.to_json(series=True)
    json.dumps(figures, allow_nan=False)
    assert figures["events"] + figures["commands"] == len(steps) + 1
    assert sum(figures["counts"].values()) == len(figures["jobs"])
    assert figures["usage_s"]["idle"] <= figures["rank_seconds"] + 1e-9
    for row in figures["jobs"]:
        numbers = [n for n, _, _ in row["series"]]
        assert numbers == sorted(set(numbers))
        ends = [value for start, end, _ in row["segments"] for value in (start, end or now)]
        assert ends == sorted(ends)
        assert row["rank_seconds"] >= 0
        assert (row["finished_at"] is not None) is JobState(row["state"]).is_final
