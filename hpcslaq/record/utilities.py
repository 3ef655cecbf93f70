"""The `utility` table of a job in a job file: what the job is worth by the time that it takes.

utility = { kind = "constant", peak = 10 }
utility = { kind = "sigmoid", peak = 50, target = "30s", steepness = 0.5 }   # per second
utility = { kind = "linear", peak = 50, target = "60s" }                     # 0 from then on
utility = { kind = "step", peak = 50, target = "60s" }                       # 0 afterwards
utility = { kind = "table", values = [50, 20, 5, 0], every = "20s" }
"""

from __future__ import annotations

from typing import Any

from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.record.schema import Field, FieldType, Place, read_table

_FIELDS = {
    "kind": Field(FieldType.TEXT, choices=tuple(kind.value for kind in UtilityKind)),
    "peak": Field(FieldType.NUMBER, above=0),
    "target": Field(FieldType.DURATION, above=0),
    "steepness": Field(FieldType.NUMBER, above=0),
    "values": Field(FieldType.NUMBER, least=0, is_list=True),
    "every": Field(FieldType.DURATION, above=0),
}
_FIELD_OF_KEY = {"target": "target_s", "every": "every_s"}
_KEY_OF_FIELD = {name: key for key, name in _FIELD_OF_KEY.items()}


def read_utility(value: object, place: Place) -> UtilityCurve:
    """The utility that a table describes; raises JobFileError."""
    table = read_table(value, _FIELDS, place)
    if "kind" not in table:
        raise place.at("kind").error("is missing", valid=sorted(_FIELDS["kind"].choices, key=str))
    fields: dict[str, Any] = {_FIELD_OF_KEY.get(key, key): item for key, item in table.items()}
    fields["kind"] = UtilityKind(fields["kind"])
    if "values" in fields:
        values = fields["values"]
        fields["values"] = tuple(values) if isinstance(values, list) else (values,)
    elif fields["kind"] is not UtilityKind.TABLE and "peak" not in fields:
        raise place.at("peak").error("is missing")
    try:
        return UtilityCurve(**fields)
    except ValueError as error:
        name, _, problem = str(error).partition(": ")
        key = _KEY_OF_FIELD.get(name, name)
        raise place.at(key).error(problem, value=table.get(key)) from None


def utility_table(utility: UtilityCurve) -> dict[str, object]:
    """The table that `read_utility` reads as this utility."""
    table: dict[str, object] = {"kind": utility.kind.value, "peak": utility.peak}
    if utility.kind is UtilityKind.TABLE:
        return {"kind": "table", "values": list(utility.values), "every": utility.every_s}
    if utility.target_s is not None:
        table["target"] = utility.target_s
    if utility.steepness is not None:
        table["steepness"] = utility.steepness
    return table
