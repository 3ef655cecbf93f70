"""Models by name, by module and by file."""

from __future__ import annotations

import textwrap

import pytest

from hpcslaq.errors import NotFoundError, TrainingError
from hpcslaq.train.catalogue import MODELS, build_model, load_model_class
from hpcslaq.train.model import Model
from hpcslaq.train.options import validate_options

MINE = """
    import numpy as np
    from dataclasses import dataclass
    from hpcslaq.train.model import Model, Step

    @dataclass
    class Note:
        text: "str"

    class Mean(Model):
        def initial_state(self, data, rng):
            return {"mean": np.zeros(data.num_features)}
        def statistics(self, state, chunk, draw):
            return {"sum": chunk.X.sum(axis=0)}
        def update(self, state, totals, context):
            state["mean"] = totals["sum"] / context.info.num_rows
            return Step(float(state["mean"].sum()), is_converged=True)

    NOT_A_MODEL = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(MINE))
    return path


def test_all_built_in_models_load_and_have_valid_defaults():
    assert list(MODELS) == sorted(MODELS)
    for name in MODELS:
        model_class = load_model_class(name)
        assert issubclass(model_class, Model)
        assert model_class.__doc__
        settings = validate_options(model_class, {})
        given = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        assert validate_options(model_class, given) == settings
        model_class(settings)


def test_a_class_is_loaded_from_a_file(file):
    assert load_model_class(f"{file}:Mean").__name__ == "Mean"
    assert load_model_class(f"{file}:Mean") is load_model_class(f"{file}:Mean")


@pytest.mark.parametrize(
    ("line", "problem"),
    [("raise SystemExit(7)", "SystemExit: 7"), ("1 / 0", "ZeroDivisionError: division by zero")],
)
def test_a_file_that_ends_badly_is_explained(file, line, problem):
    file.write_text(line)
    with pytest.raises(TrainingError, match=f"does not load: {problem}"):
        load_model_class(f"{file}:Mean")


def test_what_a_file_prints_when_it_is_loaded_stays_out_of_the_output(file, capsys):
    file.write_text(file.read_text() + "print('hello')\n")
    load_model_class(f"{file}:Mean")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "hello\n")


def test_a_class_is_loaded_from_a_module():
    model_class = load_model_class("hpcslaq.train.logistic:LogisticRegression")
    assert model_class is load_model_class("logistic")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("logistc", NotFoundError, "no such model .valid: .*logistic"),
        ("no.such.module:Class", NotFoundError, "no module no.such.module"),
        ("missing/file.py:Class", NotFoundError, "no file"),
        ("{file}:Mode", NotFoundError, "has no 'Mode'"),
        ("{file}:NOT_A_MODEL", TrainingError, "no subclass"),
        ("{file}:Note", TrainingError, "no subclass"),
    ],
)
def test_names_that_lead_nowhere_are_explained(file, name, error, message):
    with pytest.raises(error, match=message):
        load_model_class(name.format(file=file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module_at_all", "needs no_such_module_at_all"),
        ("def f(:", "does not load: SyntaxError"),
        ("x = undefined_name", "does not load: NameError"),
    ],
)
def test_a_file_that_does_not_load_is_explained(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(TrainingError, match=message):
        load_model_class(f"{path}:Mean")


def test_unknown_options_are_refused_when_a_model_is_built():
    with pytest.raises(TrainingError, match="no such option"):
        build_model("logistic", {"lambda": 1})
