"""Parameter servers with staleness: bounds that hold, nobody who hangs, models that are learnt."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcslaq.core.jobs import JobSpec, Sync
from hpcslaq.train.catalogue import build_model, load_model_class
from hpcslaq.train.model import Model, Slices, Step
from hpcslaq.train.options import validate_options
from hpcslaq.train.stale import Desk, StaleTrainer, Tally, trainer_class
from hpcslaq.train.state import initial_state
from hpcslaq.train.trainer import Flag, StopRule, Trainer

SLACKS = [1, 3, math.inf]


def spec(model: str = "logistic", options=None, **changes) -> JobSpec:
    options = validate_options(load_model_class(model), {"batch_size": 40, **(options or {})})
    given = {
        "num_chunks": 6,
        "max_epochs": 5,
        "options": options,
        "sync": Sync.PS,
        "num_servers": 2,
        "staleness": 2,
    }
    return JobSpec("job", model, "arrays", **(given | changes))


@pytest.fixture
def data(lab):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((400, 6))
    return lab.ArrayData(X, (X[:, 0] + 0.3 * rng.standard_normal(400) > X[:, 1]).astype(float))


def test_only_jobs_with_staleness_are_trained_out_of_step():
    assert trainer_class(spec()) is StaleTrainer
    assert trainer_class(spec(staleness=0)) is Trainer


@pytest.mark.parametrize("staleness", SLACKS)
@pytest.mark.parametrize(
    ("model", "solver"), [("logistic", "sgd"), ("svm", "momentum"), ("mlp", "adam")]
)
def test_it_learns_about_what_lock_step_learns(lab, data, model, solver, staleness):
    job = spec(model, {"solver": solver, "rate": 0.02, "l2": 1e-3}, staleness=staleness)
    job = replace(job, max_epochs=20)
    exact = lab.train(replace(job, staleness=0), data, [4])
    stale = lab.train(job, data, [6])
    assert stale.reports[-1].stop is StopRule.EPOCHS
    assert stale.state.epochs == 20 and stale.state.passes == exact.state.passes
    assert stale.state.iterations == exact.state.iterations
    assert stale.state.last_loss < 0.8 * stale.state.losses[0]
    # How much it learns is the threads' luck: later pushes see what earlier ones did, and an
    # optimiser's memory fades with each, so a pass of three workers does not do the same.
    first = stale.state.losses[0]
    learnt = (first - stale.state.last_loss) / (first - exact.state.last_loss)
    assert learnt > (0.9 if solver == "sgd" else 0.7)


def test_pushes_of_one_worker_are_the_synchronous_passes(lab, data):
    # Alone nobody is ahead, and the pushes come in order: the same numbers, but for rounding.
    job = spec("mlp", {"solver": "adam", "l2": 1e-3}, num_servers=3, staleness=math.inf)
    exact = lab.train(replace(job, staleness=0), data, [4])
    alone = lab.train(job, data, [4])
    np.testing.assert_allclose(alone.state.losses, exact.state.losses, rtol=1e-9)
    np.testing.assert_allclose(alone.state.arrays["x"], exact.state.arrays["x"], rtol=1e-6)
    np.testing.assert_array_equal(alone.state.arrays["count"], exact.state.arrays["count"])


def test_numbers_of_workers_and_servers_may_change_at_every_boundary(lab, data):
    job = spec("softmax", {"solver": "adam"}, num_servers=0, workers_per_server=1.5, max_epochs=12)
    sizes = np.random.default_rng(2).integers(1, 8, size=50).tolist()
    outcome = lab.train(job, data, sizes)
    assert outcome.regroups == 11
    assert outcome.state.epochs == 12
    assert outcome.state.last_loss < outcome.state.losses[0]


def test_a_target_loss_ends_the_job_at_the_epochs_end(lab, data):
    job = spec("logistic", {"solver": "adam", "rate": 0.05}, max_epochs=500, target_loss=0.4)
    outcome = lab.train(job, data, [5])
    assert outcome.reports[-1].stop is StopRule.TARGET_LOSS
    assert min(outcome.state.losses) <= 0.4 < outcome.state.losses[0]


class Clocks(Model):
    """Records when each worker begins which pass; hooks make it slow or fail."""

    steps = 6
    on_statistics = staticmethod(lambda chunk, draw: None)
    on_move = staticmethod(lambda start: None)

    def steps_per_epoch(self, info):
        return self.steps

    def initial_state(self, data, rng):
        return {"x": np.zeros(data.num_features), "count": np.zeros(1, dtype=np.int64)}

    def slices(self):
        return Slices("x")

    def statistics(self, state, chunk, draw):
        special = self.on_statistics(chunk, draw)
        gradient = np.full(chunk.X.shape[1], float(chunk.num_rows))
        return special or {"gradient": gradient, "rows": float(chunk.num_rows)}

    def update(self, state, totals, context):
        done = self.observe(state, totals, context)
        self.move(state, totals, context, 0)
        return done

    def observe(self, state, totals, context):
        state["count"] += 1
        return Step(1.0 + float(state["x"][0]))

    def move(self, state, totals, context, start):
        self.on_move(start)
        state["x"] = state["x"] - totals["gradient"] / totals["rows"]


def run(lab, data, job, size, *, flags=None, **hooks):
    """The trainer and last report of each member, at the job's end."""

    def body(member, reducer):
        model = type("Clocks", (Clocks,), hooks)({})
        state = initial_state(job, model, data)
        trainer = trainer_class(job)(job, model, data, state, reducer, member=member)
        for count in range(1000):
            report = trainer.step(flags(member, count, trainer) if flags else None)
            if report.is_final:
                return trainer, report
        raise AssertionError("no end")

    return lab.run_members(size, body)


