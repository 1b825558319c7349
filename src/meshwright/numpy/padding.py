"""``pad``, with NumPy's modes."""

from __future__ import annotations

from builtins import min as min_of
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.numpy.applying import apply_along_axis
from meshwright.numpy.axes import static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.manipulation import take_static
from meshwright.numpy.promotion import converted, promotes_freely, scalar_like
from meshwright.numpy.reductions import max as max_over
from meshwright.numpy.reductions import mean, min
from meshwright.numpy.statistics import median
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert
from meshwright.ops.shape import slice_pad
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import reshape, rev
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

#: modes that only repeat elements; ``numpy.pad`` itself computes their positions
_REARRANGING = ("edge", "reflect", "symmetric", "wrap")
_STATISTICS: dict[str, Callable[..., Any]] = {"maximum": max_over, "minimum": min, "mean": mean, "median": median}
#: the options of each mode
_OPTIONS = {
    "constant": {"constant_values"}, "linear_ramp": {"end_values"}, "reflect": {"reflect_type"},
    "symmetric": {"reflect_type"}, **{mode: {"stat_length"} for mode in _STATISTICS},
}  # fmt: skip


def _pairs(value: Any, ndim: int, what: str) -> list[tuple[Any, Any]]:
    """(before, after) for each dimension, from a number, a pair, or a list of pairs."""
    if isinstance(value, dict):
        return [_pairs(value.get(d, value.get(d - ndim, 0)), 1, what)[0] for d in range(ndim)]
    if not isinstance(value, (tuple, list, np.ndarray)) or np.ndim(value) == 0:
        return [(value, value)] * ndim
    items = list(value)
    if not any(isinstance(v, (tuple, list, np.ndarray)) for v in items):
        items = [items]
    pairs = [tuple(v) if len(v) == 2 else (v[0], v[0]) for v in items if len(v) in (1, 2)]
    if len(pairs) not in (1, ndim) or len(pairs) != len(items):
        raise ArgumentError(f"pad: {what} must be a number, a pair, or {ndim} pairs, got {value!r}")
    return pairs * ndim if len(pairs) == 1 else pairs


