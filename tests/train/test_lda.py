"""Topics against scikit-learn, known topics, and any allocation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.train.model import Chunk, Context, DataInfo, Draw


def spec(**changes) -> JobSpec:
    given = {"name": "job", "model": "lda", "data": "arrays", "num_chunks": 5, "max_epochs": 30}
    return JobSpec(**(given | changes))


@pytest.fixture(scope="module")
def documents(lab):
    """300 documents of 80 words about 3 topics of 20 words each, of 60."""
    rng = np.random.default_rng(0)
    topics = np.zeros((3, 60))
    for k in range(3):
        topics[k, 20 * k : 20 * k + 20] = rng.dirichlet(np.full(20, 1.0))
    shares = rng.dirichlet(np.full(3, 0.2), 300)
    counts = np.stack([rng.multinomial(80, share @ topics) for share in shares])
    data = lab.ArrayData(sparse.csr_array(counts.astype(float)), np.zeros(300))
    return data, topics, shares


def test_known_topics_and_shares_are_found(documents, lab):
    data, topics, shares = documents
    outcome = lab.fit(spec(options={"topics": 3}), data)
    words = outcome.state.arrays["words"]
    found = words / words.sum(axis=1, keepdims=True)
    order = [int(np.abs(found - topic).sum(axis=1).argmin()) for topic in topics]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(found[order], topics, atol=0.02)
    predicted = outcome.model.predict(outcome.state.arrays, data.X)[:, order]
    assert np.abs(predicted - shares).mean() < 0.04
    assert np.all(np.diff(outcome.state.losses) < 1e-4)


def test_the_bound_is_as_good_as_scikit_learns(documents, lab):
    decomposition = pytest.importorskip("sklearn.decomposition")
    data, *_ = documents
    outcome = lab.fit(spec(options={"topics": 3, "inner_tolerance": 1e-4}), data)
    reference = decomposition.LatentDirichletAllocation(
        3, max_iter=30, learning_method="batch", random_state=0, mean_change_tol=1e-4
    ).fit(data.X)
    bound = reference.score(data.X) / data.X.sum()
    assert -outcome.state.last_loss >= bound * 1.01
    # The same topics give the same bound: the formulas agree.
    state = {**outcome.state.arrays, "words": reference.components_.copy()}
    chunk = Chunk(0, data.X, None)
    totals = outcome.model.statistics(state, chunk, Draw(0, 0, 0, 1, 0))
    step = outcome.model.update(state, totals, Context(DataInfo(300, 60), 0, 0, 0, 1, 0))
    assert -step.loss == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("solver", ["batch", "online"])
def test_is_the_same_on_any_allocation(documents, lab, solver):
    options = {"topics": 4, "solver": solver, "batch_size": 60}
    outcome = lab.assert_allocation_does_not_matter(
        spec(max_epochs=4, options=options), documents[0]
    )
    assert outcome.state.last_loss < outcome.state.losses[0]


def test_mini_batches_come_near_the_batch_bound(documents, lab):
    batch = lab.fit(spec(options={"topics": 3}), documents[0])
    options = {"topics": 3, "solver": "online", "batch_size": 50, "losses_per_epoch": 1}
    online = lab.fit(spec(options=options), documents[0])
    assert online.state.last_loss == pytest.approx(batch.state.last_loss, rel=0.02)


def test_perplexity_is_far_below_the_number_of_words(documents, lab):
    data = documents[0]
    outcome = lab.fit(spec(options={"topics": 3}), data)
    perplexity = outcome.model.evaluate(outcome.state.arrays, data.rows(0, 300))["perplexity"]
    assert 10 < perplexity < 40


def test_documents_without_words_are_harmless(documents, lab):
    X = sparse.csr_array(np.vstack([documents[0].X.toarray()[:20], np.zeros((5, 60))]))
    outcome = lab.fit(spec(num_chunks=5, max_epochs=3), lab.ArrayData(X, np.zeros(25)))
    shares = outcome.model.predict(outcome.state.arrays, X[20:])
    np.testing.assert_allclose(shares, 1 / 20)
