"""Copies of operands into the memory layout that an operation needs.

A matrix product works on ``[batch…, rows, inner]`` and ``[batch…, inner, columns]``, with dimensions of the same role
merged. An operand in another layout is copied, unless only its last two dimensions are exchanged, which the kernel
supports directly. A collective on CPUs needs the dimension that it concatenates or splits to be the major one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.compilers import CPU, Compiler
from meshwright.spmd.memory.graph import Make, Node, lists_of
from meshwright.spmd.memory.images import in_pieces, in_place_of_wholes
from meshwright.spmd.memory.indexed import gathered, scattered
from meshwright.spmd.memory.library import reduces
from meshwright.spmd.memory.library_convolutions import labels_of, library_convolution
from meshwright.spmd.memory.simplify import keeps_order, permuted
from meshwright.spmd.memory.tpu_forms import written_for_tpus

#: in the text of an algorithm of products: the types of operands, and that each is one part
_ROUNDED, _ONE_PRODUCT = re.compile(r"[lr]hs_precision_type = (\w+)"), "num_primitive_operations = 1,"
_NARROW_TYPES = {"bf16": dtypes.bfloat16, "f16": dtypes.float16}
#: dtypes for which an op computes in 32 bits on a CPU
_NARROW = {
    "dot_general": (dtypes.bfloat16, dtypes.float16),
    "convolution": (dtypes.bfloat16, dtypes.float16),
    "all_reduce": (dtypes.bfloat16,),
    "reduce_scatter": (dtypes.bfloat16,),
}
#: elements along each dimension that a reduction sums up at a time
_WINDOW = 32
#: the dimensions of one array, the fastest first; those of scalars are an empty list
_LAYOUT = re.compile(r"dense<\[?([\d, ]*)\]?>")
#: the attribute that names the dimension which a collective joins or splits
_MAJOR = {"all_gather": "all_gather_dim", "reduce_scatter": "scatter_dimension", "all_to_all": "split_dimension"}
#: collectives that compute nothing
_MOVES = ("all_gather", "all_to_all", "collective_permute")


def ordered(
    make: Make, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any], compiler: Compiler = CPU
) -> Node | None:
    """The operation with the copies that it needs around it, or ``None`` if it needs none."""
    if compiler.tiles and (other := written_for_tpus(make, op, operands, aval, given)) is not None:
        return other
    if compiler.tiles and (other := in_place_of_wholes(make, op, operands, aval, given)) is not None:
        return other
    if not compiler.narrow and op in _NARROW and operands[0].avals[0].dtype in _NARROW[op]:
        wide = [_converted(make, x, dtypes.float32) for x in operands]
        return _converted(make, make(op, wide, aval.update(dtype=dtypes.float32), given), aval.dtype)
    if op == "dot_general":
        return _dot(make, operands, aval, given, compiler)
    if op == "transpose" and compiler.either_order and operands[0].op == "matmul":
        return _product_of_exchanged(make, operands[0], aval, given["permutation"])
    if op == "reduce" and compiler.windows and not reduces(operands, given.get("reducer")):
        return _in_windows(make, operands, aval, given)
    if op == "reduce_window":
        return _cumulative(make, operands, aval, given, compiler)
    if op == "gather":
        return gathered(make, operands, aval, given, compiler)
    if op == "scatter" and len(operands) == 3:
        return scattered(make, operands, aval, given, compiler)
    if op == "convolution" and "ordered" not in given:
        if compiler.library_convolutions:
            return library_convolution(make, operands, aval, given)
        return _convolution(make, operands, aval, given, compiler)
    if op == "all_reduce" and compiler.in_place and "in_place" not in given:
        return make(op, operands, aval, {**given, "in_place": True})
    if op in _MOVES and compiler.moves_narrow and _widens(operands[0]):
        (narrow,) = operands[0].operands
        moved = make(op, (narrow,), aval.update(dtype=narrow.avals[0].dtype), given)
        return _converted(make, moved, aval.dtype)
    if op in _MAJOR and not compiler.tiles:
        return _collective(make, op, operands, aval, given)
    return None


def _rounded(make: Make, operands: Sequence[Node], algorithm: str) -> list[Node]:
    """The operands of a product in the types that its algorithm rounds them to, unless it splits them into parts."""
    types = [_NARROW_TYPES.get(name) for name in _ROUNDED.findall(algorithm)] if _ONE_PRODUCT in algorithm else []
    return [_converted(make, x, t) if t else x for x, t in zip(operands, types or [None] * len(operands))]


def in_orders(make: Make, values: Sequence[Node], layouts: str) -> list[Node]:
    """The operands or results of a custom call in the order in memory that the call states, as MLIR text."""
    orders = [[int(d) for d in text.split(",") if d] for text in _LAYOUT.findall(layouts)]
    reordered = list(values)
    for i, (x, order) in enumerate(zip(values, orders)):
        given = {"order": tuple(order)}
        if x.op == "reorder" and x.attributes == given:
            (reordered[i],) = x.operands
        elif order != sorted(order, reverse=True):
            reordered[i] = make("reorder", (x,), x.avals[0], given)
    return reordered


def _dot(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any], compiler: Compiler) -> Node:
    lb, rb, lc, rc = _dot_dimensions(given["dot_dimension_numbers"])
    lhs, rhs = operands
    # CPUs leave algorithms out, and TPUs round operands wherever they are (``memory/halves.py``).
    algorithm = str(given.get("algorithm", "")) if compiler.narrow and not compiler.tiles else ""
    factors = _rounded(make, operands, algorithm)
    simple = _without_product(make, factors, aval, (lb, rb, lc, rc))
    if simple is None and compiler.sums_vectors:
        simple = _vector_product(make, factors, aval, (lb, rb, lc, rc), compiler.bitcasts)
    if simple is not None:
        return simple
    lf = [d for d in range(len(lhs.shape)) if d not in (*lb, *lc)]
    rf = [d for d in range(len(rhs.shape)) if d not in (*rb, *rc)]
    columns, merged = compiler.columns, compiler.either_order
    free = tuple(_size(x, dims) for x, dims in ((lhs, lf), (rhs, rf)) if dims or columns)
    left, turned = _matrix(make, lhs, lb, lf, lc, merged, columns)
    right, last = _matrix(make, rhs, rb, rc, rf, merged, columns)
    # Matrices are rounded, not what they are copies of. Source: XLA's ``DotAlgorithmRewriter``.
    left, right = _rounded(make, (left, right), algorithm)
    precision = str(given.get("precision_config", ""))
    given = {"dims": given["dot_dimension_numbers"], "precision": precision, "shape": aval.shape}
    given["inner_last"] = (not turned, last)
    elements = sum(x.avals[0].size // max(_size(x, batch), 1) for x, batch in ((lhs, lb), (rhs, rb)))
    op = "matmul" if elements >= compiler.library_from else "small_product"
    batch = tuple(n for n in aval.shape[: len(lb)] if n != 1 or not columns)
    product = make(op, (left, right), aval.update(shape=(*batch, *free)), given)
    return make("reshape", (product,), aval, {})


def _product_of_exchanged(make: Make, x: Node, aval: ShapedArray, permutation: Sequence[int]) -> Node | None:
    """A transposed product of two matrices is the product of the exchanged ones; dimensions of size 1 may lead."""
    n = aval.ndim
    if n < 2 or any(size != 1 for size in aval.shape[:-2]) or tuple(permutation) != (*range(n - 2), n - 1, n - 2):
        return None
    given = {"transposed": tuple(x.attributes.items()), "inner_last": x.attributes["inner_last"][::-1]}
    return make("matmul", x.operands[::-1], aval, given)


def _without_product(
    make: Make, operands: Sequence[Node], aval: ShapedArray, dims: Sequence[tuple[int, ...]]
) -> Node | None:
    """Outer products are multiplied elementwise; inner products are summed up."""
    (lhs, rhs), (lb, rb, lc, rc) = operands, dims
    if all(lhs.shape[d] == 1 for d in lc):
        n, left = len(lb), len(lhs.shape) - len(lb) - len(lc)
        places = range(n), range(n, n + left), range(n + left, aval.ndim)
        factors = []
        for x, batch, gone, own in ((lhs, lb, lc, places[1]), (rhs, rb, rc, places[2])):
            kept = [d for d in range(len(x.shape)) if d not in gone]
            free = iter(own)
            at = tuple(batch.index(d) if d in batch else next(free) for d in kept)
            flat = make("reshape", (x,), x.avals[0].update(shape=tuple(x.shape[d] for d in kept)), {})
            factors.append(make("broadcast_in_dim", (flat,), aval, {"broadcast_dimensions": at}))
        return make("multiply", factors, aval, {})
    if len(lhs.shape) == len(rhs.shape) == len(lb) + len(lc) and (*lb, *lc) == (*rb, *rc) and lhs.shape == rhs.shape:
        product = make("multiply", operands, lhs.avals[0], {})
        zero = make("constant", (), ShapedArray((), aval.dtype), {"value": 0})
        return make("reduce", (product, zero), aval, {"dimensions": lc, "reducer": "stablehlo.add"})
    return None


def _vector_product(
    make: Make, operands: Sequence[Node], aval: ShapedArray, dims: Sequence[tuple[int, ...]], merged: bool
) -> Node | None:
    """A product with a vector is multiplied elementwise, then summed up.

    ``merged``: of a matrix, and a vector without dimensions of one element, whose sides are one dimension each. Source:
    XLA's ``DotDecomposer``.
    """
    lb, rb, lc, rc = dims
    for (vector, batch, summed), (x, along, gone) in (
        ((operands[0], lb, lc), (operands[1], rb, rc)),
        ((operands[1], rb, rc), (operands[0], lb, lc)),
    ):
        if _size(vector, [d for d in range(len(vector.shape)) if d not in (*batch, *summed)]) != 1:
            continue
        free = [d for d in range(len(x.shape)) if d not in (*along, *gone)]
        if merged and (len(gone) > 1 or len(free) > 1):
            sides = (gone, free) if x is operands[1] else (free, gone)
            pair, n = [_merged(make, vector, batch, summed), _merged(make, x, along, *sides)], len(along)
            result = aval.update(shape=(*(x.shape[d] for d in along), _size(x, free)))
            ends = [(n,), (n if x is operands[1] else n + 1,)]
            if x is not operands[1]:
                pair, ends = pair[::-1], ends[::-1]
            every = tuple(range(n))
            product = _vector_product(make, pair, result, (every, every, *ends), False)
            return product and make("reshape", (product,), aval, {})
        kept = [d for d in range(len(vector.shape)) if d in batch or d in summed]
        at = tuple(along[batch.index(d)] if d in batch else gone[summed.index(d)] for d in kept)
        flat = make("reshape", (vector,), vector.avals[0].update(shape=tuple(vector.shape[d] for d in kept)), {})
        order = sorted(range(len(at)), key=at.__getitem__)
        factor = make(
            "broadcast_in_dim", (permuted(make, flat, order),), x.avals[0], {"broadcast_dimensions": tuple(sorted(at))}
        )
        products = make("multiply", (x, factor), x.avals[0], {})
        left = [d for d in range(len(x.shape)) if d not in gone]
        zero = make("constant", (), ShapedArray((), x.avals[0].dtype), {"value": 0})
        given = {"dimensions": tuple(gone), "reducer": "stablehlo.add"}
        sums = make("reduce", (products, zero), x.avals[0].update(shape=tuple(x.shape[d] for d in left)), given)
        first = [*along, *(d for d in left if d not in along)]
        whole = make(
            "reshape",
            (permuted(make, sums, [left.index(d) for d in first]),),
            sums.avals[0].update(shape=aval.shape),
            {},
        )
        return _converted(make, whole, aval.dtype)
    return None


def _merged(make: Make, x: Node, batch: Sequence[int], *sides: Sequence[int]) -> Node:
    """An array with the batching dimensions first, and one dimension for each side."""
    order = (*batch, *(d for side in sides for d in side))
    lies = permuted(make, x, (*order, *(d for d in range(len(x.shape)) if d not in order)))
    shape = (*(x.shape[d] for d in batch), *(_size(x, side) for side in sides))
    return make("reshape", (lies,), x.avals[0].update(shape=shape), {})


@cache
def _dot_dimensions(text: str) -> list[tuple[int, ...]]:
    """Batching dimensions of both sides, and contracting ones, from the attribute's text."""
    lists = lists_of(text)
    kinds = (f"{side}_{kind}_dimensions" for kind in ("batching", "contracting") for side in ("lhs", "rhs"))
    return [tuple(lists.get(kind, ())) for kind in kinds]


