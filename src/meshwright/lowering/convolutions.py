"""Convolutions in forms for which XLA's CPU kernels are correct and fast.

A convolution whose windows cover one position, or all positions once (the gradient of such a kernel), is a matrix
product. With few output positions, it is a product of patches (im2col), which are small compared to the kernel. So is
one whose windows are as large as the image, as in kernel gradients (:mod:`~meshwright.lowering.kernel_gradients`). For
the others, XLA uses YNNPACK's kernels if they support the form, and Eigen's otherwise, which are faster for large
kernels. Measured in float32, four images, CPU time of one thread in milliseconds, for YNNPACK, Eigen and this module:

========================  =======  =====  =====
``(7, 7, 512) -> 512`` 3    12.44   9.21   9.18
``(7, 7, 512) -> 2048`` 1    5.98   4.45   4.53
 its kernel's gradient      10.56   5.04   4.42
``(56, 56, 64) -> 256`` 1    5.77   4.65   4.52
 its kernel's gradient      20.11   6.79   5.01
``(56, 56, 64) -> 64`` 3     9.58  10.58
 its kernel's gradient      10.55  18.17
========================  =======  =====  =====

Negative low padding becomes a slice: combined with positive high padding, both libraries' kernels read wrong rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from meshwright.core.config import config
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import Pass, inline_calls
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ir.tracing import typeof
from meshwright.lowering.depthwise import by_taps
from meshwright.lowering.kernel_gradients import is_kernel_gradient, of_patches
from meshwright.lowering.narrow_bits import called
from meshwright.ops.control.markers import OptimizationBarrier
from meshwright.ops.elementwise.table import scalar_like
from meshwright.ops.products.conv_op import ConvGeneralDilated
from meshwright.ops.products.dot import DotGeneral
from meshwright.ops.shape.rearrange import reshape, transpose
from meshwright.ops.shape.slice_pad import Slice, concatenate, pad, slice_
from meshwright.ops.window.geometry import WindowDim


# --- padding that cuts --------------------------------------------------------------------------------------
def cut_before(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with negative low padding of convolutions replaced by slices."""
    return replaced_in_all(jaxpr, lambda _: _cut)


def _cut(eqn: JaxprEqn) -> list[JaxprEqn]:
    op = eqn.op
    if not isinstance(op, ConvGeneralDilated):
        return []
    x, y = eqn.invars
    starts = [0] * x.aval.ndim
    padding = list(op.padding)
    for i, (d, (low, high)) in enumerate(zip(op.dimension_numbers.lhs_spec[2:], padding)):
        if low < 0 and op.lhs_dilation[i] == 1:
            starts[d] = min(-low, x.aval.shape[d])
            padding[i] = 0, high + low + starts[d]
    if not any(starts):
        return []
    rest = Slice(tuple(starts), x.aval.shape, (1,) * x.aval.ndim)
    kept = Var(rest.infer(x.aval))
    return [
        JaxprEqn(rest, [x], [kept], eqn.source, eqn.note),
        eqn.replace(op=replace(op, padding=tuple(padding)), invars=[kept, y]),
    ]


