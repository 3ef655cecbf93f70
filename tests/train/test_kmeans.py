"""K-means by hand, against scikit-learn, and on any allocation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import DataError
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.kmeans import spread_centres
from hpcslaq.train.model import Chunk, Context, DataInfo, Draw
from hpcslaq.train.state import initial_state


def spec(**changes) -> JobSpec:
    given = {"name": "job", "model": "kmeans", "data": "arrays", "num_chunks": 6, "max_epochs": 200}
    return JobSpec(**(given | changes))


def test_one_iteration_worked_by_hand():
    model = build_model("kmeans", {"clusters": 2})
    state = {"centres": np.array([[0.0], [10.0]])}
    chunk = Chunk(0, np.array([[1.0], [3.0], [9.0]]), None)
    sums = model.statistics(state, chunk, Draw(0, 0, 0, 1, 0))
    np.testing.assert_array_equal(sums["sums"], [[4.0], [9.0]])
    np.testing.assert_array_equal(sums["counts"], [2, 1])
    np.testing.assert_allclose(sums["inertias"], [1 + 9, 1])
    step = model.update(state, sums, Context(DataInfo(3, 1), 0, 0, 0, 1, 0))
    np.testing.assert_array_equal(state["centres"], [[2.0], [9.0]])
    assert step.loss == pytest.approx(11 / 3)
    assert not step.is_converged


def test_converges_like_scikit_learn_from_the_same_centres(digits, lab):
    cluster = pytest.importorskip("sklearn.cluster")
    # Grey levels are whole numbers; noise breaks ties, which the two resolve differently.
    X = digits.X + 1e-3 * np.random.default_rng(0).standard_normal(digits.X.shape)
    data = lab.ArrayData(X, digits.y)
    job = spec(options={"clusters": 10, "sample": 500}, seed=3)
    outcome = lab.fit(job, data)
    assert outcome.reports[-1].stop.value == "converged"
    centres = initial_state(job, outcome.model, data).arrays["centres"]
    reference = cluster.KMeans(10, init=centres, n_init=1, tol=0, algorithm="lloyd").fit(X)
    assert outcome.state.last_loss == pytest.approx(reference.inertia_ / 1797, rel=1e-9)
    np.testing.assert_allclose(
        outcome.state.arrays["centres"], reference.cluster_centers_, atol=1e-9
    )
    labels = outcome.model.predict(outcome.state.arrays, X)
    np.testing.assert_array_equal(labels, reference.labels_)
    inertia = outcome.model.evaluate(outcome.state.arrays, data.rows(0, 1797))["inertia"]
    assert inertia == pytest.approx(reference.inertia_ / 1797, rel=1e-9)


def test_the_loss_never_rises(digits, lab):
    losses = lab.fit(spec(options={"clusters": 20}), digits).state.losses
    assert np.all(np.diff(losses) <= 0)


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_is_the_same_on_any_allocation(digits, lab, init, is_sparse):
    data = lab.ArrayData(sparse.csr_array(digits.X) if is_sparse else digits.X, digits.y)
    options = {"clusters": 10, "init": init, "rounds": 3}
    outcome = lab.assert_allocation_does_not_matter(spec(max_epochs=12, options=options), data)
    assert outcome.state.last_loss < outcome.state.losses[0]


def test_a_cluster_without_rows_restarts_beside_the_largest(lab):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (50, 2)), rng.normal(20, 1, (50, 2))])
    model = build_model("kmeans", {"clusters": 3})
    data = lab.ArrayData(X, np.zeros(100))
    outcome = lab.train(spec(max_epochs=30), data, model=model)
    assert outcome.reports[-1].failure is None
    state = {"centres": np.array([[10.0, 10.0], [500.0, 0.0], [0.0, 500.0]])}
    for _ in range(20):
        sums = model.statistics(state, Chunk(0, X, None), Draw(0, 0, 0, 1, 0))
        model.update(state, sums, Context(DataInfo(100, 2), 0, 0, 0, 1, 0))
    assert np.all(sums["counts"] > 0)
    assert sums["inertias"].sum() / 100 < 4


def test_seeding_spreads_over_far_groups():
    groups = np.repeat(np.arange(5) * 100.0, 20)[:, None]
    for seed in range(10):
        centres = spread_centres(groups + 0.01, 5, np.random.default_rng(seed))
        np.testing.assert_allclose(np.sort(centres[:, 0]), np.arange(5) * 100 + 0.01)


def test_equal_rows_can_be_seeded():
    centres = spread_centres(np.ones((10, 2)), 3, np.random.default_rng(0))
    np.testing.assert_array_equal(centres, np.ones((3, 2)))


def test_fewer_rows_than_clusters_are_refused():
    with pytest.raises(DataError, match="3 rows are fewer than 8 clusters"):
        build_model("kmeans", {}).check_data(DataInfo(3, 2))


def groups(num_groups: int) -> np.ndarray:
    """30 rows in each of some far groups in the plane, mixed."""
    rng = np.random.default_rng(5)
    middles = 100.0 * rng.permutation(num_groups * num_groups)[:num_groups, None]
    middles = np.concatenate([middles // num_groups, middles % (100.0 * num_groups)], axis=1)
    X = np.repeat(middles, 30, axis=0) + rng.standard_normal((30 * num_groups, 2))
    return X[rng.permutation(len(X))]


def test_parallel_seeding_finds_far_groups_without_a_sample(lab):
    data = lab.ArrayData(groups(20), None, "unlabelled")
    options = {"clusters": 20, "init": "k-means||"}
    outcome = lab.fit(spec(options=options), data)
    # With a centre in each group the rows are at their own scatter from it: variance 1 + 1.
    assert outcome.state.last_loss < 2.2
    # Five rounds and the weighting are passes, not iterations: nothing had a loss.
    assert outcome.state.passes == outcome.state.iterations + 6
    assert outcome.state.losses[0] < 4 * outcome.state.last_loss
    assert np.all(np.diff(outcome.state.losses) <= 0)
    assert outcome.state.arrays["candidates"].shape == (0, 2)


def test_candidates_are_drawn_by_their_squared_distance(lab):
    # One row is far from all others: it has nearly all of the mass, and is drawn first.
    X = np.concatenate([np.zeros((99, 1)), [[1000.0]]]) + np.arange(100.0)[:, None] * 1e-3
    data = lab.ArrayData(X, None, "unlabelled")
    job = spec(options={"clusters": 3, "init": "k-means||", "rounds": 1}, max_epochs=1, seed=4)
    outcome = lab.train(job, data)
    candidates = outcome.state.arrays["candidates"]
    assert candidates.shape == (7, 1)
    assert candidates[0] < 1
    assert np.all(candidates[1:] > 999)
    assert outcome.state.arrays["rounds"].tolist() == [0, 1, 7]


def test_candidates_weigh_as_many_rows_as_are_nearest_to_them():
    model = build_model("kmeans", {"clusters": 2, "init": "k-means||", "rounds": 1})
    state = {
        "centres": np.zeros((2, 1)),
        "candidates": np.array([[0.0], [10.0], [20.0]]),
        "rounds": np.array([0, 1, 3]),
    }
    chunk = Chunk(0, np.array([[1.0], [-1.0], [6.0], [12.0], [16.0]]), None)
    sums = model.statistics(state, chunk, Draw(0, 2, 0, 1, 0))
    assert {name: value.tolist() for name, value in sums.items()} == {"weights": [2, 2, 1]}


def test_more_clusters_than_different_rows_can_be_seeded_in_parallel(lab):
    data = lab.ArrayData(np.repeat([[0.0], [1.0]], 10, axis=0), None, "unlabelled")
    outcome = lab.fit(spec(options={"clusters": 5, "init": "k-means||"}), data)
    assert outcome.state.last_loss == 0