def clocks_job(**changes) -> JobSpec:
    given = {"num_chunks": 6, "max_epochs": 3, "sync": Sync.PS, "num_servers": 2, "staleness": 2}
    return JobSpec("job", "m", "d", **(given | changes))


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_no_worker_is_further_ahead_than_the_bound_and_one_gets_there(lab, data, staleness):
    """A slow worker begins a pass only when the others wait for it: they get to the bound."""
    job = clocks_job(staleness=staleness)
    begun, problems, changed = [0, 0, 0], [], threading.Condition()

    def on_statistics(chunk, draw):
        worker = chunk.index // 2  # three workers with two chunks each
        if chunk.index % 2:
            return
        with changed:
            clock = draw.epoch * 6 + draw.step
            begun[worker] = clock + 1
            changed.notify_all()
            if max(begun) - min(begun) > staleness + 1:  # begun is one more than completed
                problems.append(list(begun))
            if worker == 0:
                ahead = min(clock + 1 + staleness, draw.epoch * 6 + 6)
                assert changed.wait_for(lambda: begun[1] >= ahead and begun[2] >= ahead, 20)

    results = run(lab, data, job, 5, on_statistics=staticmethod(on_statistics))
    assert not problems
    assert all(report.stop is StopRule.EPOCHS for _, report in results)
    assert {trainer.most_ahead for trainer, _ in results[3:]} == {staleness}


def test_without_a_bound_nobody_waits_for_a_slow_worker(lab, data):
    """Worker 0 begins its first pass only when the others have begun their last of the epoch."""
    job, last = clocks_job(staleness=math.inf), threading.Barrier(3)

    def on_statistics(chunk, draw):
        is_slow = chunk.index == 0 and draw.step == 0
        if is_slow or (chunk.index in (2, 4) and draw.step == 5):
            last.wait(20)

    results = run(lab, data, job, 5, on_statistics=staticmethod(on_statistics))
    assert all(report.stop is StopRule.EPOCHS for _, report in results)
    assert max(trainer.most_ahead for trainer, _ in results[3:]) == 5


def test_every_push_moves_by_its_share(lab, data):
    # Each pass moves by 1 in all, whoever makes it: 6 passes an epoch, 3 epochs.
    for size in (3, 4, 5, 8):
        results = run(lab, data, clocks_job(), size)
        for trainer, _ in results:
            np.testing.assert_allclose(trainer.state.arrays["x"], -18.0)
            assert trainer.state.passes == 18


@given(data_=st.data())
def test_the_desk_lets_go_on_whom_the_bound_allows_and_in_the_end_all(data_):
    num_workers = data_.draw(st.integers(1, 5))
    staleness = data_.draw(st.sampled_from([1.0, 2.0, 5.0, math.inf]))
    desk = Desk(num_workers, staleness)
    steps, done = data_.draw(st.integers(1, 6)), [0] * num_workers
    computing = set(range(num_workers))
    while not desk.is_over:
        worker = data_.draw(st.sampled_from(sorted(computing)))
        computing.discard(worker)
        if data_.draw(st.integers(0, 30)) == 0 or desk.is_ending:
            desk.left(worker)
            done[worker] = math.inf
        else:
            done[worker] += 1
            is_last = done[worker] == steps
            desk.pushed(worker, is_last=is_last)
            done[worker] = math.inf if is_last else done[worker]
        for ready in desk.answer():
            assert desk.is_ending or done[ready] - staleness <= min(done)
            computing.add(ready)
        # Whoever is the slowest may always go on: somebody computes until all are through.
        assert computing or desk.is_over
    assert desk.most_ahead <= staleness


def test_a_tally_reports_as_often_whatever_the_shares():
    for shares in ([1.0] * 6, [0.5, 0.5] * 6, [0.3, 0.3, 0.4] * 6, [1 / 7] * 42):
        tally = Tally()
        for share in shares:
            tally.add(2.0, share, 2.0)
        assert tally.losses == pytest.approx([2.0, 2.0, 2.0])


# -- failures, stops and leaves at any pass: nobody hangs, no message is left over -----------


