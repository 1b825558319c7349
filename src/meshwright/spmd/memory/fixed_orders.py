"""Operations of TPUs with orders of their own, and those that they want their operands in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Node, lists_of
from meshwright.spmd.memory.images import sums_few_images
from meshwright.spmd.memory.order_rules import (
    Order,
    compact,
    default,
    groups_of,
    led,
    ordered_bytes,
    reshaped,
    tiles_of,
)
from meshwright.spmd.memory.tiles import in_whole_tiles
from meshwright.spmd.memory.transforms import operand_order

#: an operation, the number of an operand, and the order that it needs
Want = tuple[Node, int, Order]
#: ``reaches(node, i, order)``: how many operations before operand ``i`` can take an order
Reaches = Callable[[Node, int, Order], int]
#: fewer features, of fewer images, than this are not along a dimension of tiles
_FEW = 8
#: dimensions of images of volumes: one of the batch, three of positions, one of features
_VOLUME = 5
#: operations that are written as loops of products of blocks of matrices
_BY_BLOCKS = ("cholesky", "triangular_solve")
#: custom calls that reflect columns
_BY_COLUMNS = ("Qr", "ProductOfElementaryHouseholderReflectors")
#: operations with an order of their own, besides products, convolutions and those of rows
_OWN = ("all_to_all", "custom_call", "fft", "select_and_scatter", "sort", "top_k")
#: times the bytes of a compact order below which another one is taken: for what is sorted, so that it is not along the
#: lanes; for operands of several products, so that they need no copy
_PADDED = 2
#: dimensions of a table in which an index names one position
_SINGLE = ("collapsed_slice_dims", "operand_batching_dims", "inserted_window_dims", "input_batching_dims")


def by_class(nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes with orders of their own, those that others follow first."""
    classes: list[list[Node]] = [[], [], []]
    for node in nodes:
        product = node if node.op == "matmul" else product_of(node)
        if product is not None and not solves(product):
            classes[0 if is_batched(product) else 1].append(node)
        elif node.op == "convolution":
            classes[2 if sums_few_images(node) else 0].append(node)
        elif product is not None or rows_of(node) or node.op in _OWN or is_by_blocks(node):
            classes[2].append(node)
    return classes


def chosen(node: Node) -> Order | None:
    """The order that an operation gives its result."""
    aval = node.avals[0]
    if is_by_blocks(node) or solves(node):
        return matrix_order(aval)
    if node.op == "matmul":
        return _of_product(aval, node)
    if (product := product_of(node)) is not None:
        given, order = given_order(product)
        return reshaped(given.shape, matrix_order(given) if solves(product) else order, aval.shape)
    if node.op == "convolution":
        return convolution_order(aval)
    if node.op in ("custom_call", "top_k"):
        return called_order(node, aval) if len(node.avals) == 1 else None
    if node.op == "sort":
        return _sorted(node)
    if node.op == "all_to_all":
        return compact(aval)
    if node.op == "select_and_scatter":
        return _beside_windows(node)
    rows = rows_of(node)
    return _along(aval, [d for _, d in rows]) if rows else None


def wants(node: Node, reaches: Reaches, orders: Mapping[Node, Order]) -> list[Want]:
    """The orders that an operation needs its operands in."""
    if is_batched(node) and solves(node):
        return [(node, i, matrix_order(node.operands[i].avals[0])) for i in (0, 1)]
    if is_batched(node):
        return [_matrices(node, i, reaches, orders) for i in (0, 1)]
    if node.op == "sort" and len(node.shape) > 1:
        return [(node, i, _sorted(node)) for i in range(len(node.operands))]
    if node.op == "select_and_scatter":
        return [(node, i, _beside_windows(node)) for i in (0, 1)]
    if node.op in ("custom_call", "top_k"):
        return [(node, i, called_order(node, x.avals[0])) for i, x in enumerate(node.operands) if len(x.shape) > 1]
    if node.op == "fft" and (order := operand_order(node)) is not None:
        return [(node, 0, order)]
    if node.op == "convolution":
        return [(node, 0, convolution_order(node.operands[0].avals[0]))]
    if rows := rows_of(node):
        table, added = node.operands[0], node.operands[-1]
        found = [(node, 0, _along(table.avals[0], [d for d, _ in rows]))]
        if node.op == "scatter" and len(node.operands) == 3:
            found.append((node, 2, _along(added.avals[0], window_dimensions(node))))
        return found
    if node.op == "all_to_all":
        (x,) = node.operands
        split = node.attributes["split_dimension"]
        parts = x.avals[0].update(shape=tuple(1 if d == split else n for d, n in enumerate(x.shape)))
        return [(node, 0, (*(d for d in compact(parts) if d != split), split))]
    return []