def _size(x: Node, dims: Sequence[int]) -> int:
    size = 1
    for d in dims:
        size *= x.shape[d]
    return size


def _matrix(
    make: Make,
    x: Node,
    batch: Sequence[int],
    first: Sequence[int],
    second: Sequence[int],
    merged: bool,
    columns: bool,
) -> tuple[Node, bool]:
    """``x`` as the kernel reads it: matrices of ``first`` by ``second``, or, if True, of ``second`` by ``first``.

    ``merged``: the latter also if a side has several dimensions. ``columns``: a vector is a matrix of one column,
    and batching dimensions of size 1 are left out.
    """
    order = (*batch, *first, *second)
    while x.op == "transpose":
        permutation = x.attributes["permutation"]
        order = tuple(permutation[d] for d in order)
        x = x.operands[0]
    n, m = len(batch), len(first)
    sides = order[n : n + m], order[n + m :]
    sizes = tuple(_size(x, dims) for dims in sides if dims)
    outer = tuple(x.shape[d] for d in order[:n])
    if columns:
        outer = tuple(size for size in outer if size != 1)
        sizes = (max(sizes), 1) if len(sizes) == 1 or 1 in sizes else sizes
    if m == 1 and len(second) == 1 and keeps_order(x.shape, (*order[:n], order[-1], order[-2])):
        turned = not keeps_order(x.shape, order)
        if columns:
            x = make("reshape", (x,), x.avals[0].update(shape=(*outer, *(sizes[::-1] if turned else sizes))), {})
        return x, turned
    if merged and all(sides) and keeps_order(x.shape, (*order[:n], *sides[1], *sides[0])):
        shape = (*outer, _size(x, sides[1]), _size(x, sides[0]))
        return make("reshape", (x,), x.avals[0].update(shape=shape), {}), not keeps_order(x.shape, order)
    if not keeps_order(x.shape, order):
        permuted = x.avals[0].update(shape=tuple(x.shape[d] for d in order))
        x = make("transpose", (x,), permuted, {"permutation": order})
    return make("reshape", (x,), x.avals[0].update(shape=(*outer, *sizes)), {}), False


