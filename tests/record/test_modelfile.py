"""Model files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.errors import CheckpointError, NotFoundError
from hpcslaq.record.checkpoint import write_checkpoint
from hpcslaq.record.modelfile import MODEL, ModelInfo, SavedModel, read_model, write_model

INFO = ModelInfo(
    job="a",
    model="logreg",
    options={"l2": 0.1, "hidden": [3, 4]},
    data={"name": "census", "num_features": 3, "features": ["x", "y", "z"]},
    labels=("no", 2, 2.5),
    digests={"model_digest": "0" * 64},
    metrics={"auc": 0.99, "loss": math.inf},
    iterations=9,
    epochs=3,
    final_loss=0.1 + 0.2,
    versions={"numpy": "2"},
)


def test_a_model_comes_back_whole(tmp_path: Path) -> None:
    write_model(tmp_path / "a.h5", SavedModel(INFO, {"w": np.arange(3.0)}))
    model = read_model(tmp_path / "a.h5")
    assert model.info == INFO
    np.testing.assert_array_equal(model.arrays["w"], np.arange(3.0))
    write_model(tmp_path / "b.h5", SavedModel(ModelInfo("b", "kmeans"), {}))
    assert read_model(tmp_path / "b.h5") == SavedModel(ModelInfo("b", "kmeans"), {})


def test_a_missing_model_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"a\.h5: there is no such model file"):
        read_model(tmp_path / "a.h5")


def test_a_checkpoint_is_no_model(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.h5", {}, {})
    with pytest.raises(CheckpointError, match="expected format 'hpcslaq model'"):
        read_model(tmp_path / "a.h5")


@pytest.mark.parametrize("info", ["", "{}", "[]", '{"type": "ModelInfo", "job": 1, "model": "x"}'])
def test_a_wrong_description_is_refused(tmp_path: Path, info: str) -> None:
    write_checkpoint(tmp_path / "a.h5", {}, {"info": info}, kind=MODEL)
    with pytest.raises(CheckpointError, match="expected the description of a model"):
        read_model(tmp_path / "a.h5")


def test_a_model_cut_at_any_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_model(path, SavedModel(INFO, {"w": np.arange(3.0)}))
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            read_model(path)


def test_options_without_a_json_form_are_refused_before_writing(tmp_path: Path) -> None:
    bad = ModelInfo("a", "x", options={"f": object()})
    with pytest.raises(CheckpointError, match=r"cannot be written: .*options"):
        write_model(tmp_path / "a.h5", SavedModel(bad, {}))
    assert not (tmp_path / "a.h5").exists()
