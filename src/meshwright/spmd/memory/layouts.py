"""Layouts that TPU kernels require, where they differ from the layout with the least padding.

Gathers and scatters of rows need the row elements along the lanes of tiles. The table is copied into that layout
before, and the gathered rows (or the scattered sums) into a less padded one after. A convolution that sums several
features per group has only these along the lanes, such as the kernel gradient of a depthwise convolution, which sums
over the batch. Derived from programs compiled by libtpu 0.0.42.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.tiles import tiled, tiled_bytes

_LIST = re.compile(r"(\w+) = \[([\d, ]*)\]")
#: dimensions of a table of which a place says all
_SINGLE = ("collapsed_slice_dims", "operand_batching_dims", "inserted_window_dims", "input_batching_dims")
#: elements along the lanes of tiles, and along their rows
Tiles = tuple[int, int]


def laid_out(node: Node) -> int | None:
    """Bytes in the layout that a kernel has chosen for its result, or None if it takes any."""
    tiles = node.attributes.get("tiles")
    return None if tiles is None else tiled(node.avals[0], *tiles)


def lay_out(graph: Graph) -> Graph:
    """The program with copies between layouts, in place but for results."""
    moved: dict[Node, Node] = {}
    copies: dict[tuple[Node, Tiles], Node] = {}
    for node in graph.post_order():
        node.operands = tuple(moved.get(x, x) for x in node.operands)
        for i, tiles in enumerate(_wanted(node)):
            x = node.operands[i]
            if _pads(x, tiles) and not x.is_splat():
                copy = copies.setdefault((x, tiles), Node("relayout", (x,), x.avals, {"tiles": tiles}, node.source))
                node.operands = (*node.operands[:i], copy, *node.operands[i + 1 :])
        row = _row(node)
        if row is not None and _pads(node, tiles := _rows(node, node.avals[0].shape[row[1]])):
            node.attributes = {**node.attributes, "tiles": tiles}
            moved[node] = Node("relayout", (node,), node.avals, {}, node.source)
    return Graph(graph.parameters, tuple(moved.get(r, r) for r in graph.results), graph.effects)


def _wanted(node: Node) -> Sequence[Tiles]:
    """The tiles that a kernel wants its first operands in."""
    row = _row(node)
    if row is not None:
        return (_rows(node.operands[0], node.operands[0].shape[row[0]]),)
    if node.op == "convolution":
        *_, summed, features = node.operands[1].shape
        if 1 < summed and int(node.attributes.get("feature_group_count", 1)) == features:
            return ((summed, 1),) * 2
    return ()


def _rows(node: Node, minor: int) -> Tiles:
    return minor, node.avals[0].size // max(minor, 1)


def _pads(x: Node, tiles: Tiles) -> bool:
    """Whether other tiles would pad an array less."""
    return tiled(x.avals[0], *tiles) > tiled_bytes(x.avals[0])


def _row(node: Node) -> tuple[int, int] | None:
    """The dimension of the rows that are gathered or scattered, in the table and in the result; None of elements."""
    numbers = node.attributes.get("dimension_numbers" if node.op == "gather" else "scatter_dimension_numbers")
    if node.op not in ("gather", "scatter") or numbers is None or len(node.avals) > 1:
        return None
    lists = {key: [int(d) for d in dims.split(",") if d.strip()] for key, dims in _LIST.findall(str(numbers))}
    gone = [key for key in lists if key in _SINGLE]
    table = [d for d in range(len(node.operands[0].shape)) if not any(d in lists[key] for key in gone)]
    result = lists.get("offset_dims", []) if node.op == "gather" else table
    long = [pair for pair in zip(table, result) if node.avals[0].shape[pair[1]] > 1]
    return long[0] if len(long) == 1 else None