def _convolution(
    make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any], compiler: Compiler
) -> Node:
    """A convolution of batch, positions, features with a kernel of positions, features in, features out."""
    labels = labels_of(given)
    positions = [str(i) for i in range(len(aval.shape) - 2)]
    standard = ["b", *positions, "f"], [*positions, "i", "o"], ["b", *positions, "f"]
    orders = [tuple(have.index(d) for d in want) for have, want in zip(labels, standard)]
    x, kernel = (permuted(make, node, order) for node, order in zip(operands, orders))
    swaps = compiler.swaps and given.get("feature_group_count", 1) == 1
    if swaps and _size(kernel, range(len(positions))) > _size(x, positions_of(x)):
        # More positions in the kernel than in the input: they change roles, and the kernel is reversed.
        reverse = make("reverse", (kernel,), kernel.avals[0], {"dimensions": tuple(range(len(positions)))})
        x, kernel = reverse, x
    plain = aval.update(shape=tuple(aval.shape[d] for d in orders[2]))
    convolution = in_pieces(make, x, kernel, plain, given) if compiler.tiles else None
    if convolution is None:
        convolution = make("convolution", (x, kernel), plain, {**given, "ordered": True})
    back = [0] * len(aval.shape)
    for i, d in enumerate(orders[2]):
        back[d] = i
    return permuted(make, convolution, tuple(back))


