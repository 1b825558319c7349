"""Joins products that read the same matrix, as XLA does for GPUs.

The other matrices are concatenated, and each user reads a slice of the one product. Source: XLA's ``DotMerger``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

from meshwright.spmd.memory.ancestors import Ancestors
from meshwright.spmd.memory.graph import Graph, Node


def merge_products(graph: Graph, small: int) -> None:
    """Join such products in place. Bodies of loops and branches are included.

    Products with more than ``small`` bytes, operands included, are only joined to smaller ones.
    """
    order = graph.post_order()
    for region in (region for node in order for region in node.regions):
        merge_products(region, small)
    for side in (0, 1):
        readers: dict[tuple[object, ...], list[Node]] = defaultdict(list)
        for node in order:
            ranks = {len(x.shape) for x in (node, *node.operands)}
            if node.op == "matmul" and len(ranks) == 1 and min(ranks) > 1:
                readers[_key(node, side)].append(node)
        several = [products for products in readers.values() if len(products) > 1]
        if several:
            ancestors = Ancestors(graph.post_order(), attrgetter("operands"), chain.from_iterable(several))
            for products in several:
                _join(products, side, small, ancestors)


def _key(node: Node, side: int) -> tuple[object, ...]:
    """Products with the same key read the same matrix in the same way."""
    other, d = node.operands[1 - side], _free(node, side)
    rest = other.shape[:d] + other.shape[d + 1 :]
    return (
        node.operands[side],
        rest,
        d,
        node.avals[0].dtype,
        node.attributes.get("dims"),
        str(node.attributes.get("precision")),
    )


def _free(node: Node, side: int) -> int:
    """The dimension of the other matrix that is a dimension of the product; -1 if it is not in its usual place."""
    other, back = node.operands[1 - side], 1 + side
    return len(other.shape) - back if other.shape[-back] == node.shape[-back] else -1


def _join(products: Sequence[Node], side: int, most: int, ancestors: Ancestors[Node]) -> None:
    joined: list[Node] = []
    for node in products:
        small = _bytes(node) <= most or sum(map(_bytes, joined)) <= most
        if small and ancestors.apart([node], joined):
            joined.append(node)
    if len(joined) < 2 or _free(joined[0], side) < 0:
        return
    ancestors.join(joined)
    first = joined[0]
    at, d = len(first.shape) - 1 - side, _free(first, side)
    others = [node.operands[1 - side] for node in joined]
    shape, wide = list(others[0].shape), list(first.shape)
    shape[d], wide[at] = sum(x.shape[d] for x in others), sum(node.shape[at] for node in joined)
    other = Node("concatenate", tuple(others), (others[0].avals[0].update(shape=tuple(shape)),), {"dimension": d})
    operands = (first.operands[0], other) if side == 0 else (other, first.operands[1])
    given = {**first.attributes, "shape": tuple(wide)}
    whole = Node("matmul", operands, (first.avals[0].update(shape=tuple(wide)),), given, first.source)
    start = 0
    for node in joined:
        low, high = [0] * len(wide), list(wide)
        low[at], high[at] = start, start + node.shape[at]
        start = high[at]
        strides = (1,) * len(wide)
        node.op, node.operands = "slice", (whole,)
        node.attributes = {"start_indices": tuple(low), "limit_indices": tuple(high), "strides": strides}


def _bytes(node: Node) -> int:
    return sum(x.avals[0].nbytes for x in (node, *node.operands))
