"""Loop-invariant code motion.

Operations whose operands a loop does not change are moved before the loop. Their results become loop-carried values
that are live while the loop runs. Cheap operations (a transpose, a slice) are moved only together with others that use
them. Based on XLA's ``WhileLoopInvariantCodeMotion``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.layouts import node_bytes

#: operations that are too cheap to be hoisted alone
_CHEAP = ("broadcast_in_dim", "constant", "iota", "replica_id", "reshape", "reverse", "slice", "transpose")


def hoist(graph: Graph, tiles: bool = False) -> None:
    """Hoist loop-invariant operations in place, inner loops first.

    ``tiles``: only those whose results are not larger than their operands, with the padding of tiles.
    """
    for node in graph.post_order():
        for region in node.regions:
            hoist(region, tiles)
        if node.op == "while":
            _hoist(node, tiles)


def _hoist(loop: Node, tiles: bool) -> None:
    condition, body = loop.regions
    outside = {p: x for p, r, x in zip(body.parameters, body.results, loop.operands) if p is r}
    if not outside:
        return
    order = body.post_order()
    for node in order:
        if node.op == "parameter" or node in body.effects or not all(x in outside for x in node.operands):
            continue
        if not tiles or _given(node) >= _padded(node):
            outside[node] = _copied(node, outside)
    taken = {node for node in order if node in outside and node.op not in (*_CHEAP, "parameter")}
    read = {*body.results}.union(*(node.operands for node in order if node not in taken))
    moved = tuple(node for node in order if node in taken and node in read)
    loop.operands += tuple(outside[node] for node in moved)
    for node in moved:
        node.op, node.operands, node.regions, node.attributes, node.special = "parameter", (), (), {}, False
    given = tuple(Node("parameter", (), node.avals) for node in moved)
    loop.regions = (
        Graph((*condition.parameters, *given), condition.results, condition.effects),
        Graph((*body.parameters, *moved), (*body.results, *moved), body.effects),
    )


def _given(node: Node) -> float:
    """The bytes of a node's operands. Arrays of numbers that have none are not made before the loop for that."""
    if node.op in ("constant", "iota"):
        return math.inf
    return sum(map(_padded, node.operands))


def _padded(node: Node) -> int:
    return sum(node_bytes(node, i) for i in range(len(node.avals)))


def sink(graph: Graph, arrays: bool = False) -> None:
    """Let bodies of loops make arrays of one number themselves, in place, instead of reading them.

    ``arrays``: also all other constants. Source: XLA's ``WhileLoopConstantSinking``.
    """
    for node in graph.post_order():
        if node.op == "while":
            _sink(node, arrays)
        for region in node.regions:
            sink(region, arrays)


def _sink(loop: Node, arrays: bool) -> None:
    body = loop.regions[1]
    given = ((x, y) for x, after, y in zip(body.parameters, body.results, loop.operands) if x is after)
    sunk = {x: y for x, y in given if _repeats(y) or (arrays and y.op == "constant")}
    once = {x: _again(y) for x, y in sunk.items() if y.op == "constant"}
    for node in body.post_order() if sunk else ():
        node.read({x: once.get(x) or _again(sunk[x]) for x in node.operands if x in sunk})


def _repeats(node: Node) -> bool:
    return node.op == "broadcast_in_dim" and node.is_splat()


def _again(splat: Node) -> Node:
    """The same array of one number, made by operations of its own."""
    operands = tuple(map(_again, splat.operands))
    return Node(splat.op, operands, splat.avals, splat.attributes, splat.source, order=splat.order)


def _copied(node: Node, outside: Mapping[Node, Node]) -> Node:
    """A copy of an operation on values outside the loop; it takes over the regions."""
    copy = Node(node.op, node.operands, node.avals, node.attributes, node.source, node.regions, node.special)
    copy.order = node.order
    copy.read(outside)
    return copy
