"""Hyperparameters are checked, and a refusal names the key, the value and what is valid."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest

from hpcslaq.errors import TrainingError
from hpcslaq.train.options import Option, validate_options


class Tree:
    options: ClassVar = {
        "depth": Option(int, 3, "levels", at_least=1, at_most=10),
        "rate": Option(float, 0.1, "shrinkage", above=0.0, below=1.0),
        "kind": Option(str, "exact", "how", choices=("exact", "hist")),
        "verbose": Option(bool, False, "talk"),
        "step": Option(float, None, "none: adaptive"),
        "sizes": Option(int, (8,), "layers", at_least=1, is_list=True),
    }


def test_defaults_fill_in_and_values_are_converted():
    settings = validate_options(Tree, {"rate": 0.5, "step": 2, "sizes": [3, 4]})
    assert settings == {
        "depth": 3,
        "rate": 0.5,
        "kind": "exact",
        "verbose": False,
        "step": 2.0,
        "sizes": (3, 4),
    }
    assert type(settings["step"]) is float


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dept": 3}, r"dept: Tree has no such option \(valid: depth, kind, rate"),
        ({"depth": 0}, r"depth: 0 is not valid for Tree \(valid: int >= 1 and <= 10\)"),
        ({"depth": True}, "depth: True"),
        ({"depth": 2.0}, r"depth: 2.0"),
        ({"rate": 1.0}, r"float > 0 and < 1\)"),
        ({"rate": math.nan}, "rate: nan"),
        ({"rate": None}, "rate: None"),
        ({"kind": "fast"}, "one of exact, hist"),
        ({"step": "x"}, "float or none"),
        ({"sizes": 3}, "list of int >= 1"),
        ({"sizes": [3, 0]}, "sizes"),
    ],
)
def test_refusals_name_key_value_and_what_is_valid(given, message):
    with pytest.raises(TrainingError, match=message):
        validate_options(Tree, given)
