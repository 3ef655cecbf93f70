"""Which ranks a job keeps, gives back or gets, once its number of workers is known.

Pure functions of rank numbers and hosts: keep the leader, keep as many members as
possible, and stay on few hosts. How many workers a job gets is a policy's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush


def choose_keepers(
    members: Sequence[int], hosts: Mapping[int, str], num_keep: int
) -> tuple[int, ...]:
    """The `num_keep` >= 1 members that stay: the leader, then those on its fullest hosts."""
    leader, rest = members[0], members[1:]
    home = hosts[leader]
    near = sorted([rank for rank in rest if hosts[rank] == home])
    num_far = num_keep - 1 - len(near)
    if num_far <= 0:
        return (leader, *near[: num_keep - 1])
    far = [rank for rank in rest if hosts[rank] != home]
    on_host = Counter([hosts[rank] for rank in far])
    far.sort(key=lambda rank: (-on_host[hosts[rank]], hosts[rank], rank))
    return (leader, *sorted([*near, *far[:num_far]]))


class IdleRanks:
    """Idle ranks to be given to one job after the other."""

    def __init__(self, idle: Iterable[int], hosts: Mapping[int, str]) -> None:
        self._hosts = hosts
        #: Ranks that are left on each host, the lowest last.
        self._on_host: dict[str, list[int]] = {}
        for rank in sorted(idle, reverse=True):
            self._on_host.setdefault(hosts[rank], []).append(rank)
        #: (-number left, host): a true entry for each host with ranks, and outdated ones.
        self._emptiest = [(-len(ranks), host) for host, ranks in self._on_host.items()]
        heapify(self._emptiest)

    def take(self, members: Sequence[int], num_join: int) -> tuple[int, ...]:
        """Take `num_join` ranks: first on hosts of the job's members, then on the emptiest.

        Fewer where there are not so many left.
        """
        chosen: list[int] = []
        at_home = Counter([self._hosts[rank] for rank in members])
        homes = [host for host in at_home if self._on_host.get(host)]
        for host in sorted(homes, key=lambda h: (-at_home[h], -len(self._on_host[h]), h)):
            self._move(host, num_join - len(chosen), chosen)
        while len(chosen) < num_join and self._emptiest:
            size, host = heappop(self._emptiest)
            if len(self._on_host[host]) == -size:
                self._move(host, num_join - len(chosen), chosen)
        return tuple(sorted(chosen))

    def _move(self, host: str, num: int, chosen: list[int]) -> None:
        """Move up to `num` of a host's ranks to `chosen`."""
        ranks = self._on_host[host]
        for _ in range(min(num, len(ranks))):
            chosen.append(ranks.pop())
        if ranks:
            heappush(self._emptiest, (-len(ranks), host))
