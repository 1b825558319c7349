"""Algebraic simplification, as by XLA, of slices, pads, concatenations, and dynamic slices and updates.

A slice of such an operation becomes a slice of its operands; dynamic slices at constant indices become static.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Make, Node


def part(make: Make, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    """A simpler node that is equivalent to such an operation, or ``None``."""
    x = operands[0]
    match op:
        case "slice" | "dynamic_slice" | "pad" if x.shape == aval.shape:
            return x
        case "slice" if "start_indices" in given:
            return _slice(make, x, aval, given)
        case "reduce_window" if x.shape == aval.shape and all(n == 1 for n in given.get("window_dimensions", (0,))):
            return x
        case "dynamic_slice":
            return _at_known_place(make, operands, aval)
        case "dynamic_update_slice":
            return _update(make, operands, aval)
        case "pad" if min((*given.get("edge_padding_low", ()), *given.get("edge_padding_high", ())), default=0) < 0:
            return _cut(make, operands, aval, given)
        case "concatenate":
            return _joined(make, operands, aval, given)
        case "gather" if math.prod(operands[1].shape[:-1]) == 1:
            return make("dynamic_slice", (x, operands[1]), aval, {"taken": True})
        case "scatter" if len(operands) == 3 and math.prod(operands[1].shape[:-1]) == 1:
            return _write(make, operands, aval, given)
    return None


def sliced(make: Make, x: Node, start: Sequence[int], limit: Sequence[int], stride: Sequence[int] = ()) -> Node:
    """The slice of ``x`` from ``start`` to ``limit``, simplified."""
    stride = tuple(stride) or (1,) * len(start)
    shape = tuple(-(-(b - a) // s) for a, b, s in zip(start, limit, stride))
    given = {"start_indices": tuple(start), "limit_indices": tuple(limit), "strides": stride}
    return make("slice", (x,), x.avals[0].update(shape=shape), given)


def _slice(make: Make, x: Node, aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    start, limit, stride = (given[key] for key in ("start_indices", "limit_indices", "strides"))
    if x.op == "slice" and "start_indices" in x.attributes:
        if {*stride, *x.attributes["strides"]} != {1}:
            return None  # XLA keeps slices with steps apart, which then read a part that others may share
        first = x.attributes["start_indices"]
        bounds = [[a + b for a, b in zip(first, of)] for of in (start, limit)]
        return sliced(make, x.operands[0], *bounds)
    if x.op == "pad" and "edge_padding_low" in x.attributes and not any(x.attributes["interior_padding"]):
        low, inside = x.attributes["edge_padding_low"], x.operands[0].shape
        if all(lo <= a and b <= lo + n for lo, n, a, b in zip(low, inside, start, limit)):
            first, last = ([i - lo for i, lo in zip(of, low)] for of in (start, limit))
            return sliced(make, x.operands[0], first, last, stride)
    if x.op == "concatenate":
        return _of_joined(make, x, start, limit, stride)
    if x.op == "reduce_window" and "window_dimensions" in x.attributes and len(x.operands) == 2 and len(x.shape) > 1:
        return _of_windows(make, x, start, limit, aval)
    return None


def _cut(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node:
    """A pad that cuts off edges pads the others first."""
    low, high = ([max(n, 0) for n in given[edge]] for edge in ("edge_padding_low", "edge_padding_high"))
    start = [wide - n for wide, n in zip(low, given["edge_padding_low"])]
    cut = [wide - n for wide, n in zip(high, given["edge_padding_high"])]
    shape = tuple(a + n + b for a, n, b in zip(start, aval.shape, cut))
    attributes = {**given, "edge_padding_low": tuple(low), "edge_padding_high": tuple(high)}
    padded = make("pad", operands, aval.update(shape=shape), attributes)
    return sliced(make, padded, start, [a + n for a, n in zip(start, aval.shape)])


def _of_windows(make: Make, x: Node, start: Sequence[int], limit: Sequence[int], aval: ShapedArray) -> Node | None:
    """A slice of the one window that holds all elements (the last of a cumulative operation) is a reduction."""
    size, padding = x.attributes["window_dimensions"], np.asarray(x.attributes["padding"])
    whole = x.operands[0].shape
    wide = [d for d, n in enumerate(size) if n != 1]
    if len(wide) != 1 or size[wide[0]] != whole[wide[0]] or padding.sum() != size[wide[0]] - 1:
        return None
    (d,) = wide
    alone = (start[d], limit[d]) == (padding[d, 0], padding[d, 0] + 1)
    if not alone or any((a, b) != (0, n) for i, (a, b, n) in enumerate(zip(start, limit, whole)) if i != d):
        return None
    given = {"dimensions": (d,), "reducer": x.attributes.get("reducer")}
    return make(
        "reshape", (make("reduce", x.operands, aval.update(shape=(*whole[:d], *whole[d + 1 :])), given),), aval, {}
    )


def _of_joined(make: Make, x: Node, start: Sequence[int], limit: Sequence[int], stride: Sequence[int]) -> Node | None:
    """A slice of a concatenation only needs the parts that it overlaps."""
    d, at = x.attributes["dimension"], 0
    reached, before = [], 0
    for one in x.operands:
        if at + one.shape[d] <= start[d]:
            before = at + one.shape[d]
        elif at < limit[d]:
            reached.append(one)
        at += one.shape[d]
    if len(reached) == len(x.operands):
        return None
    shape = list(x.shape)
    shape[d] = sum(one.shape[d] for one in reached)
    whole = make("concatenate", reached, x.avals[0].update(shape=tuple(shape)), {"dimension": d})
    first, last = ([i - before * (dim == d) for dim, i in enumerate(of)] for of in (start, limit))
    return sliced(make, whole, first, last, stride)


def _joined(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    """A concatenation of concatenations along the same dimension is one concatenation."""
    if len(operands) == 1:
        return operands[0]
    inner = [x.op == "concatenate" and x.attributes["dimension"] == given["dimension"] for x in operands]
    if not any(inner):
        return None
    return make("concatenate", [y for x, i in zip(operands, inner) for y in (x.operands if i else (x,))], aval, given)


def _places(indices: Sequence[Node], x: Node, shape: Sequence[int]) -> list[int] | None:
    """The start of a part of ``shape``, if it is known."""
    if not indices or len(indices) != len(x.shape) or any("value" not in i.attributes for i in indices):
        return None
    return [int(np.clip(i.attributes["value"], 0, n - k)) for i, n, k in zip(indices, x.shape, shape)]


def _at_known_place(make: Make, operands: Sequence[Node], aval: ShapedArray) -> Node | None:
    start = _places(operands[1:], operands[0], aval.shape)
    if start is None:
        return None
    return sliced(make, operands[0], start, [a + n for a, n in zip(start, aval.shape)])


def _update(make: Make, operands: Sequence[Node], aval: ShapedArray) -> Node | None:
    """An update of a whole array is the result. An update of a splat at a known place is a pad."""
    x, update, *indices = operands
    if update.shape == aval.shape:
        return update
    start = _places(indices, x, update.shape)
    if start is None or not x.is_splat():
        return None
    number = x
    while number.op != "constant":
        number = number.operands[0]
    high = tuple(n - a - k for n, a, k in zip(aval.shape, start, update.shape))
    given = {"edge_padding_low": tuple(start), "edge_padding_high": high, "interior_padding": (0,) * len(start)}
    return make("pad", (update, number), aval, given)


def _write(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node:
    """A scatter to one place reads what is there, adds the update, and writes the sum."""
    x, indices, update = operands
    window = update
    if given.get("reducer", "").startswith("stablehlo."):
        old = make("dynamic_slice", (x, indices), update.avals[0], {"taken": True})
        window = make(given["reducer"].rpartition(".")[2], (old, update), update.avals[0], {})
    return Node("dynamic_update_slice", (x, window, indices), (aval,), {})