def _matrices(node: Node, i: int, reaches: Reaches, orders: Mapping[Node, Order]) -> Want:
    """The order of an operand of several products: tiles are along a dimension of rows and one of columns.

    The operand has the order of its source if that is possible.
    """
    x, user = node.operands[i], node
    n = len(x.shape)
    sides = [n - 2], [n - 1]
    if x.op == "reshape" and (parts := groups_of(x.shape, x.operands[0].shape)) is not None:
        split = [[d for ins, outs in parts if side[0] in ins for d in outs] for side in sides]
        if all(split) and not {*split[0]} & {*split[1]}:
            user, i, sides, x = x, 0, (split[0], split[1]), x.operands[0]
    aval, has = x.avals[0], orders.get(x)
    usual = default(aval.ndim)
    pairs = _pairs(*sides, usual)
    found = sorted((led(usual, pair) for pair in pairs), key=lambda o: ordered_bytes(aval, o))
    if has is not None:
        return user, i, has if tiles_of(aval.shape, has) in [tiles_of(aval.shape, o) for o in found] else found[0]
    reach = reaches(user, i, found[0])
    most = _PADDED * ordered_bytes(aval, found[0])
    others = (o for o in found[1:] if ordered_bytes(aval, o) < most)
    best = next((o for o in others if reaches(user, i, o) > reach), found[0])
    return user, i, best


def _along(aval: ShapedArray, dims: Sequence[int]) -> Order:
    """The order in which ``dims`` are the fastest, those first that are padded least."""
    usual = default(aval.ndim)
    tiles: list[Order] = [pair for pair in _pairs(dims, dims, usual) if pair[0] != pair[1]]
    inner = [d for d in usual if d in dims]
    return min((led(usual, led(inner, pair)) for pair in tiles or [tuple(dims)]), key=lambda o: ordered_bytes(aval, o))


def _pairs(left: Sequence[int], right: Sequence[int], usual: Order) -> list[tuple[int, int]]:
    pairs = [(b, a) for b in usual if b in right for a in usual if a in left]
    return pairs + [(a, b) for b, a in pairs]


def product_of(node: Node) -> Node | None:
    """The product that a node is, with the dimensions that the program gives it."""
    if node.op != "reshape" or node.operands[0].op != "matmul":
        return None
    (product,) = node.operands
    return product if "shape" in product.attributes else None


def given_order(product: Node) -> tuple[ShapedArray, Order]:
    """A product with the dimensions that the program gives it, and its order."""
    aval = product.avals[0].update(shape=product.attributes["shape"])
    return aval, _of_product(aval, product)


def _of_product(aval: ShapedArray, product: Node) -> Order:
    """Tiles are along a dimension of the left matrix and one of the right one."""
    if len(product.shape) < 2:
        return compact(aval)
    first = len(product.shape) - 2
    rows, split, n = product.shape[-2], first, 1
    while split < aval.ndim and n < rows:
        n *= aval.shape[split]
        split += 1
    usual = default(aval.ndim)
    pairs = _pairs(range(first, split), range(split, aval.ndim), usual)
    if n != rows or not pairs:
        return compact(aval)
    return min((led(usual, pair) for pair in pairs), key=lambda o: ordered_bytes(aval, o))


def is_by_blocks(node: Node) -> bool:
    """Whether a node is computed by products of blocks of matrices. For a vector these are sums."""
    return node.op in _BY_BLOCKS and 1 not in node.shape[-2:]


def solves(node: Node) -> bool:
    """Whether a node is the product with an inverse that a solve is written as."""
    return node.op == "matmul" and any(x.op == "inverted" for x in node.operands)


def is_batched(node: Node) -> bool:
    """Whether a node is a product of several pairs of matrices. Its tiles are along the dimensions of the matrices."""
    return node.op == "matmul" and len(node.shape) > 2


