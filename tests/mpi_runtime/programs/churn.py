"""One rank of a run whose policy changes every job's workers at every round.

Arguments: the number of regroups after which it ends early, the run directory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import hpcslaq.mpi.main as runtime
from hpcslaq.core import commands as cmd
from hpcslaq.core.policy import Admission, ClusterView, NoForecast


@dataclass(frozen=True)
class Churn:
    """Gives all but one worker to the first or the last job, in turn with the rounds."""

    name: str = "churn"

    def forecaster(self) -> NoForecast:
        return NoForecast()

    def admit(self, spec, view: ClusterView) -> Admission:
        return Admission(True)

    def allocate(self, view: ClusterView) -> dict[str, int]:
        jobs = [record.spec for record in view.jobs]
        favoured = jobs[round(view.now / view.round_s) % len(jobs)]
        shares = {spec.name: 1 for spec in jobs}
        spare = view.num_ranks - len(jobs)
        shares[favoured.name] += min(spare, favoured.worker_limit - 1)
        return shares


class UntilEnough(runtime.Rank0):
    """Asks for an early end after so many regroups."""

    num_left = int(sys.argv[1])

    def _carry_out(self, order: cmd.Command) -> None:
        super()._carry_out(order)
        self.num_left -= isinstance(order, cmd.Regroup)
        if self.num_left <= 0:
            self._stop_reason = lambda: "enough regroups"


runtime.Rank0 = UntilEnough
runtime.make_policy = lambda name, **options: Churn()
sys.exit(runtime.run_ranks(lambda: Path(sys.argv[2])))
