"""The way into a group: who is ready, who still lives, when all create the communicator.

A joiner says `Ready` to the leader; what follows depends on whether deaths are survived.
Without: the leader says `Enter`, and all create the group. With: creation would wait for a dead
member for ever, so the leader first calls all members and creates the group with those that
answer, at once; who dies in the millisecond that is left takes the others with him
(`groups.FORMING_LIMIT_S`). When the leader dies, rank 0 gives the order again, to another.

After a death groups need another parent. Rank 0 finds a calm moment, then all living workers
meet to make one (`Meet`): idle ranks at once, members of a group after the same pass (the leader
tells them by a flag), ranks on the way into a group when its leader tells them, who does so before
he goes himself. So nobody meets while another waits for him in a group.
"""

from __future__ import annotations

import logging

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
    Call,
    Enter,
    Here,
    Join,
    Lead,
    Meet,
    Present,
    Ready,
    Refused,
)

log = logging.getLogger(__name__)


class Entrance:
    """One worker's ways into groups, and to the meetings of all workers."""

    def __init__(self, channel: Channel, groups: GroupFactory) -> None:
        self._channel = channel
        self._rank = channel.rank
        self._groups = groups
        #: Number of the newest meeting to which this rank was called.
        self._called = 0

    # -- meetings ----------------------------------------------------------------------

    @property
    def meeting(self) -> int:
        """Number of the meeting that this rank has yet to go to; 0: none."""
        return self._called if self._called > self._groups.parent_number else 0

    def note(self, message: Meet, *, is_quick: bool = True) -> None:
        """Take a call to a meeting, or answer the question whether this rank could come soon."""
        if message.number <= self._groups.parent_number:
            return
        if message.is_now:
            self._called = message.number
        elif is_quick:
            self._channel.send(0, TAG_EVENT, Present(message.number, self._rank, is_done=False))

    def meet(self, number: int, others: tuple[int, ...] = ()) -> None:
        """Go to the meeting; `others` : ranks that wait for this one and are told to come, too."""
        for rank in others:
            if rank != self._rank:
                self._channel.send(rank, TAG_ENTRY, Meet(number, is_now=True))
        self._groups.renew()
        self._channel.send(0, TAG_EVENT, Present(number, self._rank, is_done=True))

    # -- the members -------------------------------------------------------------------

    def wait(self, generation: int, leader: int) -> JobGroup | Lead | cmd.Regroup | None:
        """Wait for the leader's call into the group; the group.

        Or the order to lead in the place of a dead leader; None when rank 0 dismisses this rank.
        """
        backoff = Backoff(ACTIVE_PAUSE_S)
        while True:
            message = self._channel.poll(TAG_ENTRY)
            if isinstance(message, Meet):
                if message.number > self._groups.parent_number:
                    self.meet(message.number)
            elif message is not None and message.generation == generation:
                if isinstance(message, Call):
                    leader = message.leader
                    self._channel.send(leader, TAG_PEER, self._here(generation))
                elif not self._channel.survives:
                    return self._groups.form(message.members, generation)
                elif group := self._try_to_form(message):
                    return group
            order = self._channel.poll(TAG_ORDER)
            if isinstance(order, Meet):
                self.note(order)
            elif getattr(order, "generation", None) == generation:
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
            if self.meeting and leader in self._channel.lost:
                self.meet(self.meeting)

    def wait_for_dismissal(self, refusal: Refused) -> None:
        """Wait until rank 0 knows what the leader was told; to a new leader it is told again."""
        backoff = Backoff(ACTIVE_PAUSE_S)
        while True:
            order = self._channel.wait(TAG_ORDER, backoff)
            if isinstance(order, Meet):
                self.note(order)
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
        number = self._groups.parent_number
        return Here(generation, self._rank, number, self._groups.is_damaged())

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
                if not self._channel.survives:
                    continue
                if isinstance(call := self._channel.poll(TAG_ORDER), Meet):
                    self.note(call)
                if self.meeting:
                    self.meet(self.meeting, order.members)
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
        attempt = 0
        while True:
            attempt += 1
            enter = self._call(members, generation, attempt, leader)
            for rank in enter.members[1:]:
                self._channel.send(rank, TAG_ENTRY, enter)
            group = self._try_to_form(enter)
            if group is not None:
                return group

    def _call(
        self, members: tuple[int, ...], generation: int, attempt: int, leader: Leader
    ) -> Enter:
        """Who lives and is about to enter, and how the group can be made."""
        channel = self._channel
        present: dict[int, Here] = {self._rank: self._here(generation)}
        for rank in members[1:]:
            channel.send(rank, TAG_ENTRY, Call(generation, self._rank))
        backoff = Backoff(ACTIVE_PAUSE_S)
        while not present.keys() >= set(members) - channel.lost:
            while (message := channel.poll(TAG_PEER)) is not None:
                if isinstance(message, Here) and message.generation == generation:
                    present[message.rank] = message
            leader.take_orders()
            if self.meeting:
                self.meet(self.meeting, members)
                # They have another parent now: asked again.
                return self._call(members, generation, attempt, leader)
            backoff.pause()
            channel.look()
        present[self._rank] = mine = self._here(generation)
        living = tuple(rank for rank in members if rank not in channel.lost)
        is_damaged = any(
            present[rank].is_damaged or present[rank].parent_number != mine.parent_number
            for rank in living
        )
        return Enter(generation, living, is_damaged, attempt)

    def _try_to_form(self, enter: Enter) -> JobGroup | None:
        return self._groups.try_to_form(
            enter.members, enter.generation, enter.attempt, is_damaged=enter.is_damaged
        )


def failure_of(job: str, refusal: Refused) -> ev.JobFailed:
    """The failure of a job that a member could not join."""
    return ev.JobFailed(job, refusal.generation, refusal.rank, refusal.message, refusal.details)
