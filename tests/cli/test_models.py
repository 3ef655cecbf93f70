"""`hpcslaq models`: complete, also for a user's own model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from hpcslaq.train.catalogue import MODELS, load_model_class

Invoke = Callable[..., Result]

OWN = '''
from hpcslaq.train import Model, Option

class Own(Model):
    """A model of [my] own."""
    options = {"depth": Option(int, 3, "how deep", at_least=1, at_most=9)}
    def initial_state(self, data, rng): return {}
    def statistics(self, state, chunk, draw): return {}
    def update(self, state, totals, context): return None
    def predict(self, state, X): return X
    def evaluate(self, state, batch): return {}
'''


def test_all_models_are_listed_with_all_their_options(invoke: Invoke) -> None:
    models = json.loads(invoke("models", "--json").stdout)
    assert [model["name"] for model in models] == list(MODELS)
    for model in models:
        known = load_model_class(model["name"]).options
        assert [option["name"] for option in model["options"]] == list(known)
        assert model["doc"] and model["convergence"]
        assert all(option["doc"] and option["valid"] for option in model["options"])


def test_the_overview_fits_a_terminal_and_lists_every_model(invoke: Invoke) -> None:
    lines = invoke("models").stdout.splitlines()
    overview = lines[: lines.index("")]
    assert [line.split()[0] for line in overview[1:]] == list(MODELS)
    assert max(map(len, lines)) <= 120
    assert lines[-1] == "one with its options: hpcslaq models NAME"


def test_the_list_for_people_names_every_option_of_every_model(invoke: Invoke) -> None:
    text = invoke("models").stdout
    rows = text[text.index("options") :]
    for name in MODELS:
        following = rows.split(f"\n{name} ", 1)[1]
        own = re.split(r"\n(?=\S)", following)[0]
        names = {word for word in re.split(r"[,\s]+", own) if word}
        assert names == set(load_model_class(name).options)


def test_one_model_is_one_value(invoke: Invoke) -> None:
    model = json.loads(invoke("models", "logistic", "--json").stdout)
    l2 = next(option for option in model["options"] if option["name"] == "l2")
    assert (l2["type"], l2["valid"], l2["default"]) == ("float", "float >= 0", 0.0)


def test_it_is_said_which_solvers_parameter_servers_can_run(invoke: Invoke) -> None:
    models = {model["name"]: model for model in json.loads(invoke("models", "--json").stdout)}
    assert models["logistic"]["servers"] == models["mlp"]["servers"] == ["sgd", "momentum", "adam"]
    assert models["kmeans"]["servers"] is models["gbt"]["servers"] is False
    text = invoke("models", "svm").stdout
    assert "parameter servers: with the solvers sgd, momentum, adam" in text
    assert "parameter servers: no" in invoke("models", "lda").stdout


def test_a_users_model_is_shown_by_its_file(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    text = invoke("models", f"{path}:Own").stdout
    assert "A model of [my] own." in text
    assert "depth   int >= 1 and <= 9  3        how deep" in text


def test_an_unknown_model_lists_the_known_ones(invoke: Invoke) -> None:
    result = invoke("models", "nothing")
    assert result.exit_code == 3
    assert "logistic" in result.stderr
