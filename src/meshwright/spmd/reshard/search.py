"""The search behind the reshard planner: A* over layouts, in blocks of axes.

The cost of a way is the bytes that a device sends, plus one per collective so that fewer collectives win a tie. The
estimate of what is still to pay is the lower bound: the bytes of the target that a device does not hold yet. For
even layouts it is simple: two tilings of a dimension by x1, x2, ... and y1, y2, ... are nested where one list is a
prefix of the other, and otherwise some device holds nothing of what it wants. Every collective brings a device at
most as many bytes as it is charged for, so the bound never overestimates and the first way found is the cheapest.

Moves are kept few by aiming at the target: slices only by axes that split that dimension in the target, permutes
only to arrangements that begin as the target does.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from meshwright.spmd.reshard.steps import joins

Dims = tuple[tuple[int, ...], ...]


class State(NamedTuple):
    """A layout in blocks: what splits each dimension, and what is still to be combined."""

    dims: Dims
    partial: tuple[int, ...]


class Move(NamedTuple):
    """One step in blocks: its kind as in ``steps``, the blocks and dimensions it acts on, where it leads."""

    kind: str
    blocks: tuple[int, ...]
    dim: int
    to_dim: int
    cost: int
    after: State


class Search:
    """The moves between layouts of one array and the cheapest way through them.

    ``sizes`` are the blocks' sizes, ``goal`` the tiles wanted (with nothing left to combine) and ``limit`` the
    largest buffer allowed, in bytes.
    """

    def __init__(
        self, sizes: tuple[int, ...], shape: tuple[int, ...], itemsize: int, goal: Dims, limit: float
    ) -> None:
        self.sizes = sizes
        self.shape = shape
        self.itemsize = itemsize
        self.goal = goal
        self.limit = limit
        self.goal_bytes = self.bytes(goal)
        self._counts: dict[tuple[int, ...], int] = {}

    # --- sizes ----------------------------------------------------------------------------------------------
    def count(self, blocks: tuple[int, ...]) -> int:
        """The number of tiles that ``blocks`` make."""
        return math.prod([self.sizes[block] for block in blocks])

    def rows(self, dim: int, blocks: tuple[int, ...]) -> int:
        return -(-self.shape[dim] // self.count(blocks))

    def bytes(self, dims: Dims) -> int:
        return self.itemsize * math.prod([self.rows(dim, blocks) for dim, blocks in enumerate(dims)])

    def joins(self, dim: int, kept: tuple[int, ...], moved: tuple[int, ...]) -> bool:
        return joins(self.shape[dim], self.count(kept), self.count(moved))

    # --- the search -----------------------------------------------------------------------------------------
    def cheapest(self, start: State) -> list[Move] | None:
        """The cheapest moves from ``start`` to the goal, or None if ``limit`` forbids every way."""
        order = itertools.count()
        paid = {start: 0}
        reached_by: dict[State, tuple[State, Move]] = {}
        queue = [(self.still_to_pay(start), 0, next(order), start)]
        done: set[State] = set()
        while queue:
            _, _, _, state = heapq.heappop(queue)
            if state in done:
                continue
            if state.dims == self.goal and not state.partial:
                return _way(reached_by, state)
            done.add(state)
            for move in self.moves(state):
                cost = paid[state] + move.cost + (move.kind != "all_slice")
                if cost < paid.get(move.after, math.inf):
                    paid[move.after] = cost
                    reached_by[move.after] = (state, move)
                    rest = self.still_to_pay(move.after)
                    heapq.heappush(queue, (cost + rest, rest, next(order), move.after))
        return None

    def still_to_pay(self, state: State) -> int:
        """The bytes of its target tile that some device does not hold in ``state``."""
        if state.partial:
            return self.goal_bytes
        held = self.itemsize
        for dim, (mine, wanted) in enumerate(zip(state.dims, self.goal)):
            nested = min(len(mine), len(wanted))
            if mine[:nested] != wanted[:nested]:
                return self.goal_bytes
            held *= min(self.rows(dim, mine), self.rows(dim, wanted))
        return self.goal_bytes - held

    # --- moves ----------------------------------------------------------------------------------------------
    def moves(self, state: State) -> Iterator[Move]:
        """The moves from ``state`` that keep to ``limit``."""
        size = self.bytes(state.dims)
        yield from self._slices(state)
        yield from self._gathers(state)
        if len(state.dims) > 1:
            yield from self._all_to_alls(state)
            yield from self._exchanges(state)
        if size <= self.limit:
            yield from self._permutes(state, size)
        if state.partial:
            yield from self._reductions(state, size)

    def _free(self, state: State) -> set[int]:
        used = {block for blocks in state.dims for block in blocks}
        return set(range(len(self.sizes))) - used - set(state.partial)

    def _slices(self, state: State) -> Iterator[Move]:
        """Slices by blocks that split something in the goal, though perhaps not this: a permute can mend that."""
        free = self._free(state)
        for block in (block for wanted in self.goal for block in wanted if block in free):
            for dim, mine in enumerate(state.dims):
                if self.joins(dim, mine, (block,)):
                    after = State(_with(state.dims, dim, (*mine, block)), state.partial)
                    yield Move("all_slice", (block,), dim, dim, 0, after)

    def _gathers(self, state: State) -> Iterator[Move]:
        size = self.bytes(state.dims)
        for dim, mine in enumerate(state.dims):
            for cut in range(len(mine)):
                kept, moved = mine[:cut], mine[cut:]
                dims = _with(state.dims, dim, kept)
                if self.joins(dim, kept, moved) and self.bytes(dims) <= self.limit:
                    cost = (self.count(moved) - 1) * size
                    yield Move("all_gather", moved, dim, dim, cost, State(dims, state.partial))

    def _all_to_alls(self, state: State) -> Iterator[Move]:
        for dim, mine in enumerate(state.dims):
            for cut in range(len(mine)):
                kept, moved = mine[:cut], mine[cut:]
                if not self.joins(dim, kept, moved):
                    continue
                for to_dim, theirs in enumerate(state.dims):
                    if to_dim == dim or not self.joins(to_dim, theirs, moved):
                        continue
                    split = _with(state.dims, to_dim, theirs + moved)
                    dims = _with(split, dim, kept)
                    if self.bytes(dims) <= self.limit:
                        cost = (self.count(moved) - 1) * self.bytes(split)
                        yield Move("all_to_all", moved, dim, to_dim, cost, State(dims, state.partial))

    def _exchanges(self, state: State) -> Iterator[Move]:
        """One all-to-all for several dimensions: some give up their minor-most blocks, others go on towards the goal.

        Together with the blocks given up, free ones may be taken (a slice on the way). What is given up but
        wanted nowhere yet goes behind the others.
        """
        free = self._free(state)
        options = [list(self._exchange_options(dim, mine)) for dim, mine in enumerate(state.dims)]
        for dims in itertools.product(*options):
            given = [b for mine, new in zip(state.dims, dims) for b in mine[len(new) :]]
            taken = [b for mine, new in zip(state.dims, dims) for b in new[len(mine) :]]
            if not given or not taken or not free.union(given).issuperset(taken):
                continue
            rest = tuple(block for block in given if block not in taken)
            for end in self._exchange_ends(state.dims, dims, rest):
                size = self.bytes(end)
                if size <= self.limit and self._even(state.dims, end):
                    cost = size - size // self.count(tuple(given))
                    yield Move("exchange", tuple(given), 0, 0, cost, State(end, state.partial))

    def _exchange_options(self, dim: int, mine: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for cut in range(len(mine) + 1):
            yield mine[:cut]
        wanted = self.goal[dim]
        if wanted[: len(mine)] == mine:
            for end in range(len(mine) + 1, len(wanted) + 1):
                yield wanted[:end]

    def _exchange_ends(self, before: Dims, after: Dims, rest: tuple[int, ...]) -> Iterator[Dims]:
        if not rest:
            yield after
            return
        for dim, new in enumerate(after):
            if len(new) >= len(before[dim]):
                yield _with(after, dim, new + rest)

    def _even(self, *layouts: Dims) -> bool:
        return all(
            size % self.count(blocks) == 0 for dims in layouts for size, blocks in zip(self.shape, dims)
        )

    def _permutes(self, state: State, size: int) -> Iterator[Move]:
        for dims in self._arrangements(state):
            if dims != state.dims:
                yield Move("collective_permute", (), 0, 0, size, State(dims, state.partial))

    def _reductions(self, state: State, size: int) -> Iterator[Move]:
        for number in range(1, len(state.partial) + 1):
            for blocks in itertools.combinations(state.partial, number):
                left = tuple(block for block in state.partial if block not in blocks)
                group = self.count(blocks)
                cost = -(-2 * size * (group - 1) // group)
                yield Move("all_reduce", blocks, 0, 0, cost, State(state.dims, left))
        for block in state.partial:
            left = tuple(other for other in state.partial if other != block)
            for dim, mine in enumerate(state.dims):
                if self.joins(dim, mine, (block,)):
                    dims = _with(state.dims, dim, (*mine, block))
                    cost = (self.sizes[block] - 1) * self.bytes(dims)
                    yield Move("reduce_scatter", (block,), dim, dim, cost, State(dims, left))

    # --- permutes -------------------------------------------------------------------------------------------
    def _arrangements(self, state: State) -> Iterator[Dims]:
        """Other blocks in the same numbers of tiles: per dimension as now, or beginning as the goal does.

        Where the goal has fewer tiles than there are now, blocks from outside fill up, in every order: which of
        them is minor-most decides what an all-to-all can move next.
        """
        everything = set(range(len(self.sizes))) - set(state.partial)
        options = []
        for mine, wanted in zip(state.dims, self.goal):
            begin = self._common_part(self.count(mine), wanted)
            options.append(dict.fromkeys([(begin, self.count(mine) // self.count(begin)), (mine, 1)]))
        for choice in itertools.product(*options):
            fixed = [block for begin, _ in choice for block in begin]
            if len(set(fixed)) == len(fixed) and everything.issuperset(fixed):
                yield from self._fill([], list(choice), everything.difference(fixed))

    def _common_part(self, count: int, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """The longest beginning of ``wanted`` that makes a divisor of ``count`` tiles."""
        cut = next(cut for cut in range(len(wanted), -1, -1) if count % self.count(wanted[:cut]) == 0)
        return wanted[:cut]

    def _fill(
        self, done: list[tuple[int, ...]], todo: list[tuple[tuple[int, ...], int]], pool: set[int]
    ) -> Iterator[Dims]:
        if not todo:
            yield tuple(done)
            return
        (begin, missing), *rest = todo
        if missing == 1:
            yield from self._fill([*done, begin], rest, pool)
            return
        for block in sorted(pool):
            if missing % self.sizes[block] == 0:
                longer = ((*begin, block), missing // self.sizes[block])
                yield from self._fill(done, [longer, *rest], pool - {block})


def _with(dims: Dims, dim: int, blocks: tuple[int, ...]) -> Dims:
    return (*dims[:dim], blocks, *dims[dim + 1 :])


def _way(reached_by: dict[State, tuple[State, Move]], state: State) -> list[Move]:
    way: list[Move] = []
    while state in reached_by:
        state, move = reached_by[state]
        way.append(move)
    return way[::-1]
