"""Job communicators: made by exactly their members, counted, always freed.

mpi4py frees no communicator on garbage collection, and MPICH dies after about two
thousand leaked ones, so this is the only place that makes them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import NoReturn, cast

import numpy as np
from mpi4py import MPI

from hpcslaq.mpi.launch import die
from hpcslaq.mpi.post import Post
from hpcslaq.train.reducer import MemberLost

log = logging.getLogger(__name__)

#: A member that is inside the creation of a group for so long waits for a dead one, s: creation
#: starts when all are ready and takes milliseconds.
FORMING_LIMIT_S = 10.0


class GroupFactory:
    """Makes the communicators of jobs out of the workers' communicator, and counts them.

    With `survives` (ULFM) groups survive the death of members, and groups can be made after one:
    once a rank knows of a death, `Create_group` fails on it until `renew` gives a new parent.
    """

    def __init__(self, workers: MPI.Intracomm, *, survives: bool = False) -> None:
        #: All workers; world rank r has rank r - 1 in it.
        self._workers = workers
        #: What groups are made of: the workers that lived when it was made.
        self._parent = workers
        #: Number of `_parent`: how often it was renewed.
        self.parent_number = 0
        #: Whether groups survive the death of a member.
        self.survives = survives
        tag_limit = workers.Get_attr(MPI.TAG_UB) or 32767
        #: Tags of concurrent creations with common members must differ.
        self._num_tags = min(tag_limit, 32767)
        self.num_made = 0
        self.num_alive = 0
        self.num_peak = 0

    def form(self, members: Sequence[int], generation: int) -> JobGroup:
        """Create the group of these world ranks; every member calls this, nobody else."""
        comm = self._create_group(members, generation % self._num_tags)
        return self._made(comm, members, generation)

    def try_to_form(
        self, members: Sequence[int], generation: int, attempt: int, *, is_damaged: bool
    ) -> JobGroup | None:
        """The same where members may die; None where it did not come about.

        `is_damaged` : some member knows of a death that its parent is not free of, or has another
        parent; the same on all. `attempt` : differs from try to try, alike on all members.
        """
        timer = threading.Timer(FORMING_LIMIT_S, _give_up, [generation])
        timer.daemon = True
        timer.start()
        try:
            if is_damaged:
                comm = self._create_from_group(members, f"{generation}.{attempt}")
            else:
                comm = self._create_group(members, generation % self._num_tags)
        except MPI.Exception as error:
            log.warning("generation %d: no group of %s: %s", generation, members, error)
            return None
        finally:
            timer.cancel()
        return self._made(comm, members, generation)

    def renew(self) -> None:
        """A new parent without the dead; collective over all living workers."""
        parent = cast(MPI.Intracomm, self._parent.Shrink())
        parent.Set_errhandler(MPI.ERRORS_RETURN)
        if self._parent is not self._workers:
            self._parent.Free()
        self._parent = parent
        self.parent_number += 1

    def is_damaged(self) -> bool:
        """Whether this rank knows of a death that the parent is not free of."""
        failed = self._parent.Get_failed()
        try:
            return failed.Get_size() > 0
        finally:
            failed.Free()

    def free(self) -> None:
        """Free the parent, if it is not the workers' communicator."""
        if self._parent is not self._workers:
            self._parent.Free()
            self._parent = self._workers

    def _create_group(self, members: Sequence[int], tag: int) -> MPI.Intracomm:
        base, group = self._group_in(self._parent, members)
        try:
            return self._parent.Create_group(group, tag)
        finally:
            group.Free()
            base.Free()

    def _create_from_group(self, members: Sequence[int], tag: str) -> MPI.Intracomm:
        """Needs no parent; each call is dearer than the one before, so it is for the first time."""
        base, group = self._group_in(self._workers, members)
        try:
            name = f"hpcslaq.{tag}"
            return MPI.Intracomm.Create_from_group(group, name, errhandler=MPI.ERRORS_RETURN)
        finally:
            group.Free()
            base.Free()

    def _group_in(self, comm: MPI.Intracomm, members: Sequence[int]) -> tuple[MPI.Group, MPI.Group]:
        """The group of `comm`, and that of these world ranks."""
        everybody, base = self._workers.Get_group(), comm.Get_group()
        try:
            indices = everybody.Translate_ranks([rank - 1 for rank in members], base)
        finally:
            everybody.Free()
        return base, base.Incl(indices)

    def repaired(self, comm: MPI.Intracomm, generation: int) -> JobGroup:
        """The group of the members of a broken one that are alive; all of them call this."""
        comm.Revoke()
        shrunk = cast(MPI.Intracomm, comm.Shrink())
        group, base = shrunk.Get_group(), self._workers.Get_group()
        try:
            indices = group.Translate_ranks(list(range(group.Get_size())), base)
        finally:
            group.Free()
            base.Free()
        return self._made(shrunk, [index + 1 for index in indices], generation)

    def _made(self, comm: MPI.Intracomm, members: Sequence[int], generation: int) -> JobGroup:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.num_made += 1
        self.num_alive += 1
        self.num_peak = max(self.num_peak, self.num_alive)
        return JobGroup(comm, tuple(members), generation, self)


