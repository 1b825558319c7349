"""What XLA's model of GPUs takes kernels to last, by which it decides what to fuse; in bytes that memory could move.

Arithmetic and memory traffic overlap. What a kernel reads more than once comes from a cache after the first time.
Source: XLA's ``GpuPerformanceModel`` and its profile of an H100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt, prod

from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel

#: clock cycles of operations on an element, of sums of one, and of operations that are not listed
_CYCLES = {
    "add": 7,
    "atan2": 431,
    "cbrt": 178,
    "cosine": 978,
    "divide": 19,
    "exponential": 79,
    "exponential_minus_one": 190,
    "log": 166,
    "log_plus_one": 229,
    "logistic": 108,
    "power": 510,
    "reduce": 7,
    "rsqrt": 75,
    "sine": 958,
    "sqrt": 75,
    "subtract": 7,
    "tanh": 467,
}
_OTHERS, _SPECIAL = 3, 100
#: concatenation needs comparisons and branches. XLA makes it expensive if parts do not fill warps
_JOINED, _JOINED_APART, _WARP = 6, 400, 32
#: bytes of main memory per cycle of a unit and per launch of a kernel, and what remains of the shorter of two times
_CYCLE, LAUNCH, _BESIDE = 0.05, 3.35e6, 0.05
#: sizes of arrays that caches hold, and how many times as fast they are as main memory
_CACHES = (33 * 2**20, 20.0), (50 * 2**20, 2.5)
#: units of the chip, each of which runs a block at a time, and blocks whose reads fill the bandwidth of main memory
_UNITS, _FILLING = 132, 105.7
#: threads of a block, from how many elements on a thread computes several, and how many
_THREADS, _SEVERAL_FROM, _SEVERAL = 128, 270_336, 4
#: columns that a block sums up, as the time of its reads and that of its arithmetic have it, and the most rows and
#: columns of sums that are not made in two steps
_TILE, _WIDE_TILE, _ROWS, _COLUMNS = 32, 64, 4096, 16_384


@dataclass(frozen=True)
class Reads:
    """What a kernel computes and reads.

    ``cycles`` are those of its arithmetic. ``times`` says how often each element of an operand is read on average.
    ``places`` are the operations at whose indices an operand is read, and ``shares`` how often these are computed.
    ``moved`` is the time of its reads, and ``alone`` its time if nothing more is fused. ``blocks`` is the number of
    blocks of threads that read, ``computing`` the number of those that compute.
    """

    cycles: float
    times: Mapping[Node, float]
    places: Mapping[Node, Mapping[Node, None]]
    shares: Mapping[Node, float]
    moved: float
    alone: float
    blocks: int
    computing: int


def reads_of(
    root: Node,
    cycles: float,
    times: Mapping[Node, float],
    places: Mapping[Node, Mapping[Node, None]],
    shares: Mapping[Node, float],
    sums: Node | None,
) -> Reads:
    """The reads and the time of a kernel that writes ``root``.

    ``sums`` is its reduction of many elements, if it has one.
    """
    blocks = _blocks_of_sums(sums, _TILE) if sums is not None else _blocks(root)
    computing = _blocks_of_sums(sums, _WIDE_TILE) if sums is not None else blocks
    moved = sum(_from(_size(node), time, blocks) for node, time in times.items())
    return Reads(cycles, times, places, shares, moved, _time(cycles, moved, _size(root), computing), blocks, computing)


def _blocks(root: Node) -> int:
    """The number of blocks of a loop over elements. Scatters loop over what they write."""
    size = (root.operands[-1] if root.op == "scatter" else root).avals[0].size
    return max(-(-size // (_THREADS * (_SEVERAL if size >= _SEVERAL_FROM else 1))), 1)


def _blocks_of_sums(sums: Node, tile: int) -> int:
    """The number of blocks of a reduction.

    A reduction of very many elements is made in two steps of about as many elements each. Then the first step has more
    blocks. Source: XLA's ``ReductionIsRaceFree`` and ``TreeReductionRewriter``.
    """
    shape, dims = sums.operands[0].shape, sums.attributes["dimensions"]
    summed, kept = prod(shape[d] for d in dims), max(sums.avals[0].size, 1)
    if len(shape) - 1 in dims:
        return kept if summed <= _COLUMNS else kept * isqrt(summed)
    columns = max(prod(shape[max(dims) + 1 :]), 1)
    tiles = kept // columns * -(-columns // tile)
    return max(tiles if summed <= _ROWS else tiles * isqrt(summed), 1)


def cycles(node: Node) -> float:
    """The clock cycles of an operation, for all elements."""
    size = node.avals[0].size
    if node.op == "concatenate":
        d = node.attributes["dimension"]
        apart = d and any(x.shape[d] % _WARP for x in node.operands)
        return size * (_JOINED_APART if apart else _JOINED)
    if node.op == "reduce":
        size = node.operands[0].avals[0].size
    elif node.special:
        return size * _SPECIAL
    elif not node.elementwise:
        return 0
    return size * _CYCLES.get(node.op, _OTHERS)


def gained(producer: Kernel, inside: Reads, user: Kernel, reads: Reads) -> float:
    """The time by which a user is shorter if a producer is fused into it."""
    return reads.alone - _fused(producer, inside, user, reads)


def _fused(producer: Kernel, inside: Reads, user: Kernel, reads: Reads) -> float:
    """The time of a user after the producer is fused into it."""
    root = producer.root
    times, places = reads.times[root], reads.places[root]
    blocks = reads.blocks
    moved = reads.moved - _from(_size(root), times, blocks)
    for source in producer.inputs:
        node, total = source.root, inside.times[source.root] * times
        size = _size(node)
        if source in user.inputs:
            before = reads.times[node]
            total += before
            if root in inside.places[node]:
                total -= sum(reads.shares[place] for place in reads.places[node] if place in places)
            moved -= _from(size, before, blocks)
        moved += _from(size, total, blocks)
    return _time(inside.cycles * times + reads.cycles, moved, _size(user.root), reads.computing)


def _from(size: float, times: float, blocks: int) -> float:
    """The time to read an array of ``size`` bytes ``times`` times. Each block reads at a limited speed."""
    most = blocks / _FILLING
    first = size * min(times, 1) / min(most, 1)
    if times <= 1:
        return first
    speed = next((speed for held, speed in _CACHES if size < held), 1)
    return first + size * (times - 1) / min(most, speed)


def _size(node: Node) -> int:
    return node.avals[0].nbytes


def _time(work: float, read: float, written: float, blocks: int) -> float:
    work *= _CYCLE * max(_UNITS / blocks, 1)
    moved = read + written
    return max(work, moved) + _BESIDE * min(work, moved)
