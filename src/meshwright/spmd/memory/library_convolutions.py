"""Convolutions as XLA hands them to cuDNN on GPUs, with the copies that it makes for them.

cuDNN knows three kinds: the forward convolution, the gradient of its input, and the gradient of its kernel. Features
are the minor dimension of arrays. Kernels are copied, so that the output features are their major dimension. A
convolution that is not one of the two gradients is a forward convolution, and its arrays are copied into that order.
Its input is padded first if it is dilated, or if one side has more padding. Source: XLA's ``ConvRewriter`` and
``ConvPaddingLegalization``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Make, Node
from meshwright.spmd.memory.simplify import permuted

_BRACKETS = re.compile(r"\[([^\]]*)\]")

Labels = Sequence[str]


def labels_of(given: Mapping[str, Any]) -> list[list[str]]:
    """The names of the dimensions of input, kernel and output."""
    return [[d.strip() for d in text.split(",")] for text in _BRACKETS.findall(str(given["dimension_numbers"]))]


def library_convolution(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node:
    """A convolution with the copies around it."""
    (x, kernel), (left, right, out), given = operands, labels_of(given), {**given, "ordered": True}
    positions = [str(i) for i in range(aval.ndim - 2)]
    if _is_kernel_gradient(left, given):
        order = _order(out, ["f", *positions, "b"])
        return _unpermuted(make, make("convolution", operands, _in_order(aval, order), given), order)
    source = _reversed(kernel)
    if source is not None and _is_input_gradient(given):
        written = _order(right, ["i", *positions, "o"])
        return make("convolution", (x, permuted(make, source, written)), aval, given)
    sizes = [prod(node.shape[side.index(d)] for d in positions) for node, side in ((x, left), (kernel, right))]
    if sizes[1] > sizes[0]:  # they change roles
        x, kernel = (permuted(make, node, _order(side, [ends[0], *positions, ends[1]]))
                     for node, side, ends in ((kernel, right, "oi"), (x, left, "bf")))  # fmt: skip
    else:
        x = permuted(make, _padded(make, x, left, positions, given), _order(left, ["b", *positions, "f"]))
        kernel = permuted(make, kernel, _order(right, ["o", *positions, "i"]))
    order = _order(out, ["b", *positions, "f"])
    return _unpermuted(make, make("convolution", (x, kernel), _in_order(aval, order), given), order)


def _is_kernel_gradient(left: Labels, given: Mapping[str, Any]) -> bool:
    """Whether a convolution sums over a batch, which is where features usually are, without dilation of its input."""
    return left[0] == "f" and _ones(given, "lhs_dilation") and _ones(given, "window_strides")


def _is_input_gradient(given: Mapping[str, Any]) -> bool:
    return _ones(given, "window_strides") and _ones(given, "rhs_dilation")


def _ones(given: Mapping[str, Any], name: str) -> bool:
    return all(n == 1 for n in given.get(name, ()))


def _reversed(kernel: Node) -> Node | None:
    """The kernel before it is reversed, or None if it is not."""
    return kernel.operands[0] if kernel.op == "reverse" else None


def _padded(make: Make, x: Node, labels: Labels, positions: Labels, given: Mapping[str, Any]) -> Node:
    """The input, padded where cuDNN does not support the padding."""
    edges = [tuple(map(int, pair)) for pair in given.get("padding", ())]
    apart = [int(n) for n in given.get("lhs_dilation", ())] or [1] * len(positions)
    if all(a == b >= 0 for a, b in edges) and all(n == 1 for n in apart):
        return x
    low, high, inside = ([0] * len(labels) for _ in range(3))
    shape = list(x.shape)
    for name, (a, b), n in zip(positions, edges, apart):
        d = labels.index(name)
        low[d], high[d], inside[d] = a, b, n - 1
        shape[d] = a + b + (shape[d] - 1) * n + 1
    zero = make("constant", (), ShapedArray((), x.avals[0].dtype), {"value": 0})
    pads = {"edge_padding_low": tuple(low), "edge_padding_high": tuple(high), "interior_padding": tuple(inside)}
    return make("pad", (x, zero), x.avals[0].update(shape=tuple(shape)), pads)


def _order(have: Labels, want: Labels) -> tuple[int, ...]:
    return tuple(have.index(d) for d in want)


def _in_order(aval: ShapedArray, order: Sequence[int]) -> ShapedArray:
    return aval.update(shape=tuple(aval.shape[d] for d in order))


def _unpermuted(make: Make, x: Node, order: Sequence[int]) -> Node:
    return permuted(make, x, tuple(order.index(d) for d in range(len(order))))
