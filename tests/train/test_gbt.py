"""Boosted trees: by hand, by brute force, against scikit-learn, and on any allocation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.gbt import _bin_edges, _codes
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import Trainer


def spec(model="gbt", **changes) -> JobSpec:
    given = {"name": "job", "model": model, "data": "arrays", "num_chunks": 5, "max_epochs": 20}
    return JobSpec(**(given | changes))


def test_one_stump_worked_by_hand(lab):
    # Mean 3; errors m - y are 2, 2, -1, -3. Splits after row 1: 4/1 + 4/3, 2: 16/2 + 16/2,
    # 3: 9/3 + 9/1, so after the second; leaves -(4)/2 = -2 and -(-4)/2 = 2.
    data = lab.ArrayData(np.arange(4.0)[:, None], np.array([1.0, 1.0, 4.0, 6.0]), "regression")
    options = {"depth": 1, "rate": 1.0, "l2": 0.0}
    outcome = lab.fit(spec("gbt_regressor", num_chunks=2, max_epochs=1, options=options), data)
    state = outcome.state.arrays
    assert state["base"][0] == 3
    np.testing.assert_array_equal(state["features"], [[[0]]])
    np.testing.assert_array_equal(state["values"], [[[-2, 2]]])
    np.testing.assert_allclose(outcome.model.predict(state, data.X), [1, 1, 5, 5])
    assert outcome.state.losses[0] == pytest.approx((4 + 4 + 1 + 9) / 2 / 4)


def test_splits_are_those_of_a_search_over_all_features_and_bins(lab):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 4)).round(1), rng.standard_normal(200)
    y += 2 * (X[:, 2] > 0.3) - X[:, 0]
    data = lab.ArrayData(X, y, "regression")
    options = {"depth": 3, "rate": 0.5, "l2": 1.0, "bins": 16, "min_child_weight": 5}
    outcome = lab.fit(spec("gbt_regressor", max_epochs=1, options=options), data)
    state = outcome.state.arrays
    edges, errors = state["edges"], y.mean() - y

    def grow(rows, level, node):
        first = 2**level - 1
        if level == 3:
            value = -0.5 * errors[rows].sum() / (rows.sum() + 1.0)
            assert state["values"][0, 0, node] == pytest.approx(value)
            return
        found = []
        for feature in range(4):
            for edge in edges[feature][np.isfinite(edges[feature])]:
                left = rows & (X[:, feature] <= edge)
                right = rows & ~left
                if min(left.sum(), right.sum()) >= 5:
                    gain = sum(errors[r].sum() ** 2 / (r.sum() + 1) for r in (left, right))
                    found.append((gain, feature, edge))
        gain, feature, edge = max(found)
        if gain <= errors[rows].sum() ** 2 / (rows.sum() + 1):  # all rows go left
            assert state["bins"][0, 0, first + node] == 15
            grow(rows, level + 1, 2 * node)
            return
        assert state["features"][0, 0, first + node] == feature
        assert edges[feature, state["bins"][0, 0, first + node]] == edge
        left = rows & (X[:, feature] <= edge)
        grow(left, level + 1, 2 * node)
        grow(rows & ~left, level + 1, 2 * node + 1)

    grow(np.ones(200, dtype=bool), 0, 0)


def test_bins_keep_few_values_apart_and_cut_many_evenly():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 3, 1000), rng.standard_normal(1000), np.zeros(1000)])
    edges = _bin_edges(X, 8)
    np.testing.assert_array_equal(edges[0, :3], [0.5, 1.5, np.inf])
    codes = _codes(X, edges)
    np.testing.assert_array_equal(codes[:, 0], X[:, 0])
    assert np.all(np.abs(np.bincount(codes[:, 1], minlength=8) - 125) <= 2)
    assert not codes[:, 2].any()
    np.testing.assert_array_equal(codes, _codes(sparse.csr_array(X), edges))


def test_classes_are_learnt_as_well_as_by_scikit_learn(cancer, digits, lab):
    ensemble = pytest.importorskip("sklearn.ensemble")
    for data, num_train, num_trees in ((cancer, 400, 60), (digits, 1300, 25)):
        order = np.random.default_rng(0).permutation(data.num_rows)
        X, y = data.X[order], data.y[order]
        options = {"depth": 4, "min_child_weight": 0.1}
        outcome = lab.fit(
            spec(max_epochs=num_trees, options=options), lab.ArrayData(X[:num_train], y[:num_train])
        )
        held_out = lab.ArrayData(X, y).rows(num_train, data.num_rows)
        measured = outcome.model.evaluate(outcome.state.arrays, held_out)
        reference = ensemble.HistGradientBoostingClassifier(
            max_iter=num_trees,
            max_depth=4,
            max_leaf_nodes=None,
            max_bins=64,
            early_stopping=False,
            l2_regularization=1.0,
            min_samples_leaf=2,
        ).fit(X[:num_train], y[:num_train])
        assert measured["accuracy"] >= reference.score(held_out.X, held_out.y) - 0.011
        assert np.all(np.diff(outcome.state.losses) < 0)


def test_regression_is_learnt_as_well_as_by_scikit_learn(diabetes, lab):
    ensemble = pytest.importorskip("sklearn.ensemble")
    options = {"depth": 3, "min_child_weight": 10}
    train = lab.ArrayData(diabetes.X[:330], diabetes.y[:330], "regression")
    outcome = lab.fit(spec("gbt_regressor", max_epochs=50, options=options), train)
    measured = outcome.model.evaluate(outcome.state.arrays, diabetes.rows(330, 442))
    reference = ensemble.HistGradientBoostingRegressor(
        max_iter=50,
        max_depth=3,
        max_leaf_nodes=None,
        max_bins=64,
        early_stopping=False,
        l2_regularization=1.0,
        min_samples_leaf=10,
    ).fit(train.X, train.y)
    assert measured["r2"] >= reference.score(diabetes.X[330:], diabetes.y[330:]) - 0.02


@pytest.mark.parametrize("is_sparse", [False, True])
def test_two_classes_are_the_same_on_any_allocation(cancer, lab, is_sparse):
    data = lab.ArrayData(sparse.csr_array(cancer.X) if is_sparse else cancer.X, cancer.y)
    outcome = lab.assert_allocation_does_not_matter(spec(max_epochs=6), data)
    assert outcome.state.iterations == 6
    assert outcome.state.passes == 30
    assert outcome.state.last_loss < 0.7 * outcome.state.losses[0]


def test_many_classes_are_the_same_on_any_allocation(digits, lab):
    job = spec(max_epochs=3, options={"depth": 3, "bins": 17})
    outcome = lab.assert_allocation_does_not_matter(job, digits)
    assert outcome.state.arrays["values"].shape == (3, 10, 8)


def test_regression_is_the_same_on_any_allocation(diabetes, lab):
    lab.assert_allocation_does_not_matter(spec("gbt_regressor", max_epochs=6), diabetes)


def test_a_group_that_forms_in_the_middle_of_a_tree_goes_on_alike(cancer, lab):
    job = spec(max_epochs=3)
    whole = lab.fit(job, cancer)
    model = build_model("gbt", {})
    state = initial_state(job, model, cancer)
    for _ in range(15):  # a new trainer, with empty caches, for every level
        trainer = Trainer(job, model, cancer, TrainState.unpack(state.pack()), lab.Solo())
        report = trainer.step()
        assert report.failure is None
        state = trainer.state
    assert state.model_digest(model) == whole.state.model_digest(model)


def test_constant_features_and_targets_give_the_mean(lab):
    data = lab.ArrayData(np.ones((10, 2)), np.full(10, 7.0), "regression")
    outcome = lab.fit(spec("gbt_regressor", max_epochs=2), data)
    np.testing.assert_array_equal(
        outcome.model.predict(outcome.state.arrays, data.X), np.full(10, 7)
    )
    assert outcome.state.last_loss == 0
