#!/usr/bin/env python
"""What scikit-learn reaches on the data of jobs/zoo.toml: the references in that file.

    python scripts/zoo_references.py [--only JOB]... [JOB_FILE]

Fits the counterpart of each job on the same training rows, with the same options, and prints
the measure on the same held-out rows. Takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import decomposition, ensemble, linear_model, metrics, mixture, neural_network, svm
from sklearn.cluster import KMeans

from hpcslaq.cli.prepare import prepare_data, read_checked
from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.store import open_dataset
from hpcslaq.train.catalogue import build_model


def main() -> None:
    """Print a line for each job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job_file", nargs="?", type=Path, default=Path("jobs/zoo.toml"))
    parser.add_argument("--only", action="append", help="the job of this name")
    arguments = parser.parse_args()
    checked = read_checked(arguments.job_file)
    directories = prepare_data(arguments.job_file, checked, lambda what, share: None)
    for spec in checked.jobs:
        if arguments.only and spec.name not in arguments.only:
            continue
        data = open_dataset(Path(directories[spec.data]))
        rows, held_out = data.rows(0, data.num_rows), data.holdout()
        began_at, cpu = time.perf_counter(), os.times()
        fits = [
            REFERENCES[spec.model](spec, rows, held_out, seed)
            for seed in range(NUM_SEEDS if spec.model in RANDOM else 1)
        ]
        found = {name: float(np.mean([fit[name] for fit in fits])) for name in fits[0]}
        used = os.times()
        seconds = used.user + used.system - cpu.user - cpu.system
        text = ", ".join(f"{name} = {value:.5g}" for name, value in found.items())
        wall = time.perf_counter() - began_at
        print(f"{spec.name}: {text}   ({seconds:.1f} s CPU, {wall:.1f} s wall)", flush=True)


def _logistic(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    strength = 1.0 / (len(rows.y) * float(str(spec.options["l2"])))
    fitted = linear_model.LogisticRegression(C=strength, max_iter=2000, tol=1e-7)
    fitted.fit(rows.X, rows.y)
    if spec.model == "softmax":
        return {"accuracy": fitted.score(held_out.X, held_out.y)}
    scores = fitted.decision_function(held_out.X)
    return {"auc": metrics.roc_auc_score(held_out.y, scores)}


def _svm(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    strength = 1.0 / (len(rows.y) * float(str(spec.options["l2"])))
    # A large scale takes the penalty off the intercept, which liblinear would put on it.
    fitted = svm.LinearSVC(C=strength, dual=False, intercept_scaling=100.0, max_iter=5000)
    fitted.fit(rows.X, rows.y)
    scores = fitted.decision_function(held_out.X)
    return {"auc": metrics.roc_auc_score(held_out.y, scores)}


def _kernel_svm(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    strength = 1.0 / (len(rows.y) * float(str(spec.options["l2"])))
    gamma = float(str(spec.options["gamma"]))
    fitted = svm.SVC(
        C=strength, kernel="poly", degree=2, gamma=gamma, coef0=1.0, cache_size=2000, tol=1e-2
    )
    fitted.fit(rows.X, rows.y)
    scores = fitted.decision_function(held_out.X)
    return {"auc": metrics.roc_auc_score(held_out.y, scores)}


def _tree_options(spec: JobSpec) -> dict[str, Any]:
    return {
        "max_iter": spec.max_epochs,
        "learning_rate": spec.options["rate"],
        "max_depth": spec.options["depth"],
        "max_leaf_nodes": 2 ** int(str(spec.options["depth"])),
        "max_bins": int(str(spec.options["bins"])),
        "min_samples_leaf": max(1, int(float(str(spec.options["min_child_weight"])))),
        "l2_regularization": spec.options["l2"],
        "early_stopping": False,
        "random_state": 0,
    }


def _trees(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    fitted = ensemble.HistGradientBoostingClassifier(**_tree_options(spec)).fit(rows.X, rows.y)
    scores = fitted.decision_function(held_out.X)
    return {"auc": metrics.roc_auc_score(held_out.y, scores)}


def _regression_trees(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    fitted = ensemble.HistGradientBoostingRegressor(**_tree_options(spec)).fit(rows.X, rows.y)
    return {"r2": fitted.score(held_out.X, held_out.y)}


def _linear(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    l1 = float(str(spec.options["l1"]))
    fitted = linear_model.Lasso(alpha=l1) if l1 else linear_model.LinearRegression()
    return {"r2": fitted.fit(rows.X, rows.y).score(held_out.X, held_out.y)}


def _network_options(spec: JobSpec, seed: int) -> dict[str, Any]:
    return {
        "hidden_layer_sizes": spec.options["hidden"],
        "alpha": 0.0,
        "batch_size": spec.options["batch_size"],
        "learning_rate_init": spec.options["rate"],
        "max_iter": spec.max_epochs,
        "tol": 0.0,
        "random_state": seed,
    }


def _network(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    fitted = neural_network.MLPClassifier(**_network_options(spec, seed)).fit(rows.X, rows.y)
    return {"accuracy": fitted.score(held_out.X, held_out.y)}


def _regression_network(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    mean, scale = rows.y.mean(), rows.y.std()
    fitted = neural_network.MLPRegressor(**_network_options(spec, seed))
    fitted.fit(rows.X, (rows.y - mean) / scale)
    return {"r2": fitted.score(held_out.X, (held_out.y - mean) / scale)}


def _kmeans(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    clusters = int(str(spec.options["clusters"]))
    fitted = KMeans(clusters, n_init=1, max_iter=spec.max_epochs, tol=0.0, random_state=seed)
    fitted.fit(rows.X)
    return {"inertia": -fitted.score(held_out.X) / len(held_out.X)}


def _mixture(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    fitted = mixture.GaussianMixture(
        int(str(spec.options["components"])),
        covariance_type=str(spec.options["covariance"]),
        max_iter=spec.max_epochs,
        tol=0.0,
        random_state=seed,
    )
    return {"log_likelihood": fitted.fit(rows.X).score(held_out.X)}


def _topics(spec: JobSpec, rows: Any, held_out: Any, seed: int) -> dict[str, float]:
    fitted = decomposition.LatentDirichletAllocation(
        int(str(spec.options["topics"])),
        max_iter=spec.max_epochs,
        max_doc_update_iter=int(str(spec.options["inner_iterations"])),
        random_state=seed,
    ).fit(rows.X)
    # scikit-learn's perplexity includes the topics' own bound; ours is that of the documents.
    model = build_model(spec.model, spec.options)
    return model.evaluate({"words": fitted.components_}, held_out)


#: Models whose result depends on the seed: the mean over a few is the reference.
RANDOM = {"gmm", "kmeans", "lda", "mlp", "mlp_regressor"}
NUM_SEEDS = 3

REFERENCES: Mapping[str, Callable[[JobSpec, Any, Any, int], dict[str, float]]] = {
    "gbt": _trees,
    "gbt_regressor": _regression_trees,
    "gmm": _mixture,
    "kmeans": _kmeans,
    "lasso": _linear,
    "lda": _topics,
    "linear": _linear,
    "logistic": _logistic,
    "mlp": _network,
    "mlp_regressor": _regression_network,
    "poly_svm": _kernel_svm,
    "softmax": _logistic,
    "svm": _svm,
}

if __name__ == "__main__":
    np.seterr(over="raise", invalid="raise")
    main()
