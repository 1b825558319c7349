"""Convolution functions for users, with defaults, padding words and dimension numbers, for the op in :mod:`.conv_op`.

Names and conventions follow ``jax.lax``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.core.precision import PrecisionLike
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.products.conv_op import ConvDimensionNumbers, ConvGeneralDilated
from meshwright.ops.products.dot import precisions
from meshwright.ops.shape.rearrange import rev
from meshwright.ops.window.geometry import Pads, dilate, int_tuple, pad_pairs, padtype_to_pads

__all__ = [
    "ConvDimensionNumbers",
    "ConvGeneralDilated",
    "ConvGeneralDilatedDimensionNumbers",
    "conv",
    "conv_dimension_numbers",
    "conv_general_dilated",
    "conv_transpose",
    "conv_with_general_padding",
    "padtype_to_pads",
]

#: accepted forms of dimension numbers
ConvGeneralDilatedDimensionNumbers = None | ConvDimensionNumbers | tuple[str, str, str]
#: the letters of a spec other than those of its spatial dimensions
_LETTERS = {"lhs": "NC", "rhs": "OI", "out": "NC"}


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """Dimension numbers from ``None`` (batch and features first), three strings, or three tuples of ints.

    Strings name the dimensions in order: ``N`` batch and ``C`` features of ``lhs`` and the result, ``O`` output and
    ``I`` input features of ``rhs``, any other letters the spatial dimensions, in the order of ``rhs``. Example:
    ``("NHWC", "HWIO", "NHWC")``. Only the lengths of the shapes matter.

    Raises:
      ArgumentError: a spec does not name each dimension once.
      ShapeError: the shapes have different lengths, or fewer than two dimensions.

    Example:
      >>> lax.conv_dimension_numbers((2, 5, 6, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC"))
      ConvDimensionNumbers(lhs_spec=(0, 3, 1, 2), rhs_spec=(3, 2, 0, 1), out_spec=(0, 3, 1, 2))
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    ranks = (len(lhs_shape), len(rhs_shape), len(lhs_shape))
    if ranks[0] != ranks[1] or ranks[0] < 2:
        raise ShapeError(
            f"convolution: lhs of shape {tuple(lhs_shape)} and rhs of shape {tuple(rhs_shape)} must have the same "
            "number of dimensions: two, and the spatial ones; reshape one of them"
        )
    if dimension_numbers is None:
        every = tuple(range(ranks[0]))
        return ConvDimensionNumbers(every, every, every)
    if not isinstance(dimension_numbers, (tuple, list)) or len(dimension_numbers) != 3:
        raise ArgumentError(
            "convolution: dimension_numbers must be None, a ConvDimensionNumbers or three specs such as "
            f"('NHWC', 'HWIO', 'NHWC'), got {dimension_numbers!r}"
        )
    if not all(isinstance(spec, str) for spec in dimension_numbers):
        specs = [int_tuple("convolution", f"dimension_numbers[{i}]", s, r)
                 for i, (s, r) in enumerate(zip(dimension_numbers, ranks))]  # fmt: skip
        return ConvDimensionNumbers(*specs)
    spatial: list[str] = []
    for (which, letters), spec, rank in zip(_LETTERS.items(), dimension_numbers, ranks):
        own = sorted(c for c in spec if c not in letters)
        if len(spec) != rank or len(set(spec)) != rank or not set(letters) <= set(spec):
            raise ArgumentError(
                f"convolution: {which} spec {spec!r} of dimension_numbers must be {rank} different letters, "
                f"{letters[0]} and {letters[1]} among them, for shape "
                f"{tuple(rhs_shape if which == 'rhs' else lhs_shape)}"
            )
        spatial = spatial or own
        if own != spatial:
            raise ArgumentError(
                f"convolution: specs {tuple(dimension_numbers)} of dimension_numbers must use the same letters for the "
                f"spatial dimensions, got {''.join(own)} and {''.join(spatial)}"
            )
    lhs, rhs, out = dimension_numbers
    order = [c for c in rhs if c not in _LETTERS["rhs"]]
    return ConvDimensionNumbers(
        tuple(lhs.index(c) for c in ("N", "C", *order)),
        tuple(rhs.index(c) for c in ("O", "I", *order)),
        tuple(out.index(c) for c in ("N", "C", *order)),
    )


def conv_general_dilated(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None, rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None, feature_group_count: int = 1, batch_group_count: int = 1,
    precision: PrecisionLike = None, preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """Convolution of ``lhs`` with the kernel ``rhs``, in any number of spatial dimensions.

    Without ``dimension_numbers`` the shapes are ``lhs [N, C, ...]``, ``rhs [O, I, ...]``; see
    :func:`conv_dimension_numbers`. ``padding`` is ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"`` or a ``(low, high)`` pair
    per spatial dimension (negative ones crop). ``lhs_dilation`` inserts zeros between rows of ``lhs`` (transposed
    convolution), ``rhs_dilation`` between rows of the kernel (dilated convolution). ``feature_group_count`` and
    ``batch_group_count`` divide features or batch into independent groups.

    Raises:
      ShapeError: operands do not fit each other or the parameters.
      DTypeError: operands have different dtypes.
      ArgumentError: malformed parameters.

    Example:
      >>> x = jnp.array([[[1., 2., 3., 4.]]])
      >>> kernel = jnp.array([[[1., -1.]]])
      >>> lax.conv_general_dilated(x, kernel, (1,), "VALID").tolist()
      [[[-1.0, -1.0, -1.0]]]
      >>> lax.conv_general_dilated(x, kernel, (2,), [(1, 0)]).tolist()
      [[[-1.0, -1.0]]]
    """
    op = "conv_general_dilated"
    lhs_shape, rhs_shape = typeof(lhs).shape, typeof(rhs).shape
    numbers = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    n = len(numbers.lhs_spec) - 2
    strides = int_tuple(op, "window_strides", window_strides, n)
    ldil = int_tuple(op, "lhs_dilation", lhs_dilation, n, default=1)
    rdil = int_tuple(op, "rhs_dilation", rhs_dilation, n, default=1)
    if isinstance(padding, str) and any(d != 1 for d in ldil):
        raise ArgumentError(
            f"{op}: padding {padding!r} has no meaning with lhs_dilation {ldil}; give (low, high) pairs or use "
            "conv_transpose"
        )
    sizes = [lhs_shape[d] for d in numbers.lhs_spec[2:]]
    extents = [dilate(rhs_shape[d], r) for d, r in zip(numbers.rhs_spec[2:], rdil)]
    pads = pad_pairs(op, padding, sizes, extents, strides)
    result_dtype = None if preferred_element_type is None else dtypes.requested(preferred_element_type, op)
    groups = int(feature_group_count), int(batch_group_count)
    exact = precisions(op, precision)
    return ConvGeneralDilated(strides, pads, ldil, rdil, numbers, *groups, exact, result_dtype).bind(lhs, rhs)


def conv(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: str, precision: PrecisionLike = None,
    preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """Convolution of ``lhs [N, C, ...]`` with ``rhs [O, I, ...]``, with ``"SAME"`` or ``"VALID"`` padding.

    Raises as :func:`conv_general_dilated`.

    Example:
      >>> x = jnp.array([[[1., 2., 3., 4.]]])
      >>> lax.conv(x, jnp.array([[[1., 10., 0.]]]), (2,), "SAME").tolist()
      [[[21.0, 43.0]]]
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type
    )


def conv_with_general_padding(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None, rhs_dilation: Sequence[int] | None, precision: PrecisionLike = None,
    preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """Convolution of ``lhs [N, C, ...]`` with ``rhs [O, I, ...]``, with explicit padding and dilations.

    ``padding`` is a word, or a ``(low, high)`` pair per spatial dimension; a dilation of None means 1.

    Raises as :func:`conv_general_dilated`.

    Example:
      >>> x = jnp.array([[[1., 2., 3., 4.]]])
      >>> kernel = jnp.array([[[1., 10.]]])
      >>> lax.conv_with_general_padding(x, kernel, (1,), [(0, 1)], None, (2,)).tolist()
      [[[31.0, 42.0, 3.0]]]
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


def transposed_pads(op: str, padding: Any, extents: Sequence[int], strides: Sequence[int]) -> Pads:
    """The padding of a transposed convolution as pairs, from a word or pairs.

    Raises:
      ArgumentError: ``padding`` is neither.
    """
    if not isinstance(padding, str):
        return pad_pairs(op, padding, [0] * len(extents), extents, strides)
    if padding not in ("SAME", "VALID"):
        raise ArgumentError(f"{op}: padding must be 'SAME', 'VALID' or (low, high) pairs, got {padding!r}")
    return tuple(_transposed_pad(k, s, padding) for k, s in zip(extents, strides))


def _transposed_pad(extent: int, stride: int, padding: str) -> tuple[int, int]:
    """Padding such that ``n`` rows become ``stride * n`` (``"SAME"``), or all that depend on them (``"VALID"``)."""
    if padding == "SAME":
        total = extent + stride - 2
        low = extent - 1 if stride > extent - 1 else -(-total // 2)
    else:
        total = extent + stride - 2 + max(extent - stride, 0)
        low = extent - 1
    return low, total - low


def conv_transpose(
    lhs: Any, rhs: Any, strides: Sequence[int], padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None, transpose_kernel: bool = False,
    precision: PrecisionLike = None, preferred_element_type: Any = None, use_consistent_padding: bool = False,
) -> Any:  # fmt: skip
    """Transposed convolution ("deconvolution"): the result has ``strides`` times as many rows as ``lhs``.

    ``padding`` words are those of the corresponding forward convolution; pairs are those of this one, or with
    ``use_consistent_padding`` of the forward one. With ``transpose_kernel``, the kernel is that of the forward
    convolution, and the result is its gradient with respect to its input. Without ``dimension_numbers``, features are
    last, as in ``("NHWC", "HWIO", "NHWC")``.

    Raises:
      ShapeError: operands do not fit each other or the parameters.
      DTypeError: operands have different dtypes.
      ArgumentError: malformed parameters.

    Example:
      >>> x = jnp.array([1., 2., 3.]).reshape(1, 3, 1)
      >>> lax.conv_transpose(x, jnp.array([1., 10.]).reshape(2, 1, 1), (2,), "SAME").ravel().tolist()
      [10.0, 1.0, 20.0, 2.0, 30.0, 3.0]
    """
    op = "conv_transpose"
    lhs_shape, rhs_shape = typeof(lhs).shape, typeof(rhs).shape
    if dimension_numbers is None:
        if not 3 <= len(lhs_shape) <= 5:
            raise ArgumentError(f"{op}: dimension_numbers has a default for one to three spatial dimensions; give it")
        letters = "HWD"[: len(lhs_shape) - 2]
        dimension_numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    numbers = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    n = len(numbers.lhs_spec) - 2
    steps = int_tuple(op, "strides", strides, n)
    rdil = int_tuple(op, "rhs_dilation", rhs_dilation, n, default=1)
    extents = [dilate(rhs_shape[d], r) for d, r in zip(numbers.rhs_spec[2:], rdil)]
    pads = transposed_pads(op, padding, extents, steps)
    if use_consistent_padding and not isinstance(padding, str):
        pads = tuple((k - 1 - lo, k - 1 - hi) for k, (lo, hi) in zip(extents, pads))
    if transpose_kernel:
        outputs, inputs = numbers.rhs_spec[:2]
        rhs = rev(rhs, numbers.rhs_spec[2:])
        numbers = numbers._replace(rhs_spec=(inputs, outputs, *numbers.rhs_spec[2:]))
    return conv_general_dilated(
        lhs, rhs, (1,) * n, pads, steps, rdil, numbers, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip
