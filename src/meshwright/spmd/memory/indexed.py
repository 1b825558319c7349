"""Gathers and scatters in the forms in which compilers compute them.

XLA gives each batching dimension a number of its own beside the others. On CPUs, all dimensions of indices but the last
are merged to one. Sources: XLA's ``BatchedGatherScatterNormalizer``, ``GatherSimplifier`` and ``ScatterSimplifier``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.compilers import Compiler
from meshwright.spmd.memory.graph import COLLECTIVES, Make, Node, lists_of
from meshwright.spmd.memory.simplify import permuted
from meshwright.spmd.memory.tpu_forms import dimensions

#: nodes whose results have an order of their own; others are written in the order that their user wants
_FIXED = COLLECTIVES | {
    "parameter",
    "constant",
    "matmul",
    "convolution",
    "get",
    "reduce",
    "sort",
    "custom_call",
    "reorder",
}


def gathered(
    make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any], compiler: Compiler
) -> Node | None:
    """The form of a gather, or ``None`` if it has it."""
    if "batched" in given:
        return None
    x, places = operands
    lists = lists_of(given.get("dimension_numbers", ""))
    batched = lists.get("operand_batching_dims", ())
    if compiler.tiles:
        places = _with_each_number(make, places, [x.shape[d] for d in batched])
        return make("gather", (x, places), aval, {**given, "batched": True})
    if batched:
        places = _with_numbers(make, places, len(batched), flat=False)
    if not compiler.rows_of_places:
        return make("gather", (x, places), aval, {**given, "batched": True}) if batched else None
    window, outer = _apart(aval.ndim, lists.get("offset_dims", ()))
    shape = [tuple(aval.shape[d] for d in dims) for dims in (outer, window)]
    rows = aval.update(shape=(math.prod(shape[0]), *map(int, given["slice_sizes"])))
    found = make("gather", (x, _rows(make, places)), rows, {**given, "batched": True})
    whole = make("reshape", (found,), aval.update(shape=(*shape[0], *shape[1])), {})
    order = (*outer, *window)
    return permuted(make, whole, [order.index(d) for d in range(aval.ndim)])


def scattered(
    make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any], compiler: Compiler
) -> Node | None:
    """The form of a scatter to one array, or ``None`` if it has it."""
    x, places, updates = operands
    lists = lists_of(given.get("scatter_dimension_numbers", ""))
    if "batched" not in given:
        if n := len(lists.get("input_batching_dims", ())):
            places = _with_numbers(make, places, n, compiler.tiles)
        if compiler.rows_of_places:
            places = _rows(make, places)
        if places is not operands[1]:
            return make("scatter", (x, places, updates), aval, {**given, "batched": True})
    if compiler.tiles or "ordered" in given or not _is_copied(updates, given):
        return None
    updates = make("reorder", (updates,), updates.avals[0], {"major": 0})
    return make("scatter", (x, places, updates), aval, {**given, "ordered": True})


def _is_copied(updates: Node, given: Mapping[str, Any]) -> bool:
    """Whether the updates of a scatter are copied first. A row of windows is not."""
    in_window = dimensions(given, "update_window_dims")
    return updates.op in _FIXED and [d for d in range(len(updates.shape)) if d not in in_window] != [0]


def _with_numbers(make: Make, indices: Node, batches: int, flat: bool) -> Node:
    """Indices with a number for each batching dimension as well. ``flat``: one number for all dimensions."""
    aval = indices.avals[0]
    numbers = make("iota", (), aval, {"along": "batches"})
    if flat:
        return make("add", (numbers, indices), aval, {})
    joined = aval.update(shape=(*aval.shape[:-1], aval.shape[-1] * (batches + 1)))
    return make("concatenate", (*[numbers] * batches, indices), joined, {"dimension": aval.ndim - 1})


def _with_each_number(make: Make, indices: Node, batches: Sequence[int]) -> Node:
    """Indices with a number of their own for each batching dimension, packed into one as they are computed.

    Where a batching dimension has one position, whose number is 0, all numbers are first written beside each other.
    """
    joined = indices.op == "concatenate" and indices.shape[-1] == len(indices.operands)
    parts = list(indices.operands) if joined else [indices]
    aval = parts[0].avals[0]
    numbers = [make("iota", (), aval, {"along": i}) for i, n in enumerate(batches) if n > 1]
    if numbers and min(batches) == 1:
        zero = make("constant", (), ShapedArray((), aval.dtype), {"value": 0})
        zeros = make("broadcast_in_dim", (zero,), aval, {"broadcast_dimensions": ()})
        whole = aval.update(shape=(*aval.shape[:-1], aval.shape[-1] + len(batches)))
        return make("concatenate", (*numbers, *parts, zeros), whole, {"dimension": aval.ndim - 1})
    packed, *rest = (*numbers, *parts)
    for part in rest:
        packed = make("add", (packed, part), aval, {})
    return packed


def _rows(make: Make, places: Node) -> Node:
    """Indices, one row for each element, or slice, that is gathered or scattered."""
    *outer, n = places.shape
    return make("reshape", (places,), places.avals[0].update(shape=(math.prod(outer), n)), {})


def _apart(ndim: int, window: Sequence[int]) -> tuple[list[int], list[int]]:
    """The dimensions of slices, and the others before them."""
    return list(window), [d for d in range(ndim) if d not in window]
