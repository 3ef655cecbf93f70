"""The loop of a member: flags, failures, stop rules, redos and agreement, without MPI."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import TrainingError
from hpcslaq.train.model import Model, Step
from hpcslaq.train.reducer import Solo
from hpcslaq.train.selfcheck import checker_of
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import Flag, StopRule, Trainer, chunk_share


class Halving(Model):
    """Loss 1, 1/2, 1/4, ... times the row count's mean feature; hooks make it misbehave."""

    steps = 1
    on_statistics = staticmethod(lambda chunk, draw: None)
    on_update = staticmethod(lambda state: None)
    converges_at = 10**9

    def steps_per_epoch(self, info):
        return self.steps

    def initial_state(self, data, rng):
        return {"level": np.ones(1), "seen": np.zeros(1, dtype=np.int64)}

    def statistics(self, state, chunk, draw):
        special = self.on_statistics(chunk, draw)
        if special is not None:
            return special
        return {"sum": chunk.X.sum(axis=0) * state["level"], "rows": chunk.num_rows}

    def update(self, state, totals, context):
        self.on_update(state)
        state["seen"] += int(totals["rows"])
        loss = float(totals["sum"][0]) / context.info.num_rows
        state["level"] = state["level"] / 2
        return Step(loss, is_converged=context.iteration + 1 >= self.converges_at)


def halving(**attributes) -> Model:
    return type("Halving", (Halving,), attributes)({})


def spec(**changes) -> JobSpec:
    given = {"name": "job", "model": "m", "data": "d", "num_chunks": 6, "max_epochs": 5}
    return JobSpec(**(given | changes))


@pytest.fixture
def data(lab):
    return lab.ArrayData(np.ones((30, 2)), np.zeros(30))


def solo(model, data, job=None) -> Trainer:
    job = job or spec()
    return Trainer(job, model, data, initial_state(job, model, data), Solo())


def ends(lab, model, data, job, num_members=3):
    """The last report of each member, and how many steps each made."""

    def body(member, reducer):
        state = initial_state(job, model, data)
        trainer = Trainer(job, model, data, state, reducer, member=member)
        for count in range(1, 100):
            report = trainer.step()
            if report.is_final:
                return report, count
        raise AssertionError("no end")

    return lab.run_members(num_members, body)


def test_losses_epochs_and_iterations_are_counted(data):
    trainer = solo(halving(), data)
    reports = [trainer.step() for _ in range(5)]
    assert [r.loss for r in reports] == [1, 0.5, 0.25, 0.125, 0.0625]
    assert all(r.is_epoch_end for r in reports)
    assert [r.stop for r in reports] == [None] * 4 + [StopRule.EPOCHS]
    state = trainer.state
    assert (state.iterations, state.epochs, state.passes, state.step) == (5, 5, 5, 0)
    assert state.arrays["seen"][0] == 150


def test_an_epoch_ends_after_its_steps(data):
    trainer = solo(halving(steps=3), data, spec(max_epochs=2))
    reports = [trainer.step() for _ in range(6)]
    assert [r.is_epoch_end for r in reports] == [False, False, True] * 2
    assert reports[-1].stop is StopRule.EPOCHS


@pytest.mark.parametrize(
    ("changes", "attributes", "rule", "iterations"),
    [
        ({"target_loss": 0.3}, {}, StopRule.TARGET_LOSS, 3),
        ({"tolerance": 0.6, "patience": 2}, {}, StopRule.TOLERANCE, 3),
        ({"tolerance": 0.4}, {}, StopRule.EPOCHS, 5),
        ({}, {"converges_at": 2}, StopRule.CONVERGED, 2),
    ],
)
def test_stop_rules(data, lab, changes, attributes, rule, iterations):
    outcome = lab.train(spec(**changes), data, model=halving(**attributes))
    assert outcome.reports[-1].stop is rule
    assert outcome.state.iterations == iterations