@pytest.mark.parametrize("staleness", SLACKS)
@pytest.mark.parametrize("seed", range(6))
def test_a_worker_that_fails_at_any_pass_ends_the_job_for_all(lab, data, seed, staleness):
    rng = np.random.default_rng(seed)
    epoch, step, chunk = rng.integers(3), rng.integers(6), rng.integers(6)

    def fails(own, draw):
        if (draw.epoch, draw.step, own.index) == (epoch, step, chunk):
            raise RuntimeError("out of order")

    job = clocks_job(staleness=staleness)
    results = run(lab, data, job, 5, on_statistics=staticmethod(fails))
    assert {report.failure.member for _, report in results} == {chunk // 2}
    assert "statistics: RuntimeError: out of order" in results[chunk // 2][1].failure.message


@pytest.mark.parametrize("staleness", SLACKS)
@pytest.mark.parametrize("push", [1, 2, 5, 17, 18, 19, 40, 54])
def test_a_server_that_fails_at_any_push_ends_the_job_for_all(lab, data, push, staleness):
    count = []

    def fails(start):
        if start:
            count.append(start)
            if len(count) == push:
                raise RuntimeError("cannot move")

    results = run(lab, data, clocks_job(staleness=staleness), 5, on_move=staticmethod(fails))
    assert {report.failure.member for _, report in results} == {4}
    assert "update: RuntimeError: cannot move" in results[4][1].failure.message


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 9, 17])
def test_a_stop_ends_all_before_the_epoch_does(lab, data, count):
    def flags(member, number, trainer):
        return {Flag.STOP: 1.0} if member == 0 and number == count else {}

    results = run(lab, data, clocks_job(max_epochs=50), 5, flags=flags)
    assert all(report.is_stopped for _, report in results)
    assert {trainer.state.epochs for trainer, _ in results} == {count // 6}


@pytest.mark.parametrize("count", [0, 2, 5, 8])
def test_a_leave_is_carried_out_at_the_next_boundary_with_whole_states(lab, data, count):
    def flags(member, number, trainer):
        return {Flag.LEAVE: 1.0} if member == 0 and number == count else {}

    results = run(lab, data, clocks_job(max_epochs=50), 5, flags=flags)
    assert all(report.is_leaving for _, report in results)
    states = [trainer.state.pack() for trainer, _ in results]
    assert all(
        {k: a.tobytes() for k, a in s.items()} == {k: a.tobytes() for k, a in states[0].items()}
        for s in states
    )
    assert states[0]["counters"][1] == count // 6 + 1  # epochs


def test_a_checkpoint_makes_the_leaders_state_whole(lab, data):
    job = spec("logistic", {"solver": "adam"}, staleness=math.inf)
    sizes = []

    def body(member, reducer):
        model = build_model(job.model, job.options)
        state = initial_state(job, model, data)
        trainer = StaleTrainer(job, model, data, state, reducer, member=member)
        while True:
            report = trainer.step({Flag.CHECKPOINT: 1.0} if member == 0 else {})
            if member == 0 and report.is_epoch_end:
                sizes.append(trainer.state.arrays["square"].size)
                assert np.count_nonzero(trainer.state.arrays["square"]) == 7
            if report.is_final:
                return report.stop

    assert lab.run_members(5, body) == [StopRule.EPOCHS] * 5
    assert sizes == [7] * 5


@pytest.mark.parametrize(
    ("special", "problem"),
    [
        ({"gradient": np.full(6, np.nan), "rows": 1.0}, "statistics gradient: not finite"),
        ({"gradient": np.ones(5), "rows": 1.0}, "'gradient' of shape (6,)"),
        ({"rows": 1.0}, "'gradient' of shape (6,)"),
    ],
)
def test_unusable_statistics_are_named(lab, data, special, problem):
    def odd(chunk, draw):
        return special if chunk.index in (2, 3) and (draw.epoch, draw.step) == (1, 2) else None

    results = run(lab, data, clocks_job(), 5, on_statistics=staticmethod(odd))
    assert {report.failure.member for _, report in results} == {1}
    assert problem in results[1][1].failure.message


def test_members_that_disagree_on_the_steps_of_an_epoch_fail(lab, data):
    def body(member, reducer):
        job = clocks_job()
        model = type("Clocks", (Clocks,), {"steps": 4 if member == 1 else 6})({})
        state = initial_state(job, model, data)
        trainer = StaleTrainer(job, model, data, state, reducer, member=member)
        while True:
            report = trainer.step()
            if report.is_final:
                return report.failure.message

    assert all("members disagree" in message for message in lab.run_members(5, body))


def test_the_leader_hears_of_losses_within_an_epoch_and_all_agree_at_its_end(lab, data):
    heard = []

    def flags(member, number, trainer):
        if member == 0:
            heard.append((number, trainer.state.iterations))
        return {}

    results = run(lab, data, clocks_job(), 5, flags=flags)
    assert any(number % 6 and iterations % 6 for number, iterations in heard)
    losses = [trainer.state.losses.tolist() for trainer, _ in results]
    assert all(own == losses[0] for own in losses) and len(losses[0]) == 18
