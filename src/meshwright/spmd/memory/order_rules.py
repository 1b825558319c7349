"""Orders of dimensions in memory, and how operations carry them from operands to results and back.

An order lists the dimensions of an array, the fastest first. The first one is along the lanes of tiles, the second one
along their rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.tiles import LANES, SUBLANES, in_tiles, tiled, tiled_bytes

Order = tuple[int, ...]
#: times the least bytes of an array after a reshape that splits lanes, from which on it takes another order
_SPLIT = 2
#: operations that have one dimension for each of their operands', besides elementwise ones
_KEEP = frozenset(
    """all_gather all_reduce collective_permute combine concatenate dynamic_slice dynamic_update_slice
    optimization_barrier pad reduce_scatter reduce_window reorder reverse slice sort split""".split()
)


def default(ndim: int) -> Order:
    """The order in which the last dimension is the fastest."""
    return tuple(reversed(range(ndim)))


def compact(aval: ShapedArray) -> Order:
    """The order with the least padding; of several, the one that is most like the default."""
    return _compact(aval.shape, aval.dtype.itemsize, aval)


@lru_cache(4096)
def _compact(shape: tuple[int, ...], size: int, aval: ShapedArray) -> Order:
    usual = default(len(shape))
    if len(shape) < 2:
        return usual
    pairs = itertools.permutations(usual, 2)
    first = min(pairs, key=lambda pair: tiled(aval, shape[pair[0]], shape[pair[1]]))
    return (*first, *(d for d in usual if d not in first))


def ordered_bytes(aval: ShapedArray, order: Order) -> int:
    """The bytes of an array in an order, with its padding."""
    if aval.ndim < 2:
        return tiled_bytes(aval)
    return tiled(aval, aval.shape[order[0]], aval.shape[order[1]])


def alike(shape: Sequence[int], a: Order, b: Order) -> bool:
    """Whether two orders have the same tiles, with as much padding. Dimensions of size 1 only count for that."""
    if tiles_of(shape, a) != tiles_of(shape, b):
        return False
    return len(a) < 2 or a[:2] == b[:2] or in_tiles(shape, *a[:2]) == in_tiles(shape, *b[:2])


def tiles_of(shape: Sequence[int], order: Order) -> Order:
    return tuple(d for d in order if shape[d] > 1)[:2]


def led(order: Sequence[int], dims: Sequence[int]) -> Order:
    """The order with ``dims`` before all others."""
    return (*dims, *(d for d in order if d not in dims))


# --- from operands to results, and back ---------------------------------------------------------------------
def carried(node: Node, i: int, order: Order) -> Order | None:
    """The order of a result if operand ``i`` has ``order``, and elements keep their places; None if it is open."""
    x = node.operands[i]
    if node.op == "transpose":
        where = {d: j for j, d in enumerate(node.attributes["permutation"])}
        return tuple(where[d] for d in order)
    if node.op == "reshape" and "start" not in node.attributes:
        its = _reshaped(x.avals[0], order, node.avals[0])
        # what is split from a vector has no order from it, unless it is the same memory
        known = its is not None and (len(x.shape) > 1 or moves_nothing(x.shape, order, node.shape, its))
        return its if known else None
    if node.op == "reduce" and 2 * i < len(node.operands):
        dims = node.attributes["dimensions"]
        left = [d for d in range(len(x.shape)) if d not in dims]
        return tuple(left.index(d) for d in order if d in left) if len(left) == len(node.shape) else None
    if node.op == "concatenate" and x.avals[0].size < max(y.avals[0].size for y in node.operands):
        return None  # the largest part decides
    # a row or a column is padded in its order
    return order if _keeps(node, x) and (node.op == "pad" or _tells(x.shape, order, node.shape)) else None


def wanted(node: Node, i: int, order: Order) -> Order | None:
    """The order of operand ``i`` for which a result has ``order``, or None if any will do."""
    x = node.operands[i]
    if node.op == "transpose":
        permutation = node.attributes["permutation"]
        return tuple(permutation[d] for d in order)
    if node.op == "reshape" and "start" not in node.attributes:
        return _reshaped(node.avals[0], order, x.avals[0])
    if node.op == "broadcast_in_dim":
        where = {d: j for j, d in enumerate(node.attributes["broadcast_dimensions"])}
        return tuple(where[d] for d in order if d in where)
    if node.op == "reduce" and 2 * i < len(node.operands):
        dims = node.attributes["dimensions"]
        left = [d for d in range(len(x.shape)) if d not in dims]
        if len(left) != len(order):
            return None
        outer = (*(left[d] for d in order), *sorted(dims, reverse=True))
        aval = x.avals[0]
        return outer if ordered_bytes(aval, outer) <= tiled_bytes(aval) else None
    return order if _keeps(node, x) and _tells(node.shape, order, x.shape) else None


def _tells(shape: Sequence[int], order: Order, other: Sequence[int]) -> bool:
    """Whether the order of an array says along which dimensions the tiles of another one are.

    It does not if one of these has a single element in the array, whose place in the order then means nothing.
    """
    return all(shape[d] > 1 for d in tiles_of(other, order))


def _keeps(node: Node, x: Node) -> bool:
    return (
        bool(x.shape)
        and len(x.shape) == len(node.shape)
        and (node.elementwise or node.op in _KEEP or "start" in node.attributes)
    )


def _reshaped(before: ShapedArray, order: Order, after: ShapedArray) -> Order | None:
    """The order after a reshape, unless it splits lanes and another order of the same elements has less padding."""
    its = reshaped(before.shape, order, after.shape)
    if its is None or not after.size or min(after.ndim, before.ndim) < 2:
        return its
    if _fastest(before.shape, order) == _fastest(after.shape, its):
        return its
    return its if ordered_bytes(after, its) < _SPLIT * _least(before.shape, after.shape, after) else None


def _fastest(shape: Sequence[int], order: Order) -> int:
    """The size of the fastest dimension that has more than one element."""
    return next((shape[d] for d in order if shape[d] > 1), 1)


@lru_cache(4096)
def _least(before: tuple[int, ...], after: tuple[int, ...], aval: ShapedArray) -> int:
    """The least bytes after a reshape in which elements follow each other as in some order before."""
    return min(ordered_bytes(aval, its) for _, its in _passed(before, after))


def _passed(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[Order, Order]]:
    """Orders before and after a reshape that keep elements in a row, for any two dimensions along tiles before."""
    usual = default(len(before))
    orders = (led(usual, pair) for pair in itertools.permutations(usual, 2))
    return ((order, its) for order in orders if (its := reshaped(before, order, after)) is not None)


def passing(node: Node) -> Order:
    """The order that a reshape gives its result if no order of its operand makes it the one it is to have.

    It is the one for which both have the least padding; of several, one for which the reshape moves nothing.
    """
    aval, x = node.avals[0], node.operands[0].avals[0]

    def cost(pair: tuple[Order, Order]) -> tuple[int, bool]:
        its, has = pair
        moves = not moves_nothing(x.shape, has, aval.shape, its)
        return ordered_bytes(aval, its) + ordered_bytes(x, has), moves

    return min(_passed(aval.shape, x.shape), key=cost)[0]


@lru_cache(4096)
def reshaped(before: tuple[int, ...], order: Order, after: tuple[int, ...]) -> Order | None:
    """The order after a reshape in which elements follow each other as before, or None if there is none."""
    if 0 in before:  # no elements are in any order
        return default(len(after))
    found = followed(before, [*reversed(order)], after)
    return None if found is None else (*reversed(found), *(d for d in default(len(after)) if after[d] == 1))


def followed(before: Sequence[int], order: Sequence[int], after: Sequence[int]) -> list[int] | None:
    """The dimensions after a reshape, without those of size 1, in the order in which elements follow each other as
    before; ``order`` lists those before it, the slowest first. None if there is no such order."""
    groups = groups_of(before, after)
    if groups is None:
        return None
    places = [d for d in order if before[d] > 1]
    found: list[int] = []
    at = 0
    while at < len(places):
        ins, outs = next(g for g in groups if places[at] in g[0])
        if places[at : at + len(ins)] != ins:
            return None
        found += outs
        at += len(ins)
    return found


@lru_cache(4096)
def moves_nothing(before: tuple[int, ...], order: Order, after: tuple[int, ...], new: Order) -> bool:
    """Whether a reshape between two orders is the same memory: each tile is a tile, with rows of the same length.

    Vectors are in a row, so that what is split from one, or joined to one, is whole tiles of full lanes.
    """
    its = reshaped(before, order, after)
    if its is None or not alike(after, its, new):
        return False
    a, b = ([shape[d] for d in o if shape[d] > 1] for shape, o in ((before, order), (after, its)))
    if min(len(a), len(b)) < 2:
        matrix = max(a, b, key=len)
        return len(matrix) < 2 or (matrix[0] == LANES and not matrix[1] % SUBLANES)
    if a[0] != b[0]:
        return False
    # where all lanes are in one tile, rows follow each other as long as none of them is padding
    few = a[0] <= LANES
    return a[1] == b[1] or all(not n % SUBLANES or (few and n in (2, 4)) for n in (a[1], b[1]))


def groups_of(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """Which dimensions become which, without those of size 1."""
    ins, outs = ([d for d, n in enumerate(shape) if n > 1] for shape in (before, after))
    groups, i, j = list[tuple[list[int], list[int]]](), 0, 0
    while i < len(ins) and j < len(outs):
        left, right = [ins[i]], [outs[j]]
        i, j = i + 1, j + 1
        while (n := prod(before[d] for d in left)) != (m := prod(after[d] for d in right)):
            if n < m:
                if i == len(ins):
                    return None
                left.append(ins[i])
                i += 1
            else:
                if j == len(outs):
                    return None
                right.append(outs[j])
                j += 1
        groups.append((left, right))
    return groups if i == len(ins) and j == len(outs) else None
