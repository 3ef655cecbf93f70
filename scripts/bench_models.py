#!/usr/bin/env python
"""Time of a pass of each model: through hpcslaq, by a hand-written loop, in scikit-learn.

    python scripts/bench_models.py [--workers 2] [--rounds 12] [--only MODEL]... [--json]

In one run, on the same ranks and the same data, passes of hpcslaq's trainer and of a loop that a
careful user would write with numpy and mpi4py (rows split evenly, one in-place all-reduce a
pass) follow one another, so that both see the same machine. The least times count: they are
those that other processes disturbed least. Times are the slowest rank's; with --cpu its CPU
time, which on a busy machine is the only thing to look at (use one worker then: waiting for
another one is CPU time, too). scikit-learn runs
alone afterwards, in one process with its default threads; its time is that of a fit over the
iterations that it made. What the coordinator costs on top is measured by bench_throughput.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from hpcslaq.core.jobs import JobSpec
from hpcslaq.data.cache import default_cache_root, prepare
from hpcslaq.data.source import DataSource
from hpcslaq.data.store import open_dataset
from hpcslaq.mpi.launch import find_mpi, mpi_command, mpi_environment
from hpcslaq.record.rundir import software_versions
from hpcslaq.train.catalogue import build_model
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import Trainer

#: Model -> data, options of the data, chunks, options, passes that make a round.
CASES: dict[str, tuple[str, dict[str, object], int, dict[str, object], int]] = {
    "logistic": ("census", {}, 16, {"solver": "lbfgs", "l2": 1e-4}, 4),
    "linear": ("flights", {}, 16, {}, 2),
    "kmeans": ("patches", {"step": 3, "holdout": 0.1}, 8, {"clusters": 64}, 1),
    "gmm": ("patches", {"step": 3, "holdout": 0.1}, 8, {"components": 8}, 1),
    "mlp": ("mnist", {}, 4, {"hidden": (256,), "batch_size": 256}, 18),
    "gbt": ("protein", {}, 8, {"depth": 6, "rate": 0.3, "bins": 64}, 6),
}
#: What a round of so many passes is called.
UNITS = {"mlp": "epoch", "gbt": "tree"}

# -- by hand: each generator sets itself up, then makes one pass at each next() ---------------


def hand_logistic(mine: Any, n: int, add: Callable[[Any], None], start: Any) -> Iterator[None]:
    from scipy.special import expit

    X, Xt, sign = mine.X, mine.X.T, 2.0 * mine.y - 1.0
    x, memory = np.zeros(X.shape[1] + 1), []
    buffer, before = np.empty(X.shape[1] + 2), None
    while True:
        margin = sign * (X @ x[:-1] + x[-1])
        residual = -sign * expit(-margin)
        buffer[:-2] = Xt @ residual
        buffer[-2] = residual.sum()
        buffer[-1] = np.logaddexp(0.0, -margin).sum()
        add(buffer)
        gradient = buffer[:-1] / n
        gradient[:-1] += 1e-4 * x[:-1]
        if before is not None:
            memory = [*memory, (x - before[0], gradient - before[1])][-10:]
        before = (x, gradient)
        direction, alphas = gradient.copy(), []
        for s, y in reversed(memory):
            alphas.append(s @ direction / (s @ y))
            direction -= alphas[-1] * y
        if memory:
            s, y = memory[-1]
            direction *= s @ y / (y @ y)
        for (s, y), alpha in zip(memory, reversed(alphas), strict=True):
            direction += (alpha - y @ direction / (s @ y)) * s
        x = x - direction
        yield


def hand_linear(mine: Any, n: int, add: Callable[[Any], None], start: Any) -> Iterator[None]:
    X, y = mine.X, mine.y
    d = X.shape[1]
    x, z, step = np.zeros(d + 1), np.zeros(d + 1), 1e-2
    buffer, t = np.empty(d + 2), 1.0
    while True:
        errors = X @ np.stack([z[:-1], x[:-1]], axis=1)
        errors += (z[-1], x[-1])
        errors -= y[:, None]
        buffer[:d] = errors[:, 0] @ X
        buffer[d] = errors[:, 0].sum()
        buffer[-1] = errors[:, 1] @ errors[:, 1]
        add(buffer)
        new = z - step * buffer[:-1] / n
        following = 0.5 * (1.0 + (1.0 + 4.0 * t * t) ** 0.5)
        x, z, t = new, new + (t - 1.0) / following * (new - x), following
        yield


def hand_kmeans(mine: Any, n: int, add: Callable[[Any], None], start: Any) -> Iterator[None]:
    X, centres = mine.X, start["centres"].copy()
    k, d = centres.shape
    squares = np.einsum("ij,ij->i", X, X)
    while True:
        labels, total = np.empty(len(X), dtype=np.int64), 0.0
        for begin in range(0, len(X), 4096):
            rows = X[begin : begin + 4096]
            distances = rows @ centres.T
            distances *= -2.0
            distances += np.einsum("ij,ij->i", centres, centres)
            labels[begin : begin + 4096] = distances.argmin(axis=1)
            total += (distances.min(axis=1) + squares[begin : begin + 4096]).sum()
        places = (np.ones(len(X)), labels, np.arange(len(X) + 1))
        sums = sparse.csr_array(places, shape=(len(X), k)).T @ X
        buffer = np.concatenate([sums.ravel(), np.bincount(labels, minlength=k), [total]])
        add(buffer)
        counts = np.maximum(buffer[k * d : -1], 1.0)
        centres = buffer[: k * d].reshape(k, d) / counts[:, None]
        yield


def hand_gmm(mine: Any, n: int, add: Callable[[Any], None], start: Any) -> Iterator[None]:
    X = mine.X
    rng, k, d = np.random.default_rng(0), 8, X.shape[1]
    means = X[rng.choice(len(X), k)]
    variances, weights = np.tile(X.var(axis=0), (k, 1)), np.full(k, 1.0 / k)
    while True:
        buffer = np.zeros(k + 2 * k * d + 1)
        counts, sums = buffer[:k], buffer[k : k + k * d].reshape(k, d)
        squares = buffer[k + k * d : -1].reshape(k, d)
        precisions = 1.0 / variances
        constants = np.log(weights) - 0.5 * (
            d * np.log(2 * np.pi) + np.log(variances).sum(axis=1) + (means**2 * precisions).sum(1)
        )
        for begin in range(0, len(X), 2048):
            rows = X[begin : begin + 2048]
            own = rows * rows
            logs = rows @ (means * precisions).T - 0.5 * (own @ precisions.T) + constants
            top = logs.max(axis=1)
            shares = np.exp(logs - top[:, None])
            norms = shares.sum(axis=1)
            buffer[-1] += (np.log(norms) + top).sum()
            shares /= norms[:, None]
            counts += shares.sum(axis=0)
            sums += shares.T @ rows
            squares += shares.T @ own
        add(buffer)
        weights = counts / n
        means = sums / counts[:, None]
        variances = squares / counts[:, None] - means**2 + 1e-6
        yield


def hand_mlp(mine: Any, n: int, add: Callable[[Any], None], start: Any) -> Iterator[None]:
    X, y, sizes = mine.X, mine.y.astype(np.int64), (mine.X.shape[1], 256, 10)
    rng, share = np.random.default_rng(0), max(1, 256 * len(X) // n)
    x = np.zeros(sum((a + 1) * b for a, b in pairwise(sizes)))
    first = sizes[0] * sizes[1]
    x[:first] = rng.standard_normal(first) * np.sqrt(2.0 / sizes[0])
    mean, square, count, order, place = np.zeros_like(x), np.zeros_like(x), 0, None, 0
    a, b, c = first, first + sizes[1], first + sizes[1] + sizes[1] * sizes[2]
    while True:
        if order is None or place + share > len(X):
            order, place = rng.permutation(len(X)), 0
        rows = order[place : place + share]
        place += share
        inputs, labels = X[rows], y[rows]
        W1, b1, W2, b2 = x[:a].reshape(sizes[:2]), x[a:b], x[b:c].reshape(sizes[1:]), x[c:]
        hidden = np.maximum(inputs @ W1 + b1, 0.0)
        outputs = hidden @ W2 + b2
        outputs -= outputs.max(axis=1, keepdims=True)
        delta = np.exp(outputs)
        delta /= delta.sum(axis=1, keepdims=True)
        loss = -np.log(delta[np.arange(len(rows)), labels]).sum()
        delta[np.arange(len(rows)), labels] -= 1.0
        back = (delta @ W2.T) * (hidden > 0)
        parts = [inputs.T @ back, back.sum(axis=0), hidden.T @ delta, delta.sum(axis=0)]
        buffer = np.concatenate([*(p.ravel() for p in parts), [loss, len(rows)]])
        add(buffer)
        gradient, count = buffer[:-2] / buffer[-1], count + 1
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = 1e-3 * np.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        x -= rate * mean / (np.sqrt(square) + 1e-8)
        yield


def hand_gbt(mine: Any, n: int, add: Callable[[Any], None], start: Any) -> Iterator[None]:
    from scipy.special import expit

    y, edges, depth = mine.y, start["edges"], 6
    d, bins = edges.shape[0], edges.shape[1] + 1
    codes = np.stack([np.searchsorted(e, c) for e, c in zip(edges, mine.X.T, strict=True)])
    codes = codes.astype(np.uint8)  # (d, n): a feature's bins lie side by side
    margins = np.full(len(y), float(start["base"][0]))
    while True:
        p = expit(margins)
        slopes, curvatures = p - y, p * (1.0 - p)
        nodes, parents = np.zeros(len(y), dtype=np.int64), None
        for level in range(depth):
            # As in LightGBM: the smaller child is counted, the other is what is left.
            size = 2**level
            if level:
                counts = np.bincount(nodes, minlength=size).reshape(-1, 2).astype(float)
                add(counts)
                smaller = 2 * np.arange(size // 2) + counts.argmin(axis=1)
                chosen = np.flatnonzero(smaller[nodes >> 1] == nodes)
            else:
                smaller, chosen = np.zeros(1, dtype=np.int64), np.arange(len(y))
            rows, own = nodes[chosen] >> 1 if level else nodes, (slopes[chosen], curvatures[chosen])
            found = np.empty((2, d, len(smaller), bins))
            for f in range(d):
                places = rows * bins + codes[f, chosen]
                for i in range(2):
                    found[i, f] = np.bincount(
                        places, weights=own[i], minlength=len(smaller) * bins
                    ).reshape(-1, bins)
            add(found)
            histograms = found
            if level:
                histograms = np.empty((2, d, size, bins))
                histograms[:, :, smaller] = found
                histograms[:, :, smaller ^ 1] = parents - found
            parents = histograms
            left = histograms.cumsum(axis=-1)
            whole = left[..., -1:]
            right = whole - left
            gains = left[0] ** 2 / (left[1] + 1.0) + right[0] ** 2 / (right[1] + 1.0)
            gains[(left[1] < 1.0) | (right[1] < 1.0)] = 0.0
            best = gains.transpose(1, 0, 2).reshape(size, -1).argmax(axis=1)
            features, splits = best // bins, best % bins
            nodes = 2 * nodes + (codes[features[nodes], np.arange(len(y))] > splits[nodes])
            if level == depth - 1:
                at = (slice(None), features, np.arange(size), splits)
                sums = np.stack([left[at], whole[..., 0][at[:-1]] - left[at]], axis=-1)
                values = -0.3 * sums[0] / (sums[1] + 1.0)
                margins += values.ravel()[nodes]
            yield


HAND: dict[str, Callable[..., Iterator[None]]] = {
    name.removeprefix("hand_"): function
    for name, function in list(globals().items())
    if name.startswith("hand_")
}

# -- scikit-learn: seconds of a round ----------------------------------------------------------


def fit_sklearn(model: str, rows: Any, start: Any, is_cpu: bool) -> float | None:
    """Seconds for one iteration (epoch, tree) of scikit-learn's fit; None: it has none."""
    import warnings

    from sklearn import cluster, ensemble, linear_model, mixture, neural_network

    warnings.simplefilter("ignore")
    X, y = rows.X, rows.y
    fits: dict[str, tuple[Any, Callable[[Any], float]]] = {
        "logistic": (
            linear_model.LogisticRegression(C=1.0 / (1e-4 * X.shape[0]), max_iter=40, tol=1e-12),
            lambda m: float(m.n_iter_[0]),
        ),
        "kmeans": (
            cluster.KMeans(64, init=start.get("centres"), n_init=1, max_iter=20, tol=0.0),
            lambda m: float(m.n_iter_),
        ),
        "gmm": (
            mixture.GaussianMixture(
                8, covariance_type="diag", max_iter=20, tol=0.0, init_params="random_from_data"
            ),
            lambda m: float(m.n_iter_),
        ),
        "mlp": (
            neural_network.MLPClassifier((256,), batch_size=256, max_iter=4, alpha=0.0),
            lambda m: float(m.n_iter_),
        ),
        "gbt": (
            ensemble.HistGradientBoostingClassifier(
                max_iter=20, max_depth=6, max_leaf_nodes=64, max_bins=64, min_samples_leaf=1,
                learning_rate=0.3, l2_regularization=1.0, early_stopping=False,
            ),
            lambda m: float(m.n_iter_),
        ),
    }  # fmt: skip
    if model not in fits:
        return None
    estimator, iterations = fits[model]
    clock = time.process_time if is_cpu else time.perf_counter
    begin = clock()
    estimator.fit(X, y)
    return (clock() - begin) / iterations(estimator)


