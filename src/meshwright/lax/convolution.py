"""Convolution utilities: patches, unshared kernels, and result shapes.

Names and conventions follow ``jax.lax``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.precision import PrecisionLike
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.products.conv import (
    ConvDimensionNumbers,
    conv_dimension_numbers,
    conv_general_dilated,
    transposed_pads,
)
from meshwright.ops.products.conv_op import ConvGeneralDilated
from meshwright.ops.products.dot import dot_general
from meshwright.ops.shape.rearrange import transpose
from meshwright.ops.window.geometry import int_tuple, pad_pairs
from meshwright.ops.window.reductions import window_dims

Shape = tuple[int, ...]


# --- patches ------------------------------------------------------------------------------------------------
def conv_general_dilated_patches(
    lhs: Any, filter_shape: Sequence[int], window_strides: Sequence[int], padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None, rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None, precision: PrecisionLike = None, preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """Extract the window of size ``filter_shape`` at each position of a convolution over ``lhs``, as output features.

    The features of a position are those of ``lhs`` (major), each with the window's elements in the order of the
    kernel's spatial dimensions. Parameters are those of :func:`conv_general_dilated`.

    Raises:
      ShapeError: parameters do not fit ``lhs``.
      ArgumentError: malformed parameters.

    Example:
      >>> x = jnp.array([[[1., 2., 3.], [4., 5., 6.]]])
      >>> lax.conv_general_dilated_patches(x, (2,), (1,), "VALID").tolist()
      [[[1.0, 2.0], [2.0, 3.0], [4.0, 5.0], [5.0, 6.0]]]
    """
    aval, rank = typeof(lhs), len(filter_shape) + 2
    numbers = conv_dimension_numbers(aval.shape, (1,) * rank, dimension_numbers)
    features, extent = aval.shape[numbers.lhs_spec[1]], math.prod(filter_shape)
    one_hot = np.eye(extent, dtype=aval.dtype).reshape(extent, 1, *filter_shape)
    kernel = np.tile(one_hot, (features, *(1,) * (rank - 1)))
    rhs = kernel.transpose(np.argsort(numbers.rhs_spec).tolist())
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, numbers, features, 1,
        precision or "highest", preferred_element_type,
    )  # fmt: skip


def conv_general_dilated_local(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: PrecisionLike = None,
) -> Any:
    """Convolution with a separate kernel at each position (a locally connected layer).

    The spatial dimensions of ``rhs`` are those of the result, and its input features are those of
    :func:`conv_general_dilated_patches` with ``filter_shape``. Other parameters are those of
    :func:`conv_general_dilated`.

    Raises:
      ShapeError: operands do not fit each other or the parameters.
      ArgumentError: malformed parameters.

    Example:
      >>> x = jnp.array([[[1., 2., 3.]]])
      >>> kernels = jnp.array([[[1., 0.], [10., 1.]]])
      >>> lax.conv_general_dilated_local(x, kernels, (1,), "VALID", (2,)).tolist()
      [[[21.0, 3.0]]]
    """
    numbers = conv_dimension_numbers(typeof(lhs).shape, typeof(rhs).shape, dimension_numbers)
    patches = conv_general_dilated_patches(
        lhs, filter_shape, window_strides, padding, lhs_dilation, rhs_dilation, numbers, precision
    )
    _, inputs, *kernel_space = numbers.rhs_spec
    batch, features, *space = numbers.out_spec
    patch, kernel = typeof(patches).shape, typeof(rhs).shape
    if [patch[d] for d in (features, *space)] != [kernel[d] for d in (inputs, *kernel_space)]:
        raise ShapeError(
            f"conv_general_dilated_local: the patches of lhs have shape {patch}, dimension {features} being features; "
            f"rhs of shape {kernel} must have as many input features and the same positions"
        )
    out = dot_general(rhs, patches, (((inputs,), (features,)), (tuple(kernel_space), tuple(space))), precision)
    # The result has positions, output features, batch.
    order = [*space, features, batch]
    return transpose(out, np.argsort(order).tolist())


# --- shapes -------------------------------------------------------------------------------------------------
def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[Shape, Shape, Shape]:
    """The permutations that move batch (or output) and feature dimensions of ``lhs``, kernel and result first.

    Raises:
      ArgumentError: specs do not name each dimension once.

    Example:
      >>> lax.conv_general_permutations(("NHWC", "HWIO", "NHWC"))
      ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    """
    lhs, rhs, _ = dimension_numbers
    return tuple(conv_dimension_numbers((0,) * len(lhs), (0,) * len(rhs), tuple(dimension_numbers)))  # type: ignore


def _shape(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], numbers: ConvDimensionNumbers, strides: Shape, pads: Any,
    dilation: Shape, batch_groups: int = 1,
) -> Shape:  # fmt: skip
    features = lhs_shape[numbers.lhs_spec[1]]
    groups = max(1, features // max(1, rhs_shape[numbers.rhs_spec[1]]))
    op = ConvGeneralDilated(strides, pads, dilation, (1,) * len(strides), numbers, groups, batch_groups, None, None)
    return op.infer(*(ShapedArray(tuple(s), dtypes.float32) for s in (lhs_shape, rhs_shape))).shape


def _read(
    what: str, lhs: Sequence[int], rhs: Sequence[int], strides: Any, numbers: Any, argument: str = "window_strides"
) -> tuple[ConvDimensionNumbers, Shape, list[int], list[int]]:
    """Dimension numbers, strides, and the spatial sizes of ``lhs`` and of the kernel."""
    read = conv_dimension_numbers(lhs, rhs, numbers)
    steps = int_tuple(what, argument, strides, len(lhs) - 2)
    return read, steps, [lhs[d] for d in read.lhs_spec[2:]], [rhs[d] for d in read.rhs_spec[2:]]


def conv_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], strides: Sequence[int],
    pads: str | Sequence[tuple[int, int]], batch_group_count: int = 1,
) -> Shape:  # fmt: skip
    """The shape of the convolution of ``[N, C, ...]`` with ``[O, I, ...]``.

    Raises:
      ShapeError, ArgumentError: parameters do not fit.

    Example:
      >>> lax.conv_shape_tuple((2, 3, 8, 9), (4, 3, 3, 2), (2, 1), [(1, 1), (0, 0)])
      (2, 4, 4, 8)
    """
    numbers, steps, sizes, extents = _read("conv_shape_tuple", lhs_shape, rhs_shape, strides, None, "strides")
    pairs = pad_pairs("conv_shape_tuple", pads, sizes, extents, steps)
    return _shape(lhs_shape, rhs_shape, numbers, steps, pairs, (1,) * len(steps), batch_group_count)


def _general_shape(name: str, transposed: bool, what: str, example: str) -> Callable[..., Shape]:
    def shape_tuple(
        lhs_shape: Sequence[int], rhs_shape: Sequence[int], window_strides: Sequence[int],
        padding: str | Sequence[tuple[int, int]], dimension_numbers: Any,
    ) -> Shape:  # fmt: skip
        numbers, steps, sizes, extents = _read(name, lhs_shape, rhs_shape, window_strides, dimension_numbers)
        ones = (1,) * len(steps)
        if transposed:
            return _shape(lhs_shape, rhs_shape, numbers, ones, transposed_pads(name, padding, extents, steps), steps)
        return _shape(lhs_shape, rhs_shape, numbers, steps, pad_pairs(name, padding, sizes, extents, steps), ones)

    shape_tuple.__name__ = shape_tuple.__qualname__ = name
    shape_tuple.__doc__ = f"""The shape of {what}.

    Raises:
      ShapeError, ArgumentError: parameters that do not fit.

    Example:
      {example}
    """
    return shape_tuple


conv_general_shape_tuple = _general_shape(
    "conv_general_shape_tuple",
    False,
    "a convolution whose dimensions stand as ``dimension_numbers`` says",
    """>>> lax.conv_general_shape_tuple((2, 8, 9, 3), (3, 2, 3, 4), (2, 1), "SAME", ("NHWC", "HWIO", "NHWC"))
      (2, 4, 9, 4)""",
)
conv_transpose_shape_tuple = _general_shape(
    "conv_transpose_shape_tuple",
    True,
    "a transposed convolution, as :func:`conv_transpose` makes it",
    """>>> lax.conv_transpose_shape_tuple((2, 8, 9, 3), (3, 2, 3, 4), (2, 1), "VALID", ("NHWC", "HWIO", "NHWC"))
      (2, 17, 10, 4)""",
)


def reduce_window_shape_tuple(
    operand_shape: Sequence[int], window_dimensions: Sequence[int], window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]], base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Shape:  # fmt: skip
    """The shape of a :func:`reduce_window`: the number of windows in each dimension.

    Raises:
      ShapeError, ArgumentError: parameters do not fit.

    Example:
      >>> lax.reduce_window_shape_tuple((7, 6), (3, 2), (2, 2), [(0, 0), (1, 1)])
      (3, 4)
    """
    windows = window_dims(
        "reduce_window_shape_tuple", operand_shape, window_dimensions, window_strides, padding, base_dilation,
        window_dilation,
    )  # fmt: skip
    return tuple(window.output_size(n) for window, n in zip(windows, operand_shape))
