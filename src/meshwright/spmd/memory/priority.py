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
from meshwright.spmd.memory.fixed_orders import rows_of
from meshwright.spmd.memory.fusion import disturbs, in_place_operand
from meshwright.spmd.memory.graph import WAVES, Node
from meshwright.spmd.memory.kernel_times import LAUNCH as _LAUNCHED
from meshwright.spmd.memory.kernel_times import Reads, cycles, gained, reads_of, window_of
from meshwright.spmd.memory.kernels import Kernel, Use
from meshwright.spmd.memory.normalizations import hold_rows, joins_rows

#: bytes that could be moved while a kernel is launched, while one elementwise operation runs, and while a function does
_LAUNCH, _OPERATION, _FUNCTION = 4_000_000, 0.05, 1.0
#: operations of one kernel, and arrays that it reads. XLA only has the second limit; the first is for quick predictions
_MEMBERS, _INPUTS = 2000, 60
#: operations that its code has at most (XLA's ``kMaxIRSize``)
_EMITTED = 10_000
_PRODUCTS = ("matmul", "convolution")
#: bytes of factors that a kernel of two products holds, and of an element of a product in a product
_FACTORS, _HALF = 5 * 2**20, 2
#: operations that are expensive because they read much, not because they compute much
_READS = ("reduce", "gather")
#: the threads of a warp. With fewer columns than the second number, one thread may sum that many times as many rows
_WARP, _COLUMNS = 32, ((8, 3), (4, 8), (2, 32))
#: a kernel has only one reduction with at least this many elements for each element of its result
_MANY = 16
#: operations that read only as many elements as their result has
_PARTS = ("slice", "dynamic_slice")

_number = attrgetter("number")


def fuse_by_bytes(kernels: Sequence[Kernel], kept: set[Kernel], compiler: Compiler) -> list[Kernel]:
    """Fuse in place; returns the kernels that are left, in post-order."""
    if compiler.into_products:
        kept = kept | _joined(kernels)
    if compiler.keeps_rows:
        kernels = hold_rows(kernels, kept)
    gone: set[Kernel] = set()
    queue = [(-gain, k.number, k) for k in kernels if (gain := saved(k, kept, compiler)) > 0]
    heapq.heapify(queue)
    while queue:
        negative, _, producer = heapq.heappop(queue)
        if producer in gone:
            continue
        gain = saved(producer, kept, compiler)
        if gain <= 0:
            continue
        if gain < -negative:
            heapq.heappush(queue, (-gain, producer.number, producer))
            continue
        near = {*producer.inputs, *producer.users}
        for user in list(producer.users):
            user.absorb(producer)
            user.library = user.library or is_product(producer)
            user.rows = user.rows or producer.rows
        gone.add(producer)
        for kernel in near:
            gain = saved(kernel, kept, compiler)
            if gain > 0:
                heapq.heappush(queue, (-gain, kernel.number, kernel))
    return [k for k in kernels if k not in gone]


def saved(producer: Kernel, kept: set[Kernel], compiler: Compiler) -> float:
    """Bytes saved by fusing a producer into its users; 0 or less if that is impossible or does not pay off."""
    if producer in kept or not producer.users or not _can_be_inside(producer, compiler):
        return 0.0
    total = 0.0
    for user in producer.users:
        gain = _gain(user, producer, compiler)
        if gain is None:
            return 0.0
        total += gain
    inside = profile(producer)
    if not compiler.into_products:
        return _LAUNCHED + inside.reads.alone + total
    if len(producer.users) > 1 and not _reads_little(producer):
        return 0.0
    read = sum(_read(producer, source) for source in producer.inputs)
    return producer.root.avals[0].nbytes + read + inside.work + total + _LAUNCH


def _gain(user: Kernel, producer: Kernel, compiler: Compiler) -> float | None:
    """The part of :func:`saved` that one user contributes, None if it cannot hold the producer.

    It is cached: of a producer with thousands of users, each fusion changes a few.
    """
    sizes = len(producer.members), len(user.members)
    known = producer.gains.get(user)
    if known is None or known[0] != sizes:
        gain = _gained(user, producer, compiler) if _can_hold(user, producer, compiler) else None
        producer.gains[user] = known = sizes, gain
    return known[1]