def test_patience_counts_slow_iterations_in_a_row_only(data, lab):
    def shrink(state):  # every third level falls fast
        state["level"] *= 2.0 * (0.1 if state["seen"][0] // 30 % 3 == 2 else 0.99)

    job = spec(max_epochs=12, tolerance=0.05, patience=3)
    outcome = lab.train(job, data, model=halving(on_update=staticmethod(shrink)))
    assert outcome.reports[-1].stop is StopRule.EPOCHS


def test_only_the_first_pass_is_made_again_for_its_grid(data):
    trainer = solo(halving(), data)
    assert [trainer.step().num_redos for _ in range(4)] == [1, 0, 0, 0]
    assert trainer.state.redos == 1


def test_growth_beyond_the_headroom_and_a_steep_fall_are_made_again(data):
    factors = iter([1.0, 2.0**20, 2.0**-40, 1.0])

    def jump(state):
        state["level"] *= 2 * next(factors)

    trainer = solo(halving(on_update=staticmethod(jump)), data)
    assert [trainer.step().num_redos for _ in range(4)] == [1, 0, 1, 1]


def test_a_member_that_raises_ends_the_job_for_all(data, lab):
    def broken(chunk, draw):
        if chunk.index in (2, 5) and draw.epoch == 1:
            raise KeyError("oops")

    model = halving(on_statistics=staticmethod(broken))
    results = ends(lab, model, data, spec())
    reports = [report for report, _ in results]
    assert [count for _, count in results] == [2, 2, 2]
    # Members 1 (chunk 2) and 2 (chunk 5) raise: the last one reports.
    assert [r.failure.member for r in reports] == [2, 2, 2]
    assert reports[2].failure.message == (
        "job job, iteration 2: statistics of chunk 5: KeyError: 'oops'"
    )
    assert "in broken" in reports[2].failure.details
    assert reports[0].failure.details == ""
    assert "member 2 failed" in reports[0].failure.message


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_statistics_that_are_not_finite_are_named_on_all_members(data, lab, bad):
    def spoil(chunk, draw):
        if chunk.index == 3 and draw.epoch == 2:
            return {"sum": np.array([1.0, bad]), "rows": 5}

    results = ends(lab, halving(on_statistics=staticmethod(spoil)), data, spec())
    messages = {report.failure.message for report, _ in results}
    assert len(messages) == 1
    assert "iteration 3: statistics sum: not finite" in messages.pop()


class NanLoss(Halving):
    def update(self, state, totals, context):
        return Step(math.nan if context.iteration == 1 else 1.0)


def test_a_nan_loss_fails_alike_on_all_members(data, lab):
    results = ends(lab, NanLoss({}), data, spec())
    assert {r.failure.message for r, _ in results} == {"job job, iteration 2: the loss is nan"}


@pytest.mark.parametrize("failing_epoch", [0, 4])
def test_an_update_that_raises_on_one_member_hangs_nobody(data, lab, failing_epoch):
    calls = []

    def body(member, reducer):
        def raise_once(state):
            if member == 1 and state["seen"][0] == 30 * failing_epoch:
                raise MemoryError("too large")

        model = halving(on_update=staticmethod(raise_once))
        trainer = Trainer(
            spec(), model, data, initial_state(spec(), model, data), reducer, member=member
        )
        while True:
            report = trainer.step()
            if report.is_final:
                calls.append(member)
                return report

    reports = lab.run_members(3, body)
    assert sorted(calls) == [0, 1, 2]
    assert [r.failure.member for r in reports] == [1, 1, 1]
    assert [r.stop for r in reports] == [None] * 3
    assert "MemoryError: too large" in reports[1].failure.message


def test_statistics_that_change_when_computed_again_are_refused(data):
    count = iter(range(100))

    def drift(chunk, draw):
        return {"sum": np.array([2.0 ** (10 * next(count)), 1.0]), "rows": 1}

    report = solo(halving(on_statistics=staticmethod(drift)), data).step()
    assert "'sum' change when computed again" in report.failure.message


def test_members_with_different_shapes_are_told_apart(data, lab):
    def odd(chunk, draw):
        return {"sum": np.ones(2 if chunk.index < 3 else 3), "rows": 5}

    results = ends(lab, halving(on_statistics=staticmethod(odd)), data, spec(), num_members=2)
    assert all("disagree on names or shapes" in r.failure.message for r, _ in results)


def test_leave_is_kept_until_the_epoch_ends_and_reaches_all(data, lab):
    job, model = spec(), halving(steps=3)

    def body(member, reducer):
        state = initial_state(job, model, data)
        trainer = Trainer(job, model, data, state, reducer, member=member)
        return [trainer.step({Flag.LEAVE: 7.0} if member == i == 1 else None) for i in range(3)]

    for reports in lab.run_members(3, body):
        assert [r.is_leaving for r in reports] == [False, False, True]
        assert [r.flags.get(Flag.LEAVE) for r in reports] == [None, 7.0, 7.0]


def test_stop_ends_at_once_without_an_update(data):
    trainer = solo(halving(), data)
    trainer.step()
    report = trainer.step({Flag.STOP: 1.0})
    assert report.is_stopped
    assert report.is_final
    assert trainer.state.passes == 1


def test_a_state_that_differs_on_one_member_is_noticed_and_repaired(data, lab):
    job, model = spec(), halving()

    def body(member, reducer):
        trainer = Trainer(job, model, data, initial_state(job, model, data), reducer, member=member)
        trainer.step()
        good = TrainState.unpack(trainer.state.pack())
        if member == 2:
            trainer.state.arrays["level"] *= 1 + 2**-52
        noticed = trainer.step()
        trainer.restore(good)
        return noticed, trainer.step()

    for noticed, after in lab.run_members(3, body):
        assert noticed.is_diverged
        assert noticed.loss is None
        assert not after.is_diverged
        assert after.loss == 0.5


def test_the_last_state_is_compared_before_the_job_ends(data, lab):
    job = spec(max_epochs=1)

    def body(member, reducer):
        def spoil(state):
            state["level"] *= 1 + member

        model = halving(on_update=staticmethod(spoil))
        state = initial_state(job, model, data)
        return Trainer(job, model, data, state, reducer, member=member).step()

    for report in lab.run_members(2, body):
        assert report.is_diverged
        assert report.stop is StopRule.EPOCHS


def test_seconds_are_split_between_models_and_reductions(data):
    now = iter(float(i) for i in range(1000))
    job, model = spec(), halving()
    state = initial_state(job, model, data)
    trainer = Trainer(job, model, data, state, Solo(), clock=lambda: next(now))
    trainer.step()
    report = trainer.step()
    # A clock that ticks at each reading: MAX and SUM last one tick each.
    assert report.reduce_s == 2
    assert report.compute_s == 3


def test_the_same_job_on_any_allocation(data, lab):
    rng = np.random.default_rng(0)
    noisy = lab.ArrayData(rng.standard_normal((31, 2)) + 2, np.zeros(31))
    lab.assert_allocation_does_not_matter(spec(max_epochs=20), noisy, halving(steps=2))


def test_a_chunk_that_cannot_be_read_fails_the_job(lab):
    class Broken(lab.ArrayData):
        def chunk(self, index, num_chunks):
            raise OSError("disk on fire")

    report = solo(halving(), Broken(np.ones((30, 2)), np.zeros(30))).step()
    assert "OSError: disk on fire" in report.failure.message


def test_a_kept_chunk_is_not_read_again_after_a_regroup(lab):
    reads = []

    class Counting(lab.ArrayData):
        def chunk(self, index, num_chunks):
            reads.append(index)
            return super().chunk(index, num_chunks)

    trainer = solo(halving(), Counting(np.ones((30, 2)), np.zeros(30)))
    trainer.step()
    trainer.regroup(Solo(), member=0, chunks=range(3))
    trainer.step()
    assert reads == [0, 1, 2, 3, 4, 5]


def test_a_member_without_chunks_is_refused(data):
    job, model = spec(), halving()
    with pytest.raises(TrainingError, match="holds no chunk"):
        Trainer(job, model, data, initial_state(job, model, data), Solo(), chunks=[])


@given(st.integers(1, 200), st.integers(1, 50))
def test_shares_cover_all_chunks_and_differ_by_at_most_one(num_chunks, num_members):
    shares = [chunk_share(num_chunks, num_members, i) for i in range(num_members)]
    assert [c for share in shares for c in share] == list(range(num_chunks))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_an_update_that_returns_something_else_is_explained(data):
    class Forgetful(Halving):
        def update(self, state, totals, context):
            return 3.0

    trainer = solo(Forgetful({}), data)
    trainer.step()
    assert "update returned float, not Step" in trainer.step().failure.message


def test_parameters_that_raise_fail_the_job(data):
    class Odd(Halving):
        def parameters(self, state):
            raise ValueError("no parameters")

    assert "parameters: ValueError" in solo(Odd({}), data).step().failure.message


def test_a_restored_state_starts_with_empty_caches(data):
    trainer = solo(halving(), data)
    trainer.step()
    trainer._chunk(0).cache["derived"] = 1
    trainer.restore(trainer.state)
    assert trainer._chunk(0).cache == {}


def test_a_member_that_gives_up_tells_all_others(data, lab):
    job, model = spec(), halving()

    def body(member, reducer):
        state = initial_state(job, model, data)
        trainer = Trainer(job, model, data, state, reducer, member=member)
        trainer.step()
        if member == 1:
            trainer.fail("no space left", "details")
        return trainer.step()

    reports = lab.run_members(3, body)
    assert [r.failure.member for r in reports] == [1, 1, 1]
    assert reports[1].failure.message == "job job, iteration 2: no space left"


class Stop(BaseException):
    """What no `except Exception` catches."""


class Mute(Exception):
    """An exception that cannot be shown."""

    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), Stop("x"), Mute()])
