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