def _gained(user: Kernel, producer: Kernel, compiler: Compiler) -> float | None:
    inside, around = profile(producer), profile(user)
    if user.rows or producer.rows:
        return 2.0 * producer.root.avals[0].nbytes
    if inside.emitted * around.times[producer.root] + around.emitted > _EMITTED:
        return None
    if not compiler.into_products:
        return gained(producer, inside.reads, user, around.reads)
    share = around.shares[producer.root]
    if share > 1 and not is_product(user):
        if any(node.expensive and node.op not in _READS for node in producer.members):
            return None  # expensive operations are not repeated for each element of a broadcast
    fused = sum(_read(user, source) for source in producer.inputs if source not in user.inputs)
    return _read(user, producer) - fused - inside.work * max(1.0, share)


def _joined(kernels: Sequence[Kernel]) -> set[Kernel]:
    """The operands of concatenations and pads. TPUs read them as they are."""
    users = (k for k in kernels if k.root.op in ("concatenate", "pad"))
    return {x for user in users for x in user.operands if not x.root.is_splat()}


@dataclass(frozen=True)
class Profile:
    """What a kernel computes.

    ``emitted`` is the number of operations in its code. An operation counts again for each order in which its users
    read it. ``each`` lists the operations, and how often each of their elements is computed. ``shares`` says how often
    each element of an operand is read, and ``times`` how often the code that reads the operand is written. ``places``
    and ``computed`` are the same as ``places`` and ``shares`` of :class:`Reads`.
    """

    root: Node
    emitted: int
    each: Sequence[tuple[Node, float]]
    shares: dict[Node, float]
    times: dict[Node, int]
    places: dict[Node, dict[Node, None]]
    computed: dict[Node, float]

    @cached_property
    def work(self) -> float:
        """The time of the arithmetic on TPUs, in bytes that memory could move."""
        return sum(share * node.avals[0].size * _cost(node) for node, share in self.each)

    @cached_property
    def reads(self) -> Reads:
        """What the time model of GPUs needs to know."""
        clock = sum(share * cycles(node) for node, share in self.each)
        sums = self.root if _sums_in_blocks(self.root) else None
        return reads_of(
            self.root, clock, self.shares, self.places, self.computed, sums, (node for node, _ in self.each)
        )


def profile(kernel: Kernel) -> Profile:
    """The profile of a kernel, cached by its number of members."""
    if kernel.profiled is None or kernel.profiled[0] != len(kernel.members):
        kernel.profiled = len(kernel.members), _profiled(kernel)
    return kernel.profiled[1]


def _profiled(kernel: Kernel) -> Profile:
    """Visits the operations from the root to the operands.

    A value that is read twice in the same place is computed once. Elementwise operations read their operands in the
    place where they are read themselves. Other operations read them in a new place. Source: XLA's
    ``GpuHloCostAnalysis``.
    """
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
    if node.op == "gather" and operand is not node.operands[0]:
        return 1.0
    if node.op in ("slice", "dynamic_slice", "broadcast_in_dim", "gather"):
        return node.avals[0].size / max(1, operand.avals[0].size)
    if node.op == "reduce_window" and operand.shape:
        return window_of(node) * node.avals[0].size / max(1, operand.avals[0].size)
    return 1.0


def _reads_little(producer: Kernel) -> bool:
    """Whether it costs little to compute a value again in each of its users.

    That is so if a user reads no more bytes for it than the value has, apart from small operands.
    """
    if producer.root.op in _PARTS and len(producer.members) == 1:
        return True
    most = 1.5 * _given_bytes(producer.root)
    given = {s: _given_bytes(s.root) for s in producer.inputs}
    if sum(given.values()) <= most:
        return True
    return sum(n for u in producer.users for s, n in given.items() if s not in u.inputs) <= most * len(producer.users)


def _given_bytes(node: Node) -> int:
    """The bytes of a value in the type that the program gives it."""
    return node.avals[0].nbytes * (2 if "halved" in node.attributes else 1)


