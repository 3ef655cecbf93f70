"""A user's model that parameter servers can train, for the tests of the live runtime."""

from __future__ import annotations

import time
from typing import ClassVar

import numpy as np

from hpcslaq.train.model import Model, Slices, Step
from hpcslaq.train.options import Option


class Steps(Model):
    """Moves to the mean of the rows with momentum; can be told to be slow, or to fail."""

    options: ClassVar = {
        "sleep_s": Option(float, 0.0, "seconds that a pass takes where chunk 0 is", at_least=0.0),
        "fail_at_epoch": Option(int, -1, "epoch in which one raises; -1: never"),
        "fails": Option(str, "worker", "who raises", choices=("worker", "server")),
    }

    @classmethod
    def sync_problem(cls, settings):
        return ""

    def slices(self):
        return Slices("x", ("velocity",))

    def steps_per_epoch(self, info):
        return 2

    def initial_state(self, data, rng):
        return {"x": np.zeros(data.num_features), "velocity": np.zeros(data.num_features)}

    def statistics(self, state, chunk, draw):
        if chunk.index == 0:
            time.sleep(self.settings["sleep_s"])
            if draw.epoch == self.settings["fail_at_epoch"] and self.settings["fails"] == "worker":
                raise RuntimeError("the worker has a bug")
        errors = state["x"] - chunk.X
        return {"gradient": errors.sum(axis=0), "square": float(np.sum(errors * errors))}

    def update(self, state, totals, context):
        done = self.observe(state, totals, context)
        self.move(state, totals, context, 0)
        return done

    def observe(self, state, totals, context):
        return Step(0.5 * totals["square"] / context.info.num_rows)

    def move(self, state, totals, context, start):
        if context.epoch == self.settings["fail_at_epoch"] and self.settings["fails"] == "server":
            raise RuntimeError("the server has a bug")
        state["velocity"] = 0.9 * state["velocity"] - totals["gradient"] / context.info.num_rows
        state["x"] = state["x"] + 0.02 * state["velocity"]

    def parameters(self, state):
        return state["x"]
