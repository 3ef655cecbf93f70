"""The table of ranks."""

from __future__ import annotations

from hpcslaq.core.ranks import RankTable
from hpcslaq.core.transitions import RankState


def table_of(num: int = 4) -> RankTable:
    return RankTable({rank: "h" for rank in range(num, 0, -1)})


def test_all_ranks_are_idle_at_first_and_listed_in_order() -> None:
    ranks = table_of()
    assert list(ranks) == [1, 2, 3, 4] and ranks.idle == {1, 2, 3, 4}
    assert ranks.is_at_rest and ranks.num_usable == 4
    assert {record.state for record in ranks.values()} == {RankState.IDLE}


def test_a_lost_rank_is_neither_usable_nor_in_the_way_of_rest() -> None:
    ranks = table_of()
    ranks.put((2,), RankState.BUSY, "a")
    assert not ranks.is_at_rest
    ranks.put((2,), RankState.LOST, None)
    assert ranks.is_at_rest and ranks.num_usable == 3 and ranks.lost == {2}


def test_ranks_let_go_depart_until_they_are_idle() -> None:
    ranks = table_of()
    ranks.put((1, 2), RankState.BUSY, "a")
    ranks.put((3,), RankState.JOINING, "a")
    ranks[2].is_released = True
    ranks.let_go((1, 2, 3))
    assert [ranks[rank].state.value for rank in ranks] == ["leaving", "idle", "joining", "idle"]
    assert ranks.departing == {1, 3} and ranks.idle == {2, 4}
    ranks.put((1, 3), RankState.IDLE, None)
    assert ranks.departing == set() and ranks.is_at_rest


def test_an_early_release_is_remembered_while_the_rank_works_for_the_same_job() -> None:
    ranks = table_of()
    ranks.put((1,), RankState.JOINING, "a")
    ranks[1].is_released = True
    ranks.put((1,), RankState.BUSY, "a")
    assert ranks[1].is_released
    ranks.put((1,), RankState.IDLE, None)
    assert not ranks[1].is_released
