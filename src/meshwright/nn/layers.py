"""Layers as pure functions: dense, convolutions, pooling, embedding, one_hot, dropout. Features are last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import add
from meshwright.numpy.axes import normal_axis, static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.indexing import take
from meshwright.numpy.linear import matmul
from meshwright.numpy.promotion import (
    as_positions,
    aval_of,
    converted,
    operands,
    promotes_freely,
    result_type,
    scalar_like,
)
from meshwright.ops.collective.named_axis import axis_index, psum
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.ops.products.conv import conv_general_dilated
from meshwright.ops.products.conv import conv_transpose as conv_transpose_op
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, reduce_sum
from meshwright.ops.window.reductions import reduce_window_max, reduce_window_sum
from meshwright.random import bernoulli

Padding = str | Sequence[tuple[int, int]]
_SPATIAL = "HWD"


@promotes_freely("x", "kernel", "bias", ranks=False)
def dense(x: Any, kernel: Any, bias: Any = None, *, precision: Any = None) -> Any:
    """``x @ kernel + bias``.

    Args:
      x: shape (..., inputs).
      kernel: shape (inputs, outputs).
      bias: shape (outputs,), or None.

    Raises:
      ShapeError: sizes do not fit.

    >>> dense(np.ones((2, 3)), np.ones((3, 4)), np.ones(4)).shape
    (2, 4)
    """
    if aval_of(kernel, "dense", 1).ndim != 2:
        raise ShapeError(f"dense: kernel must have shape (inputs, outputs), got {typeof(kernel).shape}")
    out = matmul(x, kernel, precision=precision)
    return out if bias is None else add(out, bias)


def _each(value: int | Sequence[int], n: int, name: str, what: str) -> tuple[int, ...]:
    values = (value,) * n if isinstance(value, int) else tuple(value)
    if len(values) != n:
        raise ArgumentError(f"{name}: {what} must be one integer or {n} of them, got {value}")
    return values


def _letters(x: Any, name: str) -> tuple[int, tuple[str, str, str]]:
    """(number of spatial dimensions, dimension numbers) for features-last arrays."""
    ndim = aval_of(x, name).ndim
    n = ndim - 2
    if not 1 <= n <= 3:
        raise ShapeError(f"{name}: x must have shape (batch, spatial..., features) with 1 to 3 spatial dimensions, got "
                         f"{typeof(x).shape}")  # fmt: skip
    spatial = _SPATIAL[:n]
    return n, (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")


def conv(
    x: Any, kernel: Any, bias: Any = None, strides: int | Sequence[int] = 1, padding: Padding = "SAME", *,
    dilation: int | Sequence[int] = 1, groups: int = 1, precision: Any = None,
) -> Any:  # fmt: skip
    """Convolution of features-last arrays in 1 to 3 spatial dimensions.

    Args:
      x: shape (batch, spatial..., inputs).
      kernel: shape (spatial window..., inputs / groups, outputs).
      bias: shape (outputs,), or None.
      strides, dilation: an integer, or one per spatial dimension.
      padding: "SAME", "VALID", or (low, high) per spatial dimension.

    Raises:
      ShapeError: shapes do not fit.

    >>> conv(np.ones((2, 8, 8, 3), "float32"), np.ones((3, 3, 3, 16), "float32")).shape
    (2, 8, 8, 16)
    """
    n, numbers = _letters(x, "conv")
    dtype = result_type(x, kernel)
    out = conv_general_dilated(
        converted(asarray(x), dtype), converted(asarray(kernel), dtype), _each(strides, n, "conv", "strides"), padding,
        rhs_dilation=_each(dilation, n, "conv", "dilation"), dimension_numbers=numbers, feature_group_count=groups,
        precision=precision,
    )  # fmt: skip
    return out if bias is None else add(out, bias)


def conv_transpose(
    x: Any, kernel: Any, bias: Any = None, strides: int | Sequence[int] = 1, padding: Padding = "SAME", *,
    precision: Any = None,
) -> Any:  # fmt: skip
    """Transposed convolution of features-last arrays; spatial sizes grow by the factor ``strides``.

    Args:
      x: shape (batch, spatial..., inputs).
      kernel: shape (spatial window..., inputs, outputs).

    >>> conv_transpose(np.ones((2, 4, 4, 3), "float32"), np.ones((3, 3, 3, 5), "float32"), strides=2).shape
    (2, 8, 8, 5)
    """
    n, numbers = _letters(x, "conv_transpose")
    dtype = result_type(x, kernel)
    out = conv_transpose_op(
        converted(asarray(x), dtype), converted(asarray(kernel), dtype), _each(strides, n, "conv_transpose", "strides"),
        padding, dimension_numbers=numbers, precision=precision,
    )  # fmt: skip
    return out if bias is None else add(out, bias)


# --- pooling ------------------------------------------------------------------------------------------------
def _windows(x: Any, window: Any, strides: Any, padding: Padding, name: str) -> tuple[Any, ...]:
    n, _ = _letters(x, name)
    size = _each(window, n, name, "window")
    step = size if strides is None else _each(strides, n, name, "strides")
    pads: Any = padding if isinstance(padding, str) else [(0, 0), *padding, (0, 0)]
    return (1, *size, 1), (1, *step, 1), pads


def max_pool(
    x: Any, window: int | Sequence[int], strides: int | Sequence[int] | None = None, padding: Padding = "VALID"
) -> Any:
    """The maximum of each window.

    Args:
      x: shape (batch, spatial..., features).
      window: its size, an integer or one per spatial dimension.
      strides: the distance between windows; by default their size.

    >>> max_pool(np.ones((2, 8, 8, 3)), 2).shape
    (2, 4, 4, 3)
    """
    x = asarray(x)
    return reduce_window_max(x, *_windows(x, window, strides, padding, "max_pool"))


def avg_pool(
    x: Any, window: int | Sequence[int], strides: int | Sequence[int] | None = None, padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Any:  # fmt: skip
    """The mean of each window; arguments as for :func:`max_pool`.

    Args:
      count_include_pad: whether padding counts as zeros; if false, the mean is over elements of ``x`` only.

    >>> avg_pool(np.ones((2, 8, 8, 3)), 2).shape
    (2, 4, 4, 3)
    """
    (x,) = operands("avg_pool", (x,), to_inexact=True)
    size, step, pads = _windows(x, window, strides, padding, "avg_pool")
    total = reduce_window_sum(x, size, step, pads)
    if count_include_pad or pads == "VALID":
        return ops.mul(total, scalar_like(1 / np.prod(size), total))
    ones = broadcast_in_dim(scalar_like(1, x), typeof(x).shape, ())
    return ops.div(total, reduce_window_sum(ones, size, step, pads))


# --- classes and tokens -------------------------------------------------------------------------------------
def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int | str = -1) -> Any:
    """For each integer, a vector with 1 at that position and 0 elsewhere; all 0 for integers out of range.

    Args:
      x: integers of any shape, or lists of them.
      axis: the position of the vectors in the result, or the name of an axis of size ``num_classes`` along which they
        lie.

    >>> one_hot(np.array([1, 0]), 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    (x,) = operands("one_hot", (asarray(x),))
    n = static_int(num_classes, "one_hot", "num_classes")
    target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, "one_hot")
    return convert(_class_mask(x, n, axis), target)


