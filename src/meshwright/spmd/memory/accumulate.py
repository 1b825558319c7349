"""Products that are added to a matrix in its place, as cuBLAS does it for XLA on GPUs.

A product whose only use is a sum with a matrix that nothing else reads becomes one product with three operands, which
writes over the third one. Source: XLA's ``GemmRewriter``.
"""

from __future__ import annotations

from collections import Counter

from meshwright.spmd.memory.graph import Graph, Node

#: what cannot be written over. A vector that is added to each row is read as it is
_STAYS = ("parameter", "constant", "broadcast_in_dim")


def add_in_place(graph: Graph, inside: bool = False) -> None:
    """Make such sums products, in place. Bodies of loops and branches are included; they may write over parameters."""
    order = graph.post_order()
    for region in (region for node in order for region in node.regions):
        add_in_place(region, inside=True)
    uses = Counter(x for node in order for x in node.operands)
    uses.update(graph.results)
    for node in order:
        if node.op != "add" or node.avals[0].dtype.kind in "iub":
            continue
        for product, other in (node.operands, node.operands[::-1]):
            matrix = _product(product, uses)
            if matrix is not None and uses[other] == 1 and (_may_change(other) or (inside and other.op == "parameter")):
                _add(node, matrix, other)
                break


def _product(node: Node, uses: Counter[Node]) -> Node | None:
    """The product that a node is, maybe with other dimensions; ``None`` if it has another use, or is a sum already."""
    while uses[node] == 1 and node.op == "reshape":
        (node,) = node.operands
    return node if uses[node] == 1 and node.op == "matmul" and len(node.operands) == 2 else None


def _may_change(other: Node) -> bool:
    while other.op == "reshape":
        (other,) = other.operands
    return other.op not in _STAYS


def _add(node: Node, product: Node, other: Node) -> None:
    if other.shape != product.shape:
        other = Node("reshape", (other,), product.avals, {}, other.source)
    whole = Node("matmul", (*product.operands, other), product.avals, product.attributes, product.source)
    if node.shape == product.shape:
        node.op, node.operands, node.attributes = whole.op, whole.operands, whole.attributes
    else:
        node.op, node.operands, node.attributes = "reshape", (whole,), {}
