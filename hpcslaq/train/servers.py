"""Parameter servers inside a group that trains in lock-step: who holds which slice.

The last members of the group serve. All members hold all parameters; what only the update
needs (an optimiser's memory) has an element on its server alone. A pass is

    sum of each slice of the gradient at its server -> the servers move their slices
    -> each slice of the parameters from its server to all

with exact sums (`exact`) and an update element by element: the same bits as with all-reduce.
Before the group changes, and for a checkpoint, the slices are gathered, so that states are
whole at every place where they are packed. When passes are made is the business of `trainer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcslaq.errors import TrainingError
from hpcslaq.train.exact import Array, Layout
from hpcslaq.train.model import Context, Model, Slices, State, Step, Totals
from hpcslaq.train.reducer import SliceReducer


class Servers:
    """One member's view of the parameter servers of its group."""

    def __init__(
        self, slices: Slices, reducer: SliceReducer, member: int, num_workers: int, state: State
    ) -> None:
        """Cut what this member serves out of the whole state.

        Raises TrainingError where the state's arrays do not fit `slices`.
        """
        self._slices, self._reducer, self._first = slices, reducer, num_workers
        self.is_server, self._is_leader = member >= num_workers, member == 0
        size = _size_of(slices, state)
        num_servers = reducer.num_members - num_workers
        self._offsets = tuple(k * size // num_servers for k in range(num_servers + 1))
        #: The interval that this member serves; empty on workers.
        self._part = slice(0, 0)
        if self.is_server:
            index = member - num_workers
            self._part = slice(self._offsets[index], self._offsets[index + 1])
        #: What only this server has.
        self._memory: State = {name: state[name][self._part].copy() for name in slices.memory}
        #: Layout of the statistics by its signature, as member 0 knows it.
        self._layout: Layout | None = None
        self.release(state)

    def release(self, state: State) -> None:
        """Drop from the state what only its server is to have."""
        for name in self._slices.memory:
            if state[name].size:
                state[name] = np.zeros(0)

    def layout_of(self, own: Layout | None, signature: float) -> Layout:
        """The statistics' layout, also on servers; `signature` is that of all workers.

        Member 0 tells it whenever it has changed, which all see.
        """
        if self._layout is None or self._layout.signature != signature:
            payload = _encode(own) if self._is_leader and own is not None else None
            self._layout = _decode(self._reducer.broadcast(payload, 0))
        return self._layout

    @property
    def values(self) -> str:
        """Name of the array with the parameters."""
        return self._slices.values

    def part_of(self, index: int) -> slice:
        """The interval of server `index`."""
        return slice(self._offsets[index], self._offsets[index + 1])

    def uncut_names(self, state: State) -> list[str]:
        """Names of the arrays that every member has, the parameters apart."""
        cut = {self._slices.values, *self._slices.memory}
        return [name for name in state if name not in cut]

    def split(self, layout: Layout, totals: Totals) -> tuple[Array, dict[str, Any]]:
        """What is cut of the statistics, (P,), and the others.

        Raises TrainingError where they do not fit the slices.
        """
        name, size = self._slices.gradient, self._offsets[-1]
        if name not in layout.names or layout.shapes[layout.names.index(name)] != (size,):
            raise TrainingError(
                f"statistics: parameter servers need {name!r} of shape ({size},), there are "
                f"{dict(zip(layout.names, layout.shapes, strict=True))}"
            )
        uncut = {key: value for key, value in totals.items() if key != name}
        return totals[name], uncut

    def add(self, layout: Layout, total: Array) -> Totals:
        """Totals over all members: of this member's slice, and of what is not cut.

        total : (layout.size,) this member's sums. Raises TrainingError, on all members alike,
        where the statistics do not fit the slices.
        """
        gradient, _ = self.split(layout, layout.unpack(total))
        start, size = layout.offsets[layout.names.index(self._slices.gradient)], gradient.size
        # What is cut comes first, the rest after it.
        buffer = np.concatenate([gradient, total[:start], total[start + size :]])
        self._reducer.add_slices(buffer, self._offsets, self._first)
        whole = np.concatenate([buffer[size : size + start], buffer[:size], buffer[size + start :]])
        totals = layout.unpack(whole)
        totals[self._slices.gradient] = buffer[self._part]
        return totals

    def update(self, model: Model, state: State, totals: Totals, context: Context) -> Step:
        """Take note of the totals; on a server, move its slice."""
        name = self._slices.gradient
        uncut = {key: value for key, value in totals.items() if key != name}
        done = model.observe(state, uncut, context)
        if self.is_server:
            self._move(model, state, totals, context)
        return done

    def apply(
        self,
        model: Model,
        state: State,
        uncut: Totals,
        gradient: Array,
        context: Context,
        share: float,
    ) -> None:
        """On a server: make `share` of the move that these totals and slice of a gradient ask for.

        Raises TrainingError where the gradient does not have this server's length.
        """
        _check_slice(self._slices.gradient, gradient, self._part.stop - self._part.start)
        before = self.own(state).copy()
        model.observe(state, uncut, context)
        self._move(model, state, {**uncut, self._slices.gradient: gradient}, context)
        own = self.own(state)
        own[:] = before + share * (own - before)

    def _move(self, model: Model, state: State, totals: Totals, context: Context) -> None:
        values = self._slices.values
        own = {**state, **self._memory, values: self.own(state).copy()}
        model.move(own, totals, context, self._part.start)
        for key in (values, *self._memory):
            _check_slice(key, own[key], self._part.stop - self._part.start)
        state[values][self._part] = own[values]
        self._memory = {key: own[key] for key in self._memory}

    def own(self, state: State) -> Array:
        """A view of this server's slice of the parameters."""
        return state[self._slices.values][self._part]

    def put(self, state: State, index: int, values: Array) -> None:
        """Take over the slice of server `index`, from the server."""
        state[self._slices.values][self.part_of(index)] = values

    def spread(self, state: State) -> None:
        """All members get all slices of the parameters."""
        self._reducer.spread_slices(state[self._slices.values], self._offsets, self._first)

    def gather(self, state: State, *, is_for_all: bool) -> None:
        """Make the state whole: on all members, or on member 0."""
        for name, own in self._memory.items():
            whole = np.zeros(self._offsets[-1])
            whole[self._part] = own
            if is_for_all:
                self._reducer.spread_slices(whole, self._offsets, self._first)
            else:
                self._reducer.collect_slices(whole, self._offsets, self._first)
            state[name] = whole


def _size_of(slices: Slices, state: State) -> int:
    """P, the length of all arrays that are cut."""
    shape = state[slices.values].shape if slices.values in state else ()
    for name in (slices.values, *slices.memory):
        array = state.get(name)
        if array is None or array.ndim != 1 or array.dtype != np.float64 or array.shape != shape:
            found = "none" if array is None else f"{array.dtype} {array.shape}"
            raise TrainingError(
                f"state: parameter servers need {name!r} as a float64 vector as long as "
                f"{slices.values!r} {shape}, it is {found}"
            )
    return int(shape[0])


def _check_slice(name: str, array: NDArray[Any], size: int) -> None:
    if not isinstance(array, np.ndarray) or array.shape != (size,) or array.dtype != np.float64:
        raise TrainingError(
            f"state: move made of {name!r}, a float64 vector of {size}, "
            f"{getattr(array, 'dtype', type(array).__name__)} {np.shape(array)}"
        )


def _encode(layout: Layout) -> bytes:
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return json.dumps([[name, list(shape)] for name, shape in shapes.items()]).encode()


def _decode(payload: bytes) -> Layout:
    table: Mapping[str, tuple[int, ...]] = {k: tuple(s) for k, s in json.loads(payload)}
    return Layout.of({name: np.broadcast_to(0.0, shape) for name, shape in table.items()})
