"""Buffers and their live ranges.

The rules are those of XLA's buffer assignment. Arguments are live throughout. Every result has its own allocation,
which smaller buffers may use before the result is written (``allocations``). A loop kernel may overwrite an operand
that it reads elementwise, if this is the operand's last use. All other buffers are packed into one block, largest
first, each into the smallest gap that holds it (``packing``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.kernels import Kernel, Use
from meshwright.spmd.memory.priority import is_product
from meshwright.spmd.memory.prune import CHOICES, handed, through

#: a step that is later than all others
_ALWAYS = 1 << 40
_ADDRESS = np.dtype(np.uint64)


@dataclass(eq=False, slots=True)
class Buffer:
    """A buffer that a kernel writes, and its live range in steps."""

    aval: ShapedArray
    #: the array's size, or the temporaries of the body of a control-flow op
    nbytes: int
    kernel: Kernel
    start: int
    end: int
    kind: str = "temporary"
    #: operand buffers that may be overwritten
    over: tuple[Buffer, ...] = ()
    #: operand buffers that may be overwritten in the block of temporaries: those that are read directly, not through a
    #: view or as a result of a choice
    plainly: tuple[Buffer, ...] = ()
    #: whether it holds several values, since a loop changes it or another kernel writes over it
    several: bool = False
    #: whether it is a temporary of a body, or a workspace, whose size has its padding
    inner: bool = False


#: ``inner(region, loop)``: the sizes of a region's temporaries at its peak, in bytes
Inner = Callable[[Graph, bool], Sequence[int]]


@dataclass(slots=True)
class Liveness:
    """The buffers of a schedule."""

    buffers: list[Buffer] = field(default_factory=list)
    of: dict[Kernel, list[Buffer | None]] = field(default_factory=dict)
    #: the latest kernel whose result each buffer holds: the one that wrote it, or a view
    last: dict[Buffer, Kernel] = field(default_factory=dict)
    #: the values that kernels write parts of in their place, with the steps
    rewritten: list[tuple[Buffer, int]] = field(default_factory=list)
    #: whether results of products are parts of tuples
    tupled: bool = False
    #: the kernels with which each one runs as one
    together: Mapping[Kernel, Sequence[Kernel]] = field(default_factory=dict)


def liveness(
    order: Sequence[Kernel],
    results: Sequence[Kernel],
    inner: Inner,
    tupled: bool,
    until: Sequence[int],
    together: Sequence[Sequence[Kernel]],
) -> Liveness:
    """The buffers of kernels that run in this order, with their live ranges.

    ``tupled``: results of products are parts of tuples. ``until`` are the steps until which kernels read their
    operands. Kernels that are ``together`` run as one.
    """
    live = Liveness(tupled=tupled, together={kernel: group for group in together for kernel in group})
    for step, kernel in enumerate(order):
        if not kernel.view:
            for source in kernel.inputs:
                kept = until and (not _alone(live, kernel, source) or (live.tupled and is_product(source)))
                end = until[step] if kept else step
                for buffer in live.of[source]:
                    if buffer is not None:
                        buffer.end = max(buffer.end, end)
        live.of[kernel] = _write(live, kernel, step, inner)
        live.last.update((buffer, kernel) for buffer in live.of[kernel] if buffer is not None)
    for kernel in results:
        for buffer in live.of[kernel]:
            if buffer is not None:
                buffer.end = len(order)
                if buffer.kind == "temporary":
                    buffer.kind = "result"
    return live


def _write(live: Liveness, kernel: Kernel, step: int, inner: Inner) -> list[Buffer | None]:
    root = kernel.root
    if root.op in CHOICES:
        return _of_choice(live, kernel, step, inner)
    if not root.avals:
        return []
    if root.op == "constant":
        given = root.shape and not root.is_splat()
        return (
            _new(live, [Buffer(root.avals[0], root.avals[0].nbytes, kernel, -1, step, "constant")]) if given else [None]
        )
    if kernel.view:
        (source,) = kernel.inputs
        return [live.of[source][root.attributes["index"]]] if root.op == "get" else live.of[source]
    if root.op == "parameter":
        return _new(live, [Buffer(root.avals[0], root.avals[0].nbytes, kernel, -1, step, "argument")])
    if root.op == "optimization_barrier":
        return [live.of[k][0] for k in kernel.operands]
    if root.op == "while":
        _inside(live, kernel, step, inner)
        _table(live, kernel, len(kernel.operands))
        used, body = root.attributes["used"], root.regions[1]
        for source, before, after in zip(kernel.operands, body.parameters, body.results):
            if before is not after and (buffer := live.of[source][0]) is not None:
                buffer.several = True
        return [live.of[kernel.operands[used[i]]][0] if i in used else None for i in range(len(root.avals))]
    if len(root.avals) > 1:
        _table(live, kernel, len(root.avals))
    if taken := updated(kernel):
        return _in_place(live, kernel, step, taken)
    if "in_place" in root.attributes:
        pairs = zip(root.avals, kernel.operands)
        places = ((a, tuple(b for b in live.of[k][:1] if b is not None)) for a, k in pairs)
        return _new(live, [Buffer(a, a.nbytes, kernel, step, step, over=over, plainly=over) for a, over in places])
    found = [
        (b, k)
        for k in kernel.inputs
        for b in live.of[k][:1]
        if b is not None and b.kind != "constant" and k.root.avals[0] in root.avals and _alone(live, kernel, k)
    ]
    # Where XLA gives results their memory, it considers only the last alias of a value, in the block only the first.
    over = tuple(b for b, k in found if live.last[b] is k)
    plainly = tuple(b for b, k in found if not (k.view or k.root.op in CHOICES or (live.tupled and is_product(k))))
    return _new(live, [Buffer(a, a.nbytes, kernel, step, step, over=over, plainly=plainly) for a in root.avals])


def _of_choice(live: Liveness, kernel: Kernel, step: int, inner: Inner) -> list[Buffer | None]:
    """The buffers of the used results of a conditional or a call. Operands that branches return keep their buffers."""
    root = kernel.root
    _inside(live, kernel, step, inner)
    used, over = root.attributes["used"], root.attributes.get("over", {})
    kept = {place: over.get(place) or through(root, place) for place in used.values()}
    if root.op != "call":
        for taken in {tuple(p.attributes["outside"] for p in region.parameters) for region in root.regions}:
            _table(live, kernel, len(taken))
        if None in kept.values() or tuple(map(handed, root.regions[0].results)) != root.regions[0].parameters:
            _table(live, kernel, len(used))
    results: list[Buffer | None] = [None] * len(root.avals)
    for i, place in used.items():
        source = kept[place]
        if source is None:
            results[i] = _new(live, [Buffer(root.avals[i], root.avals[i].nbytes, kernel, step, step)])[0]
        else:
            results[i] = live.of[kernel.operands[root.operands.index(source)]][0]
    return results


def _inside(live: Liveness, kernel: Kernel, step: int, inner: Inner) -> None:
    """Add the temporaries of the body that needs most."""
    is_loop, regions = kernel.root.op == "while", kernel.root.regions
    needs = [inner(region, is_loop and region is regions[1]) for region in regions]
    _new(live, [Buffer(kernel.root.avals[0], n, kernel, step, step, inner=True) for n in max(needs, key=sum)])


def _table(live: Liveness, kernel: Kernel, count: int) -> None:
    """Add a table of ``count`` addresses (of a tuple), whose memory is never reused."""
    _new(live, [Buffer(ShapedArray((count,), _ADDRESS), _ADDRESS.itemsize * count, kernel, -1, _ALWAYS)])


_ALIASED = re.compile(r"operand_index = (\d+)")


def updated(kernel: Kernel) -> list[Kernel]:
    """The operands that the first results must alias (in-place updates), whether or not they have other uses."""
    root = kernel.root
    if "output_operand_aliases" in root.attributes:
        return [kernel.operands[int(i)] for i in _ALIASED.findall(root.attributes["output_operand_aliases"])]
    if root.op == "ragged_all_to_all":
        return [kernel.operands[1]]
    if is_product(kernel):
        return [k for k in kernel.inputs if _original(k.root) in _sums(kernel)]
    return [k for k in kernel.operands[:1] if root.op in ("dynamic_update_slice", "scatter") and k in kernel.inputs]


def _sums(product: Kernel) -> list[Node]:
    """What a product is added to in its place."""
    return [x for node in product.members if node.op == "matmul" for x in node.operands[2:]]


def _original(node: Node) -> Node:
    return node.operands[0] if node.op == "copy" else node


def _in_place(live: Liveness, kernel: Kernel, step: int, places: Sequence[Kernel]) -> list[Buffer | None]:
    """The result buffers of an in-place op: the first are its operands' buffers, unless those are arguments."""
    results: list[Buffer | None] = []
    for i, aval in enumerate(kernel.root.avals):
        old = live.of[places[i]][0] if i < len(places) else None
        if old is None or old.kind == "argument":
            results += _new(live, [Buffer(aval, aval.nbytes, kernel, step, step, over=() if old is None else (old,))])
        else:
            old.end, old.several = step, True
            live.rewritten.append((old, step))
            results.append(old)
    return results


def overwrites(kernel: Kernel, source: Kernel) -> bool:
    """Whether a kernel can write its result over the operand ``source``."""
    use = kernel.inputs[source]
    if "over" in kernel.root.attributes:
        return source.root in kernel.root.attributes["over"].values()
    if kernel.root.op == "copy":
        return False  # a copy needs a second buffer
    if kernel.root.op == "dynamic_update_slice":
        return source.root is kernel.root.operands[0]  # it may also read the region that it replaces
    if "of_largest" in kernel.root.attributes and any(node.op == "matmul" for node in source.members):
        return False  # XLA numbers the elements as it sorts them, and does not write over what comes with a workspace
    if kernel.root.op in ("scatter", "sort"):
        return use is Use.MOVED
    return use is Use.INPLACE and (kernel.loop or kernel.library)


def _alone(live: Liveness, kernel: Kernel, source: Kernel) -> bool:
    """Whether a kernel can write over an operand, because none of those that run as one with it reads it as well."""
    others = live.together.get(kernel, ())
    return overwrites(kernel, source) and not any(source in other.inputs for other in others if other is not kernel)


def _new(live: Liveness, buffers: list[Buffer]) -> list[Buffer | None]:
    live.buffers += buffers
    return list(buffers)
