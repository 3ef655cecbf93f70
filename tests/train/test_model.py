"""The interface for users' own models: the documented example runs, defaults behave."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import DataError
from hpcslaq.train import model as model_module
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.model import DataInfo, Draw, Model, keyed_rng, steps_for_batches


@pytest.fixture
def documented(tmp_path):
    """The example in the docstring of the module, as a file of its own."""
    text = model_module.__doc__.split("\n\n")
    code = [part for part in text if part.startswith("    ")]
    path = tmp_path / "mean.py"
    head = "import numpy as np\nfrom hpcslaq.train import Model, Option, Step\n\n"
    path.write_text(head + textwrap.dedent("\n\n".join(code)))
    return f"{path}:Mean"


def test_the_documented_example_learns_the_mean_on_any_allocation(documented, lab):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) + np.arange(1, 4)
    job = JobSpec("job", documented, "arrays", 5, 40, options={"rate": 0.8})
    data = lab.ArrayData(X, np.zeros(50))
    outcome = lab.assert_allocation_does_not_matter(job, data)
    np.testing.assert_allclose(outcome.state.arrays["mean"], X.mean(axis=0), rtol=1e-12)
    spread = np.square(X - X.mean(axis=0)).sum() / 50
    assert outcome.state.last_loss == pytest.approx(spread)


def test_defaults_of_the_base_class(documented):
    model = build_model(documented, {})
    state = {"b": np.arange(2.0), "a": np.ones((1, 2)), "n": np.array([3])}
    np.testing.assert_array_equal(model.parameters(state), [1, 1, 0, 1])
    assert model.evaluate(state, None) == {}
    assert model.steps_per_epoch(DataInfo(10, 2)) == 1
    with pytest.raises(NotImplementedError, match="Mean does not predict"):
        model.predict(state, np.zeros((1, 2)))
    with pytest.raises(DataError, match="nothing to learn"):
        model.check_data(DataInfo(0, 2))


def test_a_model_must_say_what_it_sums():
    class Half(Model):
        def initial_state(self, data, rng):
            return {}

    with pytest.raises(TypeError, match="abstract"):
        Half({})


def test_draws_depend_on_each_part_of_their_key_only():
    draws = [Draw(1, 2, 3, 9, 4), Draw(0, 2, 3, 9, 4), Draw(1, 0, 3, 9, 4), Draw(1, 2, 0, 9, 4)]
    values = [d.rng().random() for d in [*draws, Draw(1, 2, 3, 9, 0)]]
    values.append(draws[0].rng(1).random())
    assert len(set(values)) == 6
    assert draws[0].rng().random() == Draw(1, 2, 3, 7, 4).rng().random()
    assert keyed_rng(-1).random() == keyed_rng(-1).random()


def test_steps_cover_all_rows_with_batches_of_about_the_size():
    assert steps_for_batches(DataInfo(1000, 1), 256) == 4
    assert steps_for_batches(DataInfo(100, 1), 256) == 1
