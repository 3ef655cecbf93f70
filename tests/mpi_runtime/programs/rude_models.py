"""Models that end a process, hang on to nothing, and fail where nobody expects it."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import ClassVar

import numpy as np

from hpcslaq.train.model import Model, Step
from hpcslaq.train.options import Option


def _raise(error: BaseException) -> None:
    raise error


def loop() -> None:
    while True:
        pass


def change() -> None:
    """Change what belongs to the whole process."""
    np.random.seed(0)
    np.seterr(all="raise")
    os.chdir("/")
    warnings.simplefilter("error")


#: What a rude model can do.
DEEDS = {
    "raise": lambda: _raise(RuntimeError("a bug \udc80")),
    "exit": lambda: _raise(SystemExit(0)),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # As on a full disk: this rank can write no file of more than 100 bytes any more.
    "fill": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY)),
    "nothing": lambda: None,
    "loop": loop,
    "eat": lambda: np.ones(2**34),
    "change": change,
    "thread": lambda: threading.Thread(target=time.sleep, args=(600,), daemon=True).start(),
    # Once: whoever comes after it finds the file `unless`.
    "touch and kill": lambda: None,
}


class Rude(Model):
    """Learns the mean of each feature; does a deed in one of its methods."""

    options: ClassVar = {
        "where": Option(str, "", "method in which the deed is done"),
        "deed": Option(str, "raise", "what is done", choices=tuple(DEEDS)),
        "unless": Option(str, "", "file that keeps it from it"),
        "chunk": Option(int, 0, "chunk in whose statistics the deed is done"),
        "sleep_s": Option(float, 0.0, "seconds that each pass lasts", at_least=0.0),
    }

    def act(self, where):
        if self.settings["where"] == where and not os.path.exists(self.settings["unless"]):
            if self.settings["deed"] == "touch and kill":
                Path(self.settings["unless"]).touch()
                DEEDS["kill"]()
            DEEDS[self.settings["deed"]]()

    def check_data(self, info):
        self.act("check_data")

    def steps_per_epoch(self, info):
        self.act("steps_per_epoch")
        return 1

    def initial_state(self, data, rng):
        self.act("initial_state")
        return {"mean": np.zeros(data.num_features)}

    def statistics(self, state, chunk, draw):
        if draw.chunk == 0:
            time.sleep(self.settings["sleep_s"])
        if draw.epoch == 2 and draw.chunk == self.settings["chunk"]:
            self.act("statistics")
        return {"sum": chunk.X.sum(axis=0)}

    def update(self, state, totals, context):
        if context.epoch == 2:
            self.act("update")
        step = 0.1 * (totals["sum"] / context.info.num_rows - state["mean"])
        state["mean"] = state["mean"] + step
        return Step(float(step @ step))

    def evaluate(self, state, batch):
        self.act("evaluate")
        return {}