@pytest.mark.parametrize("hook", ["on_statistics", "on_update"])
def test_whatever_user_code_raises_is_the_failure_of_its_job(data, lab, error, hook):
    def broken(*args):
        raise error

    results = ends(lab, halving(**{hook: staticmethod(broken)}), data, spec())
    for report, _ in results:
        assert report.failure.member == 2
    assert type(error).__name__ in results[2][0].failure.message


def test_a_failure_is_told_in_bounded_and_printable_text(data, lab):
    def broken(state):
        raise RuntimeError("\udc80" + "x" * 10_000_000)

    failure = ends(lab, halving(on_update=staticmethod(broken)), data, spec())[2][0].failure
    assert len(failure.message) < 2000
    assert len(failure.details.encode()) < 100_000


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step("much"), "could not convert string to float"),
        (Step(np.ones(2)), "TypeError"),
        (Step(1.0, np.ones(2)), "ValueError"),
        (Step(10**400), "OverflowError"),
    ],
)
def test_an_update_whose_step_makes_no_sense_fails_the_job(data, step, text):
    class Odd(Halving):
        def update(self, state, totals, context):
            return step

    trainer = solo(Odd({}), data)
    trainer.step()
    assert text in trainer.step().failure.message


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda state: state.update(more=np.ones(1)), "the update left"),
        (lambda state: state.pop("level"), "the update left"),
        (lambda state: state.update(level=[{}]), "'level' was float64, the update made it object"),
        (lambda state: state.update(level=np.float32(1)), "the update made it float32"),
    ],
)
def test_a_state_that_cannot_be_packed_any_more_fails_the_job(data, change, text):
    class Odd(Halving):
        def update(self, state, totals, context):
            change(state)
            return Step(1.0)

    trainer = solo(Odd({}), data)
    trainer.step()
    assert text in trainer.step().failure.message


