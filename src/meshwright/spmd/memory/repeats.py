"""Values that a loop carries twice: unchanged, from the same value before it.

Bodies and conditions then read the first of them, and equal operations on it become one. Source: XLA's
``WhileLoopSimplifier``, and its elimination of common subexpressions.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.spmd.memory.graph import COLLECTIVES, Graph, Node
from meshwright.spmd.memory.record import hashable


def carry_once(graph: Graph) -> None:
    """Read each such value in one place, in place, in bodies of outer loops first. The others remain unused."""
    for node in graph.post_order():
        if node.op == "while":
            _carry_once(node)
        for region in node.regions:
            carry_once(region)


def _carry_once(loop: Node) -> None:
    condition, body = loop.regions
    first: dict[Node, int] = {}
    again: dict[int, int] = {}
    for i, (operand, before, after) in enumerate(zip(loop.operands, body.parameters, body.results)):
        if before is after and first.setdefault(operand, i) != i:
            again[i] = first[operand]
    if again:
        loop.regions = tuple(
            merged(g, {g.parameters[i]: g.parameters[k] for i, k in again.items()}) for g in (condition, body)
        )


def merged(graph: Graph, same: Mapping[Node, Node]) -> Graph:
    """A graph in which equal operations are one, and some parameters the ``same`` as others.

    Results that are parameters stay.
    """
    same = dict(same)
    known: dict[object, Node] = {}
    for node in graph.post_order():
        node.read(same)
        key = _key(node)
        if key is not None and (other := known.setdefault(key, node)) is not node:
            same[node] = other
    results = tuple(x if x.op == "parameter" else same.get(x, x) for x in graph.results)
    return Graph(graph.parameters, results, graph.effects)


def _key(node: Node) -> object:
    """What equal operations have in common; ``None`` if there is no telling that others are equal."""
    unknown = node.op == "constant" and not node.attributes
    if node.op == "parameter" or node.op in COLLECTIVES or node.regions or len(node.avals) != 1 or unknown:
        return None
    attributes = tuple(sorted((name, hashable(value)) for name, value in node.attributes.items()))
    return node.op, node.operands, node.avals[0].shape, node.avals[0].dtype, attributes
