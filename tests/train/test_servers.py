"""Parameter servers in lock-step: the same bits as all-reduce, whoever serves and computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcslaq.core.jobs import JobSpec, Sync
from hpcslaq.train.catalogue import MODELS, build_model, load_model_class
from hpcslaq.train.model import Model, Slices, Step
from hpcslaq.train.options import validate_options
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import Flag, StopRule, Trainer

CAN = [
    (model, {"solver": solver, "l2": l2})
    for model in ("logistic", "softmax", "svm", "poly_svm", "mlp", "mlp_regressor")
    for solver, l2 in (("sgd", 0.01), ("momentum", 0.0), ("adam", 0.01))
]


def spec(model: str = "logistic", options=None, **changes) -> JobSpec:
    options = validate_options(load_model_class(model), {"batch_size": 60, **(options or {})})
    given = {"num_chunks": 7, "max_epochs": 3, "seed": 3, "options": options}
    return JobSpec("job", model, "arrays", **(given | changes))


def serving(job: JobSpec, num_servers: int) -> JobSpec:
    return replace(job, sync=Sync.PS, num_servers=num_servers)


@pytest.fixture
def data(lab):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((200, 6))
    return lab.ArrayData(X, (X[:, 0] > X[:, 1]).astype(float))


@pytest.fixture
def numbers(lab):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((200, 6))
    return lab.ArrayData(X, X[:, 0] - X[:, 1] ** 2, "regression")


@pytest.mark.parametrize(("model", "options"), CAN)
def test_servers_give_the_bits_of_all_reduce_on_any_ranks(lab, data, numbers, model, options):
    rows = numbers if model == "mlp_regressor" else data
    job = spec(model, options)
    alone = lab.train(job, rows)
    assert alone.reports[-1].stop is StopRule.EPOCHS
    for num_servers in (1, 2, 3):
        for num_workers in (1, 2, 5):
            outcome = lab.train(serving(job, num_servers), rows, [num_servers + num_workers])
            assert outcome.digests == alone.digests
            assert outcome.state.pack().keys() == alone.state.pack().keys()
            for name, array in outcome.state.pack().items():
                np.testing.assert_array_equal(array, alone.state.pack()[name], err_msg=name)


@pytest.mark.parametrize("ratio", [1.0, 1.5, 3.0])
@pytest.mark.parametrize(("model", "options"), [CAN[2], CAN[4], CAN[14]])
def test_numbers_of_workers_and_servers_may_change_at_every_boundary(
    lab, data, model, options, ratio
):
    job = spec(model, options, max_epochs=9)
    alone = lab.train(job, data)
    moving = replace(job, sync=Sync.PS, workers_per_server=ratio)
    sizes = np.random.default_rng(2).integers(1, 8, size=50).tolist()
    outcome = lab.train(moving, data, sizes)
    assert outcome.regroups == 8
    splits = {moving.workers_among(size) for size in sizes[:9]}
    assert len(splits) >= 3
    assert outcome.digests == alone.digests


def test_more_servers_than_parameters_serve_nothing_and_change_nothing(lab, data):
    job = spec("logistic", {"solver": "adam"})
    alone = lab.train(job, data)
    assert lab.train(serving(job, 9), data, [11]).digests == alone.digests  # 7 parameters


def members(lab, job, data, size, body):
    """`body(trainer)` on each member of a group of trainers of the job."""

    def run(member, reducer):
        model = build_model(job.model, job.options)
        state = initial_state(job, model, data)
        return body(Trainer(job, model, data, state, reducer, member=member, self_check=True))

    return lab.run_members(size, run)


def test_only_a_server_has_the_optimisers_memory_between_boundaries(lab, data):
    def body(trainer):
        trainer.step()
        arrays = trainer.state.arrays
        return arrays["x"].size, arrays["mean"].size, arrays["square"].size

    job = serving(spec("logistic", {"solver": "adam"}), 2)
    assert members(lab, job, data, 4, body) == [(7, 0, 0)] * 4


def test_a_checkpoint_makes_the_leaders_state_whole(lab, data):
    job = spec("logistic", {"solver": "adam"})
    alone = lab.train(replace(job, max_epochs=1), data)

    def body(trainer):
        while True:
            report = trainer.step({Flag.CHECKPOINT: 1.0} if trainer.member == 0 else {})
            if report.is_epoch_end:
                whole = {k: a.copy() for k, a in trainer.state.pack().items()}
                rest = [trainer.step() for _ in range(8)]
                return report, whole, trainer.state.loss_digest(), rest[-1].stop

    results = members(lab, serving(job, 2), data, 5, body)
    report, whole, digest, stop = results[0]
    assert Flag.CHECKPOINT in report.flags and not report.is_final
    for name, array in alone.state.pack().items():
        np.testing.assert_array_equal(whole[name], array, err_msg=name)
    # What follows is not disturbed by it.
    assert stop is StopRule.EPOCHS
    assert {r[2] for r in results} == {digest} == {lab.train(job, data).digests[0]}


def test_a_state_that_was_whole_goes_on_in_a_job_without_servers(lab, data):
    job = spec("softmax", {"solver": "momentum"}, max_epochs=6)
    first = lab.train(serving(replace(job, max_epochs=3), 2), data, [4])
    model = build_model(job.model, job.options)
    trainer = Trainer(job, model, data, TrainState.unpack(first.state.pack()), lab.Solo())
    while not trainer.step().is_final:
        pass
    assert trainer.state.loss_digest() == lab.train(job, data).digests[0]


class Averages(Model):
    """A model of a user: moves x to the mean of the rows; hooks make it misbehave."""

    on_move = staticmethod(lambda state, start: None)
    on_observe = staticmethod(lambda context: None)
    cut = Slices("x", ("trace",))

    def steps_per_epoch(self, info):
        return 3

    def initial_state(self, data, rng):
        return {"x": np.zeros(data.num_features), "trace": np.zeros(data.num_features)}

    def statistics(self, state, chunk, draw):
        return {"gradient": chunk.X.sum(axis=0) - chunk.num_rows * state["x"], "more": np.ones(3)}

    def update(self, state, totals, context):
        done = self.observe(state, totals, context)
        self.move(state, totals, context, 0)
        return done

    def slices(self):
        return self.cut

    def observe(self, state, totals, context):
        self.on_observe(context)
        return Step(float(totals["more"].sum()) + float(state["x"].sum()))

    def move(self, state, totals, context, start):
        state["trace"] = 0.5 * state["trace"] + totals["gradient"] / context.info.num_rows
        state["x"] = state["x"] + 0.3 * state["trace"]
        self.on_move(state, start)


def ends(lab, data, num_servers=2, size=5, **hooks):
    """The last report of each member of a job with a model of the class above."""
    job = JobSpec("job", "m", "d", 7, 4, sync=Sync.PS, num_servers=num_servers)

    def run(member, reducer):
        model = type("Averages", (Averages,), hooks)({})
        state = initial_state(job, model, data)
        trainer = Trainer(job, model, data, state, reducer, member=member)
        for _ in range(100):
            report = trainer.step()
            if report.is_final:
                return report
        raise AssertionError("no end")

    return lab.run_members(size, run)


def test_a_model_of_ones_own_may_replace_its_arrays(lab, data):
    job = JobSpec("job", "m", "d", 7, 4)
    alone = lab.train(job, data, model=Averages({}))
    for size in (2, 5):
        outcome = lab.train(serving(job, 1), data, [size], model=Averages({}))
        assert outcome.digests == alone.digests


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_server_that_fails_ends_the_job_for_all(lab, data, epoch, step):
    count = []

    def fails(state, start):
        count.append(start)
        if start > 0 and len([s for s in count if s > 0]) == 3 * epoch + step + 1:
            raise RuntimeError("out of order")

    reports = ends(lab, data, on_move=staticmethod(fails))
    assert {r.failure.member for r in reports} == {4}
    assert "update: RuntimeError: out of order" in reports[4].failure.message
    assert all(r.stop is None for r in reports)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_member_that_fails_to_observe_ends_the_job_for_all(lab, data, step):
    def fails(context):
        if context.step == step:
            raise RuntimeError("cannot look")

    reports = ends(lab, data, on_observe=staticmethod(fails))
    assert {r.failure.member for r in reports} == {4}
    assert "update: RuntimeError: cannot look" in reports[4].failure.message


def test_a_failure_before_a_checkpoint_leaves_nobody_waiting(lab, data):
    def fails(state, start):
        if start:
            raise RuntimeError("no more")

    job = JobSpec("job", "m", "d", 7, 4, sync=Sync.PS, num_servers=2)

    def run(member, reducer):
        hooks = {"on_move": staticmethod(fails), "steps_per_epoch": lambda self, info: 1}
        model = type("Averages", (Averages,), hooks)({})
        trainer = Trainer(job, model, data, initial_state(job, model, data), reducer, member=member)
        for _ in range(3):
            report = trainer.step({Flag.CHECKPOINT: 1.0})
            if report.is_final:
                return report

    reports = lab.run_members(5, run)
    assert {r.failure.member for r in reports} == {4}


@pytest.mark.parametrize(
    ("hooks", "problem"),
    [
        ({"cut": None}, "Averages does not update its parameters element by element"),
        ({"cut": Slices("y")}, "parameter servers need 'y'"),
        ({"cut": Slices("x", ("missing",))}, "parameter servers need 'missing'"),
        ({"cut": Slices("x", (), "slope")}, "parameter servers need 'slope' of shape (6,)"),
        (
            {"on_move": staticmethod(lambda state, start: state.update(trace=np.zeros(2)))},
            "state: move made of 'trace', a float64 vector of 3, float64 (2,)",
        ),
    ],
)
def test_a_model_that_does_not_fit_its_slices_is_told_so(lab, data, hooks, problem):
    reports = ends(lab, data, **hooks)
    assert all(r.failure for r in reports)
    assert any(problem in r.failure.message for r in reports)


def test_a_stop_and_a_leave_reach_servers_too(lab, data):
    def body(trainer):
        trainer.step()
        report = trainer.step({Flag.STOP: 1.0} if trainer.member == 1 else {})
        return report.is_stopped

    assert members(lab, serving(spec("mlp"), 2), data, 4, body) == [True] * 4


@pytest.mark.parametrize("name", MODELS)
def test_every_model_says_which_of_its_solvers_servers_can_run(name):
    model_class = load_model_class(name)
    solver = model_class.options.get("solver")
    for value in solver.choices if solver else (None,):
        settings = validate_options(model_class, {"solver": value} if value else {})
        problem = model_class.sync_problem(settings)
        assert (problem == "") == (model_class(settings).slices() is not None)
        assert (problem == "") == (value in ("sgd", "momentum", "adam"))
        if value == "lbfgs":
            assert problem == (
                "the solver lbfgs does not work element by element (valid: sgd, momentum, adam)"
            )