def _class_mask(x: Any, n: int, axis: int | str) -> Any:
    """Whether the position along ``axis`` of the result equals the integer, compared in a type that holds all
    positions."""
    x = as_positions(x)
    if dtypes.is_float(typeof(x).dtype) and dtypes.bit_width(typeof(x).dtype) < 32:
        x = convert(x, dtypes.float32)
    if isinstance(axis, str):
        if psum(1, axis) != n:
            raise ArgumentError(f"one_hot: num_classes={n}, but axis {axis!r} has size {psum(1, axis)}; give the same")
        return ops.eq(x, convert(axis_index(axis), typeof(x).dtype))
    shape = list(typeof(x).shape)
    d = normal_axis(axis, len(shape) + 1, "one_hot")
    shape.insert(d, n)
    index = broadcast_in_dim(x, shape, [e for e in range(len(shape)) if e != d])
    return ops.eq(index, iota(typeof(x).dtype, shape, d))


def pick_class(x: Any, labels: Any) -> Any:
    """``x[..., label]`` for each label, 0 for labels out of range. Uses a comparison and a sum, so that nothing is
    gathered if classes are split over a mesh."""
    shape = typeof(x).shape
    mask = _class_mask(labels, shape[-1], -1)
    return reduce_sum(select(mask, x, scalar_like(0, x)), (len(shape) - 1,))


def embed(table: Any, ids: Any) -> Any:
    """The rows of ``table`` at ``ids``.

    Args:
      table: shape (vocabulary, features).
      ids: integers of any shape; those out of range are clipped.

    >>> embed(np.ones((10, 4)), np.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """
    return take(table, ids, 0, mode="clip")


def dropout(x: Any, rate: float, key: Any, *, deterministic: bool = False) -> Any:
    """Set each element to 0 with probability ``rate``, and divide the others by ``1 - rate``.

    Args:
      rate: a Python number in [0, 1].
      key: a random key; unused (may be None) if ``deterministic`` or ``rate`` is 0.

    Raises:
      ArgumentError: ``rate`` is out of range.

    >>> dropout(np.ones(3), 0.5, None, deterministic=True).tolist()
    [1.0, 1.0, 1.0]
    """
    if not 0 <= rate <= 1:
        raise ArgumentError(f"dropout: rate must be between 0 and 1, got {rate}")
    (x,) = operands("dropout", (x,), to_inexact=True)
    if deterministic or rate == 0:
        return asarray(x)
    if rate == 1:
        return ops.zeros_like(x)
    keep = bernoulli(key, 1 - rate, typeof(x).shape)
    return select(keep, ops.div(x, scalar_like(1 - rate, x)), scalar_like(0, x))
