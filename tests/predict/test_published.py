"""The published solver: the same curves where it gets there, its restarts, and what it refuses."""

import numpy as np
import pytest

from hpcslaq.core.jobs import Convergence
from hpcslaq.predict.curves import fit_curve
from hpcslaq.predict.published import PublishedFitter, published_drops

K = np.arange(1.0, 81.0)


def cost(fit, loss: np.ndarray, decay: float) -> float:
    weight = decay ** (2.0 * np.arange(len(loss) - 1.0, -1.0, -1.0))
    return float((weight * (fit(K[: len(loss)]) - loss) ** 2).sum())


@pytest.mark.parametrize(
    ("family", "loss"),
    [
        (Convergence.SUBLINEAR, 1.0 / (0.02 * K * K + 0.3 * K + 0.8) + 0.4),
        (Convergence.SUPERLINEAR, 0.9 ** (K - 3.0) + 0.2),
    ],
)
def test_it_finds_curves_of_its_own_families_nearly_as_well_as_the_exact_fit(family, loss) -> None:
    fit = PublishedFitter(family).fit(loss)
    assert fit is not None and fit.family is family
    assert np.abs(fit(K) - loss)[-20:].max() < 1e-3


@pytest.mark.parametrize("family", Convergence)
def test_it_never_beats_the_exact_least_squares(family) -> None:
    rng = np.random.default_rng(3)
    loss = 1.0 / (0.1 * K + 1.0) + 0.3 + 0.002 * rng.standard_normal(len(K))
    theirs, exact = PublishedFitter(family).fit(loss), fit_curve(family, K, loss)
    assert theirs is not None and exact is not None
    assert cost(theirs, loss, 0.8) >= cost(exact, loss, 0.8) * (1.0 - 1e-6)


def test_a_solver_that_gives_up_starts_again_from_what_was_found_before() -> None:
    fitter = PublishedFitter(Convergence.SUBLINEAR)
    loss = 1.0 / (0.02 * K * K + 0.3 * K + 0.8) + 0.4
    assert fitter.fit(loss[:40]) is not None and fitter.num_restarts == 0
    broken = loss.copy()
    broken[-1] = np.nan
    assert fitter.fit(broken) is None  # nothing fits, and no number is made up
    assert fitter.num_restarts == 1
    assert fitter.fit(loss) is not None


def test_too_few_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="4 points < 5"):
        PublishedFitter(Convergence.SUBLINEAR).fit(K[:4])


def test_predictions_begin_with_the_fifth_loss_and_see_no_later_one() -> None:
    loss = 0.9**K + 0.1
    ahead = np.array([1.0, 10.0])
    drops, _ = published_drops(Convergence.SUPERLINEAR, loss[:30], ahead)
    assert np.isnan(drops[:4]).all() and np.isfinite(drops[4:]).all()
    other = np.concatenate([loss[:20], loss[20:30] + 5.0])
    again, _ = published_drops(Convergence.SUPERLINEAR, other, ahead)
    assert np.array_equal(drops[:20], again[:20], equal_nan=True)