def called_order(node: Node, aval: ShapedArray) -> Order:
    """The order of an operand or a result of a custom call. Columns of matrices are along the lanes for reflectors."""
    usual = default(aval.ndim)
    columns = aval.ndim > 1 and str(node.attributes.get("call_target_name", "")).strip('"') in _BY_COLUMNS
    return led(usual, (aval.ndim - 2, aval.ndim - 1)) if columns else usual


def _sorted(node: Node) -> Order:
    """The order of a sort: what it compares is along the rows of tiles, unless that pads much."""
    aval, along = node.avals[0], int(node.attributes.get("dimension", len(node.shape) - 1))
    usual, best = default(aval.ndim), compact(aval)
    others = [led(usual, (d, along)) for d in usual if d != along]
    found = min(others, key=lambda o: ordered_bytes(aval, o), default=best)
    return found if ordered_bytes(aval, found) < _PADDED * ordered_bytes(aval, best) else best


def _beside_windows(node: Node) -> Order:
    """The order of a selection in windows: tiles are along the two dimensions without windows that pad least."""
    aval, usual = node.avals[0], default(len(node.shape))
    given = [node.attributes.get(key, ()) for key in ("window_dimensions", "window_strides")]
    free = [d for d in usual if all(sizes[d] == 1 for sizes in given if sizes)]
    pairs = itertools.permutations(free, 2)
    found = min(pairs, key=lambda pair: in_whole_tiles(aval, *(aval.shape[d] for d in pair)), default=())
    return led(usual, found)


def matrix_order(aval: ShapedArray) -> Order:
    """The order of matrices with less padding: along the rows, or along the columns."""
    n = aval.ndim
    rest = default(n - 2)
    return min([(n - 1, n - 2, *rest), (n - 2, n - 1, *rest)], key=lambda o: ordered_bytes(aval, o))


def convolution_order(aval: ShapedArray) -> Order:
    """The order of the input or the result of a convolution, ``[batch, positions…, features]``.

    Features and batch are along the two dimensions of tiles; of one image (not of a volume), features and positions
    are; of few features (colours) of a few images, positions and batch: XLA moves positions into the batch then.
    """
    n = aval.ndim
    rows = range(n - 1) if aval.shape[0] == 1 and n < _VOLUME else (0,)
    pairs = [(n - 1, 0), (0, n - 1), *((n - 1, d) for d in rows), *((d, n - 1) for d in rows[1:])]
    if aval.shape[0] < _FEW and aval.shape[-1] < _FEW:
        pairs += [(d, 0) for d in range(1, n - 1)]
    return min([led(default(n), pair) for pair in pairs], key=lambda o: ordered_bytes(aval, o))


# --- rows that are found by index ---------------------------------------------------------------------------
def rows_of(node: Node) -> list[tuple[int, int]]:
    """The dimensions that are gathered or scattered as a whole, in the table and in the result.

    There are none if elements are gathered or scattered.
    """
    return window(node) or []


def elements_moved(node: Node) -> int:
    """How many elements are gathered or scattered one by one."""
    if window(node) != []:
        return 0
    return (node if node.op == "gather" else node.operands[-1]).avals[0].size


def window_dimensions(scatter: Node) -> list[int]:
    """The dimensions of what is added that are along a row."""
    dims = scatter.attributes.get("windows") or _lists(scatter).get("update_window_dims", [])
    return [d for d in dims if scatter.operands[-1].shape[d] > 1]


def _lists(node: Node) -> dict[str, list[int]]:
    numbers = node.attributes.get("dimension_numbers" if node.op == "gather" else "scatter_dimension_numbers")
    return lists_of(numbers)


def window(node: Node) -> list[tuple[int, int]] | None:
    """As :func:`rows_of`; None if a node neither gathers nor scatters."""
    if "rows" in node.attributes:
        found: list[tuple[int, int]] = node.attributes["rows"]
        return found
    if node.op not in ("gather", "scatter") or len(node.avals) > 1 or not (lists := _lists(node)):
        return None
    gone = [key for key in lists if key in _SINGLE]
    table = [d for d in range(len(node.operands[0].shape)) if not any(d in lists[key] for key in gone)]
    result: Iterable[int] = lists.get("offset_dims", []) if node.op == "gather" else table
    return [pair for pair in zip(table, result) if node.avals[0].shape[pair[1]] > 1]
