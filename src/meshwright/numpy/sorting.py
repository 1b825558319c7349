"""Sorting, and cumulative operations along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, AxisError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import no_out, normal_axis, static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.joining import concatenate
from meshwright.numpy.manipulation import flip, moveaxis, ravel
from meshwright.numpy.promotion import aval_of, scalar_like
from meshwright.numpy.reductions import sum_dtype
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.ops.reduce import cumulative
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.ops.sort import sorting as sort_ops
from meshwright.ops.sort import top_k as top_k_ops


def _flat(x: Any, axis: int | None, name: str) -> tuple[Any, int]:
    x = asarray(x)
    if axis is None or (typeof(x).ndim == 0 and static_int(axis, name, "axis") in (0, -1)):
        return ravel(x), 0
    return x, normal_axis(axis, typeof(x).ndim, name)


def _along(x: Any, axis: int | None, name: str) -> tuple[Any, int]:
    """As :func:`_flat`, but that scalars have no axis to sort along, in NumPy neither."""
    return _flat(x, axis if axis is None else normal_axis(axis, typeof(asarray(x)).ndim, name), name)


def _no_kind(name: str, kind: Any, order: Any) -> None:
    if order is not None:
        raise ArgumentError(f"{name}: order= is for NumPy's structured arrays, which arrays here are not; leave it out")
    if kind not in (None, "stable", "mergesort", "quicksort", "heapsort"):
        raise ArgumentError(f"{name}: kind {kind!r} is no kind of sort; say stable=True or False")


def sort(
    a: Any, axis: int | None = -1, *, kind: Any = None, order: None = None, stable: bool = True,
    descending: bool = False,
) -> Any:  # fmt: skip
    """Sort ``a`` in ascending order along ``axis`` (flattened without one); NaN comes last.

    ``kind``, NumPy's choice of algorithm, has no effect.

    >>> sort(np.array([3, 1, 2])).tolist()
    [1, 2, 3]
    """
    _no_kind("sort", kind, order)
    x, d = _along(a, axis, "sort")
    if not descending:
        return sort_ops.sort(x, d, stable)
    return flip(sort_ops.sort(flip(x, d), d, stable), d)  # reversed, so that zeros of different sign keep their order


def argsort(
    a: Any, axis: int | None = -1, *, kind: Any = None, order: None = None, stable: bool = True,
    descending: bool = False, dtype: Any = None,
) -> Any:  # fmt: skip
    """The positions that sort ``a`` in ascending or descending order along ``axis``; equal elements keep their order.

    >>> argsort(np.array([3, 1, 2])).tolist()
    [1, 2, 0]
    """
    _no_kind("argsort", kind, order)
    x, d = _along(a, axis, "argsort")
    index = dtypes.default_int() if dtype is None else dtypes.requested(dtype, "argsort")
    if not descending:
        return sort_ops.argsort(x, d, stable, index)
    # Sort the reversed array, and count positions from the end, so that equal elements keep their order.
    n = typeof(x).shape[d]
    backwards = flip(sort_ops.argsort(flip(x, d), d, stable, index), d)
    return ops.sub(np.asarray(n - 1, index), backwards)


def lexsort(keys: Any, axis: int = -1) -> Any:
    """The positions that sort by several keys, of which the last is the primary one.

    >>> lexsort([np.array([1, 0, 1]), np.array([2, 1, 1])]).tolist()
    [1, 2, 0]
    """
    arrays = [asarray(k) for k in keys]
    if not arrays:
        raise ArgumentError("lexsort: expected one key at least")
    if typeof(arrays[0]).ndim == 0:
        return asarray(np.zeros((), dtypes.default_int()))
    d = normal_axis(axis, typeof(arrays[0]).ndim, "lexsort")
    positions = iota(dtypes.default_int(), typeof(arrays[0]).shape, d)
    return sort_ops.sort((*arrays[::-1], positions), d, True, len(arrays))[-1]


def partition(a: Any, kth: int, axis: int = -1) -> Any:
    """Place element ``kth`` of the sorted order, with smaller elements before it: sorts ``a`` completely.

    Raises:
      ArgumentTypeError: ``kth`` is not an integer. AxisError: it is out of range.

    >>> partition(np.array([3, 1, 2]), 0)[0].item()
    1
    """
    _check_kth(a, kth, axis, "partition")
    return sort(a, axis)


def _check_kth(a: Any, kth: Any, axis: int, name: str) -> None:
    shape = aval_of(a, name).shape
    size, k = shape[normal_axis(axis, len(shape), name)], static_int(kth, name, "kth")
    if not -size <= k < size:
        raise AxisError(f"{name}: there is no element kth={k} of {size} along axis {axis} of shape {shape}")


def argpartition(a: Any, kth: int, axis: int = -1) -> Any:
    """The positions for :func:`partition`, with the same errors.

    >>> argpartition(np.array([3, 1, 2]), 0)[0].item()
    1
    """
    _check_kth(a, kth, axis, "argpartition")
    return argsort(a, axis)


def top_k(a: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """The ``k`` largest elements along ``axis``, largest first, and their positions.

    >>> [v.tolist() for v in top_k(np.array([1, 3, 2]), 2)]
    [[3, 2], [1, 2]]
    """
    x = asarray(a)
    d = normal_axis(axis, typeof(x).ndim, "top_k")
    values, positions = top_k_ops.top_k(moveaxis(x, d, -1), k)
    return moveaxis(values, -1, d), moveaxis(positions, -1, d)


def sort_complex(a: Any) -> Any:
    """``a`` sorted along the last axis by real, then imaginary part; the result is complex.

    >>> sort_complex(np.array([2 + 1j, 1 + 3j, 1 - 1j])).tolist()
    [(1-1j), (1+3j), (2+1j)]
    """
    if typeof(asarray(a)).ndim == 0:
        raise ArgumentError("sort_complex: expected an array of one dimension at least, got a scalar")
    x = sort(a)
    dtype = typeof(x).dtype
    wide = dtype.itemsize == 8 and not dtypes.is_complex(dtype)
    return x if dtypes.is_complex(dtype) else convert(x, dtypes.complex128 if wide else dtypes.complex64)


# --- cumulative ---------------------------------------------------------------------------------------------
def _cumulate(name: str, a: Any, axis: int | None, dtype: Any, op: Any) -> Any:
    x, d = _flat(a, axis, name)
    if dtype is not None:
        target = dtypes.requested(dtype, name)
        if dtypes.is_bool(target):
            return convert(op(convert(convert(x, target), dtypes.default_int()), d), target)
        x = convert(x, target)
    elif dtypes.is_bool(typeof(x).dtype):
        x = convert(x, dtypes.default_int())
    return op(convert(x, typeof(x).dtype), d)  # not weakly typed, as in JAX


def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Running sums along ``axis`` (of the flattened array without one).

    >>> cumsum(np.array([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    no_out(out, "cumsum")
    return _cumulate("cumsum", a, axis, dtype, cumulative.cumsum)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Running products along ``axis`` (of the flattened array without one).

    >>> cumprod(np.array([1, 2, 3])).tolist()
    [1, 2, 6]
    """
    no_out(out, "cumprod")
    return _cumulate("cumprod", a, axis, dtype, cumulative.cumprod)


