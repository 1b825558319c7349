"""Reductions over axes: sums, products, extrema, means, variances, counts. Those without NaN:
:mod:`.nan_reductions`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.arithmetic import maximum, minimum, subtract
from meshwright.numpy.axes import no_out, normal_axes, normal_axis, split_names
from meshwright.numpy.compiled import compiled
from meshwright.numpy.logic import truth, where
from meshwright.numpy.logic import where as choose_where
from meshwright.numpy.promotion import as_operand, aval_of, inexact, is_python_number, operands, scalar_like
from meshwright.ops.collective.named_axis import pmax, pmean, pmin, psum
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert
from meshwright.ops.reduce import reductions as red
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, reduce_sum
from meshwright.ops.shape.rearrange import reshape, transpose
from meshwright.runtime.values import as_result

Axis = Any
_chosen = where  # parameters shadow the name


def spread_over(reduced: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    """Broadcast the result of a reduction over ``axes`` back to ``shape``."""
    return broadcast_in_dim(reduced, shape, [d for d in range(len(shape)) if d not in axes])


def strong(x: Any, dtype: np.dtype) -> Any:
    """``x`` in ``dtype``, not weakly typed."""
    aval = typeof(x)
    return convert(x, dtype) if aval.weak_type or aval.dtype != dtype else x


def keep_dims(reduced: Any, shape: tuple[int, ...], axes: tuple[int, ...], keep: bool) -> Any:
    """The result of a reduction, with reduced dimensions of size 1 if ``keep``."""
    if not keep:
        return as_result(reduced)
    return reshape(reduced, [1 if d in axes else s for d, s in enumerate(shape)])


@cache
def _wide(dtype: np.dtype, x64: bool) -> np.dtype:
    if dtypes.is_bool(dtype):
        return dtypes.default_int()
    if dtypes.is_integer(dtype) and dtypes.bit_width(dtype) < dtypes.bit_width(dtypes.default_int()):
        return dtypes.canonical(dtypes.uint64) if dtypes.is_unsigned(dtype) else dtypes.default_int()
    return dtype


def sum_dtype(dtype: np.dtype, asked: Any, name: str) -> np.dtype:
    """The dtype of a sum or product: narrow integers and bools become the default integer."""
    return _wide(dtype, dtypes.default_int() == dtypes.int64) if asked is None else dtypes.requested(asked, name)


def _kept_dtype(a: Any, dtype: Any, promote_integers: bool, name: str) -> Any:
    """The ``dtype`` argument of a sum that does not widen integers."""
    if dtype is not None or promote_integers:
        return dtype
    own = aval_of(a, name).dtype
    return dtypes.default_int() if dtypes.is_bool(own) else own


def _is_half(dtype: np.dtype) -> bool:
    return dtypes.is_float(dtype) and dtypes.bit_width(dtype) < 32


def _initial(value: Any, name: str) -> Any:
    """The initial value of a reduction.

    Raises:
      ShapeError: not a scalar, so it would be broadcast over the result.
    """
    value = as_operand(value, name)
    if typeof(value).ndim:
        raise ShapeError(f"{name}: initial must be a scalar, got {typeof(value)}; combine the result with an array")
    return value


def _mask(where: Any, name: str) -> Any:
    """``where``, which selects elements.

    Raises:
      ArgumentError: it is not of bools, so that it may be meant as weights.
    """
    if not dtypes.is_bool(typeof(where).dtype):
        raise ArgumentError(f"{name}: where= must be of bools, got {typeof(where)}; compare it, as where != 0")
    return where


def _accumulate(name: str, x: Any, axis: Axis, dtype: Any, keepdims: bool, initial: Any, where_: Any, how: Any) -> Any:
    """A sum or product; ``how`` is (reduction, identity, binary op)."""
    x = as_operand(x, name)
    target = sum_dtype(typeof(x).dtype, dtype, name)
    reduction, identity, combine = _OF_BOOLS[how[0]] if dtypes.is_bool(target) else how
    # Half precision is summed in float32, as in JAX.
    computed = dtypes.float32 if _is_half(target) else target
    if typeof(x).dtype != computed:
        x = convert(x, computed)
    if where_ is not None:
        x = where(_mask(where_, name), x, scalar_like(identity, x))
    shape = typeof(x).shape
    axes = normal_axes(axis, len(shape), name)
    out = reduction(x, axes)
    if initial is not None:
        out = combine(out, convert(_initial(initial, name), computed))
    return keep_dims(strong(out, target), shape, axes, keepdims)


#: the logical ops that replace sums and products if a bool result is requested
_OF_BOOLS = {reduce_sum: (red.reduce_or, False, ops.or_), red.reduce_prod: (red.reduce_and, True, ops.and_)}


def sum(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None, promote_integers: bool = True,
) -> Any:  # fmt: skip
    """Sum over ``axis`` (one axis, several, or all), which may include names of ``xmap`` and ``vmap`` axes.

    Args:
      a: array of any shape. Narrow integers and bools are summed in the default integer type, half precision in
        float32.
      dtype: of the accumulation and the result.
      keepdims: keep the reduced dimensions with size 1.
      initial: a value added to the result.
      where: selects the elements to include; broadcasts with ``a``.
      promote_integers: whether to widen narrow integers; otherwise they may overflow.

    Raises:
      ArgumentError: an axis is out of range or repeats.

    >>> sum(np.arange(6).reshape(2, 3), axis=0).tolist()
    [3, 5, 7]
    """
    no_out(out, "sum")
    if (split := split_names(axis)) is not None:
        return psum(sum(a, split[0], dtype, out, keepdims, initial, where, promote_integers), split[1])
    dtype = _kept_dtype(a, dtype, promote_integers, "sum")
    return _accumulate("sum", a, axis, dtype, keepdims, initial, where, (reduce_sum, 0, ops.add))


def prod(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None, promote_integers: bool = True,
) -> Any:  # fmt: skip
    """Product over ``axis``; arguments as for :func:`sum`.

    >>> prod(np.array([2, 3, 4])).item()
    24
    """
    no_out(out, "prod")
    dtype = _kept_dtype(a, dtype, promote_integers, "prod")
    return _accumulate("prod", a, axis, dtype, keepdims, initial, where, (red.reduce_prod, 1, ops.mul))


def _extremum(name: str, reduction: Any, limit: Any, combine: Any, over: Any, result: list[int]) -> Any:
    def extremum(
        a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Any:
        no_out(out, name)
        if (split := split_names(axis)) is not None:
            return over(extremum(a, split[0], out, keepdims, initial, where), split[1])
        x = as_operand(a, name)
        if where is not None:
            if initial is None:
                raise ArgumentError(f"{name}: with where=, initial= must say what a reduction of no elements gives")
            x = _chosen(_mask(where, name), x, np.asarray(limit(typeof(x).dtype)))
        shape = typeof(x).shape
        axes = normal_axes(axis, len(shape), name)
        if initial is None and 0 in [shape[d] for d in axes]:
            raise ArgumentError(f"{name}: no {name} of zero elements (shape {shape}, axes {axes}); pass initial=")
        result = strong(reduction(x, axes), typeof(x).dtype)
        if initial is not None:
            # An integer out of range is refused by promotion, a float is truncated, as in JAX.
            first = int(initial) if isinstance(initial, float) and not dtypes.is_inexact(typeof(x).dtype) else initial
            first = bool(first) if is_python_number(first) and dtypes.is_bool(typeof(x).dtype) else first
            first = first if is_python_number(first) else convert(_initial(first, name), typeof(x).dtype)
            result = convert(combine(result, first), typeof(x).dtype)
        return keep_dims(result, shape, axes, keepdims)

    extremum.__name__ = extremum.__qualname__ = name
    extremum.__doc__ = f"""{name.capitalize()}imum over ``axis``; NaN if there is one. Complex numbers are ordered
    by real, then imaginary part.

    Raises:
      ArgumentError: no elements and no ``initial``; no such axis.

    >>> {name}(np.array([[1, 5], [4, 2]]), axis=1).tolist()
    {result}
    """
    return extremum


max = _extremum("max", red.reduce_max, dtypes.min_value, maximum, pmax, [5, 4])
min = _extremum("min", red.reduce_min, dtypes.max_value, minimum, pmin, [1, 2])
amax, amin = max, min


def ptp(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False) -> Any:
    """Maximum minus minimum.

    >>> ptp(np.array([3, 9, 4])).item()
    6
    """
    no_out(out, "ptp")
    return ops.sub(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


def _test(name: str, a: Any, axis: Axis, keepdims: bool, where_: Any, reduction: Any, identity: bool) -> Any:
    x = as_operand(truth(a, name), name)
    if where_ is not None:
        x = where(_mask(where_, name), x, np.asarray(identity))
    shape = typeof(x).shape
    axes = normal_axes(axis, len(shape), name)
    return keep_dims(strong(reduction(x, axes), dtypes.bool_), shape, axes, keepdims)


def all(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether all elements over ``axis`` are true (nonzero).

    >>> all(np.array([[True, False], [True, True]]), axis=1).tolist()
    [False, True]
    """
    no_out(out, "all")
    return _test("all", a, axis, keepdims, where, red.reduce_and, True)


