"""Convolutions of few images on TPUs: the last dimension of positions is cut in pieces, which become images.

Each piece is followed by the start of the next one, as much as the kernel reads beyond it. What is computed from pieces
element by element, and further convolutions, stay in pieces; what else reads them has them brought back. Source: XLA's
``SpaceToBatchConverter``; how many pieces, and of how many images, was seen in programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import ELEMENTWISE, Make, Node
from meshwright.spmd.memory.parts import sliced

#: the pieces, and the most images whose positions are cut
_PIECES, _IMAGES = 8, 4


def in_pieces(make: Make, x: Node, kernel: Node, aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    """The convolution ``[batch, positions…, features]`` of pieces, brought back; None if it stays one of the images."""
    length, beyond = _sizes(x, kernel, aval, given)
    if not length:
        return None
    d = len(x.shape) - 2
    padding = np.array(given["padding"])
    low = int(padding[-1, 0])
    pieces = x.attributes.get("pieces")
    if pieces is not None and pieces.shape[d] == length:
        joined = _with_neighbors(make, pieces, x.shape[0], low, beyond - low)
    else:
        whole = length * _PIECES
        filled = _padded(make, x, d, low, whole - low - x.shape[d])
        cut = make("reshape", (filled,), _apart(filled.avals[0], d, length), {})
        joined = _to_batch(make, _joined(make, cut, d, d + 1, 0, beyond), d)
    padding[-1] = 0
    result = aval.update(shape=(aval.shape[0] * _PIECES, *aval.shape[1:d], length, aval.shape[-1]))
    convolved = make("convolution", (joined, kernel), result, {**given, "padding": padding, "ordered": True})
    return _brought_back(make, convolved, aval)


def sums_few_images(node: Node) -> bool:
    """Whether a convolution is a kernel's gradient, over few images. These are read in pieces besides, so that what
    computes them does not take the order that the gradient needs: it is copied."""
    x, kernel = node.operands
    return x.shape[-1] <= _IMAGES and prod(kernel.shape[:-2]) > prod(node.shape[1:-1])


def in_place_of_wholes(
    make: Make, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]
) -> Node | None:
    """An elementwise operation on pieces, brought back; None if it is on wholes."""
    found = [x.attributes["pieces"] for x in operands if "pieces" in x.attributes]
    if not found or not (op in ELEMENTWISE or (op == "slice" and _cuts_features(operands[0], aval))):
        return None
    if op == "slice":
        start, limit = ([*n] for n in (given["start_indices"], given["limit_indices"]))
        (whole,) = found
        first, last = [*[0] * (len(start) - 1), start[-1]], [*whole.shape[:-1], limit[-1]]
        return _brought_back(make, sliced(make, whole, first, last, given["strides"]), aval)
    shape = found[0].shape
    parts = [_as_pieces(make, x, shape) for x in operands]
    if any(part is None for part in parts):
        return None
    return _brought_back(
        make, make(op, [part for part in parts if part is not None], aval.update(shape=shape), given), aval
    )


def _cuts_features(x: Node, aval: ShapedArray) -> bool:
    return x.shape[:-1] == aval.shape[:-1]


def _as_pieces(make: Make, x: Node, shape: tuple[int, ...]) -> Node | None:
    """An operand of an operation on pieces; None if it has none."""
    if "pieces" in x.attributes:
        pieces: Node = x.attributes["pieces"]
        return pieces if pieces.shape == shape else None
    if not x.shape:
        return x
    if x.op == "broadcast_in_dim" and set(x.attributes["broadcast_dimensions"]) <= {len(x.shape) - 1}:
        return make("broadcast_in_dim", x.operands, x.avals[0].update(shape=shape), x.attributes)
    return None


def _brought_back(make: Make, pieces: Node, aval: ShapedArray) -> Node:
    d = aval.ndim - 2
    whole = aval.update(shape=(*aval.shape[:d], pieces.shape[d] * _PIECES, aval.shape[-1]))
    back = sliced(make, _from_batch(make, pieces, d, whole), [0] * aval.ndim, aval.shape)
    back.attributes = {**back.attributes, "pieces": pieces}
    return back


def _with_neighbors(make: Make, pieces: Node, images: int, low: int, high: int) -> Node:
    """Pieces with the ends of those before them and the starts of those after them."""
    aval = pieces.avals[0]
    cut = make("reshape", (pieces,), aval.update(shape=(images, _PIECES, *aval.shape[1:])), {})
    joined = _joined(make, cut, 1, len(cut.shape) - 2, low, high)
    return make("reshape", (joined,), aval.update(shape=(aval.shape[0], *joined.shape[2:])), {})


def _joined(make: Make, cut: Node, along: int, d: int, low: int, high: int) -> Node:
    """The pieces along a dimension, with ``low`` positions of those before them and ``high`` of those after them."""
    n, last = cut.shape[d], cut.shape[along] - 1
    parts = [cut]
    for size, first, start, pads in ((low, 0, n - low, (1, 0)), (high, 1, 0, (0, 1))):
        if size:
            lows, highs = [0] * len(cut.shape), list(cut.shape)
            lows[along], highs[along], lows[d], highs[d] = first, first + last, start, start + size
            near = _padded(make, sliced(make, cut, lows, highs), along, *pads)
            parts = [*parts, near] if first else [near, *parts]
    aval = cut.avals[0].update(shape=(*cut.shape[:d], n + low + high, *cut.shape[d + 1 :]))
    return make("concatenate", parts, aval, {"dimension": d})


def _sizes(x: Node, kernel: Node, aval: ShapedArray, given: Mapping[str, Any]) -> tuple[int, int]:
    """The positions of a piece, and those that the kernel reads beyond it; zeros if there are no pieces."""
    d, none = len(x.shape) - 2, (0, 0)
    size, n = kernel.shape[d - 1], x.shape[d]
    padding = np.asarray(given["padding"])
    if x.shape[0] > _IMAGES or size == 1 or n < 2 * _PIECES or padding.min(initial=0) < 0:
        return none
    if given["window_strides"][-1] != 1 or given["lhs_dilation"][-1] != 1 or given["batch_group_count"] != 1:
        return none
    length = -(-max(n + int(padding[-1, 0]), aval.shape[d]) // _PIECES)
    beyond = (size - 1) * given["rhs_dilation"][-1]
    return (length, beyond) if beyond <= length else none


def _padded(make: Make, x: Node, d: int, low: int, high: int) -> Node:
    zeros = [0] * len(x.shape)
    lows, highs = ([*zeros[:d], n, *zeros[d + 1 :]] for n in (low, high))
    shape = (*x.shape[:d], low + x.shape[d] + high, *x.shape[d + 1 :])
    zero = make("constant", (), ShapedArray((), x.avals[0].dtype), {"value": 0})
    edges = {"edge_padding_low": tuple(lows), "edge_padding_high": tuple(highs), "interior_padding": tuple(zeros)}
    return make("pad", (x, zero), x.avals[0].update(shape=shape), edges)


def _apart(aval: ShapedArray, d: int, length: int) -> ShapedArray:
    return aval.update(shape=(*aval.shape[:d], _PIECES, length, *aval.shape[d + 1 :]))


def _to_batch(make: Make, x: Node, d: int) -> Node:
    """The pieces, which are dimension ``d``, as images."""
    order = [0, d, *(i for i in range(1, len(x.shape)) if i != d)]
    aval = x.avals[0].update(shape=tuple(x.shape[i] for i in order))
    moved = x if order == sorted(order) else make("transpose", (x,), aval, {"permutation": tuple(order)})
    return make("reshape", (moved,), aval.update(shape=(prod(aval.shape[:2]), *aval.shape[2:])), {})


def _from_batch(make: Make, x: Node, d: int, aval: ShapedArray) -> Node:
    """The images that the pieces ``x`` are of; ``aval`` is their type."""
    shape = (aval.shape[0], _PIECES, *x.shape[1:])
    order = [0, *range(2, d + 1), 1, *range(d + 1, len(shape))]
    cut = make("reshape", (x,), x.avals[0].update(shape=shape), {})
    if order != sorted(order):
        moved = x.avals[0].update(shape=tuple(shape[i] for i in order))
        cut = make("transpose", (cut,), moved, {"permutation": tuple(order)})
    return make("reshape", (cut,), aval, {})
