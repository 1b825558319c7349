"""What XLA's model of GPUs takes kernels to last, by which it decides what to fuse; in bytes that memory could move.

Arithmetic and memory traffic overlap. What a kernel reads more than once comes from a cache after the first time.
Source: XLA's ``GpuPerformanceModel`` and its profile of an H100.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod

from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel

#: clock cycles of operations on an element, and of operations that are not listed
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
    "rsqrt": 75,
    "sine": 958,
    "sqrt": 75,
    "subtract": 7,
    "tanh": 467,
}
_OTHERS, _SPECIAL = 3, 100
#: concatenation needs comparisons and branches. XLA makes it expensive if the first part does not fill warps
_JOINED, _JOINED_APART, _WARP = 6, 400, 32
#: bytes of main memory per cycle of a unit and per launch of a kernel, and what remains of the shorter of two times
_CYCLE, LAUNCH, _BESIDE = 0.05, 3.35e6, 0.05
#: sizes of arrays that caches hold, and how many times as fast they are as main memory
_CACHES = (33 * 2**20, 20.0), (50 * 2**20, 2.5)
#: units of the chip, each of which runs a block at a time, and blocks whose reads fill the bandwidth of main memory
_UNITS, _FILLING = 132, 52.9
#: threads of a block, from how many elements on a thread computes several, and how many
_THREADS, _SEVERAL_FROM, _SEVERAL = 128, 270_336, 4
#: columns that a block sums up, and the most rows and columns of sums that are not made in two steps
_TILE, _ROWS, _COLUMNS = 64, 4096, 16_384
#: bytes that main memory sends together; elements of a side of a tile that is transposed, and of smaller ones' area
_TOGETHER, _SIDE, _AREA = 64, 16, 64 * 128


@dataclass(frozen=True)
class Reads:
    """What a kernel computes and reads.

    ``cycles`` are those of its arithmetic. ``times`` says how often each element of an operand is read on average.
    ``places`` are the operations at whose indices an operand is read, and ``shares`` how often these are computed.
    ``moved`` is the time of its reads, and ``alone`` its time if nothing more is fused. ``blocks`` is the number of
    blocks of threads. ``turns``: neighbours in memory are not read together, as the last dimension of something becomes
    another one; ``tiled``: they are, in tiles.
    """

    cycles: float
    times: Mapping[Node, float]
    places: Mapping[Node, Mapping[Node, None]]
    shares: Mapping[Node, float]
    moved: float
    alone: float
    blocks: int
    turns: bool
    tiled: bool


def reads_of(
    root: Node,
    cycles: float,
    times: Mapping[Node, float],
    places: Mapping[Node, Mapping[Node, None]],
    shares: Mapping[Node, float],
    sums: Node | None,
    computed: Iterable[Node],
) -> Reads:
    """The reads and the time of a kernel that writes ``root``.

    ``sums`` is its reduction of many elements, if it has one; ``computed`` are its operations.
    """
    turning = [in_tiles(node) for node in computed if turns(node)]
    tiled = any(turning) and sums is None
    blocks = _blocks_of_sums(sums) if sums is not None else _blocks(root)
    moved = _moved(times, blocks, bool(turning) and not tiled)
    alone = _time(cycles, moved, _size(root), blocks)
    return Reads(cycles, times, places, shares, moved, alone, blocks, bool(turning), tiled)


def turns(node: Node) -> bool:
    """Whether an operation moves the last dimension, of more than one element, of something that is read."""
    if node.op != "transpose" or node.operands[0].op in ("broadcast_in_dim", "iota"):
        return False
    shape = node.operands[0].shape
    order = [d for d in node.attributes["permutation"] if shape[d] != 1]
    return bool(order) and order[-1] != max(order)


def in_tiles(node: Node) -> bool:
    """Whether a transpose goes by tiles, in which neighbours are read and written together."""
    shape = node.operands[0].shape
    order = [d for d in node.attributes["permutation"] if shape[d] != 1]
    read, written = _run(sorted(order), order, shape), _run(order, sorted(order), shape)
    return min(read, written) >= _SIDE or (min(read, written) >= _SIDE // 2 and read * written >= _AREA)


def _run(dims: Sequence[int], other: Sequence[int], shape: Sequence[int]) -> int:
    """The elements that lie together at the end of ``dims``, as they also do in another order of dimensions."""
    size, at = shape[dims[-1]], other.index(dims[-1])
    for d in reversed(dims[:-1]):
        at -= 1
        if at < 0 or other[at] != d:
            break
        size *= shape[d]
    return size


def _moved(times: Mapping[Node, float], blocks: int, apart: bool) -> float:
    return sum(_from(node, time, blocks, apart) for node, time in times.items())


def _blocks(root: Node) -> int:
    """The number of blocks of a loop over elements. Scatters loop over what they write."""
    size = (root.operands[-1] if root.op == "scatter" else root).avals[0].size
    return max(-(-size // (_THREADS * (_SEVERAL if size >= _SEVERAL_FROM else 1))), 1)


def _blocks_of_sums(sums: Node) -> int:
    """The number of blocks of a reduction.

    A reduction of very many elements is made in two steps of about as many elements each. Then the first step has more
    blocks. Source: XLA's ``ReductionIsRaceFree`` and ``TreeReductionRewriter``.
    """
    shape, dims = sums.operands[0].shape, sums.attributes["dimensions"]
    summed, kept = prod(shape[d] for d in dims), max(sums.avals[0].size, 1)
    if len(shape) - 1 in dims:
        return kept if summed <= _COLUMNS else kept * isqrt(summed)
    columns = max(prod(shape[max(dims) + 1 :]), 1)
    tiles = kept // columns * -(-columns // _TILE)
    return max(tiles if summed <= _ROWS else tiles * isqrt(summed), 1)


def cycles(node: Node) -> float:
    """The clock cycles of an operation, for all elements."""
    size = node.avals[0].size
    if node.op == "concatenate":
        d = node.attributes["dimension"]
        apart = d and node.operands[0].shape[d] % _WARP
        return size * (_JOINED_APART if apart else _JOINED)
    if node.op == "reduce":
        return node.operands[0].avals[0].size * _combining(node)
    if node.op == "reduce_window":
        return size * (window_of(node) - 1) * _combining(node)
    if node.special:
        return size * _SPECIAL
    elif not node.elementwise:
        return 0
    return size * _CYCLES.get(node.op, _OTHERS)


def window_of(node: Node) -> int:
    """The elements that each element of a reduction of windows combines."""
    row: int = node.attributes.get("row", 1)
    return prod(node.attributes.get("window_dimensions", (row,)))


def _combining(node: Node) -> float:
    """The clock cycles in which a reduction combines two elements."""
    return _CYCLES.get(str(node.attributes.get("reducer")).rpartition(".")[2], _OTHERS)


def gained(producer: Kernel, inside: Reads, user: Kernel, reads: Reads) -> float:
    """The time by which a user is shorter if a producer is fused into it."""
    return reads.alone - _fused(producer, inside, user, reads)


def _fused(producer: Kernel, inside: Reads, user: Kernel, reads: Reads) -> float:
    """The time of a user after the producer is fused into it."""
    root = producer.root
    times, places = reads.times[root], reads.places[root]
    blocks, apart = reads.blocks, (inside.turns or reads.turns) and not (inside.tiled or reads.tiled)
    moved = reads.moved if apart == (reads.turns and not reads.tiled) else _moved(reads.times, blocks, apart)
    moved -= _from(root, times, blocks, apart)
    for source in producer.inputs:
        node, total = source.root, inside.times[source.root] * times
        if source in user.inputs:
            before = reads.times[node]
            total += before
            if root in inside.places[node]:
                total -= sum(reads.shares[place] for place in reads.places[node] if place in places)
            moved -= _from(node, before, blocks, apart)
        moved += _from(node, total, blocks, apart)
    return _time(inside.cycles * times + reads.cycles, moved, _size(user.root), reads.blocks)


def _from(node: Node, times: float, blocks: int, apart: bool) -> float:
    """The time to read an array a number of times. Each block reads at a limited speed.

    ``apart``: each element from another place, with which main memory sends its neighbours.
    """
    size, most = _size(node), blocks / _FILLING
    memory = node.avals[0].dtype.itemsize / _TOGETHER if apart else 1
    first = size * min(times, 1) / min(most, memory)
    if times <= 1:
        return first
    speed = next((speed for held, speed in _CACHES if size < held), memory)
    return first + size * (times - 1) / min(most, speed)


def _size(node: Node) -> int:
    return node.avals[0].nbytes


def _time(work: float, read: float, written: float, blocks: int) -> float:
    work *= _CYCLE * max(_UNITS / blocks, 1)
    moved = read + written
    return max(work, moved) + _BESIDE * min(work, moved)