def test_an_array_without_dimensions_may_become_a_scalar(data):
    class Counting(Halving):
        def initial_state(self, data, rng):
            return {"t": np.array(0.0)}

        def statistics(self, state, chunk, draw):
            return {"rows": chunk.num_rows}

        def update(self, state, totals, context):
            state["t"] = state["t"] + 1
            return Step(float(state["t"]))

    trainer = solo(Counting({}), data)
    assert trainer.step().loss == 1
    assert isinstance(trainer.state.arrays["t"], np.ndarray)


@pytest.mark.parametrize("steps", [0, -1, 1.5, None])
def test_an_impossible_number_of_steps_fails_the_job(data, steps):
    report = solo(halving(steps=steps), data).step()
    assert "steps_per_epoch" in report.failure.message


def test_members_that_count_steps_differently_are_told_apart(data, lab):
    def body(member, reducer):
        model = halving(steps=1 + member)
        state = initial_state(spec(), model, data)
        return Trainer(spec(), model, data, state, reducer, member=member).step()

    for report in lab.run_members(2, body):
        assert "steps_per_epoch: members disagree" in report.failure.message


def repaired_until_the_end(lab, data, hook, *, num_epochs=40):
    """Members whose states the hook drives apart, each repair taking member 0's state."""
    job, model = spec(max_epochs=num_epochs), halving()
    packed = {}

    def body(member, reducer):
        own = halving(on_update=staticmethod(lambda state: hook(member, state)))
        trainer = Trainer(job, own, data, initial_state(job, model, data), reducer, member=member)
        for _ in range(3 * num_epochs):
            report = trainer.step()
            if report.is_diverged:
                if member == 0:
                    packed.update(trainer.state.pack())
                reducer.barrier.wait(30)
                trainer.restore(TrainState.unpack(packed))
                reducer.barrier.wait(30)
            if report.is_final:
                return report
        raise AssertionError("no end")

    return lab.run_members(2, body)