# -- one rank ----------------------------------------------------------------------------------


def be_rank(model: str, path: str, rounds: int) -> None:
    """Make rounds of both kinds in turn; rank 0 prints the least seconds of each."""
    from mpi4py import MPI

    from hpcslaq.mpi.groups import GroupFactory

    comm = MPI.COMM_WORLD
    _, _, chunks, options, passes = CASES[model]
    data = open_dataset(Path(path))
    group = GroupFactory(comm).form(tuple(range(1, comm.size + 1)), 1)
    spec = JobSpec(model, model, "data", chunks, 10**6, options=options)
    built = build_model(model, options)
    packed = initial_state(spec, built, data).pack() if comm.rank == 0 else None
    state = TrainState.unpack(group.broadcast_arrays(packed))
    start = {name: array.copy() for name, array in state.arrays.items()}
    trainer = Trainer(spec, built, data, state, group, member=comm.rank)

    def add(buffer: Any) -> None:
        comm.Allreduce(MPI.IN_PLACE, buffer, MPI.SUM)

    hand = HAND[model](data.chunk(comm.rank, comm.size), data.num_rows, add, start)

    def seconds_of(function: Callable[[], object]) -> tuple[float, float]:
        comm.Barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(passes):
            function()
        took = np.array([time.perf_counter() - begin, time.process_time() - cpu])
        comm.Allreduce(MPI.IN_PLACE, took, MPI.MAX)
        return float(took[0]), float(took[1])

    def step() -> None:
        report = trainer.step()
        assert report.failure is None, report.failure
        if report.stop is not None:  # converged: the same work goes on from the start
            trainer.restore(TrainState.unpack({**state.pack(), **_model_arrays(start)}))

    times: list[list[tuple[float, float]]] = [[], []]
    for number in range(rounds + 2):
        for kind, function in enumerate((step, lambda: next(hand))):
            took = seconds_of(function)
            if number >= 2:  # the first fill caches
                times[kind].append(took)
    if comm.rank == 0:
        ours, theirs = (np.array(kind) for kind in times)
        print(
            json.dumps(
                {
                    "hpcslaq_s": ours[:, 0].min(),
                    "by_hand_s": theirs[:, 0].min(),
                    "hpcslaq_cpu_s": ours[:, 1].min(),
                    "by_hand_cpu_s": theirs[:, 1].min(),
                    "hpcslaq_median_s": float(np.median(ours[:, 0])),
                    "by_hand_median_s": float(np.median(theirs[:, 0])),
                }
            )
        )
    group.free()


