"""Which ranks a job keeps, gives back or gets, once its number of workers is known.

Pure functions of rank numbers and hosts: keep the leader, keep as many members as
possible, and stay on few hosts. How many workers a job gets is a policy's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice


def choose_keepers(
    members: Sequence[int], hosts: Mapping[int, str], num_keep: int
) -> tuple[int, ...]:
    """The `num_keep` >= 1 members that stay: the leader, then those on its fullest hosts."""
    leader = members[0]
    on_host = Counter(hosts[rank] for rank in members)
    home = hosts[leader]

    def order(rank: int) -> tuple[bool, int, str, int]:
        host = hosts[rank]
        return (host != home, -on_host[host], host, rank)

    rest = sorted(members[1:], key=order)
    return (leader, *sorted(rest[: num_keep - 1]))


def choose_joiners(
    idle: Iterable[int], hosts: Mapping[int, str], members: Sequence[int], num_join: int
) -> tuple[int, ...]:
    """`num_join` of the idle ranks: first on hosts where the job is, then on the emptiest."""
    at_home = Counter(hosts[rank] for rank in members)
    on_host: dict[str, list[int]] = {}
    for rank in sorted(idle):
        on_host.setdefault(hosts[rank], []).append(rank)

    def order(host: str) -> tuple[int, int, str]:
        return (-at_home[host], -len(on_host[host]), host)

    in_order = chain.from_iterable(on_host[host] for host in sorted(on_host, key=order))
    return tuple(sorted(islice(in_order, num_join)))
