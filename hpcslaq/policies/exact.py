"""The best allocation of small cases, by dynamic programming: the oracle of the fast ones."""

from __future__ import annotations

from collections.abc import Sequence


def best_allocation(gains: Sequence[dict[int, float]], budget: int) -> tuple[float, list[int]]:
    """Largest total gain and one count per job that reaches it.

    gains : per job, gain by number of workers; only these numbers are allowed. Takes
    O(jobs * budget * options). Raises ValueError where not even the smallest counts fit.
    """
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for options in gains:
        following: dict[int, tuple[float, list[int]]] = {}
        for spent, (total, counts) in best.items():
            for count, gain in options.items():
                new = spent + count
                if new <= budget and (new not in following or total + gain > following[new][0]):
                    following[new] = (total + gain, [*counts, count])
        best = following
    if not best:
        raise ValueError(f"budget: {budget} workers do not suffice for the smallest counts")
    return max(best.values(), key=lambda entry: entry[0])