def _numbers(a: Any, instead: float) -> Any:
    x = asarray(a)
    return select(ops.ne(x, x), scalar_like(instead, x), x) if dtypes.is_inexact(typeof(x).dtype) else x


def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """:func:`cumsum` with NaN replaced by 0.

    >>> nancumsum(np.array([1.0, np.nan, 3.0])).tolist()
    [1.0, 1.0, 4.0]
    """
    return cumsum(_numbers(a, 0.0), axis, dtype, out)


def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """:func:`cumprod` with NaN replaced by 1.

    >>> nancumprod(np.array([2.0, np.nan, 3.0])).tolist()
    [2.0, 2.0, 6.0]
    """
    return cumprod(_numbers(a, 1.0), axis, dtype, out)


def _cumulative_api(name: str, op: Any, start: int) -> Any:
    def f(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
        x = asarray(x)
        if axis is None and typeof(x).ndim != 1:
            raise ArgumentError(f"{name}: axis is needed for an array of {typeof(x).ndim} dimensions")
        d = normal_axis(0 if axis is None else axis, typeof(x).ndim, name)
        out = op(x, d, sum_dtype(typeof(x).dtype, dtype, name))
        if not include_initial:
            return out
        shape = list(typeof(out).shape)
        shape[d] = 1
        return concatenate([broadcast_in_dim(scalar_like(start, out), shape, ()), out], d)

    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"Array API form of {op.__name__}: with ``include_initial`` there is a {start} first."
    return f


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along ``axis``, taken ``n`` times.

    >>> diff(np.array([1, 4, 9])).tolist()
    [3, 5]
    """
    x = asarray(a)
    d = normal_axis(axis, typeof(x).ndim, "diff")
    times = static_int(n, "diff", "n")
    if times < 0:
        raise ArgumentError(f"diff: n must not be negative, got {times}")
    if times == 0:
        return x
    ends = []
    for extra in (prepend, append):
        if extra is None:
            continue
        e = asarray(extra)
        shape = list(typeof(x).shape)
        shape[d] = 1
        ends.append(broadcast_in_dim(e, shape, ()) if typeof(e).ndim == 0 else e)
    if ends:
        x = concatenate(
            [*([ends[0]] if prepend is not None else []), x, *([ends[-1]] if append is not None else [])], d
        )
    for _ in range(times):
        size = typeof(x).shape[d]
        later, earlier = slice_in_dim(x, min(1, size), size, 1, d), slice_in_dim(x, 0, max(size - 1, 0), 1, d)
        x = ops.ne(later, earlier) if dtypes.is_bool(typeof(x).dtype) else ops.sub(later, earlier)
    return x


cumulative_sum = _cumulative_api("cumulative_sum", cumsum, 0)
cumulative_prod = _cumulative_api("cumulative_prod", cumprod, 1)