def _can_be_inside(producer: Kernel, compiler: Compiler) -> bool:
    if is_product(producer):
        return _has_epilogue(producer, compiler)
    if compiler.into_products and producer.root.op == "concatenate" and all(map(is_product, producer.users)):
        return True
    if producer.root.op == "reduce" and not compiler.into_products:
        return True
    added = all(user.root.op == "scatter" for user in producer.users)
    apart = ("reduce", "parameter", "constant", *(("gather",) if compiler.into_products and not added else ()))
    return (
        _loops(producer, compiler)
        and producer.root.op not in apart
        and not (compiler.into_products and (_spreads(producer) or _steps_in_tiles(producer)))
    )


def _sums_once(user: Kernel, producer: Kernel) -> bool:
    """Whether the fused kernel would have at most one reduction of many elements, which is not inside another loop."""
    if _sums_in_blocks(producer.root) and not _sums_in_blocks(user.root):
        return False
    return not all(
        any(node.op == "reduce" and _sums_many(node) for node in kernel.members) for kernel in (user, producer)
    )


def _sums_many(reduction: Node) -> bool:
    """Whether a node is a reduction of many elements. A kernel computes only one of them."""
    return reduction.op == "reduce" and reduction.operands[0].avals[0].size >= _MANY * reduction.avals[0].size


def _sums_in_blocks(node: Node) -> bool:
    """Whether a node is a reduction whose elements are each computed by several threads."""
    return node.op == "reduce" and not _sums_few(node)


def _sums_few(reduction: Node) -> bool:
    """Whether a reduction is so small that one thread computes each element of its result.

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
    """Whether a kernel moves elements apart. TPUs do that in a kernel of its own."""
    spread = np.asarray(kernel.root.attributes.get("interior_padding", 0))
    return kernel.root.op == "pad" and bool(spread.any())


def _steps(node: Node) -> list[int]:
    """The dimensions along which a slice takes some of the elements, not one after the other."""
    strides = node.attributes.get("strides", ()) if node.op == "slice" else ()
    return [d for d, (step, n) in enumerate(zip(strides, node.shape)) if step > 1 < n]


def _steps_through(user: Kernel, producer: Kernel) -> bool:
    """Whether a kernel takes some of a value's elements. TPUs do not compute others that they leave out."""
    if user.inputs.get(producer) is Use.INPLACE:
        return False
    return any(producer.root in node.operands and _steps(node) for node in user.members)


def _steps_in_tiles(kernel: Kernel) -> bool:
    """Whether a kernel takes some of the elements along tiles. TPUs do that in a kernel of its own."""
    order = kernel.root.order or range(len(kernel.root.shape))[::-1]
    return any(d in order[:2] for d in _steps(kernel.root))


def _can_hold(user: Kernel, producer: Kernel, compiler: Compiler) -> bool:
    if len(user.members) + len(producer.members) > _MEMBERS or len({*user.inputs, *producer.inputs}) > _INPUTS:
        return False
    if is_product(user):
        return compiler.into_products
    if user.rows or producer.rows:
        return joins_rows(user, producer)
    if compiler.into_products and (_spreads(user) or _steps_through(user, producer)):
        return False
    if user.root.op == "dynamic_update_slice" and not compiler.into_products and _disturbs(user, producer):
        return False
    if not compiler.into_products and not _sums_once(user, producer):
        return False
    if user.root.op == "scatter":
        if compiler.into_products:
            return _starts(user, producer) or _is_update(user, producer)
        return _reads_in_place(user, producer)
    if compiler.into_products and (user.root.op == "gather" or (user.view and producer.view)):
        return False
    return _loops(user, compiler)


def _disturbs(update: Kernel, producer: Kernel) -> bool:
    """Whether an update that holds a producer could not write over its first operand; see :func:`disturbs`."""
    if len(producer.members) == 1 or all(node.elementwise for node in producer.members):
        return disturbs(update, producer.root)
    old = in_place_operand(update)
    return producer.root is old or any(old in node.operands for node in producer.members)


