"""Arrays with elements removed, inserted or replaced: NumPy's functions, returning new arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.api.control_flow import switch
from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.applying import vectorize
from meshwright.numpy.at import IndexUpdater
from meshwright.numpy.axes import no_out, normal_axis, normal_shape
from meshwright.numpy.creation import asarray, zeros
from meshwright.numpy.indexing import take
from meshwright.numpy.joining import concatenate
from meshwright.numpy.logic import truth, where
from meshwright.numpy.manipulation import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    moveaxis,
    ravel,
    reshape,
)
from meshwright.numpy.promotion import as_positions, converted, known_positions, promote_all, scalar_like
from meshwright.numpy.reductions import strong
from meshwright.numpy.repeating import repeat
from meshwright.numpy.searching import concrete, flatnonzero, searchsorted
from meshwright.numpy.sorting import argsort, sort
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert
from meshwright.ops.reduce import cumulative
from meshwright.ops.shape.broadcast_reduce import iota


def _flattened(x: Any, axis: int | None, name: str) -> tuple[Any, int]:
    x = asarray(x)
    return (ravel(x), 0) if axis is None else (x, normal_axis(axis, typeof(x).ndim, name))


def _positions(obj: Any, size: int, name: str) -> np.ndarray:
    """The static positions of an index object along a dimension.

    Raises:
      ArgumentError: out of range. ConcretizationTypeError: traced.
    """
    if isinstance(obj, slice):
        return np.arange(size)[obj]
    value = concrete(asarray(obj), name, "make the positions static, or use where")
    if value.dtype == np.bool_:
        if value.shape != (size,):
            raise ShapeError(f"{name}: a mask of shape {value.shape} for a dimension of size {size}")
        return np.flatnonzero(value)
    value = _integers(value, name)
    if value.size and not ((-size <= value) & (value < size)).all():
        raise ArgumentError(f"{name}: positions {value.tolist()} are not all inside of a dimension of size {size}")
    return np.where(value < 0, value + size, value).reshape(-1)


def _integers(value: np.ndarray, name: str) -> np.ndarray:
    """Known positions as integers; an empty list, which NumPy takes for floats, is none.

    Raises:
      ArgumentError: they are not integers.
    """
    if value.size and dtypes.is_inexact(value.dtype):
        raise ArgumentError(f"{name}: positions must be integers, got {value.tolist()}; convert them with int()")
    return known_positions(value)


def _is_traced(x: Any) -> bool:
    return isinstance(x, Tracer) and x.concrete() is None


def _counted(obj: Any, most: int) -> Any:
    """Traced positions as a vector, negative ones counted from the end of a dimension of size ``most``."""
    positions = as_positions(ravel(asarray(obj)))
    return where(positions < 0, positions + scalar_like(most, positions), positions)


def _without(positions: Any, size: int) -> Any:
    """``range(size)`` without ``positions``, which are distinct."""
    gone = sort(positions)
    count = typeof(gone).size
    # The number of removed positions before remaining element j is that of all k with gone[k] - k <= j.
    before = gone - iota(typeof(gone).dtype, (count,), 0)
    left = iota(typeof(gone).dtype, (size - count,), 0)
    return left + searchsorted(before, left, side="right").astype(typeof(left).dtype)


# --- taking out ---------------------------------------------------------------------------------------------
def delete(arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Any:
    """Delete the positions ``obj`` (an integer, slice, integers or mask) along ``axis`` (of the flattened array
    without).

    Raises:
      ArgumentError: positions are out of range. ConcretizationTypeError: they are traced, and ``assume_unique_indices``
        does not promise distinct integers, so that the result's size is unknown.

    >>> delete(np.array([1, 2, 3]), 1).tolist()
    [1, 3]
    """
    x, d = _flattened(arr, axis, "delete")
    size = typeof(x).shape[d]
    obj = obj if isinstance(obj, slice) else asarray(obj)
    if assume_unique_indices and _is_traced(obj) and dtypes.is_integer(typeof(obj).dtype):
        return take(x, _without(_counted(obj, size), size), d)
    return take(x, np.setdiff1d(np.arange(size), _positions(obj, size, "delete")), d)


def compress(
    condition: Any, a: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0, out: None = None
) -> Any:  # fmt: skip
    """The slices along ``axis`` (elements of the flattened array without) where ``condition``, a vector, is true.

    Args:
      size: the static size of the result: excess elements are dropped, missing ones are ``fill_value``.

    Raises:
      ShapeError: the condition is no vector, or it is true, or may be, beyond the end of the dimension.

    >>> compress(np.array([False, True, True]), np.array([1, 2, 3])).tolist()
    [2, 3]
    """
    no_out(out, "compress")
    flags = truth(asarray(condition), "compress")
    if typeof(flags).ndim != 1:
        raise ShapeError(f"compress: the condition must be a vector, got shape {typeof(flags).shape}")
    x, d = _flattened(a, axis, "compress")
    count = typeof(x).shape[d]
    if typeof(flags).size > count and (_is_traced(flags) or np.any(np.asarray(flags[count:]))):
        raise ShapeError(
            f"compress: the condition has {typeof(flags).size} elements, the dimension {count}; cut it off"
        )
    if size is None:
        return take(x, flatnonzero(flags[:count]), d)
    places = flatnonzero(flags[:count], size=size, fill_value=count)
    return convert(take(x, places, d, mode="fill", fill_value=fill_value), typeof(x).dtype)


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements where ``condition`` is true, as a vector; ``size`` as for :func:`compress`.

    >>> extract(np.array([[True, False], [False, True]]), np.array([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    return compress(ravel(condition), arr, size=size, fill_value=fill_value)


# --- putting in ---------------------------------------------------------------------------------------------
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """Insert ``values`` before the positions ``obj`` (of the original array) along ``axis``.

    Raises:
      ArgumentError: positions are out of range; traced ones are clipped instead.

    >>> insert(np.array([1, 2, 3]), 1, 9).tolist()
    [1, 9, 2, 3]
    """
    x, d = _flattened(arr, axis, "insert")
    shape = typeof(x).shape
    size = shape[d]
    single = not isinstance(obj, slice) and np.ndim(obj) == 0
    obj = obj if isinstance(obj, slice) else asarray(obj)
    before = _counted(obj, size).clip(0, size) if _is_traced(obj) else _places(obj, size)
    new = convert(converted(asarray(values), typeof(x).dtype), typeof(x).dtype, typeof(x).weak_type)
    if single and typeof(new).ndim:  # at one position any number of rows can be inserted
        new = moveaxis(expand_dims(new, tuple(range(len(shape) - typeof(new).ndim))), 0, d)
        new = broadcast_to(new, (*shape[:d], typeof(new).shape[d], *shape[d + 1 :]))
        before = (repeat if _is_traced(before) else np.repeat)(before, typeof(new).shape[d])
    else:
        new = broadcast_to(new, (*shape[:d], len(before), *shape[d + 1 :]))
    # Sort old and new elements stably by twice the index of the old element that they precede.
    old, own = 2 * np.arange(size, dtype=np.int32) + 1, before * 2
    if _is_traced(before):
        order = argsort(concatenate([converted(asarray(old), typeof(own).dtype), own]), stable=True)
    else:
        order = np.argsort(np.concatenate([old, own]), kind="stable")
    return take(concatenate([x, new], d), order, d)


def _places(obj: Any, size: int) -> np.ndarray:
    """The static positions before which to insert, where the end of the dimension is allowed.

    Raises:
      ArgumentError: out of range.
    """
    if isinstance(obj, slice):
        return np.arange(size)[obj]
    given = _integers(concrete(asarray(obj), "insert", "make the positions static").reshape(-1), "insert")
    before = np.where(given < 0, given + size, given)
    if before.size and (before.min() < 0 or before.max() > size):
        raise ArgumentError(f"insert: positions {before.tolist()} are not all inside of a dimension of size {size}")
    return before


def resize(a: Any, new_shape: Any) -> Any:
    """The elements in a new shape, repeated or truncated to fill it.

    >>> resize(np.array([1, 2]), (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    shape = normal_shape(new_shape, "resize")
    flat = ravel(asarray(a))
    new_size, size = int(np.prod(shape, dtype=int)), typeof(flat).size
    if size == 0 or new_size == 0:
        return zeros(shape, typeof(flat).dtype)
    return reshape(concatenate([flat] * -(-new_size // size))[:new_size], shape)


def block(arrays: Any) -> Any:
    """Assemble an array from nested lists of blocks: the innermost along the last axis, and so on outwards.

    >>> block([[np.eye(2), np.zeros((2, 1))]]).shape
    (2, 3)
    """
    depth = _depth(arrays)
    ndim = max([depth, *(typeof(asarray(x)).ndim for x in _leaves(arrays))])

    def join(x: Any, level: int) -> Any:
        if not isinstance(x, list):
            x = asarray(x)
            return reshape(x, (1,) * (ndim - typeof(x).ndim) + typeof(x).shape)
        return concatenate([join(e, level + 1) for e in x], ndim - depth + level)

    return join(arrays, 0)


def _leaves(x: Any) -> list[Any]:
    return [leaf for e in x for leaf in _leaves(e)] if isinstance(x, list) else [x]


def _depth(x: Any) -> int:
    if isinstance(x, tuple):
        raise ArgumentTypeError("block: only lists are blocks of blocks, got a tuple")
    if not isinstance(x, list):
        return 0
    depths = {_depth(e) for e in x}
    if len(depths) != 1:
        raise ArgumentError("block: lists must be nested equally deep everywhere, and not be empty")
    return depths.pop() + 1


# --- replacing ----------------------------------------------------------------------------------------------
def _functional(name: str, inplace: bool) -> None:
    if inplace:
        raise ArgumentError(f"{name}: arrays are immutable; pass inplace=False and use the result")


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = True) -> Any:
    """Replace the elements where ``mask`` is true by those of ``vals``, in order and repeated as needed.

    Raises:
      ArgumentError: ``inplace`` is not False (NumPy's function writes into ``arr``), or ``vals`` is empty.

    >>> place(np.array([1, 2, 3]), np.array([True, False, True]), np.array([8, 9]), inplace=False).tolist()
    [8, 2, 9]
    """
    _functional("place", inplace)
    x, flags, new = asarray(arr), ravel(truth(asarray(mask), "place")), ravel(asarray(vals))
    if typeof(flags).size != typeof(x).size or typeof(new).size == 0:
        raise ArgumentError(
            f"place: array {typeof(x)}, mask of {typeof(flags).size} and {counted(typeof(new).size, 'value')}"
        )
    count = cumulative.cumsum(convert(flags, dtypes.default_int()), 0)
    which = ops.rem(
        ops.max_(ops.sub(count, scalar_like(1, count)), scalar_like(0, count)), scalar_like(typeof(new).size, count)
    )
    chosen = converted(take(new, which, mode="clip"), typeof(x).dtype)
    return reshape(where(flags, chosen, ravel(x)), typeof(x).shape)


def put(a: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = True) -> Any:
    """Replace the elements at flat positions ``ind`` by those of ``v``, repeated as needed.

    Args:
      mode: for out-of-range positions: "clip" or "wrap"; by default they are dropped.

    Raises:
      ArgumentError: ``inplace`` is not False, an unknown mode, or ``v`` is empty.

    >>> put(np.array([1, 2, 3]), np.array([0, 2]), np.array([8, 9]), inplace=False).tolist()
    [8, 2, 9]
    """
    _functional("put", inplace)
    x, index, new = asarray(a), as_positions(ravel(asarray(ind))), ravel(asarray(v))
    size = typeof(x).size
    if mode not in (None, "clip", "wrap") or (typeof(new).size == 0 and typeof(index).size):
        raise ArgumentError(
            f"put: mode must be None, 'clip' or 'wrap', got {mode!r} and {counted(typeof(new).size, 'value')}"
        )
    if typeof(index).size == 0:
        return x
    index = index % max(size, 1) if mode == "wrap" else index.clip(0, size - 1) if mode == "clip" else index
    new = resize(new, (typeof(index).size,))
    return reshape(IndexUpdater(ravel(x))[index].set(converted(new, typeof(x).dtype), mode="drop"), typeof(x).shape)


def put_along_axis(
    arr: Any, indices: Any, values: Any, axis: int | None, inplace: bool = True, *, mode: Any = None
) -> Any:
    """``arr`` with the elements at ``indices`` along ``axis`` (see :func:`take_along_axis`) replaced by ``values``.

    >>> put_along_axis(np.array([[1, 2], [3, 4]]), np.array([[1], [0]]), 9, 1, inplace=False).tolist()
    [[1, 9], [9, 4]]
    """
    _functional("put_along_axis", inplace)
    x, d = _flattened(arr, axis, "put_along_axis")
    index = asarray(indices)
    if typeof(index).ndim != typeof(x).ndim:
        raise ShapeError(
            f"put_along_axis: array {typeof(x).shape} and indices {typeof(index).shape}: as many dimensions"
        )
    sizes = [n if e == d else typeof(x).shape[e] for e, n in enumerate(typeof(index).shape)]
    index = broadcast_to(index, sizes)
    grid = [index if e == d else iota(dtypes.int32, sizes, e) for e in range(len(sizes))]
    new = converted(asarray(values), typeof(x).dtype)
    return reshape(IndexUpdater(x)[tuple(grid)].set(new, mode=mode), typeof(asarray(arr)).shape)


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = True) -> Any:
    """Replace the main diagonal of ``a`` by ``val`` (a number, or values repeated along it).

    >>> fill_diagonal(np.zeros((2, 2)), 3.0, inplace=False).tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    _functional("fill_diagonal", inplace)
    if wrap:
        raise ArgumentError("fill_diagonal: wrap=True is not supported")
    x = asarray(a)
    shape = typeof(x).shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShapeError(f"fill_diagonal: expected a matrix, or more dimensions of one size, got shape {shape}")
    n = min(shape)
    new = converted(asarray(val), typeof(x).dtype)
    return IndexUpdater(x)[(np.arange(n),) * len(shape)].set(resize(new, (n,)) if typeof(new).ndim else new)


# --- choosing -----------------------------------------------------------------------------------------------
def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    """For each element ``i`` of ``a``, the element of ``choices[i]`` at the same place; all are broadcast together.

    Args:
      mode: for out-of-range numbers: "raise" (concrete ``a`` only), "wrap" or "clip".

    >>> choose(np.array([1, 0]), [np.array([10, 20]), np.array([30, 40])]).tolist()
    [30, 20]
    """
    if out is not None:
        raise ArgumentError("choose: out= is not supported, arrays are immutable; use the result")
    which = asarray(a)
    if not (dtypes.is_integer(typeof(which).dtype) or dtypes.is_bool(typeof(which).dtype)):
        raise DTypeError(f"choose: a must be integers, which say what to choose, got {typeof(which)}; use .astype(int)")
    n = len(choices)
    if not n:
        raise ArgumentError("choose: expected one choice at least, got none")
    cases = promote_all([asarray(c) for c in choices])
    if mode == "raise":
        value = concrete(which, "choose", "pass mode='clip' or 'wrap'")
        if value.size and (value.min() < 0 or value.max() >= n):
            raise ArgumentError(f"choose: numbers from {value.min()} to {value.max()} for {n} choices")
    elif mode in ("wrap", "clip"):
        which = which % n if mode == "wrap" else which.clip(0, n - 1)
    else:
        raise ArgumentError(f"choose: mode must be 'raise', 'wrap' or 'clip', got {mode!r}")
    which, *cases = broadcast_arrays(which, *cases)
    result = cases[0]
    for i, case in enumerate(cases[1:], 1):
        result = where(which == i, case, result)
    return strong(result, typeof(result).dtype)


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    """For each element, apply the function (or take the number) of the last condition that holds; an extra one is the
    default.

    Functions are called with one element each. Where another function is chosen, they need no value and have no
    derivative.

    >>> piecewise(np.array([-1.0, 4.0]), [np.array([True, False])], [0.0, sqrt]).tolist()
    [0.0, 2.0]
    """
    x = asarray(x)
    listed = isinstance(condlist, (list, tuple)) or np.ndim(condlist) > typeof(x).ndim
    if not listed and np.ndim(condlist):  # one condition, or as many scalars as the functions ask for
        listed = len(funclist) in (len(condlist), len(condlist) + 1)
    conditions = [truth(asarray(c), "piecewise") for c in (condlist if listed else [condlist])]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(
            f"piecewise: {len(conditions)} conditions take as many functions or one more, got {len(funclist)}"
        )
    functions = [funclist[-1] if len(funclist) > len(conditions) else 0, *funclist[: len(conditions)]]

    def branch(f: Any) -> Any:
        return lambda v: converted(asarray(f(v, *args, **kw) if callable(f) else f), typeof(x).dtype)

    chosen: Any = 0
    for i, condition in enumerate(conditions, 1):
        chosen = where(condition, i, chosen)
    of_one = vectorize(lambda i, v: switch(i, [branch(f) for f in functions], v))
    return of_one(asarray(chosen), x)
