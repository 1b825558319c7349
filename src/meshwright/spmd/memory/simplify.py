"""The rewrites of XLA's algebraic simplifier that affect which buffers exist.

Consecutive reshapes, broadcasts and transposes are merged, identity operations removed, and divisions by constants
become multiplications. Rewrites within one fused loop are not modelled, since they change no buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import ELEMENTWISE, Graph, Make, Node
from meshwright.spmd.memory.parts import part

#: operations with a neutral element as operand 1, and that element
_NEUTRAL = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1}


def simplified(
    make: Make, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]
) -> Node | None:
    """A simpler node that is equivalent to an operation, or ``None``."""
    if op in ELEMENTWISE and (sunk := _before_repeating(make, op, operands, aval, given)):
        return sunk
    match op:
        case "reshape":
            return _reshape(make, operands[0], aval)
        case "transpose":
            return _transpose(make, operands[0], aval, given["permutation"])
        case "broadcast_in_dim":
            return _broadcast(make, operands[0], aval, given["broadcast_dimensions"])
        case "convert":
            return operands[0] if operands[0].avals[0].dtype == aval.dtype else None
        case "negate" if operands[0].op == "negate":
            return operands[0].operands[0]
        case "maximum" | "minimum" | "and" | "or" if operands[0] is operands[1]:
            return operands[0]
        case "reduce" if len(operands) == 2:
            return _reduce(make, operands, aval, given)
        case "divide":
            return _neutral(op, operands) or _divide(make, operands, aval)
        case "add" | "multiply" | "subtract":
            return _neutral(op, operands)
    return part(make, op, operands, aval, given) if operands else None


def _before_repeating(
    make: Make, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]
) -> Node | None:
    """An elementwise operation of a repeated array and of repeated numbers is computed before they are repeated."""
    if any(x.op != "broadcast_in_dim" for x in operands):
        return None
    arrays = {x for x in operands if x.operands[0].shape}
    if len(arrays) != 1:
        return None
    (repeated,) = arrays
    few = repeated.operands[0].shape
    narrow = [
        x.operands[0] if x is repeated else splat(make, x.operands[0], x.avals[0].update(shape=few)) for x in operands
    ]
    return make("broadcast_in_dim", (make(op, narrow, aval.update(shape=few), given),), aval, repeated.attributes)


def scalar_value(node: Node) -> Any:
    """The value of every element of a splat."""
    while node.op != "constant":
        node = node.operands[0]
    return node.attributes["value"]


def _neutral(op: str, operands: Sequence[Node]) -> Node | None:
    left, right = operands
    if right.is_splat() and scalar_value(right) == _NEUTRAL[op]:
        return left
    if op in ("add", "multiply") and left.is_splat() and scalar_value(left) == _NEUTRAL[op]:
        return right
    return None


def scaled_once(make: Make, operands: Sequence[Node], aval: ShapedArray) -> Node | None:
    """A product with the product of two known numbers, instead of one with each."""
    x, factor = operands if operands[1].is_splat() else operands[::-1]
    if not factor.is_splat() or x.op != "multiply":
        return None
    known = [i for i, y in enumerate(x.operands) if y.is_splat()]
    if len(known) != 1:
        return None
    value = scalar_value(factor) * scalar_value(x.operands[known[0]])
    number = make("constant", (), ShapedArray((), aval.dtype), {"value": value})
    return make("multiply", (x.operands[1 - known[0]], splat(make, number, aval)), aval, {})


def _reduce(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    """A reduction of a concatenation reduces each part. That of a transposed array has other dimensions.

    A reduction of one element returns the element.
    """
    (x, start), dims = operands, given["dimensions"]
    if dims and x.avals[0].size == aval.size and start.is_splat():
        return make("reshape", (x,), aval, {})
    if x.op == "concatenate" and x.attributes["dimension"] in dims and given.get("reducer"):
        parts = [make("reduce", (part, start), aval, given) for part in x.operands]
        return reduce(lambda a, b: make(given["reducer"].rpartition(".")[2], (a, b), aval, {}), parts)
    if x.op == "transpose" and aval.ndim <= 1:
        order = x.attributes["permutation"]
        return make("reduce", (x.operands[0], start), aval, {**given, "dimensions": tuple(order[d] for d in dims)})
    return None


def _divide(make: Make, operands: Sequence[Node], aval: ShapedArray) -> Node | None:
    left, right = operands
    if not np.issubdtype(aval.dtype, np.inexact):
        return None
    if right.is_splat() and scalar_value(right):
        inverse = make("constant", (), ShapedArray((), aval.dtype), {"value": 1 / scalar_value(right)})
        return make("multiply", (left, splat(make, inverse, aval)), aval, {})
    if left.op == "exponential" and right.op == "broadcast_in_dim":
        # A softmax: the few sums are inverted rather than every element divided.
        (total,) = right.operands
        one = make("constant", (), ShapedArray((), aval.dtype), {"value": 1})
        inverse = make("divide", (splat(make, one, total.avals[0]), total), total.avals[0], {})
        factors = make("broadcast_in_dim", (inverse,), aval, right.attributes)
        return make("multiply", (left, factors), aval, {})
    return None


def scatter_in_place(graph: Graph) -> None:
    """``x + scatter_add(y, …)`` is ``scatter_add(x + y, …)`` where nothing else uses the scattered array."""
    nodes = graph.post_order()
    uses = Counter(x for node in nodes for x in set(node.operands))
    uses.update({*graph.results, *graph.effects})
    for node in nodes:
        if node.op == "add":
            _scatter_in_place(node, uses)


def _scatter_in_place(node: Node, uses: Counter[Node]) -> None:
    for x, added in (node.operands, node.operands[::-1]):
        if added.op == "scatter" and uses[added] == 1 and added.attributes.get("reducer") == "stablehlo.add":
            start, *rest = added.operands
            if not (start.is_splat() and scalar_value(start) == 0):
                x = Node("add", (x, start), node.avals, {}, node.source)
            node.op, node.operands, node.attributes = "scatter", (x, *rest), added.attributes
            return


def reduce_first(graph: Graph) -> None:
    """Reduce transposed arrays as they are in memory, in place, and transpose what is left.

    Not if the transposed array is a result as well.
    """
    for node in graph.post_order():
        if node.op == "reduce" and len(node.operands) == 2 and node.operands[0].op == "transpose":
            if node.operands[0] not in graph.results:
                _reduce_first(node)


def _reduce_first(node: Node) -> None:
    (x, start), dims = node.operands, node.attributes["dimensions"]
    order, source = x.attributes["permutation"], x.operands[0]
    kept = [order[d] for d in range(len(order)) if d not in dims]
    given = {**node.attributes, "dimensions": tuple(order[d] for d in dims)}
    if kept == sorted(kept):
        node.operands, node.attributes = (source, start), given
        return
    aval = node.avals[0].update(shape=tuple(source.shape[d] for d in sorted(kept)))
    sums = Node("reduce", (source, start), (aval,), given, node.source, var=node.var)
    node.op, node.operands = "transpose", (sums,)
    node.attributes = {"permutation": tuple(sorted(kept).index(d) for d in kept)}


def splat(make: Make, scalar: Node, aval: ShapedArray) -> Node:
    """A scalar node broadcast to ``aval``."""
    return make("broadcast_in_dim", (scalar,), aval, {"broadcast_dimensions": ()}) if aval.ndim else scalar


def _reshape(make: Make, x: Node, aval: ShapedArray) -> Node | None:
    if x.shape == aval.shape:
        return x
    if x.op == "reshape":
        return make("reshape", x.operands, aval, {})
    if x.is_splat():
        scalar = x
        while scalar.op != "constant":
            scalar = scalar.operands[0]
        return splat(make, scalar, aval)
    return None


def _transpose(make: Make, x: Node, aval: ShapedArray, permutation: Sequence[int]) -> Node | None:
    if x.is_splat():
        return _reshape(make, x, aval) or x
    if keeps_order(x.shape, permutation):
        return make("reshape", (x,), aval, {})
    if x.op == "matmul" and aval.ndim == 2:
        last = x.attributes["inner_last"][::-1]
        return make("matmul", x.operands[::-1], aval, {"transposed": tuple(x.attributes.items()), "inner_last": last})
    if x.op == "transpose":
        inner = x.attributes["permutation"]
        composed = tuple(inner[d] for d in permutation)
        return make("transpose", x.operands, aval, {"permutation": composed})
    return None


def permuted(make: Make, x: Node, order: Sequence[int]) -> Node:
    """An array with its dimensions in another order."""
    if list(order) == sorted(order):
        return x
    aval = x.avals[0].update(shape=tuple(x.shape[d] for d in order))
    return make("transpose", (x,), aval, {"permutation": tuple(order)})


def keeps_order(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether a permutation moves only dimensions of size 1."""
    kept = [d for d in permutation if shape[d] != 1]
    return kept == sorted(kept)


def _broadcast(make: Make, x: Node, aval: ShapedArray, dims: Sequence[int]) -> Node | None:
    if x.avals[0].size == aval.size and not x.is_splat():
        moved = permuted(make, x, sorted(range(len(dims)), key=dims.__getitem__))
        return make("reshape", (moved,), aval, {})
    kept = [i for i, d in enumerate(dims) if x.shape[i] == aval.shape[d] and aval.shape[d] != 1]
    if len(kept) < len(dims) and x.avals[0].ndim:
        # Dimensions of size 1 are dropped, so that what is repeated is repeated along new dimensions only.
        shape = tuple(x.shape[i] for i in kept)
        narrow = make("reshape", (x,), x.avals[0].update(shape=shape), {})
        return make("broadcast_in_dim", (narrow,), aval, {"broadcast_dimensions": tuple(dims[i] for i in kept)})
    if x.op == "broadcast_in_dim":
        inner = x.attributes["broadcast_dimensions"]
        return make("broadcast_in_dim", x.operands, aval, {"broadcast_dimensions": tuple(dims[d] for d in inner)})
    return None
