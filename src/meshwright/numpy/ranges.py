"""Evenly spaced numbers and grids, and matrices defined by element positions: eye, tri, diag."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, Tracer, typeof
from meshwright.numpy.arithmetic import add, floor, multiply, power, subtract
from meshwright.numpy.axes import normal_axis, normal_shape, static_int
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import asarray, on_device
from meshwright.numpy.functions import exp, log
from meshwright.numpy.logic import logical_and, where
from meshwright.numpy.promotion import (
    aval_of,
    broadcast_shapes,
    converted,
    inexact,
    promotes_freely,
    result_type,
    scalar_like,
    spread,
    strong_array,
)
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, reduce_sum
from meshwright.ops.shape.rearrange import expand_dims, move_dim, transpose
from meshwright.ops.shape.slice_pad import pad, slice_
from meshwright.runtime.array import from_numpy


@promotes_freely("start", "stop")
def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
    axis: int = 0, *, device: Any = None,
) -> Any:  # fmt: skip
    """``num`` evenly spaced numbers from ``start`` to ``stop``; for arrays, along a new dimension at ``axis``.

    Args:
      start, stop: numbers, or arrays whose shapes broadcast together.
      endpoint: whether ``stop`` is the last number.
      retstep: return ``(numbers, distance)``.

    Raises:
      ArgumentError: ``num`` is negative. ShapeError: shapes do not broadcast.

    >>> linspace(0, 1, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    num = static_int(num, "linspace", "num")
    if num < 0:
        raise ArgumentError(f"linspace: num must not be negative, got {num}")
    computed, target = _computed(start, stop, dtype, "linspace")
    low, high = (converted(asarray(x), computed) for x in (start, stop))
    shape = broadcast_shapes(typeof(low).shape, typeof(high).shape, name="linspace")
    low, high = spread(low, shape), spread(high, shape)
    gaps = max(num - bool(endpoint), 1)
    result = _between(low, high, num, gaps)
    if not dtypes.is_inexact(target):
        result = floor(result)
    ndim = len(shape) + 1
    result = move_dim(converted(result, target), 0, operator.index(axis) % ndim)
    result = on_device(result, device, "linspace")
    if not retstep:
        return result
    # Without a gap there is no distance.
    return result, ops.div(ops.sub(high, low), scalar_like(gaps if num > bool(endpoint) else np.nan, low))


def _computed(start: Any, stop: Any, dtype: Any, name: str) -> tuple[np.dtype, np.dtype]:
    """(computation dtype, result dtype) of a range of numbers."""
    bounds = result_type(start, stop)
    target = inexact(bounds) if dtype is None else dtypes.requested(dtype, name)
    if dtypes.is_complex(bounds) and not dtypes.is_complex(target):
        raise DTypeError(f"{name}: complex bounds need a complex dtype, got {target}")
    return (target if dtypes.is_inexact(target) else dtypes.default_float()), target


@compiled(static_argnums=(2, 3))
def _between(low: Any, high: Any, num: int, gaps: int) -> Any:
    """The first ``num`` of ``gaps + 1`` evenly spaced numbers, along a new first dimension."""
    computed, shape = typeof(low).dtype, typeof(low).shape
    if num == 1:
        return broadcast_in_dim(low, (1, *shape), tuple(range(1, len(shape) + 1)))
    count = iota(dtypes.real_of(computed), (num,), 0)
    weight = ops.div(count, scalar_like(gaps, count))
    weight = broadcast_in_dim(converted(weight, computed), (num, *shape), (0,))
    result = add(multiply(low, subtract(1, weight)), multiply(high, weight))
    # XLA may multiply by a reciprocal, which may not give exactly 1 at the end; and the end may be infinite.
    last = broadcast_in_dim(ops.eq(count, scalar_like(gaps, count)), (num, *shape), (0,))
    return select(last, broadcast_in_dim(high, (num, *shape), tuple(range(1, len(shape) + 1))), result)


@promotes_freely("start", "stop", "base")
def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """``base`` raised to the powers ``linspace(start, stop, num)``.

    >>> logspace(0, 2, 3, base=2.0).tolist()
    [1.0, 2.0, 4.0]
    """
    computed, target = _computed(start, stop, dtype, "logspace")
    return converted(power(base, linspace(start, stop, num, endpoint, False, computed, axis)), target)


@promotes_freely("start", "stop")
def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """``num`` geometrically spaced numbers from ``start`` to ``stop``, which have the same sign.

    >>> geomspace(1.0, 4.0, 3).shape
    (3,)
    """
    computed, target = _computed(start, stop, dtype, "geomspace")
    low, high = (converted(asarray(x), computed) for x in (start, stop))
    if not dtypes.is_complex(computed):  # for two negative numbers, compute with their magnitudes
        both = logical_and(ops.lt(low, scalar_like(0, low)), ops.lt(high, scalar_like(0, high)))
        sign = where(both, scalar_like(-1, low), scalar_like(1, low))
        low, high = multiply(low, sign), multiply(high, sign)
    result = exp(linspace(log(low), log(high), num, endpoint, False, computed))
    place = iota(dtypes.int32, typeof(result).shape, 0)  # to set the ends exactly
    result = where(ops.eq(place, np.int32(0)), expand_dims(low, (0,)), result)
    if endpoint and num > 1:
        result = where(ops.eq(place, np.int32(num - 1)), expand_dims(high, (0,)), result)
    if not dtypes.is_complex(computed):
        result = multiply(result, expand_dims(sign, (0,)))
    return converted(move_dim(result, 0, operator.index(axis) % typeof(result).ndim), target)


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """Coordinate arrays of a grid from one-dimensional coordinates.

    Args:
      sparse: return arrays that broadcast to the grid.
      indexing: "xy" (first two dimensions swapped, as for images) or "ij".

    Raises:
      ArgumentError: another ``indexing``. ShapeError: inputs with more than one dimension.

    >>> [g.shape for g in meshgrid(np.arange(2), np.arange(3))]
    [(3, 2), (3, 2)]
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    given = [asarray(x) for x in xi]
    if any(typeof(x).ndim > 1 for x in given):
        raise ShapeError(f"meshgrid: inputs must be 0- or 1-D, got shapes {[typeof(x).shape for x in given]}")
    places = list(range(len(given)))
    if indexing == "xy" and len(given) >= 2:
        places[:2] = [1, 0]
    full = [1] * len(given)
    for x, d in zip(given, places):
        full[d] = typeof(x).size
    out = []
    for x, d in zip(given, places):
        shape = [full[e] if e == d or not sparse else 1 for e in range(len(given))]
        out.append(broadcast_in_dim(x, shape, (d,) if typeof(x).ndim else ()))
    return out


# --- matrices by position -----------------------------------------------------------------------------------
def _position_mask(n: int, m: int, k: Any, compare: Any) -> Any:
    """``compare(row + k, column)`` over an ``n`` by ``m`` matrix.

    Raises:
      ArgumentTypeError: ``k`` is not an integer.
    """
    if not (isinstance(k, Tracer) and dtypes.is_integer(k.dtype)):
        k = static_int(k, "matrices by position", "k")
    if STATE.trace is EVAL:
        numpy_compare = {ops.eq: np.equal, ops.ge: np.greater_equal}[compare]
        return from_numpy(numpy_compare.outer(np.arange(n) + operator.index(k), np.arange(m)), copy=False)
    row, column = iota(dtypes.int32, (n, m), 0), iota(dtypes.int32, (n, m), 1)
    return compare(add(row, k) if type(k) is not int or k else row, column)


def eye(N: int, M: int | None = None, k: Any = 0, dtype: Any = None, *, device: Any = None) -> Any:
    """An ``N`` by ``M`` matrix of zeros with ones on diagonal ``k`` (positive: above the main one).

    >>> eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    n = static_int(N, "eye", "N")
    m = n if M is None else static_int(M, "eye", "M")
    normal_shape((n, m), "eye")
    target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, "eye")
    return on_device(convert(_position_mask(n, m, k, ops.eq), target), device, "eye")


