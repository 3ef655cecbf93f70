"""What the TOML writer writes, the standard library reads back."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.record.toml import dump_toml

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_scalar = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | _text
    | st.just("\x00\x1f\x7f\u2028")
)
_value = st.recursive(
    _scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_text, _value, max_size=5))
@settings(max_examples=300, deadline=None)
def test_every_document_is_read_back_equal(document: dict[str, object]) -> None:
    assert tomllib.loads(dump_toml(document)) == document


def test_tables_come_after_values_and_arrays_of_tables_are_used() -> None:
    text = dump_toml({"job": [{"name": "a", "options": {"l2": 0.1}}], "format": 1, "none": None})
    assert text == 'format = 1\n\n[[job]]\nname = "a"\n\n[job.options]\nl2 = 0.1\n'


def test_tuples_are_written_as_arrays() -> None:
    assert dump_toml({"a": (1, (2, 3))}) == "a = [1, [2, 3]]\n"


@pytest.mark.parametrize(
    ("value", "error"), [(object(), TypeError), ("\ud800", ValueError), ([None], TypeError)]
)
def test_a_value_without_a_toml_form_is_refused_by_key(value: object, error: type) -> None:
    with pytest.raises(error, match=r"run\.bad: "):
        dump_toml({"run": {"bad": value}})


def test_a_key_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match="key 1 is not a string"):
        dump_toml({"run": {1: 2}})
