"""Layouts that TPU kernels require, where they differ from the layout with the least padding.

Gathers and scatters of rows need the row elements along the lanes of tiles. The table is copied into that layout
before. Gathered rows stay in it. Scattered sums are copied into a less padded layout after, if there is one.
Elementwise kernels that read such sums keep their layout, and read copies of their other arguments. Custom calls have
the last dimension along the lanes. A reshape that splits every dimension of an array splits its lanes as well. Then the
last parts are along the lanes and rows of tiles. A convolution that sums several features per group has only these
along the lanes. An example is the kernel gradient of a depthwise convolution, which sums over the batch. Factors and
solutions are tiled along the dimensions of matrices, and copied; but a loop stacks solutions as they are. An array that
a loop reads in parts has the tiles that the parts need. Numbers of gathered and scattered elements are put in a row,
from a copy with the last dimension along the lanes. The rules were derived from programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import COLLECTIVES, Graph, Node
from meshwright.spmd.memory.splits import split_groups
from meshwright.spmd.memory.tiles import tiled, tiled_bytes

_LIST = re.compile(r"(\w+) = \[([\d, ]*)\]")
#: dimensions of a table in which an index names one position
_SINGLE = ("collapsed_slice_dims", "operand_batching_dims", "inserted_window_dims", "input_batching_dims")
#: operations with a layout of their own. Their results are copied if another layout is needed
_FIXED = COLLECTIVES | {
    "parameter",
    "get",
    "gather",
    "scatter",
    "sort",
    "while",
    "custom_call",
    "matmul",
    "convolution",
}
#: operations that are written as loops of products of blocks of matrices
_BY_BLOCKS = ("cholesky", "triangular_solve")
#: elements along the lanes of tiles, and along their rows
Tiles = tuple[int, int]


def laid_out(node: Node) -> int | None:
    """The bytes of a result in the layout that its kernel has chosen, or None if the kernel has not chosen one."""
    tiles = node.attributes.get("tiles")
    return None if tiles is None else tiled(node.avals[0], *tiles)


def lay_out(graph: Graph) -> None:
    """Insert copies between layouts, in place. Bodies of loops and branches are included."""
    copies: dict[tuple[Node, Tiles], Node] = {}
    rows: dict[Node, Node] = {}
    for node in graph.post_order():
        for region in node.regions:
            lay_out(region)
        if _cuts_end(node):
            node.op, node.attributes = "reshape", {}
            continue
        _flatten(node)
        if node.op == "while":
            for i, (part, reader) in _read_in_parts(node).items():
                # What reads rows has its layout in the loop whatever the array is; others copy the parts of arguments.
                if reader.op == "gather" or node.operands[i].op != "parameter":
                    _cut_later(node, i, part)
                    _read_copy(node, i, part, copies)
        if _splits_lanes(node):
            node.op, node.operands = "relayout", (Node("reshape", node.operands, node.avals, {}, node.source),)
            node.attributes = {"tiles": (node.shape[-1], node.shape[-2])}
            continue
        tiles = _inherit(node, rows)
        for i, wanted in _wanted(node) if tiles is None else _given(node, tiles):
            _read_copy(node, i, wanted, copies)
        tiles = tiles or _written(node)
        if tiles is not None and _pads(node, tiles):
            if is_by_blocks(node):
                _copied_back(node, tiles)
            elif node.op == "gather":
                node.attributes = {**node.attributes, "tiles": tiles}
            else:
                rows[node] = _copied_back(node, tiles)


def _splits_lanes(node: Node) -> bool:
    """Whether a reshape splits each dimension of an array, whichever are its lanes."""
    if node.op != "reshape":
        return False
    (whole,) = node.operands
    groups = split_groups(whole.attributes.get("shape", whole.shape), node.shape)
    parts = [[node.shape[d] for d in group if node.shape[d] > 1] for group in groups or ()]
    return len([p for p in parts if p]) > 1 and all(len(p) != 1 for p in parts)


def _cuts_end(node: Node) -> bool:
    """Whether a slice of an argument is a slice from its start, with as many rows of tiles: the same memory."""
    if node.op != "slice" or node.operands[0].op != "parameter" or len(node.shape) != 2:
        return False
    (x,), starts, strides = node.operands, node.attributes.get("start_indices"), node.attributes.get("strides", ())
    if starts is None or any(starts) or any(n != 1 for n in strides) or node.shape[1] != x.shape[1]:
        return False
    rows = (x.shape[1], x.shape[0])
    return tiled_bytes(x.avals[0]) == tiled(x.avals[0], *rows) == tiled(node.avals[0], *rows[:1], node.shape[0])


def _flatten(node: Node) -> None:
    """Let a gather or a scatter read numbers, and single elements that it adds, in one row.

    The row is made from a copy whose last dimension is along the lanes of tiles, which is often narrow.
    """
    window = _window(node)
    if window is None or len(node.operands[1].shape) < 3:
        return
    batch = node.operands[1].shape[:-1]
    taken = [1, 2] if node.op == "scatter" and not window else [1]
    for i in taken:
        x = node.operands[i]
        if i == 2 and x.shape != batch:
            continue
        aval, tiles = x.avals[0].update(shape=batch), (batch[-1], batch[-2])
        if not x.is_splat() and tiled(aval, *tiles) > tiled_bytes(aval):
            rows = Node("relayout", (x,), (aval,), {"tiles": tiles}, node.source)
            row = Node("relayout", (rows,), (aval.update(shape=(aval.size,)),), {}, node.source)
            node.operands = (*node.operands[:i], row, *node.operands[i + 1 :])


def _read_in_parts(loop: Node) -> dict[int, tuple[Tiles, Node]]:
    """The arrays of which a loop reads a part in each step in certain tiles: these tiles, and what needs them."""
    body = loop.regions[1]
    numbers = {x: i for i, (x, after) in enumerate(zip(body.parameters, body.results)) if x is after}
    found: dict[int, tuple[Tiles, Node]] = {}
    for node in body.post_order():
        for part in node.operands:
            if part.op == "relayout" and "tiles" in part.attributes:
                tiles = part.attributes["tiles"]
                while part.op in ("relayout", "reshape"):
                    (part,) = part.operands
                if part.op == "dynamic_slice" and part.operands[0] in numbers:
                    found[numbers[part.operands[0]]] = tiles, node
    return found


def _cut_later(loop: Node, i: int, tiles: Tiles) -> None:
    """Let a loop read a slice of a copy, instead of a copy of a slice."""
    x = loop.operands[i]
    if x.op == "slice" and x.operands[0].op != "parameter" and _pads(x, tiles):
        (whole,) = x.operands
        copy = Node("relayout", (whole,), whole.avals, {"tiles": tiles}, x.source)
        cut = Node("slice", (copy,), x.avals, {**x.attributes, "tiles": tiles}, x.source)
        loop.operands = (*loop.operands[:i], cut, *loop.operands[i + 1 :])


def _inherit(node: Node, rows: Mapping[Node, Node]) -> Tiles | None:
    """Let an elementwise node compute on sums of rows in their tiles.

    Returns the tiles, or None if it reads no such sums.
    """
    if not (node.elementwise or _adds_ones(node)):
        return None
    given = [rows[x] for x in node.operands if x in rows and x.avals[0].size == node.avals[0].size]
    if not given:
        return None
    node.operands = tuple(rows.get(x, x) for x in node.operands)
    tiles: Tiles = given[0].attributes["tiles"]
    return tiles


def stacked_tiles(loop: Node) -> dict[int, Tiles]:
    """The tiles of arrays that a loop stacks such results in, by the number of the operand."""
    body = loop.regions[1]
    given = ((i, node.operands[1]) for i, node in enumerate(body.results) if node.op == "dynamic_update_slice")
    found = {}
    for i, part in given:
        while part.op == "reshape":
            (part,) = part.operands
        if part.op == "relayout" and is_by_blocks(part.operands[0]):
            found[i] = matrix_tiles(part.avals[0])
    return found


def _given(node: Node, tiles: Tiles) -> Sequence[tuple[int, Tiles]]:
    """The operands that are arguments, with the tiles that they are copied into."""
    return [(i, tiles) for i, x in enumerate(node.operands) if x.op == "parameter" and x.shape]


def _read_copy(node: Node, i: int, tiles: Tiles, copies: dict[tuple[Node, Tiles], Node]) -> None:
    """Let a kernel read a copy of an operand, if the operand would have less padding in other tiles."""
    x = node.operands[i]
    if _pads(x, tiles) and not x.is_splat() and x.attributes.get("tiles") != tiles:
        copy = copies.setdefault((x, tiles), Node("relayout", (x,), x.avals, {"tiles": tiles}, node.source))
        node.operands = (*node.operands[:i], copy, *node.operands[i + 1 :])


def _copied_back(node: Node, tiles: Tiles) -> Node:
    """Turn a node into a copy of its own result, which another node now computes in ``tiles``. Returns that node."""
    attributes = {**node.attributes, "tiles": tiles}
    laid = Node(node.op, node.operands, node.avals, attributes, node.source, special=node.special, var=node.var)
    node.op, node.operands, node.attributes, node.special = "relayout", (laid,), {}, False
    return laid


def _adds_ones(node: Node) -> bool:
    """Whether a reshape only adds or drops dimensions of size 1."""
    if node.op != "reshape":
        return False
    before, after = ([n for n in shape if n > 1] for shape in (node.operands[0].shape, node.shape))
    return before == after


def _written(node: Node) -> Tiles | None:
    """The tiles of gathered rows, of sums of scattered rows, or of matrices."""
    if is_by_blocks(node):
        return matrix_tiles(node.avals[0])
    row = _row(node)
    return None if row is None else _rows(node, node.shape[row[1]])


def _wanted(node: Node) -> Sequence[tuple[int, Tiles]]:
    """The operands for which a kernel wants certain tiles: their numbers, and the tiles."""
    row = _row(node)
    if row is not None:
        table, added = node.operands[0], node.operands[-1]
        minor = table.shape[row[0]]
        also = [(2, _rows(added, minor))] if node.op == "scatter" and minor in added.shape else []
        return [(0, _rows(table, minor)), *also]
    if node.op == "custom_call":
        return [(i, (x.shape[-1], x.shape[-2])) for i, x in enumerate(node.operands) if len(x.shape) > 1]
    if is_batched(node):
        return [(i, matrix_tiles(x.avals[0])) for i, x in enumerate(node.operands) if x.op in _FIXED]
    if node.op == "convolution":
        *_, summed, features = node.operands[1].shape
        if 1 < summed and int(node.attributes.get("feature_group_count", 1)) == features:
            return [(0, (summed, 1)), (1, (summed, 1))]
    return ()


def is_by_blocks(node: Node) -> bool:
    """Whether a node is computed by products of blocks of matrices. For a vector these are sums."""
    return node.op in _BY_BLOCKS and 1 not in node.shape[-2:]


def is_batched(node: Node) -> bool:
    """Whether a node is a product of several pairs of matrices. Its tiles are along the dimensions of the matrices."""
    return node.op == "matmul" and len(node.shape) > 2


def matrix_tiles(aval: ShapedArray) -> Tiles:
    """The tiles of matrices with less padding: along the rows, or along the columns."""
    *_, rows, columns = aval.shape
    return min((columns, rows), (rows, columns), key=lambda pair: tiled(aval, *pair))


def _rows(node: Node, minor: int) -> Tiles:
    return minor, node.avals[0].size // max(minor, 1)


def _pads(x: Node, tiles: Tiles) -> bool:
    """Whether other tiles would pad an array less."""
    return tiled(x.avals[0], *tiles) > tiled_bytes(x.avals[0])


def _row(node: Node) -> tuple[int, int] | None:
    """The dimension of the rows that are gathered or scattered, in the table and in the result.

    None if there is not one.
    """
    long = _window(node)
    return long[0] if long is not None and len(long) == 1 else None


def elements_moved(node: Node) -> int:
    """How many elements are gathered or scattered one by one."""
    if _window(node) != []:
        return 0
    return (node if node.op == "gather" else node.operands[-1]).avals[0].size


def _window(node: Node) -> list[tuple[int, int]] | None:
    """The dimensions that are gathered or scattered as a whole, in the table and in the result."""
    numbers = node.attributes.get("dimension_numbers" if node.op == "gather" else "scatter_dimension_numbers")
    if node.op not in ("gather", "scatter") or numbers is None or len(node.avals) > 1:
        return None
    lists = {key: [int(d) for d in dims.split(",") if d.strip()] for key, dims in _LIST.findall(str(numbers))}
    gone = [key for key in lists if key in _SINGLE]
    table = [d for d in range(len(node.operands[0].shape)) if not any(d in lists[key] for key in gone)]
    result = lists.get("offset_dims", []) if node.op == "gather" else table
    return [pair for pair in zip(table, result) if node.avals[0].shape[pair[1]] > 1]
