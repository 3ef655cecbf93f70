#!/usr/bin/env python
"""Spark MLlib local[N] on the data of scripts/bench_models.py: an optional comparison.

    pip install pyspark==4.3.0          # in an environment of its own; needs Java 17
    python scripts/bench_spark.py [--cores 2] [--iterations 60] [--only logistic]...

Prints seconds of MLlib's fit (wall, and CPU of its JVM), the data already cached in its memory,
for the census logistic regression (L-BFGS), K-means with 64 centres (20 iterations from random
ones) and boosted trees (20 of depth 6). Needs the prepared data of bench_models.py in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Fit each and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--memory", default="6g")
    parser.add_argument("--only", action="append", choices=["logistic", "kmeans", "gbt"])
    asked = parser.parse_args()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{asked.cores}]")
        .config("spark.driver.memory", asked.memory)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.pyspark.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for model in asked.only or ["logistic", "kmeans", "gbt"]:
        estimator, frame, iterations = FITS[model](spark, asked.iterations)
        begin, cpu = time.perf_counter(), _jvm_cpu_s(spark)
        fitted = estimator.fit(frame)
        wall, cpu = time.perf_counter() - begin, _jvm_cpu_s(spark) - cpu
        found = {"model": model, "wall_s": wall, "cpu_s": cpu, "iterations": iterations(fitted)}
        print(json.dumps(found), flush=True)
    spark.stop()


def _jvm_cpu_s(spark: Any) -> float:
    """CPU seconds that Spark's JVM has used so far."""
    fields = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/stat").read_text().split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _folder(name: str) -> Path:
    """The newest prepared data set of this name."""
    root = Path(os.environ.get("HPCSLAQ_CACHE", Path.home() / ".cache" / "hpcslaq"))
    return max(root.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)


def _frame(spark: Any, rows: Any, cores: int) -> Any:
    frame = spark.createDataFrame(rows, ["label", "features"]).repartition(cores).cache()
    frame.count()
    return frame


def _logistic(spark: Any, iterations: int) -> tuple[Any, Any, Any]:
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.linalg import SparseVector

    folder = _folder("census")
    data, indices = np.load(folder / "data.npy"), np.load(folder / "indices.npy")
    indptr, y = np.load(folder / "indptr.npy"), np.load(folder / "y.npy")
    d = int(indices.max()) + 1
    rows = (
        (float(y[i]), SparseVector(d, indices[a:b].tolist(), data[a:b].tolist()))
        for i, (a, b) in enumerate(pairwise(indptr.tolist()))
    )
    frame = _frame(spark, list(rows), 2)
    estimator = LogisticRegression(
        maxIter=iterations, regParam=1e-4, tol=0.0, standardization=False
    )
    return estimator, frame, lambda fitted: fitted.summary.totalIterations


def _dense_frame(spark: Any, folder: Path, has_labels: bool) -> Any:
    from pyspark.ml.linalg import Vectors

    X = np.load(folder / "X.npy", mmap_mode="r")
    y = np.load(folder / "y.npy") if has_labels else np.zeros(len(X))
    return _frame(spark, [(float(b), Vectors.dense(a)) for a, b in zip(X, y, strict=True)], 2)


def _kmeans(spark: Any, iterations: int) -> tuple[Any, Any, Any]:
    from pyspark.ml.clustering import KMeans

    frame = _dense_frame(spark, _folder("patches"), has_labels=False)
    estimator = KMeans(k=64, maxIter=20, tol=0.0, seed=0, initMode="random")
    return estimator, frame, lambda fitted: fitted.summary.numIter


def _gbt(spark: Any, iterations: int) -> tuple[Any, Any, Any]:
    from pyspark.ml.classification import GBTClassifier

    frame = _dense_frame(spark, _folder("protein"), has_labels=True)
    estimator = GBTClassifier(maxIter=20, maxDepth=6, maxBins=64, stepSize=0.3, seed=0)
    return estimator, frame, lambda fitted: 20


FITS = {"logistic": _logistic, "kmeans": _kmeans, "gbt": _gbt}

if __name__ == "__main__":
    main()
