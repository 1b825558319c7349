"""The search of the reshard planner: A* over layouts, in blocks of axes.

The cost of a path is the bytes that a device sends, plus a small cost per collective, so that fewer win a tie. The
heuristic is the number of bytes of the target tile that a device does not hold yet. For even layouts it is simple: two
tilings of a dimension by x1, x2, ... and y1, y2, ... nest if one list is a prefix of the other; otherwise some device
holds nothing of its target tile. A collective delivers to a device at most as many bytes as it costs, so the heuristic
is admissible, and the first path found is the cheapest that the moves allow.

Moves are limited to those that lead to the target: slices only by axes that shard a dimension of the target, permutes
only to arrangements with a common prefix with the target, exchanges only to the target itself, possibly with axes that
are still to be gathered.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import field
from typing import NamedTuple

from meshwright.core.records import dataclass
from meshwright.spmd.reshard.exchange import chains, wired
from meshwright.spmd.reshard.steps import joins

COLLECTIVE_BYTES = 64  # the cost of starting a collective
MAX_ROUNDS = 8  # the maximum number of rounds (collectives) of an exchange that renames devices
MAX_SPARE = 2  # the maximum number of blocks left to be gathered by an exchange of which all arrangements are tried
MAX_ARRANGEMENTS = 48  # the maximum number of arrangements to which a layout may be permuted
MAX_EXPANDED = 100  # the maximum number of layouts whose moves are tried with the admissible heuristic

Dims = tuple[tuple[int, ...], ...]


#: the cost of a collective, given its kind, its blocks, and the bytes of its operand and result
Price = Callable[[str, tuple[int, ...], int, int], int]


class State(NamedTuple):
    """A layout in blocks: the blocks that shard each dimension, and the partial ones that are still to be reduced."""

    dims: Dims
    partial: tuple[int, ...]


class Move(NamedTuple):
    """One step in blocks: its kind as in ``steps``, the blocks and dimensions that it acts on, and the next state."""

    kind: str
    blocks: tuple[int, ...]
    dim: int
    to_dim: int
    cost: int
    after: State


@dataclass(eq=False)
class Search:
    """The moves between layouts of one array, and the search for the cheapest path.

    ``sizes`` are the sizes of the blocks, ``goal`` is the target tiling (without partial blocks), and ``limit`` the
    largest allowed buffer in bytes. ``price`` returns the cost of a collective over blocks if links differ in speed, in
    bytes on the fastest links.
    """

    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    itemsize: int
    goal: Dims
    limit: float
    price: Price | None = None
    _counts: dict[tuple[int, ...], int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.goal_bytes = self.bytes(self.goal)

    # --- sizes ----------------------------------------------------------------------------------------------
    def count(self, blocks: tuple[int, ...]) -> int:
        """The number of tiles of a dimension sharded by ``blocks``."""
        tiles = self._counts.get(blocks)
        if tiles is None:
            tiles = self._counts[blocks] = math.prod([self.sizes[block] for block in blocks])
        return tiles

    def rows(self, dim: int, blocks: tuple[int, ...]) -> int:
        return -(-self.shape[dim] // self.count(blocks))

    def bytes(self, dims: Dims) -> int:
        return self.itemsize * math.prod([self.rows(dim, blocks) for dim, blocks in enumerate(dims)])

    def cost(self, kind: str, blocks: tuple[int, ...], sent: int, before: Dims, after: Dims) -> int:
        """The cost of a collective that sends ``sent`` bytes."""
        if self.price is None:
            return sent + COLLECTIVE_BYTES
        return max(sent + COLLECTIVE_BYTES, self.price(kind, blocks, self.bytes(before), self.bytes(after)))

    def joins(self, dim: int, kept: tuple[int, ...], moved: tuple[int, ...]) -> bool:
        return joins(self.shape[dim], self.count(kept), self.count(moved))

    # --- the search -----------------------------------------------------------------------------------------
    def cheapest(self, start: State) -> list[Move] | None:
        """The cheapest moves from ``start`` to the goal, or None if ``limit`` rules out every path.

        The plain path, gather and slice, is an initial upper bound of the cost. If the search has not ended after
        ``MAX_EXPANDED`` layouts (for uneven tiles, the heuristic can be far too low), it is repeated with an
        inadmissible heuristic that adds a guess. If that fails too, the plain path is used.
        """
        plain = self.plain_way(start)
        fits = all(self.bytes(move.after.dims) <= self.limit for move in plain)
        bound = sum(move.cost for move in plain) if fits else math.inf
        for hurry in (False, True):
            way = self._best_first(start, bound, hurry)
            if way is not None:
                return way or (plain if fits else None)
        return plain if fits else None

    def _best_first(self, start: State, bound: float, hurry: bool) -> list[Move] | None:
        """The moves of the first path found below ``bound``; empty if there is none, None if it took too long."""
        order = itertools.count()
        paid = {start: 0}
        reached_by: dict[State, tuple[State, Move]] = {}
        queue = [(self.still_to_pay(start), 0, next(order), start)]
        done: set[State] = set()
        while queue and len(done) < MAX_EXPANDED:
            _, _, _, state = heapq.heappop(queue)
            if state in done:
                continue
            if state.dims == self.goal and not state.partial:
                return _way(reached_by, state)
            done.add(state)
            for move in self.moves(state):
                cost = paid[state] + move.cost
                if cost < paid.get(move.after, math.inf):
                    rest = self.still_to_pay(move.after)
                    if cost + rest < bound:
                        paid[move.after] = cost
                        reached_by[move.after] = (state, move)
                        rest += self._guess(move.after) if hurry else 0
                        heapq.heappush(queue, (cost + rest, rest, next(order), move.after))
        return None if queue else []

    def _guess(self, state: State) -> int:
        """A guess of the remaining cost: the size of a buffer for every dimension that differs from the goal."""
        return self.goal_bytes * sum(mine != target for mine, target in zip(state.dims, self.goal))

    def plain_way(self, start: State) -> list[Move]:
        """All-reduce, gather all blocks beyond the common prefix with the goal, then slice: always possible."""
        way: list[Move] = []
        state = start
        if state.partial:
            way.append(self._all_reduce(state, state.partial))
            state = way[-1].after
        for dim, target in enumerate(self.goal):
            kept = self._kept(dim, state.dims[dim], target)
            if kept != state.dims[dim]:
                way.append(self._gather(state, dim, len(kept)))
                state = way[-1].after
        for dim, target in enumerate(self.goal):
            missing = target[len(state.dims[dim]) :]
            if missing:
                way += self._slice(state, dim, missing)
                state = way[-1].after
        return way

    def _kept(self, dim: int, mine: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
        """The longest common prefix to which uneven tiles can be gathered, and from which they can be sliced."""
        for cut in range(min(len(mine), len(target)), 0, -1):
            kept = mine[:cut]
            if kept == target[:cut] and all(self.joins(dim, kept, rest[cut:]) for rest in (mine, target)):
                return kept
        return ()

    def still_to_pay(self, state: State) -> int:
        """The bytes of its target tile that some device does not hold in ``state``."""
        if state.partial:
            return self.goal_bytes
        held = self.itemsize
        for dim, (mine, target) in enumerate(zip(state.dims, self.goal)):
            nested = min(len(mine), len(target))
            if mine[:nested] != target[:nested]:
                return self.goal_bytes
            held *= min(self.rows(dim, mine), self.rows(dim, target))
        return self.goal_bytes - held

    # --- moves ----------------------------------------------------------------------------------------------
    def moves(self, state: State) -> Iterator[Move]:
        """The moves from ``state`` to layouts within ``limit``."""
        size = self.bytes(state.dims)
        yield from self._slices(state)
        yield from self._gathers(state)
        if len(state.dims) > 1:
            yield from self._all_to_alls(state)
            yield from self._exchanges(state)
        if size <= self.limit:
            yield from self._permutes(state, size)
        if state.partial:
            yield from self._reductions(state)

    def _free(self, state: State) -> set[int]:
        used = {block for blocks in state.dims for block in blocks}
        return set(range(len(self.sizes))) - used - set(state.partial)

    def _slices(self, state: State) -> Iterator[Move]:
        """Slices by blocks that shard any dimension of the goal; a permute can move them to the right one."""
        free = self._free(state)
        for block in (block for blocks in self.goal for block in blocks if block in free):
            for dim in range(len(state.dims)):
                yield from self._slice(state, dim, (block,))
        for dim in range(len(state.dims)):
            for run in self._runs(state, dim, free):
                yield from self._slice(state, dim, run)

    def _slice(self, state: State, dim: int, blocks: tuple[int, ...]) -> Iterator[Move]:
        mine = state.dims[dim]
        if self.joins(dim, mine, blocks):
            after = State(_with(state.dims, dim, mine + blocks), state.partial)
            yield Move("all_slice", blocks, dim, dim, 0, after)

    def _runs(self, state: State, dim: int, available: Collection[int]) -> Iterator[tuple[int, ...]]:
        """Runs of two or more blocks that continue towards the goal, for uneven tiles that one block cannot reach."""
        mine, target = state.dims[dim], self.goal[dim]
        if target[: len(mine)] == mine:
            run = tuple(itertools.takewhile(lambda block: block in available, target[len(mine) :]))
            for end in range(2, len(run) + 1):
                yield run[:end]

    def _gathers(self, state: State) -> Iterator[Move]:
        for dim, mine in enumerate(state.dims):
            for cut in range(len(mine)):
                if self.joins(dim, mine[:cut], mine[cut:]):
                    move = self._gather(state, dim, cut)
                    if self.bytes(move.after.dims) <= self.limit:
                        yield move

    def _gather(self, state: State, dim: int, cut: int) -> Move:
        kept, moved = state.dims[dim][:cut], state.dims[dim][cut:]
        after = _with(state.dims, dim, kept)
        cost = self.cost("all_gather", moved, (self.count(moved) - 1) * self.bytes(state.dims), state.dims, after)
        return Move("all_gather", moved, dim, dim, cost, State(after, state.partial))

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
                        cost = self.cost(
                            "all_to_all", moved, (self.count(moved) - 1) * self.bytes(split), state.dims, dims
                        )
                        yield Move("all_to_all", moved, dim, to_dim, cost, State(dims, state.partial))

    def _exchanges(self, state: State) -> Iterator[Move]:
        """The remaining changes except gathers, as a single exchange (see ``exchange``)."""
        sizes = dict(enumerate(self.sizes))
        for dims in self._exchange_ends(state):
            size = self.bytes(dims)
            all_chains = chains(state.dims, dims, sizes) if size <= self.limit else None
            moved = [chain.axes[0] for chain in all_chains or () if chain.is_all_to_all]
            if not all_chains or not moved or any(chain.is_gather for chain in all_chains):
                continue
            group = self.count(tuple(moved))
            renames = any(chain.renames for chain in all_chains)
            if self._even(state.dims, dims) and not (renames and group > MAX_ROUNDS):
                if renames:
                    cost = self._in_rounds(tuple(wired(all_chains)), size, group)
                else:
                    cost = self.cost("all_to_all", tuple(moved), size - size // group, state.dims, dims)
                yield Move("exchange", tuple(moved), 0, 0, cost, State(dims, state.partial))

    def _in_rounds(self, blocks: tuple[int, ...], size: int, rounds: int) -> int:
        """The cost of sending a buffer of ``size`` bytes in this number of permutes."""
        sent = size + COLLECTIVE_BYTES * rounds
        chunk = size // rounds
        return max(sent, rounds * self.price("collective_permute", blocks, chunk, chunk)) if self.price else sent

    def _exchange_ends(self, state: State) -> Iterator[Dims]:
        """The goal, followed by the blocks that still have to be gathered afterwards, in all arrangements."""
        goal_blocks = {block for blocks in self.goal for block in blocks}
        if goal_blocks.intersection(state.partial):
            return
        spare = [block for blocks in state.dims for block in blocks if block not in goal_blocks]
        if len(spare) > MAX_SPARE:
            orders: Iterator[tuple[int, ...]] = iter([(), tuple(spare)])
        else:
            orders = itertools.chain.from_iterable(
                itertools.permutations(spare, number) for number in range(len(spare) + 1)
            )
        for kept in orders:
            number = len(kept)
            for cuts in itertools.combinations_with_replacement(range(number + 1), len(self.goal) - 1):
                ends = (0, *cuts, number)
                yield tuple(blocks + kept[ends[dim] : ends[dim + 1]] for dim, blocks in enumerate(self.goal))

    def _even(self, before: Dims, after: Dims) -> bool:
        """Whether the dimensions whose tile counts change are divided by both."""
        return all(
            len(mine) == len(theirs) or size % self.count(max(mine, theirs, key=len)) == 0
            for size, mine, theirs in zip(self.shape, before, after)
        )

    def _permutes(self, state: State, size: int) -> Iterator[Move]:
        for dims in itertools.islice(self._arrangements(state), MAX_ARRANGEMENTS):
            if dims != state.dims:
                cost = self.cost("collective_permute", _differ(state.dims, dims), size, dims, dims)
                yield Move("collective_permute", (), 0, 0, cost, State(dims, state.partial))

    def _all_reduce(self, state: State, blocks: tuple[int, ...]) -> Move:
        left = tuple(block for block in state.partial if block not in blocks)
        group = self.count(blocks)
        sent = -(-2 * self.bytes(state.dims) * (group - 1) // group)
        cost = self.cost("all_reduce", blocks, sent, state.dims, state.dims)
        return Move("all_reduce", blocks, 0, 0, cost, State(state.dims, left))

    def _reductions(self, state: State) -> Iterator[Move]:
        for number in range(1, len(state.partial) + 1):
            for blocks in itertools.combinations(state.partial, number):
                yield self._all_reduce(state, blocks)
        for dim in range(len(state.dims)):
            singles = ((block,) for block in state.partial)
            for blocks in (*singles, *self._runs(state, dim, state.partial)):
                yield from self._reduce_scatter(state, dim, blocks)

    def _reduce_scatter(self, state: State, dim: int, blocks: tuple[int, ...]) -> Iterator[Move]:
        mine = state.dims[dim]
        if self.joins(dim, mine, blocks):
            left = tuple(block for block in state.partial if block not in blocks)
            dims = _with(state.dims, dim, mine + blocks)
            cost = self.cost("reduce_scatter", blocks, (self.count(blocks) - 1) * self.bytes(dims), state.dims, dims)
            yield Move("reduce_scatter", blocks, dim, dim, cost, State(dims, left))

    # --- permutes -------------------------------------------------------------------------------------------
    def _arrangements(self, state: State) -> Iterator[Dims]:
        """Arrangements of blocks with the same numbers of tiles: per dimension as now, or starting like the goal.

        If the goal has fewer tiles than now, they are filled up with other blocks, in every order, since the minor-most
        block determines what an all-to-all can move next.
        """
        everything = set(range(len(self.sizes))) - set(state.partial)
        options = []
        for mine, target in zip(state.dims, self.goal):
            begin = self._common_part(self.count(mine), target)
            options.append(dict.fromkeys([(begin, self.count(mine) // self.count(begin)), (mine, 1)]))
        for choice in itertools.product(*options):
            fixed = [block for begin, _ in choice for block in begin]
            if len(set(fixed)) == len(fixed) and everything.issuperset(fixed):
                yield from self._fill([], list(choice), everything.difference(fixed))

    def _common_part(self, count: int, target: tuple[int, ...]) -> tuple[int, ...]:
        """The longest prefix of ``target`` whose number of tiles divides ``count``."""
        cut = next(cut for cut in range(len(target), -1, -1) if count % self.count(target[:cut]) == 0)
        return target[:cut]

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


def _differ(before: Dims, after: Dims) -> tuple[int, ...]:
    """The blocks whose positions differ."""
    places = (pair for mine, theirs in zip(before, after) for pair in itertools.zip_longest(mine, theirs))
    return tuple({block for pair in places if pair[0] != pair[1] for block in pair if block is not None})


def _way(reached_by: dict[State, tuple[State, Move]], state: State) -> list[Move]:
    way: list[Move] = []
    while state in reached_by:
        state, move = reached_by[state]
        way.append(move)
    return way[::-1]
