"""The way into a group: who is ready, who still lives, when all create the communicator.

A joiner says `Ready` to the leader; what follows depends on whether deaths are survived.
Without: the leader says `Enter`, and all create the group. With: creation would wait for a dead
member for ever, so the leader first calls all members and creates the group with those that
answer, at once; who dies in the millisecond that is left takes the others with him
(`groups.FORMING_LIMIT_S`). When the leader dies, rank 0 gives the order again, to another.

How a group ends is rank 0's word (`arbiter`): each member tells it that it came to the end, and
whether all went well. Where not, the survivors form another group at once, without a communicator
(`points`), which waits for nobody.
"""

from __future__ import annotations

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.mpi.channel import ACTIVE_PAUSE_S, Backoff, Channel
from hpcslaq.mpi.groups import GroupFactory, JobGroup
from hpcslaq.mpi.leader import Leader
from hpcslaq.mpi.messages import (
    TAG_ENTRY,
    TAG_EVENT,
    TAG_ORDER,
    TAG_PEER,
    TAG_VERDICT,
    Call,
    Came,
    Enter,
    Here,
    Join,
    Lead,
    Ready,
    Refused,
    Summons,
    Verdict,
)


class Entrance:
    """One worker's ways into groups, and out of them."""

    def __init__(self, channel: Channel, groups: GroupFactory) -> None:
        self._channel = channel
        self._rank = channel.rank
        self._groups = groups
        #: The newest summons that came while this rank was on its way into a group.
        self._summons: Summons | None = None

    # -- the members -------------------------------------------------------------------

    def wait(self, generation: int, leader: int) -> JobGroup | Lead | cmd.Regroup | None:
        """Wait for the leader's call into the group; the group.

        Or the order to lead in the place of a dead leader; None when rank 0 dismisses this rank.
        """
        backoff = Backoff(ACTIVE_PAUSE_S)
        while True:
            message = self._channel.poll(TAG_ENTRY)
            if message is not None and message.generation == generation:
                if isinstance(message, Call):
                    leader = message.leader
                    self._channel.send(leader, TAG_PEER, self._here(generation))
                elif not self._channel.survives:
                    return self._groups.form(message.members, generation)
                else:
                    return self._form(message)
            if (summons := self._summoned(generation)) is not None:
                return self._connect(summons.members, generation)
            order = self._channel.poll(TAG_ORDER)
            if getattr(order, "generation", None) == generation:
                if isinstance(order, cmd.Dismiss):
                    return None
                if isinstance(order, Join):
                    leader = order.host
                    self._channel.send(leader, TAG_PEER, Ready(generation, self._rank))
                elif isinstance(order, Lead):
                    return order
                elif isinstance(order, cmd.Regroup) and order.members[0] == self._rank:
                    return order
            elif order is None and message is None:
                backoff.pause()

    def wait_for_dismissal(self, refusal: Refused) -> None:
        """Wait until rank 0 knows what the leader was told; to a new leader it is told again."""
        backoff = Backoff(ACTIVE_PAUSE_S)
        while True:
            order = self._channel.wait(TAG_ORDER, backoff)
            if getattr(order, "generation", 0) != refusal.generation:
                continue
            if isinstance(order, cmd.Dismiss):
                return
            if isinstance(order, Join):
                self._channel.send(order.host, TAG_PEER, refusal)
            elif isinstance(order, Lead):
                self._channel.send(0, TAG_EVENT, failure_of(order.spec.name, refusal))
                return

    def _here(self, generation: int) -> Here:
        self._channel.look()
        return Here(generation, self._rank, bool(self._channel.lost))

    # -- the leader --------------------------------------------------------------------

    def collect(self, order: Lead) -> Refused | None:
        """Wait until every living joiner is ready; what one said that cannot join."""
        missing = set(order.members[1:])
        backoff = Backoff(ACTIVE_PAUSE_S)
        while missing:
            message = self._channel.poll(TAG_PEER)
            if message is None:
                backoff.pause()
                self._channel.look()
                missing -= self._channel.lost
                if self._summoned(order.generation):
                    return None
                continue
            backoff.reset()
            if message.generation != order.generation:
                continue
            if isinstance(message, Refused):
                return message
            missing.discard(message.rank)
        return None

    def lead(
        self,
        members: tuple[int, ...],
        waiting: tuple[int, ...],
        generation: int,
        leader: Leader,
    ) -> JobGroup:
        """Create the group of these members; `waiting` : those that do not know when.

        Where deaths are survived: of those who are there, asked just before.
        """
        if not self._channel.survives:
            for rank in waiting:
                self._channel.send(rank, TAG_ENTRY, Enter(generation, members))
            return self._groups.form(members, generation)
        enter = self._call(members, generation, leader)
        if (summons := self._summons) is not None and summons.generation == generation:
            return self._connect(summons.members, generation)
        for rank in enter.members[1:]:
            self._admit(rank, enter)
        return self._form(enter)

    def _admit(self, rank: int, enter: Enter) -> None:
        self._channel.send(rank, TAG_ENTRY, enter)

    def _call(self, members: tuple[int, ...], generation: int, leader: Leader) -> Enter:
        """Who lives and is about to enter, and how the group can be made."""
        channel = self._channel
        present: dict[int, Here] = {self._rank: self._here(generation)}
        for rank in members[1:]:
            channel.send(rank, TAG_ENTRY, Call(generation, self._rank))
        backoff = Backoff(ACTIVE_PAUSE_S)
        while not present.keys() >= set(members) - channel.lost:
            if self._summoned(generation):
                break
            while (message := channel.poll(TAG_PEER)) is not None:
                if isinstance(message, Here) and message.generation == generation:
                    present[message.rank] = message
            leader.take_orders()
            backoff.pause()
            channel.look()
        present[self._rank] = self._here(generation)
        living = tuple(rank for rank in members if rank not in channel.lost)
        is_damaged = any(present[rank].is_damaged for rank in living if rank in present)
        return Enter(generation, living, is_damaged)

    # -- all ---------------------------------------------------------------------------

    def _form(self, enter: Enter) -> JobGroup:
        """The group of these members, or of those of them that live."""
        members, generation = enter.members, enter.generation
        group = self._groups.try_to_form(members, generation, is_damaged=enter.is_damaged)
        if group is not None:
            return group
        return self._connect(members, generation)

    def _connect(self, members: tuple[int, ...], generation: int) -> JobGroup:
        """The group of those that live, after that of `members` did not come about."""
        verdict = self._come(members, generation, 0, is_well=False)
        return self._groups.connect(verdict.members, generation, 1)

    def _summoned(self, generation: int) -> Summons | None:
        """The summons to the group of this generation, where another member leads it by now."""
        message = self._channel.poll(TAG_VERDICT)
        if isinstance(message, Summons):
            self._summons = message
        is_mine = self._summons is not None and self._summons.generation == generation
        return self._summons if is_mine else None

    def agree(self, group: JobGroup, is_well: bool) -> tuple[int, ...] | None:
        """Whether all that was done in this group was done by all members, who all live.

        Called by each once, at the end. None: it was; else the survivors, the same on all.
        """
        if not self._channel.survives:
            return None
        if not is_well:
            group.revoke()
        verdict = self._come(group.members, group.generation, group.attempt, is_well=is_well)
        return None if verdict.is_well else verdict.members

    def _come(
        self, members: tuple[int, ...], generation: int, attempt: int, *, is_well: bool
    ) -> Verdict:
        """Tell rank 0 that this rank came to the end of a group, and wait for its word."""
        came = Came(self._rank, generation, attempt, members, is_well)
        self._channel.send(0, TAG_EVENT, came)
        backoff = Backoff(ACTIVE_PAUSE_S)
        while True:
            verdict = self._channel.poll(TAG_VERDICT)
            if verdict is None:
                self._channel.look()
                backoff.pause()
            elif isinstance(verdict, Verdict):
                if (verdict.generation, verdict.attempt) == (generation, attempt):
                    return verdict


def failure_of(job: str, refusal: Refused) -> ev.JobFailed:
    """The failure of a job that a member could not join."""
    return ev.JobFailed(job, refusal.generation, refusal.rank, refusal.message, refusal.details)
