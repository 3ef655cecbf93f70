"""The worker ranks as the coordinator knows them: each in exactly one state.

Which job a rank works for is noted here and, as members of a group, in the job's record; the
coordinator keeps the two in step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hpcslaq.core.transitions import RankState


@dataclass(slots=True)
class RankRecord:
    """How a worker rank fares."""

    host: str
    state: RankState = RankState.IDLE
    #: Job whose group the rank is in, joins or leaves; None when idle or lost.
    job: str | None = None
    #: It reported its release before the leader's report arrived that frees it (another
    #: sender, so no order is promised); it counts as idle only from that report on.
    is_released: bool = False


class RankTable(Mapping[int, RankRecord]):
    """The records of all worker ranks of one incarnation of the run, by rank."""

    def __init__(self, hosts: Mapping[int, str]) -> None:
        self._records = {rank: RankRecord(host) for rank, host in sorted(hosts.items())}
        #: Host of each rank, as `placement` wants it.
        self.hosts = dict(hosts)
        #: Exactly the ranks whose record says IDLE.
        self.idle: set[int] = set(self._records)
        #: Ranks in no group any more whose release was not yet reported: idle in a moment.
        self.departing: set[int] = set()
        #: Exactly the ranks whose record says LOST; never used again.
        self.lost: set[int] = set()

    def __getitem__(self, rank: int) -> RankRecord:
        return self._records[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_usable(self) -> int:
        """Ranks that are not lost."""
        return len(self._records) - len(self.lost)

    def usable_by_host(self) -> dict[str, int]:
        """Usable ranks by host, sorted by host."""
        counts = Counter(self.hosts.values())
        counts.subtract(self.hosts[rank] for rank in self.lost)
        return dict(sorted(counts.items()))

    @property
    def is_at_rest(self) -> bool:
        """Whether all usable ranks are idle."""
        return len(self.idle) == self.num_usable

    def put(self, ranks: Iterable[int], state: RankState, job: str | None) -> None:
        """Note that these ranks are now in this state, for this job."""
        for rank in ranks:
            record = self._records[rank]
            record.is_released = record.is_released and job == record.job
            record.state, record.job = state, job
            if state is RankState.IDLE:
                self.idle.add(rank)
            else:
                self.idle.discard(rank)
            if state is RankState.LOST:
                self.lost.add(rank)
            if job is None:
                self.departing.discard(rank)

    def let_go(self, ranks: Iterable[int]) -> None:
        """These ranks are in no group any more: idle if they said so, or as soon as they do."""
        for rank in ranks:
            record = self._records[rank]
            if record.is_released:
                self.put((rank,), RankState.IDLE, None)
                continue
            self.departing.add(rank)
            if record.state is RankState.BUSY:
                record.state = RankState.LEAVING