def pad(array: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Any:
    """Pad ``array`` before and after each dimension.

    Args:
      pad_width: a number, (before, after), or one such pair per dimension. Static.
      mode: "constant" (``constant_values=0``), "edge", "reflect", "symmetric", "wrap", "empty", "linear_ramp"
        (``end_values=0``), "maximum", "minimum", "mean" or "median" (of all elements of the dimension, or of the
        ``stat_length`` nearest). "reflect" and "symmetric" with ``reflect_type="odd"`` continue as ``2 * edge - x``.
        Integer results are rounded to nearest. A function is called as by NumPy, with each padded vector along each
        dimension, its widths, the dimension and a dict of options, and returns the vector.

    Raises:
      ArgumentError: an unknown mode or option, or negative widths. ArgumentTypeError: widths are not integers.

    >>> pad(np.array([1, 2]), (1, 2)).tolist()
    [0, 1, 2, 0, 0]
    """
    x = asarray(array)
    ndim = typeof(x).ndim
    pairs = _pairs(pad_width, ndim, "pad_width")
    widths = [(static_int(a, "pad", "pad_width"), static_int(b, "pad", "pad_width")) for a, b in pairs]
    if any(a < 0 or b < 0 for a, b in widths):
        raise ArgumentError(f"pad: widths must not be negative, got {pad_width}")
    if callable(mode):
        return _by_function(x, widths, mode, options)
    unknown = set(options) - _OPTIONS.get(mode, set())
    if unknown or options.get("reflect_type", "even") not in ("even", "odd"):
        raise ArgumentError(f"pad: mode {mode!r} does not take {', '.join(sorted(options))} as given")
    if mode in ("constant", "empty"):
        return _constant(x, widths, options.get("constant_values", 0))
    if options.get("reflect_type") == "odd":
        return _odd(x, widths, mode)
    if mode in _REARRANGING:
        return _rearranged(x, widths, mode)
    if mode == "linear_ramp":
        return _edges(x, widths, _ramp(_pairs(options.get("end_values", 0), ndim, "end_values")))
    if mode in _STATISTICS:
        lengths = _pairs(options.get("stat_length"), ndim, "stat_length")
        return _edges(x, widths, _statistic(_STATISTICS[mode], lengths))
    modes = ", ".join(["constant", "empty", *_REARRANGING, "linear_ramp", *_STATISTICS])
    raise ArgumentError(f"pad: mode must be one of {modes}, got {mode!r}")


def _by_function(x: Any, widths: Sequence[tuple[int, int]], function: Callable[..., Any], options: Any) -> Any:
    """Pad ``x`` with zeros, then apply ``function`` to each vector of each dimension in turn."""
    x = _constant(x, widths, 0)
    for d, width in enumerate(widths):
        x = apply_along_axis(function, d, x, width, d, options)
    return x


def _constant(x: Any, widths: Sequence[tuple[int, int]], values: Any) -> Any:
    def fill(value: Any) -> Any:
        if type(value) is int and value == 0:  # a literal zero, which passes can recognize
            return convert(ops.scalar_like(0, x), dtype, weak)
        value = asarray(value)
        value = reshape(value, ()) if typeof(value).size == 1 else value
        return convert(converted(value, dtype), dtype, weak)

    dtype, weak = typeof(x).dtype, typeof(x).weak_type
    pairs = _pairs(values, len(widths), "constant_values")
    if all(a is pairs[0][0] and b is pairs[0][0] for a, b in pairs):
        return slice_pad.pad(x, fill(pairs[0][0] if pairs else 0), [(a, b, 0) for a, b in widths])
    for d, ((before, after), (low, high)) in enumerate(zip(widths, pairs)):
        config = [(0, 0, 0)] * len(widths)
        config[d] = (before, 0, 0)
        x = slice_pad.pad(x, fill(low), config)
        config[d] = (0, after, 0)
        x = slice_pad.pad(x, fill(high), config)
    return x


def _rearranged(x: Any, widths: Sequence[tuple[int, int]], mode: Any) -> Any:
    for d, width in enumerate(widths):
        n = typeof(x).shape[d]
        if width == (0, 0):
            continue
        if n == 0:
            raise ArgumentError(f"pad: dimension {d} has size 0, mode {mode!r} has nothing to repeat")
        x = take_static(x, np.pad(np.arange(n), width, mode=mode), d)
    return x


def _odd(x: Any, widths: Sequence[tuple[int, int]], mode: str) -> Any:
    """Pad with point reflections at each edge, ``2 * edge - x``, repeated until wide enough."""
    for d, (before, after) in enumerate(widths):
        n = typeof(x).shape[d]
        if n == 0 and before + after:
            raise ArgumentError(f"pad: dimension {d} has size 0, mode {mode!r} has nothing to repeat")
        own = 1 if mode == "reflect" and n > 1 else 0  # whether the edge itself is not repeated
        while before or after:
            n = typeof(x).shape[d]
            left, right = min_of(before, n - own), min_of(after, n - own)
            low, high = slice_in_dim(x, 0, 1, 1, d), slice_in_dim(x, n - 1, n, 1, d)
            first = rev(slice_in_dim(x, own, own + left, 1, d), (d,))
            last = rev(slice_in_dim(x, n - own - right, n - own, 1, d), (d,))
            x = concatenate([low * 2 - first, x, high * 2 - last], d)
            before, after = before - left, after - right
    return x


def _statistic(statistic: Callable[..., Any], lengths: Sequence[tuple[Any, Any]]) -> Callable[..., Any]:
    def make(x: Any, d: int, low: bool, n: int) -> Any:
        size = typeof(x).shape[d]
        stat_length = lengths[d][0 if low else 1]
        length = size if stat_length is None else min_of(static_int(stat_length, "pad", "stat_length"), size)
        if length < 1:
            raise ArgumentError(f"pad: stat_length must be positive, got {stat_length}")
        part = slice_in_dim(x, 0, length, 1, d) if low else slice_in_dim(x, size - length, size, 1, d)
        return _repeat(_rounded(statistic(part, d, keepdims=True), typeof(x).dtype), d, n, typeof(x))

    return make


def _rounded(x: Any, dtype: np.dtype) -> Any:
    """``x`` rounded if ``dtype`` is an integer dtype."""
    exact = dtypes.is_integer(dtype) and dtypes.is_inexact(typeof(x).dtype)
    return ops.round_half_even(x) if exact else x


@promotes_freely()
def _edges(x: Any, widths: Sequence[tuple[int, int]], make: Callable[..., Any]) -> Any:
    """Concatenate ``make(x, dimension, at the low end?, width)`` before and after ``x`` in each dimension."""
    for d, (before, after) in enumerate(widths):
        parts = [make(x, d, True, before)] if before else []
        parts.append(x)
        parts += [make(x, d, False, after)] if after else []
        x = concatenate(parts, d)
    return x


def _repeat(x: Any, d: int, n: int, like: ShapedArray) -> Any:
    shape = list(typeof(x).shape)
    shape[d] = n
    return broadcast_in_dim(convert(converted(x, like.dtype), like.dtype, like.weak_type), shape, range(len(shape)))


def _ramp(ends: Sequence[tuple[Any, Any]]) -> Callable[..., Any]:
    def make(x: Any, d: int, low: bool, n: int) -> Any:
        dtype, end = typeof(x).dtype, scalar_like(ends[d][0 if low else 1], x)
        if n == 1:  # including an infinite edge
            return broadcast_in_dim(end, [1 if i == d else s for i, s in enumerate(typeof(x).shape)], ())
        size = typeof(x).shape[d]
        edge = slice_in_dim(x, 0, 1, 1, d) if low else slice_in_dim(x, size - 1, size, 1, d)
        weight = np.arange(n) / n if low else np.arange(n, 0, -1)[::-1] / n
        weight = weight if low else 1 - weight
        shape = [1] * typeof(x).ndim
        shape[d] = n
        weight = weight.reshape(shape).astype(np.float32)
        wide = _repeat(edge, d, n, typeof(x))
        line = wide * weight + end * (1 - weight)
        line = converted(ops.floor(line) if dtypes.is_integer(dtype) else line, dtype)
        return convert(line, dtype, typeof(x).weak_type)

    return make
