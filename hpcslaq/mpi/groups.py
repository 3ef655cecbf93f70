"""Job communicators: made by exactly their members, counted, always freed.

mpi4py frees no communicator on garbage collection, and MPICH dies after about two
thousand leaked ones, so this is the only place that makes them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from hpcslaq.mpi.launch import die
from hpcslaq.mpi.points import PointComm
from hpcslaq.mpi.post import Post
from hpcslaq.train.reducer import MemberLost

log = logging.getLogger(__name__)

#: A member that is inside the creation of a group for so long waits for a dead one, s: creation
#: starts when all are ready and takes milliseconds.
FORMING_LIMIT_S = 10.0
#: Groups of one generation whose messages are told apart.
_ATTEMPTS = 16


class GroupFactory:
    """Makes the communicators of jobs out of the workers' communicator, and counts them.

    With `survives` (ULFM) groups survive the death of members, and groups can be made after one, of
    messages between two ranks (`points`): no communicator can be made then.
    """

    def __init__(
        self,
        workers: MPI.Intracomm,
        *,
        survives: bool = False,
        lost: Callable[[], set[int]] = set,
    ) -> None:
        """`lost()` : world ranks that have died, as far as this rank knows now."""
        #: All workers, what groups are made of; world rank r has rank r - 1 in it.
        self._workers = workers
        self._lost = lost
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
        self, members: Sequence[int], generation: int, *, is_damaged: bool
    ) -> JobGroup | None:
        """The same where members may die; None where it did not come about.

        `is_damaged` : some member knows of a death, so no communicator can be made; the same on
        all.
        """
        if is_damaged:
            return self.connect(members, generation, 0)
        timer = threading.Timer(FORMING_LIMIT_S, _give_up, [generation])
        timer.daemon = True
        timer.start()
        try:
            comm = self._create_group(members, generation % self._num_tags)
        except MPI.Exception as error:
            log.warning("generation %d: no group of %s: %s", generation, members, error)
            return None
        finally:
            timer.cancel()
        return self._made(comm, members, generation)

    def connect(self, members: Sequence[int], generation: int, attempt: int) -> JobGroup:
        """The group of these without a communicator; waits for nobody.

        `attempt` : groups of this generation that broke before, the same on all members.
        """
        number = generation * _ATTEMPTS + attempt % _ATTEMPTS
        places = [rank - 1 for rank in members]
        comm = PointComm(self._workers, places, number, self._lost_places)
        return self._made(comm, members, generation, attempt)

    def _lost_places(self) -> set[int]:
        return {rank - 1 for rank in self._lost()}

    def _create_group(self, members: Sequence[int], tag: int) -> MPI.Intracomm:
        everybody = self._workers.Get_group()
        group = everybody.Incl([rank - 1 for rank in members])
        try:
            comm = self._workers.Create_group(group, tag)
        finally:
            group.Free()
            everybody.Free()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        return comm

    def _made(
        self,
        comm: MPI.Intracomm | PointComm,
        members: Sequence[int],
        generation: int,
        attempt: int = 0,
    ) -> JobGroup:
        self.num_made += 1
        self.num_alive += 1
        self.num_peak = max(self.num_peak, self.num_alive)
        return JobGroup(comm, tuple(members), generation, self, attempt)


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
        comm: MPI.Intracomm | PointComm,
        members: tuple[int, ...],
        generation: int,
        factory: GroupFactory,
        attempt: int = 0,
    ) -> None:
        self._comm = comm
        self.members = members
        self.generation = generation
        #: Groups of this generation that broke before.
        self.attempt = attempt
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

    def revoke(self) -> None:
        """A member is lost: those that wait for one another in an operation come out of it."""
        self._comm.Revoke()

    def repaired(self, survivors: Sequence[int]) -> JobGroup:
        """The group of the survivors of this one, which is free then."""
        self.free(is_broken=True)
        return self._factory.connect(survivors, self.generation, self.attempt + 1)

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
            self._wait(requests)

    def spread_slices(self, vector: np.ndarray, offsets: Sequence[int], first: int) -> None:
        """Replace each slice (see `add_slices`) on all members by its server's."""
        slices = _slices(vector, offsets, first)
        with self._surviving():
            self._wait([self._comm.Ibcast(part, root) for root, part in slices])

    def collect_slices(self, vector: np.ndarray, offsets: Sequence[int], first: int) -> None:
        """Replace each slice (see `add_slices`) on the leader by its server's."""
        requests = []
        with self._surviving():
            for root, part in _slices(vector, offsets, first):
                if self.is_leader:
                    requests.append(self._comm.Irecv(part, root, root))
                elif root == self.index:
                    requests.append(self._comm.Isend(part, 0, root))
            self._wait(requests)

    def _wait(self, requests: list[MPI.Request]) -> None:
        if isinstance(self._comm, PointComm):
            self._comm.wait(requests)
        else:
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