def positions_of(x: Node) -> range:
    """The dimensions of ``[batch, positions…, features]`` that are positions."""
    return range(1, len(x.shape) - 1)


def _in_windows(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    """A reduction of more than 32 elements along a dimension first reduces windows of 32."""
    dims, shape = given["dimensions"], operands[0].shape
    if len(operands) != 2 or all(shape[d] <= _WINDOW for d in dims):
        return None
    part = tuple(-(-n // min(n, _WINDOW)) if d in dims and n else n for d, n in enumerate(shape))
    window = make("reduce_window", operands, operands[0].avals[0].update(shape=part), {"window": _WINDOW, **given})
    return make("reduce", (window, operands[1]), aval, given)


def _cumulative(
    make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any], compiler: Compiler
) -> Node | None:
    """A cumulative operation is computed in rows. The ends of the rows are accumulated in the same way."""
    window = given.get("window_dimensions", ())
    wide = [d for d, size in enumerate(window) if size != 1]
    if len(wide) != 1 or len(operands) != 2 or not compiler.row < window[wide[0]] == aval.shape[wide[0]]:
        return None
    x, start = operands
    if compiler.either_order:  # the dimensions stay in their order
        return _in_rows(make, x, start, compiler.row, wide[0])
    order = list(range(aval.ndim))
    order[wide[0]], order[-1] = order[-1], order[wide[0]]
    rows = _in_rows(make, permuted(make, x, order), start, compiler.row, aval.ndim - 1)
    return permuted(make, rows, order)


def _in_rows(make: Make, x: Node, start: Node, row: int, d: int) -> Node:
    """A cumulative operation along dimension ``d``. If there are few elements, it is one window."""
    n = x.shape[d]

    def as_type(*shape: int) -> ShapedArray:
        return x.avals[0].update(shape=(*x.shape[:d], *shape, *x.shape[d + 1 :]))

    def window(x: Node, aval: ShapedArray) -> Node:
        return make("reduce_window", (x, start), aval, {"row": min(n, row)})

    if n <= row:
        # what comes before each element, and all of them
        return make("slice", (window(x, as_type(n + 1)),), as_type(n), {"row": n})
    rows = -(-n // row)
    filled = make("pad", (x, start), as_type(rows * row), {"row": row})
    sums = window(make("reshape", (filled,), as_type(rows, row), {}), as_type(rows, row))
    ends = make("slice", (sums,), as_type(rows, 1), {"row": row})
    before = _in_rows(make, make("reshape", (ends,), as_type(rows), {}), start, row, d)
    spread = {"broadcast_dimensions": tuple(i + (i > d) for i in range(len(x.shape)))}
    added = make("broadcast_in_dim", (before,), as_type(rows, row), spread)
    whole = make("reshape", (make("add", (sums, added), as_type(rows, row), {}),), as_type(rows * row), {})
    return make("slice", (whole,), as_type(n), {"row": row})


def _widens(x: Node) -> bool:
    """Whether a value is another one in a wider type."""
    return x.op == "convert" and x.operands[0].avals[0].dtype.itemsize < x.avals[0].dtype.itemsize


def _converted(make: Make, x: Node, dtype: Any) -> Node:
    return make("convert", (x,), x.avals[0].update(dtype=dtype), {})


def _collective(
    make: Make, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]
) -> Node | None:
    if given.get("ordered"):
        return None
    (x,) = operands
    dim = given[_MAJOR[op]]
    if all(d == 1 for d in x.shape[:dim]):
        return None
    x = make("reorder", (x,), x.avals[0], {"major": dim})
    moved = make(op, (x,), aval, {**given, "ordered": True})
    return make("reorder", (moved,), aval, {"major": 0})