def test_members_that_differ_after_every_repair_fail_the_job(data, lab):
    def spoil(member, state):
        state["level"] *= 1 + member

    for report in repaired_until_the_end(lab, data, spoil):
        assert report.stop is None
        assert "differed 11 times in a row" in report.failure.message


def test_members_that_differ_now_and_then_are_repaired_for_ever(data, lab):
    def spoil(member, state):
        state["level"] *= 1 + member * (state["seen"][0] // 30 % 2)

    for report in repaired_until_the_end(lab, data, spoil):
        assert report.failure is None
        assert report.stop is StopRule.EPOCHS


def self_checked(lab, model, data, job, num_members=3):
    """The last report of each member of a self-checked job."""

    def body(member, reducer):
        state = initial_state(job, model, data)
        trainer = Trainer(job, model, data, state, reducer, member=member, self_check=True)
        while True:
            report = trainer.step()
            if report.is_final:
                return report

    return lab.run_members(num_members, body)


@pytest.mark.parametrize("num_members", [1, 2, 3])
def test_a_self_check_names_the_statistic_that_is_not_reproducible(data, lab, num_members):
    rng = np.random.default_rng()  # of the model's own: what it must not have

    def noisy(chunk, draw):
        noise = rng.random() if draw.epoch >= 3 else 0.0
        return {"sum": np.ones(2), "noise": noise, "rows": chunk.num_rows}

    model = halving(on_statistics=staticmethod(noisy))
    reports = self_checked(lab, model, data, spec(max_epochs=40), num_members)
    for report in reports:
        message = report.failure.message
        assert "iteration 9: self-check: statistics 'noise' of chunk" in message
        assert "'sum'" not in message


def test_a_self_check_sees_results_that_depend_on_the_cache(data, lab):
    def counting(chunk, draw):
        count = chunk.cache["count"] = chunk.cache.get("count", 0) + 1
        return {"sum": np.ones(2) * count, "rows": chunk.num_rows}

    model = halving(on_statistics=staticmethod(counting))
    reports = self_checked(lab, model, data, spec(max_epochs=40), 2)
    assert "self-check: statistics 'sum'" in reports[0].failure.message


@pytest.mark.parametrize("num_members", [1, 2, 3, 5])
def test_a_self_check_lets_good_models_pass_and_changes_no_bit(data, lab, num_members):
    job = spec(max_epochs=30)
    alone = lab.train(job, data, model=halving())
    reports = self_checked(lab, halving(), data, job, num_members)
    assert all(report.failure is None for report in reports)
    assert reports[0].loss == alone.reports[-1].loss


def test_a_checker_that_raises_fails_the_job_with_its_message(data, lab):
    def once(chunk, draw):
        if draw.epoch == 8 and not chunk.cache:  # the owner has had it since epoch 0
            raise RuntimeError("not twice")
        chunk.cache["seen"] = True

    model = halving(on_statistics=staticmethod(once))
    reports = self_checked(lab, model, data, spec(max_epochs=20), 2)
    assert all(report.failure is not None for report in reports)
    assert any("self-check of chunk" in report.failure.message for report in reports)


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_checker_is_the_member_after_the_owner(num_chunks, num_members):
    num_members = min(num_chunks, num_members)
    for chunk in range(num_chunks):
        checker = checker_of(chunk, num_chunks, num_members)
        assert chunk in chunk_share(num_chunks, num_members, (checker - 1) % num_members)


def test_a_model_that_ends_the_process_fails_its_job_only(data):
    def leave(chunk, draw):
        raise SystemExit("bye")

    failure = solo(halving(on_statistics=staticmethod(leave)), data).step().failure
    assert "sys.exit('bye') was called" in failure.message
    assert "raise SystemExit" in failure.details
