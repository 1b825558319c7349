"""Moves reshapes that split dimensions, as XLA does for TPUs.

An array may have less padding before its dimensions are split (such as channels into groups). Then such a reshape moves
past elementwise operations, and into reductions: whole dimensions are reduced before the others are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.tiles import tiled_bytes

#: for each dimension of an array, the dimensions that it is split into
Groups = list[list[int]]


def move_splits(graph: Graph) -> None:
    """Move such reshapes, in place, in bodies of loops and branches as well."""
    for node in graph.post_order():
        for region in node.regions:
            move_splits(region)
        if len(node.avals) != 1:
            continue
        if node.elementwise:
            _compute_before(node)
        elif node.op == "reduce" and len(node.operands) == 2:
            _reduce_before(node)


def _compute_before(node: Node) -> None:
    whole = next((x for x in map(_whole, node.operands) if x is not None), None)
    if whole is None:
        return
    groups = split_groups(whole.shape, node.shape)
    operands = [_before(x, whole.avals[0], groups) for x in node.operands] if groups else []
    if not operands or None in operands:
        return
    aval = node.avals[0].update(shape=whole.shape)
    given = tuple(x for x in operands if x is not None)
    inner = Node(node.op, given, (aval,), node.attributes, node.source, special=node.special, var=node.var)
    node.op, node.operands, node.attributes, node.special = "reshape", (inner,), {}, False


def _whole(x: Node) -> Node | None:
    """The array before its dimensions were split, if it has less padding."""
    if x.op != "reshape":
        return None
    (whole,) = x.operands
    if whole.op == "matmul" and whole.attributes.get("shape") == x.shape:
        return None  # only here are products of matrices
    if whole.op == "reshape" and whole.operands[0].avals[0].size == whole.avals[0].size:
        whole = _source(whole)
    if len(whole.shape) >= len(x.shape) or tiled_bytes(whole.avals[0]) >= tiled_bytes(x.avals[0]):
        return None
    return whole


def _source(x: Node) -> Node:
    while x.op == "reshape":
        (x,) = x.operands
    return x


def split_groups(whole: Sequence[int], split: Sequence[int]) -> Groups | None:
    """The dimensions that each dimension is split into, or None if it is not only split."""
    groups, d = list[list[int]](), 0
    for size in whole:
        group: list[int] = []
        while d < len(split) and prod(split[i] for i in group) < size:
            group.append(d)
            d += 1
        if prod(split[i] for i in group) != size:
            return None
        groups.append(group)
    return groups if d == len(split) else None


def _before(x: Node, whole: ShapedArray, groups: Groups) -> Node | None:
    """An operand in the form before the split, or None if there is none."""
    aval = x.avals[0].update(shape=whole.shape)
    if not x.shape:
        return x
    if x.op == "reshape" and (source := _source(x)).shape == whole.shape:
        return source
    if x.is_splat():
        scalar = x
        while scalar.op == "broadcast_in_dim":
            (scalar,) = scalar.operands
        return Node("broadcast_in_dim", (scalar,), (aval,), {"broadcast_dimensions": ()}, x.source)
    if x.op == "broadcast_in_dim":
        return _broadcast(x, aval, groups)
    return None


def _broadcast(x: Node, aval: ShapedArray, groups: Groups) -> Node:
    """Repeats an array along the rest of the dimensions that it has a part of, then along the others."""
    dims = x.attributes["broadcast_dimensions"]
    kept = [i for i, group in enumerate(groups) if any(d in dims for d in group)]
    parts = [d for i in kept for d in groups[i]]
    (narrow,) = x.operands
    few = aval.update(shape=tuple(x.shape[d] for d in parts))
    if few.size != narrow.avals[0].size:
        at = {"broadcast_dimensions": tuple(parts.index(d) for d in dims)}
        narrow = Node("broadcast_in_dim", (narrow,), (few,), at, x.source)
    joined = aval.update(shape=tuple(aval.shape[i] for i in kept))
    narrow = Node("reshape", (narrow,), (joined,), {}, x.source)
    return Node("broadcast_in_dim", (narrow,), (aval,), {"broadcast_dimensions": tuple(kept)}, x.source)


def _reduce_before(node: Node) -> None:
    """Reduce whole dimensions before the others are split."""
    x, start = node.operands
    whole = _whole(x)
    groups = None if whole is None else split_groups(whole.shape, x.shape)
    if whole is None or groups is None:
        return
    dims = node.attributes["dimensions"]
    first = [i for i, group in enumerate(groups) if all(d in dims for d in group)]
    if not first:
        return
    left = [i for i in range(len(groups)) if i not in first]
    aval = node.avals[0].update(shape=tuple(whole.shape[i] for i in left))
    given = {**node.attributes, "dimensions": tuple(first)}
    sums = Node("reduce", (whole, start), (aval,), given, node.source)
    split = [d for i in left for d in groups[i]]
    parts = Node("reshape", (sums,), (aval.update(shape=tuple(x.shape[d] for d in split)),), {}, node.source)
    rest = tuple(k for k, d in enumerate(split) if d in dims)
    if rest:
        node.operands, node.attributes = (parts, start), {**node.attributes, "dimensions": rest}
    else:
        node.op, node.operands, node.attributes = "reshape", (sums,), {}
