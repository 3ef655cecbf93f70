"""A user's model that is slow for as long as the test wants, with the same results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

import numpy as np

from hpcslaq.train.model import Model, Step
from hpcslaq.train.options import Option

#: While this file is in the working directory a pass takes as many seconds longer as it says.
MARK = Path("slow")


class SlowMean(Model):
    """Learns the mean of each feature by damped steps."""

    options: ClassVar = {"rate": Option(float, 0.1, "step size", above=0.0, at_most=1.0)}

    def initial_state(self, data, rng):
        return {"mean": np.zeros(data.num_features)}

    def statistics(self, state, chunk, draw):
        if draw.chunk == 0:
            time.sleep(_pause_s())
        return {"sum": chunk.X.sum(axis=0), "square": float(np.sum(np.square(chunk.X)))}

    def update(self, state, totals, context):
        n, old = context.info.num_rows, state["mean"]
        loss = totals["square"] / n - 2 * old @ totals["sum"] / n + old @ old
        state["mean"] = old + self.settings["rate"] * (totals["sum"] / n - old)
        return Step(loss)

    def parameters(self, state):
        return state["mean"]

    def predict(self, state, X):
        return np.tile(state["mean"], (X.shape[0], 1))


def _pause_s():
    try:
        return float(MARK.read_text() or 0)
    except FileNotFoundError:
        return 0.0
