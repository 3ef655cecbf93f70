"""What is expected of a job that arrives, from the jobs that are like it."""

from __future__ import annotations

import numpy as np

from hpcslaq.core.events import ProgressReported
from hpcslaq.core.jobs import JobSpec
from hpcslaq.predict.similar import SimilarForecaster, likeness


def spec(name: str, **fields: object) -> JobSpec:
    given = {"model": "mlp", "data": "mnist", "num_chunks": 8, "max_epochs": 10, **fields}
    return JobSpec(name, **given)  # type: ignore[arg-type]


def trained(forecaster: SimilarForecaster, job: JobSpec, seconds: float = 0.5) -> None:
    forecaster.add(job)
    for first, epochs in ((1, 2), (7, 4)):
        losses = tuple(1.0 / k for k in range(first, first + 6))
        forecaster.observe(ProgressReported(job.name, 1, first, losses, epochs, 6 * seconds, 2))


def test_nothing_is_expected_of_the_first_of_its_kind() -> None:
    assert SimilarForecaster().expected(spec("a")) is None


def test_a_job_is_expected_to_be_like_one_that_ended() -> None:
    forecaster = SimilarForecaster()
    trained(forecaster, spec("a"))
    forecaster.discard("a")
    known = forecaster.expected(spec("b", max_epochs=20))
    assert known is not None
    iterations, seconds = known
    assert iterations == 60.0  # three iterations per epoch were seen
    assert seconds.shape == (8,) and np.isclose(seconds[1], 0.5, rtol=0.05)
    assert seconds[0] > seconds[1] > seconds[3] > seconds[7] > 0.0


def test_a_followed_job_begins_with_what_is_known_and_learns_for_itself() -> None:
    forecaster = SimilarForecaster()
    trained(forecaster, spec("a"), 0.5)
    forecaster.add(spec("b"))
    at = np.array([0]), np.array([2.0])
    assert np.isclose(forecaster.predict(("b",)).seconds(*at)[0], 0.5, rtol=0.05)
    for _ in range(3):
        trained(forecaster, spec("b"), 0.9)
    assert forecaster.predict(("b",)).seconds(*at)[0] > 0.7
    assert np.isclose(forecaster.predict(("a",)).seconds(*at)[0], 0.5, rtol=0.05)


def test_rates_and_penalties_do_not_matter_but_sizes_and_solvers_do() -> None:
    base = spec("a", options={"rate": 0.1, "hidden": [64], "solver": "sgd"})
    assert likeness(base) == likeness(
        spec("b", max_epochs=3, options={"rate": 0.5, "hidden": [64], "solver": "sgd"})
    )
    for options in (
        {"rate": 0.1, "hidden": [512], "solver": "sgd"},
        {"rate": 0.1, "hidden": [64], "solver": "adam"},
    ):
        assert likeness(base) != likeness(spec("b", options=options))
    assert likeness(base) != likeness(spec("b", data="news", options=base.options))
