"""Policies by name."""

import pytest

from hpcslaq.policies.registry import (
    DEFAULT_POLICY,
    make_policy,
    policy_names,
    policy_parameters,
    policy_summary,
)


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_can_be_made_by_its_name_and_says_what_it_is(name: str) -> None:
    assert make_policy(name).name == name
    assert policy_summary(name)
    defaults = {p.name: p.default for p in policy_parameters(name)}
    assert make_policy(name, **defaults) == make_policy(name)


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_names_its_source_and_how_it_deviates(name: str) -> None:
    text = type(make_policy(name)).__doc__ or ""
    assert "Source: " in text and "eviat" in text


def test_the_default_policy_exists() -> None:
    assert DEFAULT_POLICY in policy_names()


def test_an_unknown_policy_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'slack' \(valid: .*fair.*slaq"):
        make_policy("slack")


def test_an_unknown_parameter_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"patience: .*valid: patience_rounds"):
        make_policy("fair", patience=3)


@pytest.mark.parametrize("value", ["3", True, None])
def test_a_parameter_of_the_wrong_type_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="patience_rounds"):
        make_policy("fair", patience_rounds=value)


def test_a_whole_number_serves_as_a_float() -> None:
    assert make_policy("fair", patience_rounds=3) == make_policy("fair", patience_rounds=3.0)