def _give_up(generation: int) -> None:
    """End this process, which waits for a dead member for ever; the others survive that."""
    log.critical("no group of generation %d within %g s", generation, FORMING_LIMIT_S)
    die()


class JobGroup:
    """The communicator of one job; also the `Reducer` that training sums over.

    A context manager: leaving it frees the communicator.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        members: tuple[int, ...],
        generation: int,
        factory: GroupFactory,
    ) -> None:
        self._comm = comm
        self.members = members
        self.generation = generation
        self._factory = factory
        #: Index of this rank among the members; 0 leads.
        self.index = comm.Get_rank()
        self.num_members = comm.Get_size()
        self._is_free = False
        self._post = Post(comm)

    def __enter__(self) -> JobGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.free()

    @property
    def is_leader(self) -> bool:
        """Whether this rank speaks for the job."""
        return self.index == 0

    def free(self, *, is_broken: bool = False) -> None:
        """Free the communicator; harmless when it is free already."""
        if not self._is_free:
            self._is_free = True
            if not is_broken:
                self._post.close()
            self._factory.num_alive -= 1
            self._comm.Free()

    def agree(self, is_well: bool) -> bool:
        """Whether all that was done in this group was done by all members, who all live.

        Collective over the survivors, the same answer on all of them; called once, at the end.
        """
        if not self._factory.survives:
            return is_well
        if not is_well:
            # Members that wait for one another in an operation come out of it, and here.
            self._comm.Revoke()
        try:
            return self._comm.Agree(int(is_well)) == 1
        except MPI.Exception:
            return False

    def repaired(self) -> JobGroup:
        """The group of the survivors, after they did not `agree`; this one is free then."""
        group = self._factory.repaired(self._comm, self.generation)
        self.free(is_broken=True)
        return group

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except MPI.Exception as error:
            self._lost(error)

    def _lost(self, error: MPI.Exception) -> NoReturn:
        if not self._factory.survives:
            raise error
        raise MemberLost(str(error)) from error

    def maximum(self, buffer: np.ndarray) -> None:
        """Element-wise maximum over the members, in place; `buffer`: (S,) float64."""
        if self.num_members > 1:
            try:
                self._comm.Allreduce(MPI.IN_PLACE, buffer, MPI.MAX)
            except MPI.Exception as error:
                self._lost(error)

    def add(self, buffer: np.ndarray) -> None:
        """Element-wise sum over the members, in place; `buffer`: (P,) float64."""
        if self.num_members > 1:
            try:
                self._comm.Allreduce(MPI.IN_PLACE, buffer, MPI.SUM)
            except MPI.Exception as error:
                self._lost(error)

    def add_slices(self, vector: np.ndarray, offsets: Sequence[int], first: int) -> None:
        """Sum each slice at its server, and what follows the last one everywhere.

        `vector`: (S,) float64; slice k is `vector[offsets[k] : offsets[k + 1]]`, member
        `first + k` serves it. Elsewhere a slice's content is undefined afterwards.
        """
        requests = []
        with self._surviving():
            for root, part in _slices(vector, offsets, first):
                if root == self.index:
                    requests.append(self._comm.Ireduce(MPI.IN_PLACE, part, MPI.SUM, root))
                else:
                    requests.append(self._comm.Ireduce(part, None, MPI.SUM, root))
            rest = vector[offsets[-1] :]
            if rest.size:
                requests.append(self._comm.Iallreduce(MPI.IN_PLACE, rest, MPI.SUM))
            MPI.Request.Waitall(requests)

    def spread_slices(self, vector: np.ndarray, offsets: Sequence[int], first: int) -> None:
        """Replace each slice (see `add_slices`) on all members by its server's."""
        slices = _slices(vector, offsets, first)
        with self._surviving():
            MPI.Request.Waitall([self._comm.Ibcast(part, root) for root, part in slices])

    def collect_slices(self, vector: np.ndarray, offsets: Sequence[int], first: int) -> None:
        """Replace each slice (see `add_slices`) on the leader by its server's."""
        requests = []
        with self._surviving():
            for root, part in _slices(vector, offsets, first):
                if self.is_leader:
                    requests.append(self._comm.Irecv(part, root, root))
                elif root == self.index:
                    requests.append(self._comm.Isend(part, 0, root))
            MPI.Request.Waitall(requests)

    def post(self, member: int, payload: bytes) -> None:
        """Send a message to a member; does not wait."""
        with self._surviving():
            self._post.send(member, payload)

    def receive(self) -> tuple[int, bytes]:
        """Wait for a message of any member: who sent it, and what."""
        with self._surviving():
            return self._post.receive()
        raise AssertionError("either received or lost")

    def broadcast(self, payload: bytes | None, root: int = 0) -> bytes:
        """The bytes of member `root` (the leader), on all members; the others pass None."""
        if self.num_members == 1:
            assert payload is not None
            return payload
        size = np.array([0 if payload is None else len(payload)], dtype=np.int64)
        with self._surviving():
            self._comm.Bcast(size, root)
            buffer = bytearray(payload) if payload is not None else bytearray(int(size[0]))
            self._comm.Bcast([buffer, MPI.BYTE], root)
        return bytes(buffer)

    def broadcast_arrays(
        self, arrays: dict[str, np.ndarray] | None, root: int = 0
    ) -> dict[str, np.ndarray]:
        """The named arrays of member `root` (the leader), on all members; the others pass None.

        One header, then one Bcast per array straight between the arrays' memories.
        """
        header = None if arrays is None else _header_of(arrays)
        shapes = _parse_header(self.broadcast(header, root))
        result: dict[str, np.ndarray] = {}
        for name, dtype, shape in shapes:
            array = np.ascontiguousarray(arrays[name]) if arrays is not None else None
            if array is None:
                array = np.empty(shape, dtype)
            if self.num_members > 1 and array.size:
                with self._surviving():
                    self._comm.Bcast([array.reshape(-1).view(np.uint8), MPI.BYTE], root)
            result[name] = array.reshape(shape)
        return result


def _slices(vector: np.ndarray, offsets: Sequence[int], first: int) -> list[tuple[int, np.ndarray]]:
    """Server and content of each slice that has elements."""
    parts = [(first + k, vector[start:stop]) for k, (start, stop) in enumerate(pairwise(offsets))]
    return [(server, part) for server, part in parts if part.size]


def _header_of(arrays: dict[str, np.ndarray]) -> bytes:
    table = [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]
    return json.dumps(table).encode()


def _parse_header(header: bytes) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    return [(name, np.dtype(code), tuple(shape)) for name, code, shape in json.loads(header)]
