"""Models of a user, for the tests of the live runtime."""

from __future__ import annotations

import sys
import time
from typing import ClassVar

import numpy as np

from hpcslaq.train.model import Model, Step
from hpcslaq.train.options import Option


class Mean(Model):
    """Learns the mean of each feature by damped steps; can be told to misbehave."""

    options: ClassVar = {
        "rate": Option(float, 0.1, "step size", above=0.0, at_most=1.0),
        "sleep_s": Option(float, 0.0, "seconds that each member sleeps in a pass", at_least=0.0),
        "fail_at_epoch": Option(int, -1, "epoch in which the bad chunk raises; -1: never"),
        "bad_chunk": Option(int, 0, "chunk that raises"),
        "nan_at_epoch": Option(int, -1, "epoch whose loss is NaN; -1: never"),
        "exit_at_epoch": Option(int, -1, "epoch in which chunk 0 calls sys.exit; -1: never"),
        "shape_at_epoch": Option(int, -1, "epoch in which chunk 0 has another shape; -1: never"),
        "noise_at_epoch": Option(int, -1, "epoch from which sums are not reproducible; -1: never"),
        "type_at_epoch": Option(int, -1, "epoch in which the state changes its type; -1: never"),
        "bad_evaluation": Option(bool, False, "raise when evaluated"),
        "is_loud": Option(bool, False, "print in each pass"),
    }

    noise = np.random.default_rng()

    def initial_state(self, data, rng):
        return {"mean": np.zeros(data.num_features)}

    def statistics(self, state, chunk, draw):
        if self.settings["sleep_s"] and draw.chunk == 0:
            time.sleep(self.settings["sleep_s"])
        is_bad = draw.chunk == self.settings["bad_chunk"]
        if draw.epoch == self.settings["fail_at_epoch"] and is_bad:
            raise RuntimeError("the user's code has a bug")
        if draw.epoch == self.settings["exit_at_epoch"] and draw.chunk == 0:
            sys.exit(3)
        if draw.epoch == self.settings["shape_at_epoch"] and draw.chunk == 0:
            return {"sum": np.zeros(1), "square": 0.0}
        if 0 <= self.settings["noise_at_epoch"] <= draw.epoch:
            return {"sum": chunk.X.sum(axis=0), "square": self.noise.random()}
        if self.settings["is_loud"]:
            print("epoch", draw.epoch, "chunk", draw.chunk)
        return {"sum": chunk.X.sum(axis=0), "square": float(np.sum(np.square(chunk.X)))}

    def update(self, state, totals, context):
        n, old = context.info.num_rows, state["mean"]
        loss = totals["square"] / n - 2 * old @ totals["sum"] / n + old @ old
        state["mean"] = old + self.settings["rate"] * (totals["sum"] / n - old)
        if context.epoch == self.settings["nan_at_epoch"]:
            loss = float("nan")
        if context.epoch == self.settings["type_at_epoch"]:
            state["mean"] = state["mean"].astype(np.float32)
        return Step(loss)

    def parameters(self, state):
        return state["mean"]

    def predict(self, state, X):
        return np.tile(state["mean"], (X.shape[0], 1))

    def evaluate(self, state, batch):
        if self.settings["bad_evaluation"]:
            raise ZeroDivisionError("no rows of this kind")
        return {"spread": float(np.abs(batch.X - state["mean"]).mean())}