# --- convolutions that are products -------------------------------------------------------------------------
def as_products(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with convolutions replaced by matrix products or sums where these are faster."""
    after = replaced_in_all(jaxpr, lambda _: _product)
    return jaxpr if after is jaxpr else inline_calls(after)


def _product(eqn: JaxprEqn) -> list[JaxprEqn]:
    op = eqn.op
    if not isinstance(op, ConvGeneralDilated):
        return []
    if op.groups > 1:
        taps = by_taps(op, eqn)
        return [called(partial(taps, op), eqn.invars, eqn.outvars, eqn.source)] if taps else []
    if eqn.outvars[0].aval.dtype != np.float32:
        return []
    (x, y), (out,) = (a.aval for a in eqn.invars), (v.aval for v in eqn.outvars)
    if x.dtype != out.dtype or 0 in (*x.shape, *y.shape, *out.shape) or any(d > 1 for d in op.lhs_dilation):
        return []
    windows = op.windows(y.shape)
    sizes = [x.shape[d] for d in op.dimension_numbers.lhs_spec[2:]]
    if is_product(op, x.shape, y.shape):
        return [called(partial(_one_product, op), eqn.invars, eqn.outvars, eqn.source)]
    if is_kernel_gradient(op, x.shape, y.shape, out.shape):
        return [called(partial(of_patches, op), eqn.invars, eqn.outvars, eqn.source)]
    columns = out.shape[op.dimension_numbers.out_spec[1]]
    if 2 * (out.size // columns) <= columns and all(w.size <= w.output_size(n) for w, n in zip(windows, sizes)):
        return [called(partial(_of_patches, op), eqn.invars, eqn.outvars, eqn.source)]
    return []


def is_product(op: ConvGeneralDilated, lhs: Sequence[int], rhs: Sequence[int]) -> bool:
    """Whether a convolution of operands with these shapes is one matrix product.

    In each spatial dimension, the window has one position or is applied once, and covers no padding.
    """
    seen = zip(op.windows(rhs), (lhs[d] for d in op.dimension_numbers.lhs_spec[2:]))
    return all((w.size == 1 or w.output_size(n) == 1) and w.low == 0 and w.high <= 0 for w, n in seen)


def _one_product(op: ConvGeneralDilated, x: Any, y: Any) -> list[Any]:
    lspec, rspec, ospec = op.dimension_numbers
    windows, out = op.windows(typeof(y).shape), op.infer(typeof(x), typeof(y))
    summed = [i for i, w in enumerate(windows) if w.size > 1]
    slid = [i for i, w in enumerate(windows) if w.size == 1]
    x = _seen(op, x, (0,) * len(windows), out.shape, windows)
    # Spatial dimensions that windows slide over are free dimensions of the product; the kernel has size 1 there.
    last = [rspec[1], *(rspec[2 + i] for i in summed), rspec[0]]
    y = transpose(y, sorted(range(len(rspec)), key=lambda d: (d in last, d)))
    left = [d for d in range(len(rspec)) if d in last]
    y = reshape(y, [typeof(y).shape[len(slid) + j] for j in range(len(left))])
    contracted = [lspec[1], *(lspec[2 + i] for i in summed)], [left.index(d) for d in last[:-1]]
    free = {lspec[0]: ospec[0], **{lspec[2 + i]: ospec[2 + i] for i in slid}}
    order = [free[d] for d in sorted(free)]
    if summed and typeof(y).shape[left.index(rspec[0])] < out.shape[ospec[0]]:
        value = _dot(op, y, x, contracted[::-1])
        order = [ospec[1], *order]
    else:
        value = _dot(op, x, y, contracted)
        order = [*order, ospec[1]]
    if summed:
        value = OptimizationBarrier().bind(value)[0]  # keeps XLA from folding the transpose
    return [reshape(transpose(value, sorted(range(len(order)), key=order.__getitem__)), out.shape)]


def _seen(
    op: ConvGeneralDilated, x: Any, offsets: Sequence[int], out: Sequence[int], windows: Sequence[WindowDim]
) -> Any:
    """The elements of ``x`` at ``offsets`` of the windows, one per output position.

    In dimensions with one output position, all elements that the window covers.
    """
    lspec, _, ospec = op.dimension_numbers
    starts, limits, strides = [0] * len(lspec), list(typeof(x).shape), [1] * len(lspec)
    for d, o, offset, w in zip(lspec[2:], ospec[2:], offsets, windows):
        rows, step = (w.size, w.window_dilation) if out[o] == 1 and not offset and w.size > 1 else (out[o], w.stride)
        starts[d], limits[d], strides[d] = offset, offset + (rows - 1) * step + 1, step
    return slice_(x, starts, limits, strides)


def _dot(op: ConvGeneralDilated, x: Any, y: Any, contracted: Sequence[Sequence[int]]) -> Any:
    lc, rc = contracted
    return DotGeneral(((tuple(lc), tuple(rc)), ((), ())), op.precision and op.precision[0]).bind(x, y)


def _of_patches(op: ConvGeneralDilated, x: Any, y: Any) -> list[Any]:
    """The convolution as im2col: a matrix with one patch per output position, times the kernel as a matrix."""
    lspec, rspec, ospec = op.dimension_numbers
    windows, out = op.windows(typeof(y).shape), op.infer(typeof(x), typeof(y))
    order = (lspec[0], *lspec[2:], lspec[1])
    config = [(0, 0, 0)] * len(lspec)
    for d, w in zip(lspec[2:], windows):
        config[d] = (w.low, w.high, 0)
    x = pad(x, scalar_like(0, x), config)
    offsets = product(*(range(0, w.extent, w.window_dilation) for w in windows))
    single = [replace(w, size=1) for w in windows]
    parts = [transpose(_seen(op, x, o, out.shape, single), order) for o in offsets]
    rows = concatenate(parts, len(order) - 1)
    shape = typeof(rows).shape
    kernel = transpose(y, (*rspec[2:], rspec[1], rspec[0]))
    kernel = reshape(kernel, (shape[-1], typeof(kernel).shape[-1]))
    value = _dot(op, reshape(rows, (prod(shape[:-1]), shape[-1])), kernel, ((1,), (0,)))
    value = reshape(value, (*shape[:-1], typeof(kernel).shape[1]))
    where = (ospec[0], *ospec[2:], ospec[1])
    return [transpose(value, sorted(range(len(where)), key=where.__getitem__))]


# --- the passes ---------------------------------------------------------------------------------------------
CUT_CONVOLUTIONS = Pass("cut convolutions", cut_before, "Negative low padding of convolutions becomes slices.")
CONVOLVING_PRODUCTS = Pass(
    "convolutions as products",
    lambda j: as_products(j) if config.platform == "cpu" else j,
    "On CPUs, pointwise and some other convolutions become matrix products, depthwise ones sums.",
)
