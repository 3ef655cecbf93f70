"""The state of a job: packing, digests, checks."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from hpcslaq.errors import CheckpointError, TrainingError
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.state import TrainState, checked_arrays


def example() -> TrainState:
    arrays = {"x": np.arange(3.0), "n": np.array([4]), "on": np.array([[True, False]])}
    state = TrainState(arrays, epochs=2, step=1, passes=7, redos=3, num_slow=1)
    state.bounds = {"loss": -3, "gradient": 12}
    for loss in range(100):
        state.append_loss(1.0 / (1 + loss))
    return state


def test_a_packed_state_comes_back_the_same():
    state = example()
    again = TrainState.unpack(state.pack())
    assert again.pack().keys() == state.pack().keys()
    for name, array in state.pack().items():
        np.testing.assert_array_equal(again.pack()[name], array)
        assert again.pack()[name].dtype == array.dtype
    again.append_loss(0.5)
    assert again.iterations == 101
    assert again.last_loss == 0.5
    assert again.losses[0] == 1.0


def test_unpacking_copies():
    packed = example().pack()
    state = TrainState.unpack(packed)
    packed["model/x"][:] = 9
    np.testing.assert_array_equal(state.arrays["x"], [0, 1, 2])


@pytest.mark.parametrize("missing", ["losses", "counters"])
def test_a_packed_state_with_a_gap_is_refused(missing):
    packed = example().pack()
    del packed[missing]
    with pytest.raises(CheckpointError, match=missing):
        TrainState.unpack(packed)


def test_losses_that_do_not_fit_the_counters_are_refused():
    packed = example().pack()
    packed["losses"] = packed["losses"][:-1]
    with pytest.raises(CheckpointError, match="do not fit"):
        TrainState.unpack(packed)


def test_digests_cover_the_little_endian_bytes():
    state = TrainState({"x": np.array([1.5, -2.0])})
    state.append_loss(0.25)
    model = build_model("logistic", {})
    assert state.loss_digest() == hashlib.sha256(struct.pack("<d", 0.25)).hexdigest()
    parameters = hashlib.sha256(struct.pack("<2d", 1.5, -2.0)).hexdigest()
    assert state.model_digest(model) == parameters


def test_the_checksum_sees_one_bit_of_the_parameters():
    model = build_model("logistic", {})
    state, other = (TrainState({"x": np.array([1.0, 2.0])}) for _ in range(2))
    assert state.checksum(model) == other.checksum(model)
    other.arrays["x"][1] = np.nextafter(2.0, 3)
    assert state.checksum(model) != other.checksum(model)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a/b": np.zeros(1)}, "no name"),
        ({"a": np.zeros(1, dtype=np.float32)}, "float32"),
        ({"a": np.array(["text"])}, "valid: float64, int64, bool"),
    ],
)
def test_states_that_cannot_be_stored_are_refused(arrays, message):
    with pytest.raises(TrainingError, match=message):
        checked_arrays(arrays)
