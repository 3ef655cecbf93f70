"""What a job can do in each slot, and what each choice costs at the present prices.

A choice is a number of workers, spread over hosts or packed on one, with the servers that
it needs. For given numbers the cheapest placement takes the cheapest hosts first, so the
menu of all numbers comes from one sort and a few prefix sums, for all slots at once.
Which choices make the best schedule is the business of `schedule`.

Source: OASiS, algorithm 2, lines 7-26 (cost_t), on worker counts instead of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcslaq.policies.oasis.model import FloatArray, IntArray, Job, SlotPlan
from hpcslaq.policies.oasis.prices import Ledger


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """The choices of a job in slots start, start + 1, ...; choice 0 is to pause.

    costs : (S, A) price of choice a in slot start + s; infinite where it does not fit
    rates, workers : (A,) units of work and workers of a choice
    packed : (A,) bool, all workers on one host
    """

    start: int
    costs: FloatArray
    rates: IntArray
    workers: IntArray
    packed: np.ndarray


def slot_menu(job: Job, ledger: Ledger, start: int, stop: int) -> Menu:
    """Costs of all choices in slots [start, stop)."""
    prices = ledger.worker_price[start:stop] @ job.worker_demand
    rooms = ledger.worker_room(job, start, stop)
    limit = job.max_workers
    spread = cheapest_first(prices, rooms, limit)
    servers = job.servers
    if servers[-1]:
        shard_prices = ledger.server_price[start:stop] @ job.server_demand
        shard_rooms = ledger.server_room(job, start, stop)
        shards = cheapest_first(shard_prices, shard_rooms, int(servers[-1]))
        spread += shards[:, servers]
    counts = np.arange(limit + 1)
    if job.packed_rates is None:
        return Menu(start, spread, job.rates, counts, np.zeros(limit + 1, dtype=bool))
    one_host = cheapest_host(prices, rooms, limit)
    # One worker is packed anyway; larger packed groups are choices of their own.
    return Menu(
        start,
        np.concatenate([spread, one_host[:, 1:]], axis=1),
        np.concatenate([job.rates, job.packed_rates[1:]]),
        np.concatenate([counts, counts[1:]]),
        np.repeat([False, True], [limit + 1, limit]),
    )


def cheapest_first(prices: FloatArray, rooms: IntArray, limit: int) -> FloatArray:
    """(S, limit + 1) cost of n units in each slot, cheapest hosts first; inf beyond the room.

    prices : (S, H) price of one unit on each host
    rooms : (S, H) units that fit there
    """
    num_slots, num_hosts = prices.shape
    costs = np.full((num_slots, limit + 1), np.inf)
    costs[:, 0] = 0.0
    if num_hosts == 0 or num_slots == 0:
        return costs
    rooms = np.minimum(rooms, limit)
    # Hosts without room go last, so that the others are found by position.
    order = np.argsort(np.where(rooms > 0, prices, np.inf), axis=1, kind="stable")
    sorted_prices = np.take_along_axis(prices, order, axis=1)
    filled = np.cumsum(np.take_along_axis(rooms, order, axis=1), axis=1)
    # The j-th unit (from 0) goes to the host whose number is how many hosts are full before it.
    rows = np.arange(num_slots)[:, None] * (limit + 1)
    full = np.bincount(
        (rows + np.minimum(filled, limit)).ravel(), minlength=num_slots * (limit + 1)
    ).reshape(num_slots, limit + 1)
    host = np.cumsum(full[:, :limit], axis=1)
    unit = np.take_along_axis(sorted_prices, np.minimum(host, num_hosts - 1), axis=1)
    unit[host >= num_hosts] = np.inf
    np.cumsum(unit, axis=1, out=costs[:, 1:])
    return costs


def cheapest_host(prices: FloatArray, rooms: IntArray, limit: int) -> FloatArray:
    """(S, limit + 1) cost of n units on the cheapest single host with room for all of them."""
    num_slots, num_hosts = prices.shape
    best = np.full((num_slots, limit + 1), np.inf)
    rows = np.arange(num_slots)
    rooms = np.minimum(rooms, limit)
    for host in range(num_hosts):
        held = rooms[:, host]
        best[rows, held] = np.minimum(best[rows, held], prices[:, host])
    best = np.minimum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    best[:, 0] = 0.0
    return best * np.maximum(np.arange(limit + 1), 1)


def place(job: Job, ledger: Ledger, slot: int, workers: int, packed: bool) -> SlotPlan:
    """The cheapest placement of one choice of the menu."""
    prices = ledger.worker_price[slot] @ job.worker_demand
    rooms = ledger.worker_room(job, slot, slot + 1)[0]
    if packed:
        host = int(np.argmin(np.where(rooms >= workers, prices, np.inf)))
        held: tuple[tuple[int, int], ...] = ((host, workers),)
    else:
        held = _fill(prices, rooms, workers)
    num_servers = int(job.servers[workers])
    shards: tuple[tuple[int, int], ...] = ()
    if num_servers:
        shard_prices = ledger.server_price[slot] @ job.server_demand
        shards = _fill(shard_prices, ledger.server_room(job, slot, slot + 1)[0], num_servers)
    rates = job.packed_rates if packed and job.packed_rates is not None else job.rates
    return SlotPlan(slot, held, shards, int(rates[workers]))


def _fill(prices: FloatArray, rooms: IntArray, count: int) -> tuple[tuple[int, int], ...]:
    held = []
    for host in np.argsort(np.where(rooms > 0, prices, np.inf), kind="stable"):
        take = min(count, int(rooms[host]))
        if take:
            held.append((int(host), take))
            count -= take
        if not count:
            break
    return tuple(held)
