"""Priority fusion, as XLA does it for accelerators: the producer whose fusion saves most time is fused first.

A producer is fused into all of its users or into none. This saves writing and reading its result, but each user reads
the producer's operands and computes it again. Source: XLA's ``PriorityFusion`` and its GPU performance model.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from meshwright.spmd.memory.compilers import Compiler
from meshwright.spmd.memory.graph import WAVES, Node
from meshwright.spmd.memory.kernel_times import Reads, cycles, reads_of, saved
from meshwright.spmd.memory.kernels import Kernel, Use

#: bytes that could be moved while a kernel is launched, while one elementwise operation runs, and while a function does
_LAUNCH, _OPERATION, _FUNCTION = 4_000_000, 0.05, 1.0
#: operations of one kernel, and arrays that it reads
_MEMBERS, _INPUTS = 400, 60
#: operations that its code has at most (XLA's ``kMaxIRSize``)
_EMITTED = 10_000
_PRODUCTS = ("matmul", "convolution")
#: expensive as they read much, not as they compute
_READS = ("reduce", "gather")
#: threads of a warp; how many times as many rows are summed by one thread each, where there are few columns
_WARP, _COLUMNS = 32, ((8, 3), (4, 8), (2, 32))
#: elements that a reduction sums up for each of its result, from which a kernel has but one of them
_MANY = 16
#: what reads of its operand no more than it has elements
_PARTS = ("slice", "dynamic_slice")

_number = attrgetter("number")


def fuse_by_bytes(kernels: Sequence[Kernel], kept: set[Kernel], compiler: Compiler) -> list[Kernel]:
    """Fuse in place; returns the kernels that are left, in post-order."""
    if compiler.into_products:
        kept = kept | _joined(kernels)
    gone: set[Kernel] = set()
    queue = [(-gain, k.number, k) for k in kernels if (gain := _saved(k, kept, compiler)) > 0]
    heapq.heapify(queue)
    while queue:
        negative, _, producer = heapq.heappop(queue)
        if producer in gone:
            continue
        gain = _saved(producer, kept, compiler)
        if gain <= 0:
            continue
        if gain < -negative:
            heapq.heappush(queue, (-gain, producer.number, producer))
            continue
        near = {*producer.inputs, *producer.users}
        for user in list(producer.users):
            user.absorb(producer)
            user.library = user.library or is_product(producer)
        gone.add(producer)
        for kernel in near:
            gain = _saved(kernel, kept, compiler)
            if gain > 0:
                heapq.heappush(queue, (-gain, kernel.number, kernel))
    return [k for k in kernels if k not in gone]


def _saved(producer: Kernel, kept: set[Kernel], compiler: Compiler) -> float:
    """Bytes saved by fusing a producer into its users; 0 or less if that is impossible or does not pay off."""
    users = producer.users
    if producer in kept or not users or not _can_be_inside(producer, compiler):
        return 0.0
    if not all(_can_hold(u, producer, compiler) for u in users):
        return 0.0
    size = producer.root.avals[0].nbytes
    if compiler.into_products and len(users) > 1 and not _reads_little(producer):
        return 0.0
    inside = profile(producer)
    uses = [(u, profile(u)) for u in users]
    if any(inside.emitted * p.times[producer.root] + p.emitted > _EMITTED for _, p in uses):
        return 0.0
    if not compiler.into_products:
        return saved(producer, inside.reads, {u: p.reads for u, p in uses})
    if any(p.shares[producer.root] > 1 and not is_product(u) for u, p in uses):
        if any(node.expensive and node.op not in _READS for node in producer.members):
            return 0.0  # what is expensive is not computed again for each element that it is repeated to
    unfused = size + sum(_read(producer, s) for s in producer.inputs) + sum(_read(u, producer) for u in users)
    fused = sum(_read(u, s) for u in users for s in producer.inputs if s not in u.inputs)
    again = inside.work * (sum(max(1.0, p.shares[producer.root]) for _, p in uses) - 1)
    return unfused - fused - again + _LAUNCH


def _joined(kernels: Sequence[Kernel]) -> set[Kernel]:
    """What TPUs pad or join with others, which they read as it is."""
    users = (k for k in kernels if k.root.op in ("concatenate", "pad"))
    return {x for user in users for x in user.operands if not x.root.is_splat()}


@dataclass(frozen=True)
class Profile:
    """What a kernel computes, over and over where its operands are read in several orders: the operations ``emitted``,
    and how often ``each`` is computed; of each operand the ``shares`` of its elements that are read together, and how
    many ``times`` the code that reads it is written; ``places`` and ``computed`` as in :class:`Reads`."""

    root: Node
    emitted: int
    each: Sequence[tuple[Node, float]]
    shares: dict[Node, float]
    times: dict[Node, int]
    places: dict[Node, dict[Node, None]]
    computed: dict[Node, float]

    @cached_property
    def sums_many(self) -> bool:
        """Whether a reduction of many elements is among it."""
        return any(_sums_many(node) for node, _ in self.each)

    @cached_property
    def work(self) -> float:
        """On TPUs, in bytes."""
        return sum(share * node.avals[0].size * _cost(node) for node, share in self.each)

    @cached_property
    def reads(self) -> Reads:
        """As GPUs' times are told by."""
        clock = sum(share * cycles(node) for node, share in self.each)
        sums = next((node for node, _ in self.each if _sums_many(node)), None)
        return reads_of(self.root, clock, self.shares, self.places, self.computed, sums)


