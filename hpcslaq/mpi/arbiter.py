"""Rank 0's word on how a group ended, where deaths are survived.

A collective of a broken group ends with an error on some members and well on others, and the
agreements of MPI itself were seen to hang. So each member tells rank 0 how it came to the end.
When all have, or are dead, rank 0 tells the living: all was well, or who forms another group.
"""

from __future__ import annotations

from collections.abc import Set

from hpcslaq.mpi.channel import Channel
from hpcslaq.mpi.messages import TAG_VERDICT, Came, Summons, Verdict


class Arbiter:
    """Collects who came to the end of its group, and tells the members when all have."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        #: By generation and attempt: what the members have said, by rank.
        self._open: dict[tuple[int, int], dict[int, Came]] = {}
        #: Who was summoned.
        self._summoned: dict[tuple[int, int], set[int]] = {}

    def note(self, came: Came) -> None:
        """What a member says of its group."""
        self._open.setdefault((came.generation, came.attempt), {})[came.rank] = came

    def settle(self, dead: Set[int]) -> None:
        """Give the word on the groups of which nobody is missing; `dead` : ranks known as such."""
        for key, said in list(self._open.items()):
            members = next(iter(said.values())).members
            silent = set(members) - {*said, *dead}
            if silent:
                self._summon(key, members, silent, dead)
                continue
            self._summoned.pop(key, None)
            del self._open[key]
            living = tuple(rank for rank in members if rank not in dead)
            is_well = living == members and all(came.is_well for came in said.values())
            for rank in living:
                self._channel.send(rank, TAG_VERDICT, Verdict(*key, is_well, living))

    def _summon(
        self, key: tuple[int, int], members: tuple[int, ...], silent: set[int], dead: Set[int]
    ) -> None:
        """Where a member died: tell the silent ones, once; whoever trains in the group drops it."""
        generation, attempt = key
        if attempt or dead.isdisjoint(members):
            return
        summoned = self._summoned.setdefault(key, set())
        for rank in sorted(silent - summoned):
            self._channel.send(rank, TAG_VERDICT, Summons(generation, members))
        summoned |= silent