def _loops(kernel: Kernel, compiler: Compiler) -> bool:
    """Whether a kernel computes its result element by element. On GPUs, windows and concatenations count as well."""
    return (
        kernel.loop
        or kernel.root.op == "concatenate"
        or (kernel.root.op == "reduce_window" and not compiler.into_products)
    )


def _starts(scatter: Kernel, producer: Kernel) -> bool:
    """Whether a scatter of a TPU makes the array of one number that it adds numbers, or rows of them, to."""
    return producer.root.is_splat() and len(rows_of(scatter.root)) < 2


def _is_update(scatter: Kernel, producer: Kernel) -> bool:
    """Whether a value is rows that a scatter of a TPU adds, which it computes as it adds them, also gathered ones."""
    return not producer.view and producer.root not in scatter.root.operands[:2] and len(rows_of(scatter.root)) == 1


def _reads_in_place(scatter: Kernel, producer: Kernel) -> bool:
    """Whether a value is the indices or the updates of a scatter, not the array that it writes to."""
    return scatter.operands[0] is not producer and producer.root not in scatter.root.operands[:1]


def is_product(kernel: Kernel) -> bool:
    """Whether a kernel is a matrix product or a convolution. It may include what is computed along with it."""
    return kernel.root.op in _PRODUCTS or (kernel.library and any(n.op in _PRODUCTS for n in kernel.members))


def _has_epilogue(product: Kernel, compiler: Compiler) -> bool:
    """Whether the one user of a product can be computed where the result is written. On GPUs, only a bias can."""
    if len(product.users) != 1:
        return False
    if product.library and not compiler.into_products:
        return False
    (user,) = product.users
    if is_product(user):
        return compiler.into_products and _is_nested(user, product, compiler)
    if user.library or not user.loop:
        return False
    if user.root.op == "reduce":
        return compiler.into_products and user.inputs[product] is Use.MOVED
    if user.root.op == "reshape":
        return compiler.into_products or user.view
    if compiler.into_products:
        return user.inputs[product] is Use.INPLACE
    others = [x for x in user.root.operands if x not in product.members]
    return user.root.op == "add" and len(user.members) <= 3 and all(x.op == "broadcast_in_dim" for x in others)


def _is_nested(outer: Kernel, inner: Kernel, compiler: Compiler) -> bool:
    """Whether a product computes the elements of another product as it reads them.

    It holds a factor of each, or computes elements again if that takes no longer than to write and read them.
    """
    first, second = (_the_product(kernel) for kernel in (inner, outer))
    if first is None or second is None or inner.root.avals[0].dtype.itemsize > _HALF:
        return False
    summed = math.prod(x.avals[0].size for x in first.operands[:2]) / max(first.avals[0].size, 1)
    batch = math.prod(first.shape[:-2])
    if math.sqrt(summed / batch) <= _HALF * compiler.intensity:
        return True
    ours = (x.avals[0].nbytes for x in second.operands[:2] if x not in inner.members)
    held = min(x.avals[0].nbytes for x in first.operands[:2]) + min([*ours, second.avals[0].nbytes])
    return held // batch <= _FACTORS


def _the_product(kernel: Kernel) -> Node | None:
    """The one matrix product of a kernel."""
    found = [node for node in kernel.members if node.op in _PRODUCTS]
    return found[0] if len(found) == 1 and found[0].op == "matmul" else None


def _read(kernel: Kernel, source: Kernel) -> float:
    """The bytes that a kernel reads of a value.

    A kernel reads one element for each of its own, unless it sums them up.
    """
    aval = source.root.avals[0]
    if kernel.root.op == "reduce" or kernel.inputs.get(source) is Use.REUSED or kernel.root.op in _PRODUCTS:
        return aval.nbytes
    return min(aval.nbytes, kernel.root.avals[0].size * aval.dtype.itemsize)


def _cost(node: Node) -> float:
    if node.op in WAVES:
        return _FUNCTION
    return _FUNCTION if node.expensive and node.op not in ("reduce", "gather", "divide") else _OPERATION
