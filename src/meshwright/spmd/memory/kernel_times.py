"""What XLA's model of GPUs takes kernels to last, by which it decides what to fuse; in bytes that memory could move.

Arithmetic and memory traffic overlap. What a kernel reads more than once comes from a cache after the first time.
Source: XLA's ``GpuPerformanceModel`` and its profile of an H100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
#: joining is comparisons and branches; where parts do not fill warps, XLA makes it dear
_JOINED, _JOINED_APART, _WARP = 6, 400, 32
#: bytes of main memory per cycle of a unit and per launch of a kernel, and what remains of the shorter of two times
_CYCLE, _LAUNCH, _BESIDE = 0.05, 3.35e6, 0.05
#: sizes of arrays that caches hold, and how many times as fast they are as main memory
_CACHES = (33 * 2**20, 20.0), (50 * 2**20, 2.5)


@dataclass(frozen=True)
class Reads:
    """What a kernel computes and reads: cycles, and how often each element of an operand is read on average.

    Elementwise operations hand on where they are read: ``places`` are the operations at whose indices each operand is
    read, and ``shares`` how often these are computed. ``alone`` is the kernel's time, ``moved`` what it reads in it.
    """

    cycles: float
    times: Mapping[Node, float]
    places: Mapping[Node, Mapping[Node, None]]
    shares: Mapping[Node, float]
    moved: float
    alone: float


def reads_of(
    root: Node,
    cycles: float,
    times: Mapping[Node, float],
    places: Mapping[Node, Mapping[Node, None]],
    shares: Mapping[Node, float],
) -> Reads:
    """With the time of a kernel that writes ``root``."""
    moved = sum(_from(_size(node), time) for node, time in times.items())
    return Reads(cycles, times, places, shares, moved, _time(cycles, moved + _size(root)))


def cycles(node: Node) -> float:
    """Of all elements of an operation."""
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


def saved(producer: Kernel, inside: Reads, users: Mapping[Kernel, Reads]) -> float:
    """What is gained by fusing a producer into all of its users."""
    gained = sum(reads.alone - _fused(producer, inside, user, reads) for user, reads in users.items())
    return _LAUNCH + inside.alone + gained


def _fused(producer: Kernel, inside: Reads, user: Kernel, reads: Reads) -> float:
    """The time of a user that computes what the producer does."""
    root = producer.root
    times, places = reads.times[root], reads.places[root]
    moved = _size(user.root) + reads.moved - _from(_size(root), times)
    for source in producer.inputs:
        node, total = source.root, inside.times[source.root] * times
        size = _size(node)
        if source in user.inputs:
            before = reads.times[node]
            total += before
            if root in inside.places[node]:
                total -= sum(reads.shares[place] for place in reads.places[node] if place in places)
            moved -= _from(size, before)
        moved += _from(size, total)
    return _time(inside.cycles * times + reads.cycles, moved)


def _from(size: float, times: float) -> float:
    """The time of reading an array of so many bytes so many times."""
    if times <= 1:
        return size * times
    for most, speed in _CACHES:
        if size < most:
            return size + size * (times - 1) / speed
    return size * times


def _size(node: Node) -> int:
    return node.avals[0].nbytes


def _time(work: float, moved: float) -> float:
    work *= _CYCLE
    return max(work, moved) + _BESIDE * min(work, moved)
