"""Operations that XLA writes as others on TPUs, before it fuses them.

The rules were derived from programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Make, Node, lists_of
from meshwright.spmd.memory.transforms import in_full

#: rows of the blocks that decompositions go by
BLOCK = 128


def written_for_tpus(
    make: Make, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]
) -> Node | None:
    """What an operation is written as, or ``None`` if it stays as it is."""
    match op:
        case "scatter" if len(operands) == 3:
            return _one_per_row(make, operands, aval, given)
        case "fft":
            return in_full(make, operands, aval, given)
        case "triangular_solve":
            return _one_block(make, operands, aval, given)
    return None


def _one_per_row(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    """A scatter of one element to each row selects it by its number, so that it is fused."""
    x, places, added = operands
    reducer = str(given.get("reducer", "stablehlo."))
    batches, along = (dimensions(given, key) for key in ("input_batching_dims", "inserted_window_dims"))
    if not reducer.startswith("stablehlo.") or len(along) != 1 or len(batches) != aval.ndim - 1:
        return None
    if added.avals[0].size != math.prod(x.shape[d] for d in batches):
        return None
    rows, spread = tuple(aval.shape[d] for d in batches), {"broadcast_dimensions": tuple(batches)}

    def repeated(x: Node) -> Node:
        dtype = x.avals[0].dtype
        row = make("reshape", (x,), aval.update(shape=rows, dtype=dtype), {})
        return make("broadcast_in_dim", (row,), aval.update(dtype=dtype), spread)

    place, value = repeated(places), repeated(added)
    numbers = make("iota", (), place.avals[0], {"iota_dimension": along[0]})
    here = make("compare", (numbers, place), aval.update(dtype=dtypes.bool_), {})
    if given.get("reducer"):
        value = make(reducer.rpartition(".")[2], (x, value), aval, {})
    return make("select", (here, value, x), aval, {})


def dimensions(given: Mapping[str, Any], key: str) -> list[int]:
    """A list of dimensions from the text of a scatter's dimension numbers."""
    return lists_of(given.get("scatter_dimension_numbers", "")).get(key, [])


def _one_block(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    """A triangular solve of one block of rows is a product with the inverse of the matrix. For a vector it is a sum."""
    matrix, _ = operands
    n = aval.ndim
    if matrix.shape[-1] > BLOCK or 1 in aval.shape[-2:]:
        return None
    inverse = make("inverted", (matrix,), matrix.avals[0], {})
    sides = (inverse, operands[1]) if given.get("left_side", True) else (operands[1], inverse)
    batch = ", ".join(map(str, range(n - 2)))
    numbers = (
        f"lhs_batching_dimensions = [{batch}], rhs_batching_dimensions = [{batch}], "
        f"lhs_contracting_dimensions = [{n - 1}], rhs_contracting_dimensions = [{n - 2}]"
    )
    given = {"dot_dimension_numbers": f"#stablehlo.dot<{numbers}>", "precision_config": "HIGHEST"}
    return make("dot_general", sides, aval, given)