def profile(kernel: Kernel) -> Profile:
    """The profile of a kernel, cached by its number of members."""
    if kernel.profiled is None or kernel.profiled[0] != len(kernel.members):
        kernel.profiled = len(kernel.members), _profiled(kernel)
    return kernel.profiled[1]


def _profiled(kernel: Kernel) -> Profile:
    """From the root to the operands. What is read in the same place of the same value is computed once: elementwise
    operations hand on where they are read, others read anew (XLA's ``GpuHloCostAnalysis``)."""
    root, emitted, each = kernel.root, 0, list[tuple[Node, float]]()
    shares, times, places = {root: 1.0}, {root: 1}, {root: {root: None}}
    for node in sorted(kernel.members, key=_number, reverse=True):
        share, count = 0.0, 0
        for place in places[node]:
            share += shares[place]
            count += times[place]
        each.append((node, share))
        emitted += count
        same = node.avals[0].shape if node.elementwise else None
        for operand in node.operands:
            if operand.avals[0].shape == same:
                places.setdefault(operand, {}).update(places[node])
                continue
            places.setdefault(operand, {})[operand] = None
            shares[operand] = shares.get(operand, 0.0) + share * _share(node, operand)
            times[operand] = times.get(operand, 0) + count
    read = [node for node in places if node not in kernel.members]
    shared = {node: sum(shares[place] for place in places[node]) for node in read}
    written = {node: sum(times[place] for place in places[node]) for node in read}
    return Profile(root, emitted, each, shared, written, places, shares)


def _share(node: Node, operand: Node) -> float:
    """How often each element of an operand is read."""
    if node.op in ("slice", "dynamic_slice", "broadcast_in_dim", "gather"):
        return node.avals[0].size / max(1, operand.avals[0].size)
    return 1.0


def _reads_little(producer: Kernel) -> bool:
    """Whether users that compute a value again read no more for it than they would of it, but what is small: on
    average at most one operand that they do not read anyway."""
    if producer.root.op in _PARTS and len(producer.members) == 1:
        return True
    most = 1.5 * _given_bytes(producer.root)
    given = {s: _given_bytes(s.root) for s in producer.inputs}
    if sum(given.values()) <= most:
        return True
    return sum(n for u in producer.users for s, n in given.items() if s not in u.inputs) <= most * len(producer.users)


def _given_bytes(node: Node) -> int:
    """Bytes in the type that the program gives."""
    return node.avals[0].nbytes * (2 if "halved" in node.attributes else 1)


def _can_be_inside(producer: Kernel, compiler: Compiler) -> bool:
    if is_product(producer):
        return _has_epilogue(producer, compiler)
    if compiler.into_products and producer.root.op == "concatenate" and all(map(is_product, producer.users)):
        return True
    if producer.root.op == "reduce" and not compiler.into_products:
        return not _sums_many(producer.root) or _sums_few(producer.root)
    apart = ("reduce", "parameter", "constant", *(("gather",) if compiler.into_products else ()))
    return (
        _loops(producer, compiler)
        and producer.root.op not in apart
        and not (compiler.into_products and _spreads(producer))
    )


