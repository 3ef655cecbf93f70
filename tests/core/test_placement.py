"""Which ranks stay, leave and join."""

from __future__ import annotations

import random

import pytest

from hpcslaq.core.placement import IdleRanks, choose_keepers

#: Ranks 1-4 on host x, 5-8 on y, 9-12 on z.
HOSTS = {rank: "xyz"[(rank - 1) // 4] for rank in range(1, 13)}


@pytest.mark.parametrize(
    ("members", "num", "kept"),
    [
        ((1, 2, 3), 3, (1, 2, 3)),
        ((1, 2, 3), 1, (1,)),
        ((3, 1, 2), 2, (3, 1)),  # the leader first, whatever its number
        ((1, 5, 6, 2), 2, (1, 2)),  # the leader's host before others
        ((1, 5, 9, 10), 3, (1, 9, 10)),  # then the fullest host
        ((12, 1, 5), 2, (12, 1)),  # ties by name
    ],
)
def test_the_leader_stays_and_its_neighbours_before_others(members, num, kept) -> None:
    assert choose_keepers(members, HOSTS, num) == kept


@pytest.mark.parametrize(
    ("idle", "members", "num", "joined"),
    [
        ({1, 2, 3}, (), 2, (1, 2)),
        ({1, 5, 6, 7}, (), 3, (5, 6, 7)),  # the emptiest host first
        ({2, 5, 6, 7}, (1,), 1, (2,)),  # the job's own host before the emptiest
        ({2, 6, 7}, (1, 5, 8), 2, (6, 7)),  # most of its members first
        ({4, 1}, (), 5, (1, 4)),  # no more than there are
        (set(), (1,), 2, ()),
        ({9, 1}, (), 0, ()),
    ],
)
def test_joiners_come_from_where_the_job_is_then_from_the_emptiest_host(
    idle, members, num, joined
) -> None:
    assert IdleRanks(idle, HOSTS).take(members, num) == joined


@pytest.mark.parametrize("seed", range(50))
def test_choices_are_subsets_of_the_right_size_and_do_not_depend_on_the_order(seed) -> None:
    rng = random.Random(seed)
    ranks = rng.sample(sorted(HOSTS), 12)
    members, idle = ranks[: rng.randint(1, 8)], ranks[8:]
    num = rng.randint(1, len(members))
    kept = choose_keepers(members, HOSTS, num)
    shuffled = [members[0], *rng.sample(members[1:], len(members) - 1)]
    assert kept[0] == members[0] and set(kept) <= set(members) and len(set(kept)) == num
    assert choose_keepers(shuffled, HOSTS, num) == kept
    joined = IdleRanks(idle, HOSTS).take(members, 3)
    assert len(set(joined)) == 3 and set(joined) <= set(idle)
    assert IdleRanks(rng.sample(idle, 4), HOSTS).take(members, 3) == joined


@pytest.mark.parametrize("seed", range(50))
def test_each_job_gets_what_it_would_get_of_the_ranks_that_are_left(seed) -> None:
    rng = random.Random(seed)
    left = set(rng.sample(sorted(HOSTS), 10))
    pool = IdleRanks(left, HOSTS)
    while left:
        members, num = rng.sample(sorted(HOSTS), rng.randint(0, 3)), rng.randint(0, 3)
        joined = IdleRanks(left, HOSTS).take(members, num)
        assert pool.take(members, num) == joined
        left -= set(joined)
