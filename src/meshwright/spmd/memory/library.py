"""Reductions in library calls, and the operations fused with them.

XLA's CPU compiler uses a library (YNNPACK) for matrix products, convolutions and large reductions. A reduction becomes
a call, the last one first, and the call grows in both directions as long as it can: by operations that only it reads,
and by the one that reads its result if nothing else does. It takes what the library computes, also matrix products and
other reductions. Operations on few elements are not worth it. Values with other users are not fused, not even a
broadcast scalar. Source: XLA's ``LibraryRewriter`` and ``YnnMatcher``.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core import dtypes
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel, copy_of

#: elementwise operations of the library, on floating-point numbers
_ELEMENTWISE = frozenset(
    """abs add ceil convert divide erf exponential exponential_minus_one floor log log_plus_one logistic maximum minimum
    multiply negate power round_nearest_even rsqrt sign sqrt subtract tanh""".split()
)
_REDUCERS = ("stablehlo.add", "stablehlo.maximum", "stablehlo.minimum")
_FLOATS = (dtypes.float32, dtypes.float64)
#: number of elements from which an operation is worth a library call; smaller ones are loops
_SMALLEST = 4096
#: the least of the largest dimension of a product of the library
_WIDE = 8


def fuse_reductions(kernels: list[Kernel], kept: set[Kernel]) -> None:
    """Turn every large reduction into a library call."""
    fused: set[Kernel] = set()
    copies: dict[Kernel, Kernel] = {}
    for kernel in reversed(kernels):
        root = kernel.root
        if root.op == "reduce" and kernel not in fused and reduces(root.operands, root.attributes.get("reducer")):
            tip, region = _grown(kernel, kept)
            fused.update(region)
            _merge(tip, region)
            for source in [x for x in tip.inputs if x.root.op == "matmul" and _later_ones(x.root.shape)]:
                copies[source] = copies.get(source) or copy_of(source)
                tip.read(copies[source], source)
    kernels += copies.values()
    kernels.sort(key=lambda kernel: kernel.number)


def reduces(operands: Sequence[Node], reducer: str | None) -> bool:
    """Whether the library computes a reduction."""
    x = operands[0].avals[0]
    return len(operands) == 2 and reducer in _REDUCERS and x.dtype in _FLOATS and x.size >= _SMALLEST


def _grown(reduction: Kernel, kept: set[Kernel]) -> tuple[Kernel, dict[Kernel, None]]:
    """The kernel whose result a call with this reduction has, and all kernels of the call."""
    tip, region = reduction, {reduction: None}
    grown = True
    while grown:
        inputs = dict.fromkeys(x for k in region for x in k.inputs if x not in region and x not in kept)
        taken = [x for x in inputs if _computes(x) and all(user in region for user in x.users)]
        region.update(dict.fromkeys(taken))
        grown = bool(taken)
        while len(tip.users) == 1 and tip not in kept and _computes(user := next(iter(tip.users))):
            region[user], tip, grown = None, user, True
    return tip, region


def _computes(kernel: Kernel) -> bool:
    """Whether the library computes a kernel."""
    return kernel.library or _supports(kernel.root)


def _supports(node: Node) -> bool:
    match node.op:
        case "reshape":
            return not ones_come_first(node)
        case "broadcast_in_dim":
            dims = node.attributes["broadcast_dimensions"]
            return list(dims) == sorted(dims)
        case "iota":
            return node.avals[0].dtype in (dtypes.float32, dtypes.int32)
        case "pad":
            return _pads(node)
        case "matmul":
            return _multiplies(node)
        case "reduce":
            return reduces(node.operands, node.attributes.get("reducer"))
    if node.op not in _ELEMENTWISE:
        return False
    avals = [aval for x in (node, *node.operands) for aval in x.avals[:1]]
    return all(aval.dtype in _FLOATS for aval in avals) and max(aval.size for aval in avals) >= _SMALLEST


def ones_come_first(node: Node) -> bool:
    """Whether a node is a reshape to dimensions of size 1 after others, which puts them before the others in memory.

    One dimension has only one order.
    """
    return node.op == "reshape" and len(node.operands[0].shape) > 1 and _later_ones(node.shape)


def _later_ones(shape: Sequence[int]) -> bool:
    """Whether dimensions of size 1 follow others."""
    first = next((d for d, n in enumerate(shape) if n != 1), 0)
    return 1 in shape[first:]


def _pads(node: Node) -> bool:
    """Whether the library pads an array: not between elements, and no dimension of size 1."""
    given = node.attributes
    if "edge_padding_low" not in given or any(given["interior_padding"]):
        return False
    edges = zip(node.operands[0].shape, given["edge_padding_low"], given["edge_padding_high"])
    return all(n != 1 or not (low or high) for n, low, high in edges)


def _multiplies(node: Node) -> bool:
    """Whether the library computes a product: of matrices that are not small, the first of them by rows."""
    (rows_first, _), batch = node.attributes["inner_last"], len(node.operands[0].shape) - 2
    if not rows_first or node.avals[0].dtype not in _FLOATS or len(node.shape) != batch + 2:
        return False
    if _later_ones(node.shape):
        return False
    sides = (*node.shape[batch:], node.operands[0].shape[-1])
    return min(sides[:2]) > 1 and max(sides) >= _WIDE


def _merge(tip: Kernel, region: dict[Kernel, None]) -> None:
    """One kernel for a region whose only result is the tip's."""
    tip.library = True
    while inner := [k for k in tip.inputs if k in region]:
        for kernel in inner:
            tip.absorb(kernel)
