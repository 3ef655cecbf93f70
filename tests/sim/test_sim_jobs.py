"""When a job with a known loss sequence ends."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.sim.jobs import SimJob, first_stop
from hpcslaq.sim.scaling import ScalingModel


def spec_of(**fields) -> JobSpec:
    return JobSpec("a", "m", "d", num_chunks=4, **{"max_epochs": 100, **fields})


@pytest.mark.parametrize(
    ("losses", "fields", "num", "reason"),
    [
        ([4.0, 3.0, 2.0], {}, 3, "epochs"),
        ([4.0, 3.0, 2.0], {"target_loss": 3.0}, 2, "target_loss"),
        ([4.0, 3.0, 2.0], {"target_loss": 1.0}, 3, "epochs"),
        ([4.0], {"target_loss": 4.0, "tolerance": 0.1}, 1, "target_loss"),
        ([4.0, 2.0, 1.99, 1.0], {"tolerance": 0.1}, 3, "tolerance"),
        ([4.0, 3.99, 2.0, 1.99, 1.98, 1.0], {"tolerance": 0.1, "patience": 2}, 5, "tolerance"),
        ([4.0, 5.0, 2.0], {"tolerance": 0.1}, 2, "tolerance"),  # a rise is no improvement
        ([4.0, 3.99, 1.0], {"tolerance": 0.1, "target_loss": 3.995}, 2, "target_loss"),
        ([0.0, 0.0, 0.0], {"tolerance": 0.1}, 2, "tolerance"),
    ],
)
def test_the_first_rule_that_is_met_ends_the_job(losses, fields, num, reason) -> None:
    assert first_stop(spec_of(**fields), np.array(losses)) == (num, reason)


@pytest.mark.parametrize("seed", range(50))
def test_the_tolerance_rule_agrees_with_counting_step_by_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = 2.0 + np.cumsum(rng.choice([-0.1, -0.001, 0.01], 40, p=[0.3, 0.5, 0.2]))
    spec = spec_of(tolerance=0.01, patience=int(rng.integers(1, 5)))
    spell, expected = 0, (40, "epochs")
    for k in range(1, 40):
        is_flat = (losses[k - 1] - losses[k]) / abs(losses[k - 1]) < 0.01
        spell = spell + 1 if is_flat else 0
        if spell == spec.patience:
            expected = (k + 1, "tolerance")
            break
    assert first_stop(spec, losses) == expected


def test_epochs_cut_the_sequence() -> None:
    job = SimJob(spec_of(max_epochs=2), [5.0, 4.0, 3.0, 2.0, 1.0], ScalingModel(4), 2)
    assert (job.num_iterations, job.reason, job.final_loss) == (4, "epochs", 2.0)


@pytest.mark.parametrize("losses", [[], [1.0, float("nan")], [float("inf")]])
def test_losses_must_be_there_and_finite(losses) -> None:
    with pytest.raises(ValueError, match="losses: a has none, or some are not finite"):
        SimJob(spec_of(), losses, ScalingModel(4))
