"""Latent Dirichlet allocation (topics of documents) by variational inference.

Rows are documents, columns words, values counts. `batch` passes over all documents before
each update; `online` updates from mini-batches.

Source: Blei, Ng and Jordan (2003), section 5; Hoffman, Blei and Bach, Online learning for
latent Dirichlet allocation (2010), algorithms 1 and 2. Documents start from equal topic
shares instead of random ones, so that a result depends on the topics only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from scipy.special import gammaln, psi

from hpcslaq.core.jobs import Convergence
from hpcslaq.train.exact import Statistics
from hpcslaq.train.model import (
    Array,
    Batch,
    Chunk,
    Context,
    DataInfo,
    Draw,
    Features,
    Model,
    State,
    Step,
    Totals,
    TrainingData,
    batch_rows,
    steps_for_batches,
)
from hpcslaq.train.options import Option
from hpcslaq.train.stochastic import report

#: Documents of a block: their words' topic shares stay in the cache.
_BLOCK_DOCUMENTS = 64


class TopicModel(Model):
    """LDA; the loss is the negative variational bound per word, in nats."""

    convergence: ClassVar[Convergence] = Convergence.SUBLINEAR
    options: ClassVar[Mapping[str, Option]] = {
        "topics": Option(int, 20, "number of topics", at_least=1),
        "document_prior": Option(float, None, "Dirichlet prior; none: 1 / topics", above=0.0),
        "word_prior": Option(float, None, "Dirichlet prior; none: 1 / topics", above=0.0),
        "inner_iterations": Option(int, 50, "most steps for a document's shares", at_least=1),
        "inner_tolerance": Option(float, 1e-3, "mean change that ends these", at_least=0.0),
        "solver": Option(str, "batch", "when to update", choices=("batch", "online")),
        "batch_size": Option(int, 256, "documents of a mini-batch (online)", at_least=1),
        "offset": Option(float, 10.0, "slows early updates down (online)", at_least=0.0),
        "decay": Option(float, 0.7, "forgetting (online)", above=0.5, at_most=1.0),
        "losses_per_epoch": Option(int, 10, "iterations of an epoch (online)", at_least=1),
    }

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        equal = 1.0 / self.settings["topics"]
        self.alpha = self.settings["document_prior"] or equal
        self.eta = self.settings["word_prior"] or equal
        self.is_online = self.settings["solver"] == "online"

    def steps_per_epoch(self, info: DataInfo) -> int:
        """One for `batch`, else the mini-batches."""
        return steps_for_batches(info, self.settings["batch_size"]) if self.is_online else 1

    def initial_state(self, data: TrainingData, rng: np.random.Generator) -> State:
        """Topics drawn from a gamma distribution with mean 1 and variance 0.01."""
        words = rng.gamma(100.0, 0.01, (self.settings["topics"], data.num_features))
        return {"words": words, "count": np.zeros(1, dtype=np.int64), "progress": np.zeros(2)}

    def statistics(self, state: State, chunk: Chunk, draw: Draw) -> Statistics:
        """Expected words per topic (k, V), bound of the documents, documents and words."""
        documents = chunk.X if sparse.issparse(chunk.X) else sparse.csr_array(chunk.X)
        if self.is_online:
            documents = documents[batch_rows(chunk, draw)]
        weights = _exp_mean_logs(state["words"]).T.copy()  # (V, k)
        expected, bound, _ = self._infer(documents, weights)
        return {
            "expected": expected,
            "bound": bound,
            "documents": float(documents.shape[0]),
            "tokens": float(documents.data.sum()),
        }

    def _infer(self, documents: Any, weights: Array) -> tuple[Array, float, Array]:
        """Expected words per topic, bound of the documents, and their topic parameters (n, k)."""
        expected = np.zeros((weights.shape[1], weights.shape[0]))
        bound, gammas = 0.0, np.empty((documents.shape[0], weights.shape[1]))
        for start in range(0, documents.shape[0], _BLOCK_DOCUMENTS):
            block = documents[start : start + _BLOCK_DOCUMENTS]
            words, places = np.unique(block.indices, return_inverse=True)
            shape = (block.shape[0], words.size)
            block = sparse.csr_array((block.data, places, block.indptr), shape=shape)
            own_weights = weights[words]
            gamma, ratios, likelihood = self._fit_documents(block, own_weights)
            gammas[start : start + _BLOCK_DOCUMENTS] = gamma
            shares = _exp_mean_logs(gamma)
            expected[:, words] += ((ratios.T @ shares) * own_weights).T
            bound += likelihood + self._divergence(gamma)
        return expected, bound, gammas

    def _fit_documents(self, block: Any, weights: Array) -> tuple[Array, Any, float]:
        """Topic parameters (n, k), counts over normalisers (CSR), and sum of count * log of it."""
        num_documents = block.shape[0]
        gamma = np.full((num_documents, weights.shape[1]), self.alpha)
        gamma += block.sum(axis=1)[:, None] / weights.shape[1]
        rows = np.repeat(np.arange(num_documents), np.diff(block.indptr))
        of_words = weights[block.indices]
        ratios = sparse.csr_array((block.data.copy(), block.indices, block.indptr), block.shape)
        for _ in range(self.settings["inner_iterations"]):
            shares = _exp_mean_logs(gamma)
            norms = np.einsum("ij,ij->i", shares[rows], of_words)
            norms += 1e-100
            np.divide(block.data, norms, out=ratios.data)
            following = self.alpha + shares * (ratios @ weights)
            change = float(np.abs(following - gamma).mean(axis=1).max(initial=0.0))
            gamma = following
            if change <= self.settings["inner_tolerance"]:
                break
        norms = np.einsum("ij,ij->i", _exp_mean_logs(gamma)[rows], of_words) + 1e-100
        np.divide(block.data, norms, out=ratios.data)
        return gamma, ratios, float(block.data @ np.log(norms))

    def _divergence(self, gamma: Array) -> float:
        """Sum of E[log p(shares)] - E[log q(shares)] over documents."""
        topics, sums = gamma.shape[1], gamma.sum(axis=1)
        logs = psi(gamma) - psi(sums)[:, None]
        total = float(((self.alpha - gamma) * logs + gammaln(gamma)).sum())
        total -= float(gammaln(sums).sum())
        prior = math.lgamma(topics * self.alpha) - topics * math.lgamma(self.alpha)
        return float(total + len(gamma) * prior)

    def update(self, state: State, totals: Totals, context: Context) -> Step:
        """New topics: all at once (batch), or a weighted step towards the batch's (online)."""
        num_documents, tokens = totals["documents"], max(totals["tokens"], 1.0)
        share = context.info.num_rows / max(num_documents, 1.0)
        bound = totals["bound"] * share + self._word_bound(state["words"])
        loss = -bound / (tokens * share)
        found = self.eta + share * totals["expected"]
        if not self.is_online:
            state["words"] = found
            return Step(loss)
        state["count"] += 1
        rate = (self.settings["offset"] + int(state["count"][0])) ** -self.settings["decay"]
        state["words"] = (1.0 - rate) * state["words"] + rate * found
        return Step(report(state, loss, tokens, context, self.settings["losses_per_epoch"]))

    def _word_bound(self, words: Array) -> float:
        """E[log p(topics)] - E[log q(topics)]."""
        num_words, sums = words.shape[1], words.sum(axis=1)
        logs = psi(words) - psi(sums)[:, None]
        total = float(((self.eta - words) * logs + gammaln(words)).sum())
        total -= float(gammaln(sums).sum())
        prior = math.lgamma(num_words * self.eta) - num_words * math.lgamma(self.eta)
        return float(total + len(words) * prior)

    def parameters(self, state: State) -> Array:
        """(k * V,): the Dirichlet parameters of the topics, row by row."""
        return state["words"].ravel()

    def predict(self, state: State, X: Features) -> Array:
        """Topic shares of documents: (n, k)."""
        documents = sparse.csr_array(X, dtype=np.float64)
        gamma = self._infer(documents, _exp_mean_logs(state["words"]).T.copy())[2]
        return np.asarray(gamma / gamma.sum(axis=1, keepdims=True))

    def evaluate(self, state: State, batch: Batch) -> dict[str, float]:
        """Perplexity: exp of the negative bound per word of the documents, topics given."""
        documents = sparse.csr_array(batch.X, dtype=np.float64)
        bound = self._infer(documents, _exp_mean_logs(state["words"]).T.copy())[1]
        return {"perplexity": math.exp(-bound / max(float(documents.data.sum()), 1.0))}


def _exp_mean_logs(parameters: Array) -> Array:
    """exp(E[log share]) under Dirichlet distributions, one a row."""
    return np.asarray(np.exp(psi(parameters) - psi(parameters.sum(axis=1))[:, None]))