def identity(n: int, dtype: Any = None) -> Any:
    """The ``n`` by ``n`` identity matrix.

    >>> identity(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: Any = 0, dtype: Any = None) -> Any:
    """An ``N`` by ``M`` matrix with ones at and below diagonal ``k`` and zeros above.

    >>> tri(2).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    n = static_int(N, "tri", "N")
    m = n if M is None else static_int(M, "tri", "M")
    target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, "tri")
    return convert(_position_mask(n, m, k, ops.ge), target)


def _triangle(name: str, x: Any, k: Any, lower: bool) -> Any:
    shape = aval_of(x, name).shape
    if len(shape) < 2:
        raise ShapeError(f"{name}: expected a matrix or a stack of them, got shape {shape}")
    mask = _position_mask(shape[-2], shape[-1], k, ops.ge)
    nil = scalar_like(0, x)
    return where(mask, x, nil) if lower else where(mask, nil, x)


def tril(m: Any, k: Any = 0) -> Any:
    """The lower triangle of matrices: elements above diagonal ``k`` of the last two dimensions become zeros.

    >>> tril(np.ones((2, 2))).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    return _triangle("tril", m, k, True)


def triu(m: Any, k: Any = 0) -> Any:
    """The upper triangle of matrices: elements below diagonal ``k`` of the last two dimensions become zeros.

    >>> triu(np.ones((2, 2))).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return _triangle("triu", m, subtract(k, 1) if type(k) is not int else k - 1, False)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Diagonal ``offset`` of the matrices along two axes, as a last dimension.

    Raises:
      ShapeError: ``a`` has fewer than two dimensions, or the axes are one. AxisError: an axis is out of range.

    >>> diagonal(np.arange(4).reshape(2, 2)).tolist()
    [0, 3]
    """
    x = asarray(a)
    ndim = typeof(x).ndim
    if ndim < 2:
        raise ShapeError(f"diagonal: expected two dimensions or more, got shape {typeof(x).shape}")
    first, second = (normal_axis(d, ndim, "diagonal") for d in (axis1, axis2))
    if first == second:
        raise ShapeError(f"diagonal: axis1={axis1} and axis2={axis2} are one dimension; name two")
    rest = [d for d in range(ndim) if d not in (first, second)]
    x = transpose(x, [*rest, first, second])
    n, m = typeof(x).shape[-2:]
    size = max(min(n + min(offset, 0), m - max(offset, 0)), 0)
    low = [*[0] * len(rest), max(-offset, 0), max(offset, 0)]
    block = slice_(x, [min(v, s) for v, s in zip(low, typeof(x).shape)], [
        *typeof(x).shape[:-2], min(low[-2], n) + size, min(low[-1], m) + size])  # fmt: skip
    mask = _position_mask(size, size, 0, ops.eq)
    entries = _sum_where(mask, block)
    return strong_array(entries) if n == m and not offset else entries  # the weak types of JAX


def _sum_where(mask: Any, block: Any) -> Any:
    if not dtypes.has_zero(typeof(block).dtype):
        return convert(_sum_where(mask, convert(block, dtypes.float32)), typeof(block).dtype)
    picked = where(mask, block, scalar_like(0, block))
    axis = typeof(block).ndim - 1
    if dtypes.is_bool(typeof(block).dtype):
        return ops.ne(reduce_sum(convert(picked, dtypes.int32), (axis,)), np.int32(0))
    return reduce_sum(picked, (axis,))


def diag(v: Any, k: int = 0) -> Any:
    """For a vector, the matrix with it on diagonal ``k``; for a matrix, its diagonal ``k``.

    Raises:
      ShapeError: neither a vector nor a matrix.

    >>> diag(np.array([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    x = asarray(v)
    shape = typeof(x).shape
    if len(shape) == 2:
        return diagonal(x, k)
    if len(shape) != 1:
        raise ShapeError(f"diag: expected a vector or a matrix, got shape {shape}")
    n = shape[0] + max(k, -k)
    x = pad(x, scalar_like(0, x), [(max(-k, 0), max(k, 0), 0)])
    return where(_position_mask(n, n, k, ops.eq), x[:, None], scalar_like(0, x))


def diagflat(v: Any, k: int = 0) -> Any:
    """The matrix with the elements of ``v`` on diagonal ``k``.

    >>> diagflat(np.array([[1], [2]])).tolist()
    [[1, 0], [0, 2]]
    """
    x = asarray(v).reshape(-1)
    return diag(convert(x, typeof(x).dtype), k)  # the result is not weakly typed


@promotes_freely()
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The Vandermonde matrix: powers of a vector as columns, from the highest down (or from 0 up).

    >>> vander(np.array([2, 3]), 2).tolist()
    [[2, 1], [3, 1]]
    """
    x = asarray(x)
    if typeof(x).ndim != 1:
        raise ShapeError(f"vander: expected a vector, got shape {typeof(x).shape}")
    n = typeof(x).size if N is None else static_int(N, "vander", "N")
    exponents = np.arange(n) if increasing else np.arange(n)[::-1]
    column = broadcast_in_dim(x, (typeof(x).size, n), (0,))
    return power(column, exponents.astype(dtypes.default_int() if dtypes.is_bool(typeof(x).dtype) else typeof(x).dtype))


def indices(dimensions: Any, dtype: Any = int, sparse: bool = False) -> Any:
    """The coordinates of every element of an array of this shape: one array per dimension, stacked or (sparse) in a
    tuple.

    >>> indices((2, 2))[1].tolist()
    [[0, 1], [0, 1]]
    """
    sizes = normal_shape(tuple(dimensions), "indices")
    target = dtypes.requested(dtype, "indices")
    if sparse:
        return tuple(iota(target, [s if e == d else 1 for e, s in enumerate(sizes)], d) for d in range(len(sizes)))
    return from_numpy(np.indices(sizes).astype(target))
