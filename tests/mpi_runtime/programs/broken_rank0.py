"""A run whose rank 0 meets an error of its own while the workers wait for orders."""

from __future__ import annotations

import sys
from pathlib import Path

from hpcslaq.errors import InvalidTransition
from hpcslaq.mpi.main import run_ranks
from hpcslaq.mpi.rank0 import Rank0


def tick(self: Rank0) -> bool:
    raise InvalidTransition("a bug of ours")


Rank0._tick = tick
sys.exit(run_ranks(lambda: Path(sys.argv[1])))
