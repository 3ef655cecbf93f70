"""Run on several ranks (started by tests/mpi/test_ranks.py): the control channel and groups."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.core import events as ev
from hpcslaq.mpi.messages import TAG_EVENT, TAG_ORDER, Enter

pytestmark = pytest.mark.mpi(min_size=3)


@pytest.fixture(scope="session")
def ranks():
    from hpcslaq.mpi import boot

    return boot.open_world()


@pytest.fixture(scope="session")
def channel(ranks):
    from hpcslaq.mpi.channel import Channel

    return Channel(ranks.control)


def _wait(channel, tag):
    from hpcslaq.mpi.channel import ACTIVE_PAUSE_S, Backoff

    return channel.wait(tag, Backoff(ACTIVE_PAUSE_S))


def test_a_large_message_arrives_whole(ranks, channel):
    losses = tuple(float(i) / 7 for i in range(50_000))
    sent = ev.ProgressReported("a", 1, 1, losses, 1, 0.5, 2)
    if ranks.rank == 1:
        channel.send(0, TAG_EVENT, sent)
        assert channel.flush(10.0)
    if ranks.rank == 0:
        assert _wait(channel, TAG_EVENT) == sent


def test_messages_of_one_sender_keep_their_order(ranks, channel):
    if ranks.rank == 0:
        for number in range(100):
            channel.send(2, TAG_ORDER, Enter(number, (2,)))
        assert channel.flush(10.0)
    if ranks.rank == 2:
        assert [_wait(channel, TAG_ORDER).generation for _ in range(100)] == list(range(100))


def test_only_the_members_create_a_group_and_all_are_freed(ranks):
    if ranks.rank == 0:
        return
    from hpcslaq.mpi.groups import GroupFactory

    factory = GroupFactory(ranks.workers)
    for generation in range(3000):
        if ranks.rank == 2 and generation % 3:
            continue
        members = (1, 2) if generation % 3 == 0 else (1,)
        if ranks.rank in members:
            with factory.form(members, generation) as group:
                buffer = np.array([float(ranks.rank)])
                group.add(buffer)
                assert buffer[0] == sum(members)
    assert (factory.num_alive, factory.num_peak) == (0, 1)


def test_named_arrays_are_broadcast_with_type_and_shape(ranks):
    if ranks.rank == 0:
        return
    from hpcslaq.mpi.groups import GroupFactory

    arrays = {
        "weights": np.arange(6, dtype=np.float64).reshape(2, 3),
        "counters": np.array([1, 2], dtype=np.int64),
        "mask": np.array([True, False]),
        "empty": np.zeros((0, 4)),
        "scalar": np.array(3.5),
    }
    members = tuple(range(1, ranks.size))
    with GroupFactory(ranks.workers).form(members, 1) as group:
        received = group.broadcast_arrays(arrays if group.is_leader else None)
        details = group.broadcast(b"boom" if group.index == 1 else None, root=1)
    assert details == b"boom"
    assert list(received) == list(arrays)
    for name, array in arrays.items():
        assert received[name].dtype == array.dtype
        assert np.array_equal(received[name], array)
        assert received[name].shape == array.shape


@pytest.mark.parametrize("length", [0, 1, 7, 100_000])
def test_a_group_without_a_communicator_computes_what_one_with_it_does(ranks, length):
    from mpi4py import MPI

    from hpcslaq.mpi.points import PointComm

    points = PointComm(ranks.control, range(ranks.size), length, set)
    own = np.random.default_rng(ranks.rank).integers(-99, 99, length).astype(np.float64)
    for root in range(ranks.size):
        for op in (MPI.SUM, MPI.MAX):
            pairs = []
            for comm in (ranks.control, points):
                total, slices, spread = own.copy(), own.copy(), own.copy()
                comm.Allreduce(MPI.IN_PLACE, total, op)
                comm.Bcast(spread, root)
                at_root = comm.Get_rank() == root
                sent, received = (MPI.IN_PLACE, slices) if at_root else (slices, None)
                comm.Ireduce(sent, received, op, root).Wait()
                pairs.append((total, slices, spread))
            for expected, found in zip(*pairs, strict=True):
                assert np.array_equal(expected, found)


def test_who_waits_for_the_dead_in_a_group_without_a_communicator_is_told(ranks):
    from hpcslaq.mpi.points import PointComm
    from hpcslaq.train.reducer import MemberLost

    lost: set[int] = {1}
    points = PointComm(ranks.control, range(ranks.size), 77, lambda: lost)
    if ranks.rank != 1:
        with pytest.raises(MemberLost, match=r"\[1\]"):
            points.wait([points.Irecv(np.empty(3), 1, 0)])


def test_rank_0_gives_its_word_on_a_group_when_all_have_come_or_died(ranks, channel):
    from hpcslaq.mpi.arbiter import Arbiter
    from hpcslaq.mpi.messages import TAG_VERDICT, Came, Verdict

    well = {7: (True, True), 8: (True, False), 9: (True, None)}  # None: died
    if ranks.rank == 0:
        arbiter = Arbiter(channel)
        for _ in range(5):
            arbiter.settle(set())
            arbiter.note(_wait(channel, TAG_EVENT))
        arbiter.settle({3})
        arbiter.settle({2})
    elif ranks.rank < 3:
        for generation, said in well.items():
            if said[ranks.rank - 1] is not None:
                came = Came(ranks.rank, generation, 0, (1, 2), bool(said[ranks.rank - 1]))
                channel.send(0, TAG_EVENT, came)
        heard = [_wait(channel, TAG_VERDICT) for _ in range(4 - ranks.rank)]
        expected = [Verdict(7, 0, True, (1, 2)), Verdict(8, 0, False, (1, 2))]
        expected += [Verdict(9, 0, False, (1,))][: 2 - ranks.rank]
        assert sorted(heard, key=lambda verdict: verdict.generation) == expected
