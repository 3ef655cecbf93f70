"""What a job file may name: models, policies and data sets, gathered from their packages."""

from __future__ import annotations

from collections.abc import Mapping

from hpcslaq.data.builtin import BUILTINS
from hpcslaq.data.source import FILE_OPTIONS, valid_options
from hpcslaq.errors import TrainingError
from hpcslaq.policies.registry import DEFAULT_POLICY, make_policy, policy_names
from hpcslaq.record.jobfile import Catalogue, ModelEntry
from hpcslaq.record.schema import Field, FieldType, Validator
from hpcslaq.train.catalogue import MODELS, load_model_class
from hpcslaq.train.model import Model
from hpcslaq.train.options import validate_options


def gather() -> Catalogue:
    """All that this installation offers."""
    names = {option.name for option in FILE_OPTIONS}
    for builtin in BUILTINS:
        names.update(option.name for option in valid_options(builtin))
    return Catalogue(
        models={name: _entry(load_model_class(name)) for name in MODELS},
        policies={name: _policy_validator(name) for name in policy_names()},
        builtin_data=tuple(BUILTINS),
        data_fields={name: Field(FieldType.ANY) for name in sorted(names)},
        plugin=lambda name: _entry(load_model_class(name)),
        default_policy=DEFAULT_POLICY,
    )


def _entry(model_class: type[Model]) -> ModelEntry:
    def validate(options: Mapping[str, object]) -> Mapping[str, object]:
        try:
            return validate_options(model_class, options)
        except TrainingError as error:
            raise ValueError(str(error).removeprefix("option ")) from None

    return ModelEntry(validate, model_class.convergence_of, model_class.sync_problem)


def _policy_validator(name: str) -> Validator:
    def validate(options: Mapping[str, object]) -> Mapping[str, object]:
        make_policy(name, **options)
        return options

    return validate
