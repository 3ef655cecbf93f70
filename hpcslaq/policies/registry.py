"""Policies by name, with the parameters that each takes.

`make_policy` is what job files and commands use; it raises ValueError, naming the key and
the valid ones, on anything it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, cast

from hpcslaq.core.policy import Policy
from hpcslaq.policies.elasticflow import ElasticFlowPolicy
from hpcslaq.policies.fair import FairPolicy
from hpcslaq.policies.fifo import FifoPolicy
from hpcslaq.policies.oasis.live import OasisElasticPolicy, OasisPolicy
from hpcslaq.policies.oracle import OracleQualityPolicy, OracleSlaqPolicy
from hpcslaq.policies.quality import QualityPolicy
from hpcslaq.policies.queues import EdfPolicy, LasPolicy, SrtfPolicy
from hpcslaq.policies.slaq import SlaqPolicy
from hpcslaq.policies.speed import MaxminPolicy, OptimusPolicy

#: The policy that is used where none is named.
DEFAULT_POLICY = "quality"

_CLASSES: dict[str, type] = {
    "quality": QualityPolicy,
    "slaq": SlaqPolicy,
    "fair": FairPolicy,
    "fifo": FifoPolicy,
    "las": LasPolicy,
    "srtf": SrtfPolicy,
    "edf": EdfPolicy,
    "elasticflow": ElasticFlowPolicy,
    "oasis": OasisPolicy,
    "oasis-elastic": OasisElasticPolicy,
    "optimus": OptimusPolicy,
    "maxmin": MaxminPolicy,
    "oracle-slaq": OracleSlaqPolicy,
    "oracle-quality": OracleQualityPolicy,
}
#: Policies that need to be told the future, and so only run in the simulator.
_ORACLES = frozenset({"oracle-slaq", "oracle-quality"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a policy: its name, its type ("int", "float", "str", "bool"), default."""

    name: str
    kind: str
    default: object


def policy_names(*, is_simulated: bool = True) -> tuple[str, ...]:
    """Names that `make_policy` knows, sorted; without the oracles where the run is real."""
    return tuple(sorted(name for name in _CLASSES if is_simulated or name not in _ORACLES))


def policy_summary(name: str) -> str:
    """The first line of the policy's docstring. Raises ValueError on an unknown name."""
    return (_class(name).__doc__ or "").strip().splitlines()[0]


def policy_parameters(name: str) -> tuple[Parameter, ...]:
    """What the policy can be told. Raises ValueError on an unknown name."""
    return tuple(
        Parameter(field.name, _kind(field), _default(field)) for field in fields(_class(name))
    )


def make_policy(name: str, **params: Any) -> Policy:
    """The policy of this name with these parameters, the rest at their defaults.

    Raises ValueError on an unknown name or parameter, a wrong type, or an impossible value.
    """
    schema = {parameter.name: parameter for parameter in policy_parameters(name)}
    values = {}
    for key, value in params.items():
        if key not in schema:
            valid = ", ".join(schema) or "it takes none"
            raise ValueError(f"{key}: policy {name!r} has no such parameter (valid: {valid})")
        values[key] = _checked(schema[key], value)
    return cast(Policy, cast(Callable[..., object], _class(name))(**values))


def _class(name: str) -> type:
    try:
        return _CLASSES[name]
    except KeyError:
        valid = ", ".join(policy_names())
        raise ValueError(f"policy: there is no {name!r} (valid: {valid})") from None


def _kind(field: Field[Any]) -> str:
    return field.type if isinstance(field.type, str) else field.type.__name__


def _default(field: Field[Any]) -> object:
    return None if field.default is MISSING else field.default


def _checked(parameter: Parameter, value: object) -> object:
    """The value, an int turned into a float where one is wanted."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if parameter.kind == "float" and is_number:
        return float(cast(float, value))
    wanted = {"int": int, "float": float, "str": str, "bool": bool}[parameter.kind]
    if isinstance(value, bool) != (wanted is bool) or not isinstance(value, wanted):
        raise ValueError(f"{parameter.name}: {value!r} is not of type {parameter.kind}")
    return value
