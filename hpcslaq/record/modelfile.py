"""Trained models on disk: everything that is needed to predict, without MPI.

The container is that of `checkpoint`. Which class turns the arrays into predictions is
not known here: only its name is kept, and no code is ever loaded from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hpcslaq.errors import CheckpointError, NotFoundError
from hpcslaq.record.checkpoint import read_checkpoint, write_checkpoint
from hpcslaq.record.codec import Codec, CodecError, dump_json, load_json

MODEL = "hpcslaq model"

#: Names of the arrays, beside the model's own, with which its data was standardised; (d,) each.
CENTER, SCALE = "standardised/center", "standardised/scale"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """All of a trained model that is no array. Mappings hold JSON values."""

    #: Name of the job that trained it.
    job: str
    #: Name of the model class in the catalogue, or of the user's class.
    model: str
    #: Hyperparameters by name, as in the job file.
    options: Mapping[str, object] = field(default_factory=dict)
    #: What it was trained on: name, shape, content hash, feature names, ...
    data: Mapping[str, object] = field(default_factory=dict)
    #: Original label by class index; None where the target is a number or absent.
    labels: tuple[str | int | float, ...] | None = None
    #: SHA-256 by name: "loss_digest", "model_digest".
    digests: Mapping[str, str] = field(default_factory=dict)
    #: Measures on held-out data by name.
    metrics: Mapping[str, float] = field(default_factory=dict)
    iterations: int = 0
    epochs: int = 0
    final_loss: float | None = None
    #: Versions of the software that trained it.
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A trained model: its parameters and other state by name, and what they mean."""

    info: ModelInfo
    arrays: Mapping[str, npt.NDArray[Any]]


def write_model(path: Path, model: SavedModel) -> int:
    """Write a model atomically, as `write_checkpoint`; returns the file's bytes.

    Raises CheckpointError where it cannot be written or a value has no JSON form.
    """
    try:
        info = dump_json(Codec([ModelInfo]).to_json(model.info))
    except CodecError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from None
    return write_checkpoint(path, model.arrays, {"info": info}, kind=MODEL)


def read_model(path: Path) -> SavedModel:
    """The model in a file.

    Raises NotFoundError where there is none, CheckpointError (path, expected, found) where
    the file is damaged, of another kind or of another version.
    """
    if not path.exists():
        raise NotFoundError(f"{path}: there is no such model file")
    arrays, meta = read_checkpoint(path, kind=MODEL)
    try:
        info = Codec([ModelInfo]).from_json(load_json(str(meta.get("info"))))
    except CodecError as error:
        raise CheckpointError(f"{path}: expected the description of a model, {error}") from None
    return SavedModel(info, arrays)