def any(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether any element over ``axis`` is true (nonzero).

    >>> any(np.array([[False, False], [True, False]]), axis=1).tolist()
    [False, True]
    """
    no_out(out, "any")
    return _test("any", a, axis, keepdims, where, red.reduce_or, False)


def count_nonzero(a: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """The number of nonzero elements.

    >>> count_nonzero(np.array([0, 3, 4])).item()
    2
    """
    return sum(truth(a, "count_nonzero"), axis, keepdims=keepdims)


# --- positions ----------------------------------------------------------------------------------------------
def position(name: str, a: Any, axis: Any, keepdims: bool, op: Any) -> Any:
    """The positions that ``op`` finds along one axis, or in the flattened array without one."""
    x = as_operand(a, name)
    shape = typeof(x).shape
    if axis is None:
        out = op(reshape(x, (typeof(x).size,)), 0, dtypes.default_int()) if typeof(x).size else _nothing(name, shape)
        return reshape(out, [1] * len(shape)) if keepdims else out
    d = normal_axis(axis, len(shape), name)
    if shape[d] == 0:
        _nothing(name, shape)
    return keep_dims(op(x, d, dtypes.default_int()), shape, (d,), keepdims)


def _nothing(name: str, shape: tuple[int, ...]) -> Any:
    raise ArgumentError(f"{name}: there is no position in zero elements (shape {shape})")


def argmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
    """Position of the first maximum, or first NaN, along ``axis`` (in the flattened array without one).

    >>> argmax(np.array([[1, 5], [4, 2]]), axis=1).tolist()
    [1, 0]
    """
    no_out(out, "argmax")
    return position("argmax", a, axis, keepdims, red.argmax)


def argmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
    """Position of the first minimum, or first NaN, along ``axis`` (in the flattened array without one).

    >>> argmin(np.array([[1, 5], [4, 2]]), axis=1).tolist()
    [0, 1]
    """
    no_out(out, "argmin")
    return position("argmin", a, axis, keepdims, red.argmin)


# --- means --------------------------------------------------------------------------------------------------
def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    n = 1
    for d in axes:
        n *= shape[d]
    return n


def mean_dtype(x: Any, dtype: Any, name: str) -> tuple[np.dtype, np.dtype]:
    """(result dtype, computation dtype) of a mean or variance."""
    target = inexact(typeof(x).dtype) if dtype is None else dtypes.requested(dtype, name)
    return target, dtypes.float32 if _is_half(target) else target


def mean(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Arithmetic mean over ``axis``, in a float or complex dtype.

    Args:
      a: array of any shape.
      where: selects the elements to include; broadcasts with ``a``.

    >>> mean(np.array([1, 2, 6])).item()
    3.0
    """
    no_out(out, "mean")
    if (split := split_names(axis)) is not None:
        return pmean(mean(a, split[0], dtype, out, keepdims, where=where), split[1])
    x = as_operand(a, "mean")
    target, computed = mean_dtype(x, dtype, "mean")
    shape = typeof(x).shape
    axes = normal_axes(axis, len(shape), "mean")
    total = sum(x, axes, computed, where=where)
    if where is None:
        result = ops.div(total, np.asarray(_count(shape, axes), computed))
    else:
        result = ops.div(total, _counted(where, shape, axes, computed))
    return keep_dims(convert(result, target) if target != computed else result, shape, axes, keepdims)


def _counted(where: Any, shape: tuple[int, ...], axes: tuple[int, ...], dtype: np.dtype) -> Any:
    flags = broadcast_to_shape(truth(where, "mean"), shape)
    return sum(flags, axes, dtype)


def broadcast_to_shape(x: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast ``x`` to a compatible shape."""
    ndim = aval_of(x, "broadcast_to").ndim
    return broadcast_in_dim(x, shape, range(len(shape) - ndim, len(shape)))


def var(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False, *,
    where: Any = None, mean: Any = None, correction: Any = None,
) -> Any:  # fmt: skip
    """Variance over ``axis``: the sum of squared distances from the mean, divided by the count minus ``ddof``.

    Args:
      a: array of any shape.
      where: selects the elements to include; broadcasts with ``a``.
      mean: the mean of ``a`` over ``axis`` with ``keepdims=True``, if it is known.
      correction: alias of ``ddof``.

    >>> var(np.array([1.0, 3.0])).item()
    1.0
    """
    no_out(out, "var")
    return variance(as_operand(a, "var"), axis, dtype, ddof, keepdims, where, mean, correction)


def variance(
    x: Any, axis: Axis, dtype: Any, ddof: Any, keepdims: bool, where: Any, mean: Any, correction: Any = None,
    steady: bool = False,
) -> Any:  # fmt: skip
    """:func:`var`; with ``steady``, the derivative of a NaN result of too few elements is 0 instead of NaN."""
    if correction is not None and not (is_python_number(ddof) and ddof == 0):
        raise ArgumentError("var: ddof and correction are the same; give one of them")
    ddof = ddof if correction is None else correction
    if dtypes.is_complex(typeof(x).dtype) and dtype is not None and not dtypes.is_complex(dtypes.as_dtype(dtype)):
        raise DTypeError(f"var: a complex array needs a complex dtype=, got {dtype}; take .real or the absolute value")
    target, computed = mean_dtype(x, dtype, "var")
    if not dtypes.is_inexact(target):
        raise DTypeError(f"var: dtype= must be a float or complex dtype, got {target}")
    target = dtypes.real_of(target) if dtype is None else target
    axes = normal_axes(axis, typeof(x).ndim, "var")
    traced = ddof if isinstance(ddof, Tracer) else None
    free = 0 if traced is not None else ddof if is_python_number(ddof) else np.asarray(ddof).item()
    return _variance(x, where, mean, traced, axes, target, computed, free, keepdims, steady)


@compiled(static_argnums=(4, 5, 6, 7, 8, 9))
def _variance(
    x: Any, where: Any, center: Any, traced: Any, axes: tuple[int, ...], target: np.dtype, computed: np.dtype,
    ddof: float, keepdims: bool, steady: bool,
) -> Any:  # fmt: skip
    shape = typeof(x).shape
    x = convert(x, computed) if typeof(x).dtype != computed else x
    if where is not None:  # excluded elements, perhaps NaN, must not affect derivatives
        x = choose_where(_mask(where, "var"), x, scalar_like(0, x))
    center = spread_over(mean(x, axes, where=where), shape, axes) if center is None else center
    centered = subtract(x, center)
    if where is not None:
        centered = choose_where(where, centered, scalar_like(0, centered))
    if dtypes.is_complex(computed):
        squares = ops.add(ops.square(ops.real(centered)), ops.square(ops.imag(centered)))
    else:
        squares = ops.square(centered)
    total = sum(squares, axes, where=where)
    real = typeof(total).dtype
    if where is None:
        divisor: Any = np.asarray(_count(shape, axes) - ddof, real)
    else:
        divisor = ops.sub(_counted(where, shape, axes, real), np.asarray(ddof, real))
    divisor = divisor if traced is None else ops.sub(divisor, convert(traced, real))
    # With too few elements the variance is NaN.
    enough = ops.gt(divisor, np.zeros((), real))
    result = ops.div(total, ops.select(enough, divisor, np.asarray(1 if steady else np.nan, real)))
    result = choose_where(enough, result, np.asarray(np.nan, real)) if steady else result
    return keep_dims(convert(result, target) if target != real else result, shape, axes, keepdims)


def std(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False, *,
    where: Any = None, mean: Any = None, correction: Any = None,
) -> Any:  # fmt: skip
    """Standard deviation over ``axis``: the square root of :func:`var`.

    >>> std(np.array([1.0, 3.0])).item()
    1.0
    """
    return ops.sqrt(var(a, axis, dtype, out, ddof, keepdims, where=where, mean=mean, correction=correction))


def average(a: Any, axis: Axis = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    """Mean weighted by ``weights``, which have the shape of ``a``, or one dimension for each of ``axis``, in its order.

    >>> average(np.array([1.0, 3.0]), weights=np.array([3.0, 1.0])).item()
    1.5
    """
    x = as_operand(a, "average")
    shape = typeof(x).shape
    if weights is None:
        result = mean(x, axis, keepdims=keepdims)
        count = _count(shape, normal_axes(axis, len(shape), "average"))
        total = broadcast_in_dim(np.asarray(count, typeof(result).dtype), typeof(result).shape, ())
        return (result, as_result(total)) if returned else result
    w = as_operand(weights, "average")
    if typeof(w).shape != shape:
        axes = normal_axes(axis, len(shape), "average")
        if axis is None or typeof(w).shape != tuple(shape[d] for d in axes):
            raise ArgumentError(
                f"average: weights of shape {typeof(w).shape} fit neither the array's shape {shape} nor axis {axis}"
            )
        w = broadcast_in_dim(transpose(w, np.argsort(axes).tolist()), shape, sorted(axes))
    x, w = operands("average", (x, w), to_inexact=True)
    total = sum(w, axis, keepdims=keepdims)
    result = ops.div(sum(ops.mul(x, w), axis, keepdims=keepdims), total)
    return (result, total) if returned else result