def _sums_once(user: Kernel, producer: Kernel) -> bool:
    """Whether a kernel of both has one reduction of many elements at most, and is not a loop around one of its own."""
    if producer.root.op == "reduce" and user.root.op != "reduce" and not _sums_few(producer.root):
        return False
    return not all(
        any(node.op == "reduce" and _sums_many(node) for node in kernel.members) for kernel in (user, producer)
    )


def _sums_many(reduction: Node) -> bool:
    """Whether a node is a reduction of so many elements that no other is computed along with it."""
    return reduction.op == "reduce" and reduction.operands[0].avals[0].size >= _MANY * reduction.avals[0].size


def _sums_few(reduction: Node) -> bool:
    """Whether a reduction is so small that each element of its result is computed at once, by one thread.

    Source: XLA's ``IsUnnestedReductionFasterThanElemental``.
    """
    shape, dims = reduction.operands[0].shape, reduction.attributes["dimensions"]
    summed = math.prod(shape[d] for d in dims)
    if len(shape) - 1 in dims:
        return bool(0 < summed < _WARP and _WARP % summed)
    kept = math.prod(shape[d] for d in range(max(dims, default=-1) + 1, len(shape)))
    most = next((times for times, below in _COLUMNS if kept < below), 1)
    return bool(summed < most * _WARP)


def _spreads(kernel: Kernel) -> bool:
    """Elements are moved apart, which TPUs do in a kernel that does nothing else."""
    spread = np.asarray(kernel.root.attributes.get("interior_padding", 0))
    return kernel.root.op == "pad" and bool(spread.any())


def _can_hold(user: Kernel, producer: Kernel, compiler: Compiler) -> bool:
    if len(user.members) + len(producer.members) > _MEMBERS or len({*user.inputs, *producer.inputs}) > _INPUTS:
        return False
    if is_product(user):
        return compiler.into_products
    if compiler.into_products and _spreads(user):
        return False
    if not compiler.into_products and not _sums_once(user, producer):
        return False
    if user.root.op == "scatter":
        return producer.root.is_splat() if compiler.into_products else _reads_in_place(user, producer)
    return _loops(user, compiler)


def _loops(kernel: Kernel, compiler: Compiler) -> bool:
    """Whether a kernel computes its result element by element; on GPUs sums of windows and joined rows, too."""
    return kernel.loop or (kernel.root.op in ("reduce_window", "concatenate") and not compiler.into_products)


def _reads_in_place(scatter: Kernel, producer: Kernel) -> bool:
    """Whether a value is a scatter's places or updates; what these go into has been copied before."""
    return scatter.operands[0] is not producer and producer.root not in scatter.root.operands[:1]


def is_product(kernel: Kernel) -> bool:
    """A matrix product or a convolution, with what is computed along with it."""
    return kernel.root.op in _PRODUCTS or (kernel.library and any(n.op in _PRODUCTS for n in kernel.members))


def _has_epilogue(product: Kernel, compiler: Compiler) -> bool:
    """Whether the one user of a product can be computed where its result is written: on GPUs, a bias that is added."""
    if len(product.users) != 1:
        return False
    if product.library and not compiler.into_products:
        return False
    (user,) = product.users
    if user.library or not user.loop or user.root.op == "reduce":
        return False
    if user.root.op == "reshape":
        return compiler.into_products or user.view
    if compiler.into_products:
        return user.inputs[product] is Use.INPLACE
    others = [x for x in user.root.operands if x not in product.members]
    return user.root.op == "add" and len(user.members) <= 3 and all(x.op == "broadcast_in_dim" for x in others)


def _read(kernel: Kernel, source: Kernel) -> float:
    """Bytes that a kernel reads of a value: no more than it has elements, unless it sums them up."""
    aval = source.root.avals[0]
    if kernel.root.op == "reduce" or kernel.inputs.get(source) is Use.REUSED or kernel.root.op in _PRODUCTS:
        return aval.nbytes
    return min(aval.nbytes, kernel.root.avals[0].size * aval.dtype.itemsize)


def _cost(node: Node) -> float:
    if node.op in WAVES:
        return _FUNCTION
    return _FUNCTION if node.expensive and node.op not in ("reduce", "gather", "divide") else _OPERATION
