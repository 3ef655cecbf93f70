"""PyTorch modules as models: against plain torch, on any allocation, through a checkpoint."""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import TrainingError
from hpcslaq.record.store import CheckpointStore
from hpcslaq.train.options import Option, validate_options
from hpcslaq.train.state import TrainState, initial_state

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from hpcslaq.train.torch_model import TorchModel  # noqa: E402

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


class Net(TorchModel):
    """A network with batch normalisation and dropout, both if asked for."""

    options: ClassVar = {
        **TorchModel.options,
        "optimiser": Option(str, "adam", "which", choices=tuple(OPTIMISERS)),
        "is_plain": Option(bool, False, "without normalisation and dropout"),
    }

    def build(self, info):
        num_outputs = info.num_classes or 1
        if self.settings["is_plain"]:
            return nn.Sequential(
                nn.Linear(info.num_features, 5), nn.Tanh(), nn.Linear(5, num_outputs)
            )
        return nn.Sequential(
            nn.Linear(info.num_features, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(8, num_outputs),
        )

    def loss(self, outputs, y):
        if y.dtype == torch.int64:
            return nn.functional.cross_entropy(outputs, y, reduction="none")
        return nn.functional.mse_loss(outputs[:, 0], y, reduction="none")

    def optimiser(self, parameters):
        return OPTIMISERS[self.settings["optimiser"]](parameters)


def made(model_class=Net, **options):
    return model_class(validate_options(model_class, options))


class EachItsOwn:
    """A model of its own for each thread, one at a time: members are processes, in earnest."""

    lock = threading.Lock()

    def __init__(self, make):
        self.make, self.local = make, threading.local()

    def __getattr__(self, name):
        if not hasattr(self.local, "model"):
            self.local.model = self.make()
        method = getattr(self.local.model, name)

        def call(*args):
            with self.lock:
                return method(*args)

        return call


def spec(**changes) -> JobSpec:
    given = {"name": "job", "model": "net", "data": "arrays", "num_chunks": 5, "max_epochs": 3}
    return JobSpec(**(given | changes))


@pytest.fixture
def data(lab):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6))
    return lab.ArrayData(X, (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(float))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "rprop"])
def test_full_batches_move_like_plain_torch(data, lab, name):
    model = made(optimiser=name, is_plain=True, batch_size=300)
    outcome = lab.train(spec(max_epochs=12), data, model=model)
    assert outcome.reports[-1].failure is None, outcome.reports[-1].failure.details

    start = initial_state(spec(), made(is_plain=True), data).arrays
    module = made(is_plain=True).module(start)
    module.train()
    optimiser = OPTIMISERS[name](module.parameters())
    X, y = torch.from_numpy(data.X).float(), torch.from_numpy(data.y).long()
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(X), y)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    np.testing.assert_allclose(outcome.state.losses, losses, rtol=2e-4)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_is_the_same_on_any_allocation(data, lab, name):
    model = EachItsOwn(lambda: made(optimiser=name, batch_size=100))
    outcome = lab.assert_allocation_does_not_matter(spec(), data, model)
    assert outcome.state.losses[-1] < outcome.state.losses[0]
    assert outcome.state.arrays["counters"].tolist() == [9]  # steps: 3 epochs of 3


def test_nothing_but_the_state_is_kept_from_pass_to_pass(data, lab):
    alone = lab.train(spec(), data, model=made(batch_size=100))

    class Forgetful(Net):
        def statistics(self, state, chunk, draw):
            return made(batch_size=100).statistics(state, chunk, draw)

        def update(self, state, totals, context):
            return made(batch_size=100).update(state, totals, context)

    assert lab.train(spec(), data, model=made(Forgetful, batch_size=100)).digests == alone.digests


@pytest.mark.parametrize("name", ["momentum", "adam", "nadam"])
def test_a_checkpoint_continues_with_the_same_bits(data, lab, tmp_path, name):
    whole = lab.train(spec(max_epochs=6), data, model=made(optimiser=name))
    half = lab.train(spec(max_epochs=3), data, model=made(optimiser=name))
    store = CheckpointStore(tmp_path, {"job": "job"}, 1)
    store.save(half.state.iterations, half.state.pack(), {})
    state = TrainState.unpack(store.load_newest().arrays)
    model, job = made(optimiser=name), spec(max_epochs=6)
    trainer = lab.Trainer(job, model, data, state, lab.Solo())
    while not trainer.step().is_final:
        pass
    assert state.loss_digest() == whole.state.loss_digest()
    assert state.model_digest(model) == whole.state.model_digest(whole.model)


def test_float32_values_are_exact_in_the_state(data):
    model = made()
    state = initial_state(spec(), model, data).arrays
    values = state["parameters"]
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, values.astype(np.float32))
    flat = torch.cat([p.reshape(-1) for p in model.module(state).parameters()])
    np.testing.assert_array_equal(flat.detach().numpy(), values)


def test_regression_and_sparse_rows(data, lab):
    X = sparse.csr_array(data.X * (data.X > 0))
    y = 3.0 * data.X[:, 0] * (data.X[:, 0] > 0)
    own = lab.ArrayData(X, y, "regression")
    outcome = lab.train(spec(max_epochs=60), own, model=made(is_plain=True, batch_size=50))
    measured = outcome.model.evaluate(outcome.state.arrays, own.rows(0, 300))
    assert measured["r2"] > 0.9
    assert outcome.model.predict(outcome.state.arrays, X).shape == (300,)


def test_digits_are_learnt(digits, lab):
    outcome = lab.train(spec(max_epochs=15), digits, model=made(is_plain=False, batch_size=64))
    measured = outcome.model.evaluate(outcome.state.arrays, digits.rows(0, 1797))
    assert measured["accuracy"] > 0.85
    probabilities = outcome.model.predict(outcome.state.arrays, digits.X[:7])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_a_frozen_and_an_unused_parameter_stay_as_they_were(data, lab):
    class Half(Net):
        def build(self, info):
            module = super().build(info)
            module[0].weight.requires_grad_(False)
            module.register_parameter("unused", nn.Parameter(torch.ones(3)))
            return module

    model = made(Half, is_plain=True, optimiser="sgd")
    start = initial_state(spec(), made(Half, is_plain=True), data).arrays["parameters"]
    outcome = lab.train(spec(), data, model=model)
    end = outcome.state.arrays["parameters"]
    np.testing.assert_array_equal(end[:3], 1.0)
    np.testing.assert_array_equal(end[3 : 3 + 30], start[3 : 3 + 30])
    assert np.any(end[33:] != start[33:])


def test_a_loss_that_is_already_reduced_is_explained(data, lab):
    class Mean(Net):
        def loss(self, outputs, y):
            return nn.functional.cross_entropy(outputs, y)

    failure = lab.train(spec(), data, model=made(Mean)).reports[-1].failure
    assert "expected one loss a row" in failure.message
    assert 'reduction="none"' in failure.message


def test_an_optimiser_that_needs_a_closure_is_refused(data):
    class Newton(Net):
        def optimiser(self, parameters):
            return torch.optim.LBFGS(parameters)

    with pytest.raises(TrainingError, match="LBFGS does not step without a closure"):
        initial_state(spec(), made(Newton), data)


def test_making_a_model_does_not_disturb_the_random_numbers_of_others(data):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    model = made()
    state = initial_state(spec(), model, data).arrays
    model.predict(state, data.X)
    assert torch.equal(torch.rand(3), expected)