def _model_arrays(start: Any) -> dict[str, Any]:
    return {f"model/{name}": array for name, array in start.items()}


# -- all of it ---------------------------------------------------------------------------------


def main() -> None:
    """Measure each model and print a line of the table for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", action="append", choices=list(CASES))
    parser.add_argument("--no-sklearn", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="CPU time instead of wall time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", nargs=2, metavar=("MODEL", "PATH"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        be_rank(*asked.rank, asked.rounds)
        return
    results = []
    if not asked.json:
        print(_environment(), flush=True)
        print("| model | round | hpcslaq, s | by hand, s | speed | scikit-learn, s | speed |")
        print("|---|---|---|---|---|---|---|", flush=True)
    for model in asked.only or CASES:
        name, data_options, _, options, passes = CASES[model]
        path = str(prepare(DataSource(name, data_options), default_cache_root()))
        found: dict[str, Any] = {"model": model, "data": name, "passes": passes}
        program = [__file__, "--rank", model, path, "--rounds", str(asked.rounds)]
        found |= json.loads(_launch(asked.workers, program))
        data = open_dataset(Path(path))
        if not asked.no_sklearn:
            spec = JobSpec(model, model, "data", 8, 1, options=options)
            start = initial_state(spec, build_model(model, options), data).arrays
            seconds = fit_sklearn(model, data.rows(0, data.num_rows), start, asked.cpu)
            # A round of L-BFGS is several evaluations, of which scikit-learn makes one or more
            # an iteration.
            per_round = passes if model in ("logistic", "linear") else 1
            found["sklearn_s"] = None if seconds is None else seconds * per_round
        results.append(found)
        if not asked.json:
            print(_line(found, "_cpu_s" if asked.cpu else "_s"), flush=True)
    if asked.json:
        print(json.dumps({"environment": _environment(), "results": results}))


def _line(found: dict[str, Any], kind: str) -> str:
    unit = UNITS.get(found["model"], f"{found['passes']} passes")
    ours, hand = found[f"hpcslaq{kind}"], found[f"by_hand{kind}"]
    other = found.get("sklearn_s")
    compared = "- | -" if other is None else f"{other:.3f} | {other / ours:.2f}"
    return (
        f"| {found['model']}, {found['data']} | {unit} | {ours:.4f} | {hand:.4f} | "
        f"{hand / ours:.2f} | {compared} |"
    )


def _environment() -> str:
    names = ("numpy", "scipy", "mpi4py", "scikit-learn")
    versions = ", ".join(f"{k} {v}" for k, v in software_versions(names).items())
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{platform.machine()}, {cores} cores, load {load:.1f}; {versions}"


def _launch(ranks: int, program: list[str]) -> str:
    mpi = find_mpi()
    env = mpi_environment(mpi, os.environ, ranks, os.cpu_count() or 1)
    done = subprocess.run(
        mpi_command(mpi, ranks, program), env=env, capture_output=True, text=True, timeout=3600
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    main()
