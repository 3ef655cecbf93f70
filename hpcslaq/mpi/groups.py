"""Job communicators: made by exactly their members, counted, always freed.

mpi4py frees no communicator on garbage collection, and MPICH dies after about two
thousand leaked ones, so this is the only place that makes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType

import numpy as np
from mpi4py import MPI

from hpcslaq.mpi.post import Post


class GroupFactory:
    """Makes the communicators of jobs out of the workers' communicator, and counts them."""

    def __init__(self, workers: MPI.Intracomm) -> None:
        #: All workers; world rank r has rank r - 1 in it.
        self._workers = workers
        tag_limit = workers.Get_attr(MPI.TAG_UB) or 32767
        #: Tags of concurrent creations with common members must differ.
        self._num_tags = min(tag_limit, 32767)
        self.num_made = 0
        self.num_alive = 0
        self.num_peak = 0

    def form(self, members: Sequence[int], generation: int) -> JobGroup:
        """Create the group of these world ranks; every member calls this, nobody else."""
        base = self._workers.Get_group()
        group = base.Incl([rank - 1 for rank in members])
        try:
            comm = self._workers.Create_group(group, generation % self._num_tags)
        finally:
            group.Free()
            base.Free()
        self.num_made += 1
        self.num_alive += 1
        self.num_peak = max(self.num_peak, self.num_alive)
        return JobGroup(comm, tuple(members), generation, self)


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

    def free(self) -> None:
        """Free the communicator; harmless when it is free already."""
        if not self._is_free:
            self._is_free = True
            self._post.close()
            self._factory.num_alive -= 1
            self._comm.Free()

    def maximum(self, buffer: np.ndarray) -> None:
        """Element-wise maximum over the members, in place; `buffer`: (S,) float64."""
        if self.num_members > 1:
            self._comm.Allreduce(MPI.IN_PLACE, buffer, MPI.MAX)

    def add(self, buffer: np.ndarray) -> None:
        """Element-wise sum over the members, in place; `buffer`: (P,) float64."""
        if self.num_members > 1:
            self._comm.Allreduce(MPI.IN_PLACE, buffer, MPI.SUM)

    def add_slices(self, vector: np.ndarray, offsets: Sequence[int], first: int) -> None:
        """Sum each slice at its server, and what follows the last one everywhere.

        `vector`: (S,) float64; slice k is `vector[offsets[k] : offsets[k + 1]]`, member
        `first + k` serves it. Elsewhere a slice's content is undefined afterwards.
        """
        requests = []
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
        MPI.Request.Waitall([self._comm.Ibcast(part, root) for root, part in slices])

    def collect_slices(self, vector: np.ndarray, offsets: Sequence[int], first: int) -> None:
        """Replace each slice (see `add_slices`) on the leader by its server's."""
        requests = []
        for root, part in _slices(vector, offsets, first):
            if self.is_leader:
                requests.append(self._comm.Irecv(part, root, root))
            elif root == self.index:
                requests.append(self._comm.Isend(part, 0, root))
        MPI.Request.Waitall(requests)

    def post(self, member: int, payload: bytes) -> None:
        """Send a message to a member; does not wait."""
        self._post.send(member, payload)

    def receive(self) -> tuple[int, bytes]:
        """Wait for a message of any member: who sent it, and what."""
        return self._post.receive()

    def broadcast(self, payload: bytes | None, root: int = 0) -> bytes:
        """The bytes of member `root` (the leader), on all members; the others pass None."""
        if self.num_members == 1:
            assert payload is not None
            return payload
        size = np.array([0 if payload is None else len(payload)], dtype=np.int64)
        self._comm.Bcast(size, root)
        buffer = bytearray(payload) if payload is not None else bytearray(int(size[0]))
        self._comm.Bcast([buffer, MPI.BYTE], root)
        return bytes(buffer)

    def broadcast_arrays(self, arrays: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """The leader's named arrays, on all members; the others pass None.

        One header, then one Bcast per array straight between the arrays' memories.
        """
        header = None if arrays is None else _header_of(arrays)
        shapes = _parse_header(self.broadcast(header))
        result: dict[str, np.ndarray] = {}
        for name, dtype, shape in shapes:
            array = np.ascontiguousarray(arrays[name]) if arrays is not None else None
            if array is None:
                array = np.empty(shape, dtype)
            if self.num_members > 1 and array.size:
                self._comm.Bcast([array.reshape(-1).view(np.uint8), MPI.BYTE], 0)
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
