"""The reshard planner: the cheapest sequence of steps from one layout to another.

A plan is data: cost models sum it up, ``explain`` prints it, tests compare it, and ``emit`` emits it step by step.
Planning is pure and cached.

Partial values: atoms over which both source and target are partial in the same way are kept. The other partial atoms of
the source are reduced during the search (so that a slice after an all-reduce becomes a reduce-scatter). The other
partial atoms of the target are added at the end, which is free.

Memory: a plan without a buffer larger than the larger of source and target is preferred over a cheaper one that needs
more. Together with the buffer that a step reads, this is "the larger shard plus one staging buffer".

Uneven dimensions: see ``steps``. Steps that do not fit the tiles are not allowed. Gathering a whole dimension always
works; ``uneven`` lists the other ways.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.sharding import AbstractMesh, Layout, joined_reduction
from meshwright.spmd.reshard.blocks import blocks_of, in_blocks
from meshwright.spmd.reshard.exchange import chains
from meshwright.spmd.reshard.permutation import permute_between
from meshwright.spmd.reshard.search import COLLECTIVE_BYTES, Move, Price, Search, State
from meshwright.spmd.reshard.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    MakePartial,
    Overlap,
    Permute,
    ReduceScatter,
    Slice,
    Step,
    buffer_bytes,
    collectives,
    dims_in_parts,
)
from meshwright.spmd.reshard.uneven import Way, Ways, copies_on_fast_links, is_torn

LARGER_BUFFER = 8  # a buffer x % larger than source and target must save about 8 x % of the cost

#: the collectives that implement steps
_KINDS: dict[type[Any], str] = {
    AllGather: "all_gather", AllToAll: "all_to_all", Exchange: "all_to_all", Permute: "collective_permute",
    Overlap: "collective_permute",
    ReduceScatter: "reduce_scatter", AllReduce: "all_reduce",
}  # fmt: skip


@dataclass(frozen=True)
class ReshardPlan:
    """The steps with the layout after each, the bytes that a device sends, and the bytes that it holds.

    ``shapes``: the padded global shape after each step. ``reached``: whether the buffers after it are the array's tiles
    in that layout; tiles may be padded further, or be parts of larger tiles. ``largest_bytes``: the largest buffer.
    ``price``: if the mesh is on a known machine, the time in units of bytes on the machine's fastest links.
    """

    steps: tuple[tuple[Step, Layout], ...]
    shapes: tuple[tuple[int, ...], ...]
    reached: tuple[bool, ...]
    bytes_sent: int
    peak_bytes: int
    largest_bytes: int
    price: int

    def collectives(self, mesh: AbstractMesh) -> int:
        """The number of collectives of all steps."""
        return sum(collectives(step, mesh) for step, _ in self.steps)

    def __str__(self) -> str:
        steps = "\n".join(f"  {step} -> {layout}" for step, layout in self.steps) or "  nothing to do"
        return f"reshard: sends {counted(self.bytes_sent, 'byte')}, holds {counted(self.peak_bytes, 'byte')}\n{steps}"


@lru_cache(maxsize=65536)
def plan_reshard(shape: tuple[int, ...], itemsize: int, src: Layout, dst: Layout, mesh: AbstractMesh) -> ReshardPlan:
    """The cheapest plan to reshard an array of ``shape`` from ``src`` to ``dst``."""
    src.validate(shape, mesh)
    dst.validate(shape, mesh)
    return _reshard(shape, itemsize, src, dst, mesh).best()


@lru_cache(maxsize=262144)
def reshard_cost(shape: tuple[int, ...], itemsize: int, src: Layout, dst: Layout, mesh: AbstractMesh) -> int:
    """The cost of resharding from ``src`` to ``dst``: a fast approximation of ``plan_reshard(...).price``.

    Without a machine, it is in bytes that a device sends.
    """
    if mesh.fabric.is_given:
        return 0 if src == dst else _reshard(shape, itemsize, src, dst, mesh).estimate()
    if src.dims == dst.dims:
        return _combine_cost(shape, itemsize, src, dst, mesh)
    if src.partial == dst.partial and _stays(src, dst) and _is_even(shape, src, dst, mesh):
        pairs = list(zip(src.dims, dst.dims))
        if all(mine == theirs[: len(mine)] for mine, theirs in pairs):
            return 0
        if all(theirs == mine[: len(theirs)] for mine, theirs in pairs):
            return buffer_bytes(shape, itemsize, dst, mesh) - buffer_bytes(shape, itemsize, src, mesh)
    return _reshard(shape, itemsize, src, dst, mesh).estimate()


@lru_cache(maxsize=262144)
def least_reshard_cost(shape: tuple[int, ...], itemsize: int, src: Layout, dst: Layout, mesh: AbstractMesh) -> int:
    """A lower bound of :func:`reshard_cost` that takes no search: the bytes of its target tile that a device lacks.

    A collective delivers to a device at most as many bytes as it costs. Of uneven layouts, the first tile is full.
    """
    if src == dst:
        return 0
    wanted = buffer_bytes(shape, itemsize, dst, mesh)
    if not _is_even(shape, src, dst, mesh):
        return 0 if src.partial else wanted - _shared(shape, itemsize, src, dst, mesh)
    if any(not (_stays(src, dst) and atom in dst.partial) for atom in src.partial):  # what has to be reduced arrives
        return wanted
    return wanted - _held(shape, itemsize, src, dst, mesh)


def _held(shape: Sequence[int], itemsize: int, src: Layout, dst: Layout, mesh: AbstractMesh) -> int:
    """The minimum over devices of the bytes of its target tile that a device already holds, for even layouts."""
    if any(mine[: len(theirs)] != theirs[: len(mine)] for mine, theirs in zip(src.dims, dst.dims)):
        return 0
    return _shared(shape, itemsize, src, dst, mesh)


def _shared(shape: Sequence[int], itemsize: int, src: Layout, dst: Layout, mesh: AbstractMesh) -> int:
    """The most bytes that a tile in one layout has in common with a tile in the other."""
    before, after = (layout.local_shape(shape, mesh) for layout in (src, dst))
    return itemsize * math.prod(map(min, before, after))


def _combine_cost(shape: tuple[int, ...], itemsize: int, src: Layout, dst: Layout, mesh: AbstractMesh) -> int:
    """The cost if tiles do not move: the bytes sent by one all-reduce, or 0 if nothing is reduced."""
    gone = tuple(atom for atom in src.partial if not (_stays(src, dst) and atom in dst.partial))
    return AllReduce(gone, src.reduction).bytes_sent(shape, itemsize, src, mesh) if gone else 0


def _stays(src: Layout, dst: Layout) -> bool:
    """Whether partial values of ``src`` are also valid partial values of ``dst`` without communication: the reductions
    are the same, or combine to that of ``dst``."""
    return joined_reduction(src.reduction, dst.reduction) == dst.reduction


def _is_even(shape: Sequence[int], src: Layout, dst: Layout, mesh: AbstractMesh) -> bool:
    return all(size % mesh.sizes(atoms) == 0 for layout in (src, dst) for size, atoms in zip(shape, layout.dims))


class _Done(NamedTuple):
    """A step of a way, with the layouts and the buffer bytes before and after it.

    ``shape`` is padded as before or as after it: a step that splits a dimension pads it, and one that joins it cuts it.
    """

    step: Step
    shape: tuple[int, ...]
    layout: Layout
    then: Layout
    before: int
    after: int


@dataclass(frozen=True)
class _Reshard:
    """An array, the layouts that it has and should get, and the ways from one to the other with what they cost."""

    shape: tuple[int, ...]
    itemsize: int
    src: Layout
    dst: Layout
    mesh: AbstractMesh

    @cached_property
    def combined(self) -> Layout:
        """The target layout, partial only over atoms over which the source is partial too."""
        src, dst = self.src, self.dst
        kept = tuple(atom for atom in src.partial if _stays(src, dst) and atom in dst.partial)
        return Layout(dst.dims, kept, dst.reduction if kept else "")

    @cached_property
    def limit(self) -> int:
        """The larger one of the buffers of source and target, in bytes."""
        return max(self._buffer(layout) for layout in (self.src, self.dst))

    @cached_property
    def start(self) -> float:
        """The start-up cost of a collective, in bytes."""
        return COLLECTIVE_BYTES + self.mesh.fabric.start * self.mesh.fabric.fastest

    def _buffer(self, layout: Layout) -> int:
        return buffer_bytes(self.shape, self.itemsize, layout, self.mesh)

    # --- plans ----------------------------------------------------------------------------------------------
    def best(self) -> ReshardPlan:
        """The cheapest plan of all ways."""
        best = self.plain
        if self._is_plain:
            return best
        ways = self._ways.of(self.src, self.combined)
        ranked = sorted(((self._least(way), number, way) for number, way in enumerate(ways)))
        lowest = self._rank(best)
        for least, _, way in ranked:
            if least >= lowest:
                break
            if all(step.is_possible(self.mesh) for step, _ in way if isinstance(step, Overlap)):
                found = self._finished(way + self._made_partial)
                if (rank := self._rank(found)) < lowest:
                    best, lowest = found, rank
        return best

    def estimate(self) -> int:
        """The price of the cheapest way, with lower bounds for overlaps.

        Their rounds are planned only for the reshards that are actually chosen.
        """
        if self._is_plain:
            return self.plain.price
        prices = [
            sum(self._step_price(done, [self._at_least(done)]) for done in self._walked(way))
            for way in self._ways.direct(self.src, self.combined)
        ]
        return int(min([self.plain.price, *prices]))

    @cached_property
    def plain(self) -> ReshardPlan:
        """The plan found by the search alone, without overlaps or padding."""
        steps = self._searched()
        orders = ([(step, self.shape) for step in order] for order in (_leading_last(steps), steps))
        return min((self._finished(order + self._made_partial) for order in orders), key=self._rank)

    @cached_property
    def _made_partial(self) -> Way:
        added = tuple(atom for atom in self.dst.partial if atom not in self.combined.partial)
        return [(MakePartial(added, self.dst.reduction), self.shape)] if added else []

    @property
    def _ways(self) -> Ways:
        def searched(shape: tuple[int, ...], src: Layout, dst: Layout) -> list[Step]:
            return _Reshard(shape, self.itemsize, src, dst, self.mesh)._searched()

        return Ways(self.shape, self.mesh, int(self.start / self.itemsize), searched)

    @property
    def _is_plain(self) -> bool:
        """Whether no other way can be cheaper than the plan of the search."""
        plain, src, dst, mesh = self.plain, self.src, self.combined, self.mesh
        if is_torn(self.shape, src, dst, mesh) or (plain.price and copies_on_fast_links(src, dst, mesh)):
            return False
        least = self._buffer(dst) - _held(self.shape, self.itemsize, self.src, self.dst, mesh)
        return src.partial != dst.partial or plain.price - least + self.start * (plain.collectives(mesh) - 1) <= 0

    def _rank(self, plan: ReshardPlan) -> float:
        """The cost of a plan with start-up costs, scaled up if a buffer is larger than source and target."""
        larger = max(1.0, plan.largest_bytes / self.limit) if self.limit else 1.0
        return (plan.price + self.start * plan.collectives(self.mesh)) * larger**LARGER_BUFFER

    # --- what a way costs -----------------------------------------------------------------------------------
    def _walked(self, way: Way) -> Iterator[_Done]:
        layout, shape, held = self.src, self.shape, self._buffer(self.src)
        for step, padded in way:
            then = step.apply(layout, self.mesh)
            after = buffer_bytes(padded, self.itemsize, then, self.mesh)
            yield _Done(step, tuple(map(max, shape, padded)), layout, then, held, after)
            layout, shape, held = then, padded, after

    def _sent(self, done: _Done) -> int:
        return done.step.bytes_sent(done.shape, self.itemsize, done.layout, self.mesh)

    def _at_least(self, done: _Done) -> float:
        """A lower bound of the bytes that a step sends, which does not plan the rounds of overlaps."""
        step = done.step
        return self.itemsize * step.least(self.mesh) if isinstance(step, Overlap) else self._sent(done)

    def _least(self, way: Way) -> float:
        """A lower bound of the cost of a way, including the start-up cost of its collectives."""
        return sum(
            self._at_least(done)
            + self.start * (1 if isinstance(done.step, Overlap) else collectives(done.step, self.mesh))
            for done in self._walked(way)
        )

    def _finished(self, way: Way) -> ReshardPlan:
        walk = list(self._walked(way))
        sent, price = 0, 0.0
        for done in walk:
            mine = self._sent(done)
            permutes = done.step.plan(self.mesh).sent if isinstance(done.step, Overlap) else ()
            sent += mine
            price += self._step_price(done, [self.itemsize * elements for elements in permutes] or [mine])
        start = self._buffer(self.src)
        return ReshardPlan(
            tuple((done.step, done.then) for done in walk),
            tuple(padded for _, padded in way),
            tuple(self._reached(way)),
            sent,
            max([start, *(done.before + done.after for done in walk)]),
            max([start, *(done.after for done in walk)]),
            int(price),
        )

    def _reached(self, way: Way) -> Iterator[bool]:
        """Whether tiles are those of the layout of the array, after each step."""
        layout, in_parts = self.src, set[int]()
        for step, padded in way:
            layout = step.apply(layout, self.mesh)
            if isinstance(step, Overlap):
                in_parts = dims_in_parts(step.after, self.mesh)
            elif isinstance(step, AllGather):
                in_parts.discard(step.dim)
            rows = (layout.local_shape(shape, self.mesh) for shape in (padded, self.shape))
            yield not in_parts and len({*rows}) == 1

    def _step_price(self, done: _Done, sent: Sequence[float]) -> float:
        """The price of a step that sends so many bytes; of one that is several permutes, in each."""
        whole, mesh = sum(sent), self.mesh
        if not whole or math.isinf(whole) or not mesh.fabric.is_given:
            return whole
        match done.step:
            case Overlap(axes=axes):
                prices = [mesh.wire_price("collective_permute", axes, n, n) for n in sent]
            case Exchange(rounds=rounds) if rounds > 1:
                prices = [mesh.wire_price("collective_permute", done.step.wires(mesh), whole / rounds, 0)] * rounds
            case step:
                prices = [mesh.wire_price(_KINDS[type(step)], step.axes, done.before, done.after)]
        return max(whole, sum(prices))

    # --- searching ------------------------------------------------------------------------------------------
    def _searched(self) -> list[Step]:
        """The steps that the search finds, with consecutive ones merged if one collective can do both."""
        src, dst, mesh = self.src, self.combined, self.mesh
        blocks = blocks_of(src, dst, mesh)
        sizes = tuple(mesh.sizes(block) for block in blocks)
        goal = tuple(in_blocks(atoms, blocks) for atoms in dst.dims)
        combine = tuple(atom for atom in src.partial if atom not in dst.partial)
        start = State(tuple(in_blocks(atoms, blocks) for atoms in src.dims), in_blocks(combine, blocks))
        price = _price_of(blocks, mesh) if mesh.fabric.is_given else None
        found = (
            Search(sizes, self.shape, self.itemsize, goal, limit, price).cheapest(start)
            for limit in (self.limit, math.inf)
        )
        way = next((way for way in found if way is not None), None)
        if way is None:
            raise ShardingError(f"no way to reshard {self.shape} from {src} to {dst}; this is a bug of the planner")
        layout, steps = src, list[Step]()
        for move in way:
            step = _step(move, layout, blocks, mesh)
            layout = step.apply(layout, mesh)
            merged = _merged(steps[-1], step) if steps else None
            if merged is None:
                steps.append(step)
            else:
                steps[-1] = merged
        return steps


#: with their plain plans, which estimates and plans need alike
_reshard = lru_cache(maxsize=65536)(_Reshard)


def _price_of(blocks: Sequence[tuple[str, ...]], mesh: AbstractMesh) -> Price:
    @cache
    def price(kind: str, chosen: tuple[int, ...], operand: int, result: int) -> int:
        axes = tuple(atom for block in chosen for atom in blocks[block])
        return mesh.wire_price(kind, axes, operand, result)

    return price


def _step(move: Move, before: Layout, blocks: Sequence[tuple[str, ...]], mesh: AbstractMesh) -> Step:
    axes = tuple(atom for block in move.blocks for atom in blocks[block])
    match move.kind:
        case "all_gather":
            return AllGather(axes, move.dim)
        case "all_slice":
            return Slice(axes, move.dim)
        case "all_to_all":
            return AllToAll(axes, move.dim, move.to_dim)
        case "reduce_scatter":
            return ReduceScatter(axes, move.dim, before.reduction)
        case "all_reduce":
            return AllReduce(mesh.in_mesh_order(axes), before.reduction)
    dims = tuple(tuple(atom for block in run for atom in blocks[block]) for run in move.after.dims)
    if move.kind == "exchange":
        all_chains = chains(before.dims, dims, dict(zip(mesh.atoms, mesh.atom_sizes))) or []
        renames = any(chain.renames for chain in all_chains)
        return Exchange(axes, before.dims, dims, mesh.sizes(axes) if renames else 1)
    return permute_between(before, Layout(dims, before.partial, before.reduction), mesh)


def _merged(first: Step, second: Step) -> Step | None:
    match first, second:
        case AllGather(), AllGather() if first.dim == second.dim:
            return AllGather(second.axes + first.axes, first.dim)
        case Slice(), Slice() if first.dim == second.dim:
            return Slice(first.axes + second.axes, first.dim)
        case ReduceScatter(), ReduceScatter() if first.dim == second.dim:
            return ReduceScatter(first.axes + second.axes, first.dim, first.reduction)
    return None


def _leading_last(steps: Sequence[Step]) -> list[Step]:
    """The steps, with adjacent gathers ordered so that the last and largest gathers the first dimension: its output is
    then contiguous and needs no copy."""
    runs = itertools.groupby(steps, lambda step: isinstance(step, AllGather))
    return [step for _, run in runs for step in sorted(run, key=lambda s: -s.dim if isinstance(s, AllGather) else 0)]
