"""Layouts of TPUs: rewrites that depend on them, then the assignment of orders, with the copies that it needs.

A slice from an argument's start is the same memory. A convolution that sums several features per group, such as the
kernel gradient of a depthwise convolution, has only these along the lanes. Rows that are found by numbers in several
dimensions are found in one. Numbers of gathered and scattered elements are put in a row, from a copy with the last
dimension along the lanes. The rules were derived from programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

from math import prod

from meshwright.spmd.memory.assignment import assign
from meshwright.spmd.memory.fixed_orders import called_order, given_order, window, window_dimensions
from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.order_rules import Order, default, ordered_bytes
from meshwright.spmd.memory.tiles import tiled, tiled_bytes
from meshwright.spmd.memory.transforms import parts_apart


def lay_out(graph: Graph) -> Graph:
    """The graph with orders, and with the copies between them. Nodes are changed in place."""
    _rewrite(graph)
    graph = parts_apart(graph)
    return assign(graph).apply()


def node_bytes(node: Node, i: int) -> int:
    """The bytes of a node's result ``i``, with padding."""
    aval = node.avals[i]
    if "tiles" in node.attributes:
        return tiled(aval, *node.attributes["tiles"])
    if node.op == "matmul" and "shape" in node.attributes:
        whole, order = node.attributes.get("given") or given_order(node)
        return ordered_bytes(whole.update(dtype=aval.dtype), order)
    order = called_order(node, aval) if node.op in ("custom_call", "top_k") else order_of(node)
    return tiled_bytes(aval) if order is None or len(order) != aval.ndim else ordered_bytes(aval, order)


def order_of(node: Node) -> Order | None:
    """The order of a node, or of what it is a copy of."""
    while node.order is None and node.op in ("copy", "convert") and node.operands[0].shape == node.shape:
        (node,) = node.operands
    return node.order


def _rewrite(graph: Graph) -> None:
    rows: dict[tuple[Node, tuple[int, ...]], Node] = {}
    for node in graph.post_order():
        for region in node.regions:
            _rewrite(region)
        node.operands = tuple(map(_unreshaped, node.operands))
        if node.op == "reshape" and node.operands[0].op == "reshape":
            node.operands = node.operands[0].operands
        if _cuts_end(node):
            node.op, node.attributes = "reshape", {"start": True}
            continue
        _flatten(node, rows)
        _join_rows(node)
        if node.op == "convolution":
            _by_group(node)


def _unreshaped(x: Node) -> Node:
    """What a value is before reshapes that end where they begin."""
    source = x
    while source.op == "reshape":
        (source,) = source.operands
        if source.shape == x.shape and source.op != "matmul":
            return _unreshaped(source)
    return x


def _cuts_end(node: Node) -> bool:
    """Whether a slice of an argument is a slice from its start, with as many rows of tiles: the same memory."""
    if node.op != "slice" or node.operands[0].op != "parameter" or len(node.shape) != 2:
        return False
    (x,), starts, strides = node.operands, node.attributes.get("start_indices"), node.attributes.get("strides", ())
    if starts is None or any(starts) or any(n != 1 for n in strides) or node.shape[1] != x.shape[1]:
        return False
    rows = (x.shape[1], x.shape[0])
    return tiled_bytes(x.avals[0]) == tiled(x.avals[0], *rows) == tiled(node.avals[0], *rows[:1], node.shape[0])


def _by_group(node: Node) -> None:
    """Let a convolution with one result for each group read copies with a group's features along the lanes."""
    *_, summed, features = node.operands[1].shape
    if 1 < summed and int(node.attributes.get("feature_group_count", 1)) == features:
        given = {"tiles": (summed, 1)}
        copies = (
            Node("relayout", (x,), x.avals, given, node.source, order=default(len(x.shape))) for x in node.operands
        )
        node.operands = tuple(copies)


def _join_rows(node: Node) -> None:
    """Let rows that are found by numbers in several dimensions be gathered, or added, along one dimension."""
    rows = window(node)
    if not rows or len(node.operands) > 3:
        return
    moved = node if node.op == "gather" else node.operands[2]
    windows = [d for _, d in rows] if node.op == "gather" else window_dimensions(node)
    ones = [d for d, n in enumerate(moved.shape) if n == 1]
    batch = [d for d in range(len(moved.shape)) if d not in windows]
    if len([d for d in batch if d not in ones]) < 2 or max(batch) > min(windows):
        return
    size = prod(moved.shape[d] for d in batch)
    flat = moved.avals[0].update(shape=(size, *(moved.shape[d] for d in windows)))
    if node.op == "gather":
        places = {"rows": [(d, i) for i, (d, _) in enumerate(rows, 1)]}
        joined = Node("gather", node.operands, (flat,), {**node.attributes, **places}, node.source)
        node.op, node.operands, node.attributes = "reshape", (joined,), {}
    else:
        added = Node("reshape", (moved,), (flat,), {}, node.source)
        added_at = {"rows": rows, "windows": list(range(1, len(flat.shape)))}
        node.operands, node.attributes = (*node.operands[:2], added), {**node.attributes, **added_at}


def _flatten(node: Node, known: dict[tuple[Node, tuple[int, ...]], Node]) -> None:
    """Let a gather or a scatter read numbers, and single elements that it adds, in one row, and give elements in one.

    The row is made from a copy whose last dimension is along the lanes of tiles, which is often narrow. ``known`` are
    the rows of arrays that were made before.
    """
    moved = window(node)
    if moved is None or len(node.operands[1].shape) < 3:
        return
    batch = node.operands[1].shape[:-1]
    taken = [1, 2] if node.op == "scatter" and not moved else [1]
    for i in taken:
        x = node.operands[i]
        if i == 2 and x.shape != batch:
            continue
        aval = x.avals[0].update(shape=batch)
        usual = default(len(batch))
        if not x.is_splat():
            if (x, batch) not in known:
                rows = Node("relayout", (x,), (aval,), {}, node.source, order=usual)
                row = Node("relayout", (rows,), (aval.update(shape=(aval.size,)),), {}, node.source, order=(0,))
                known[x, batch] = row
            node.operands = (*node.operands[:i], known[x, batch], *node.operands[i + 1 :])
    if node.op == "gather" and not moved and len([n for n in node.shape if n > 1]) > 1:
        flat = node.avals[0].update(shape=(node.avals[0].size,))
        taken_in_row = Node("gather", node.operands, (flat,), {**node.attributes, "rows": []}, node.source)
        node.op, node.operands, node.attributes = "reshape", (taken_in_row,), {}
