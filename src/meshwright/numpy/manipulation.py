"""Shapes: reshaping, moving and adding dimensions, tiling, flipping and rolling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.axes import elements_of, normal_axes, normal_axis, normal_shape, static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.promotion import as_operand, as_positions
from meshwright.numpy.promotion import broadcast_shapes as join_shapes
from meshwright.ops.elementwise.table import convert
from meshwright.ops.elementwise.table import copy as copy_op
from meshwright.ops.indexing.dynamic_slice import dynamic_slice
from meshwright.ops.shape import rearrange as shp
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.slice_pad import concatenate as join
from meshwright.ops.shape.slice_pad import slice_in_dim


# --- shape --------------------------------------------------------------------------------------------------
def shape(a: Any) -> tuple[int, ...]:
    """The shape of ``a``, which may also be a type, or another library's array that has one.

    >>> shape([[1, 2]])
    (1, 2)
    """
    sizes = getattr(a, "shape", None)
    return sizes if isinstance(sizes, tuple) else typeof(asarray(a)).shape


def ndim(a: Any) -> int:
    """The number of dimensions of ``a``.

    >>> ndim([[1, 2]])
    2
    """
    return len(shape(a))


def size(a: Any, axis: int | Sequence[int] | None = None) -> int:
    """The number of elements of ``a``, or its size along one axis or several.

    >>> size([[1, 2]])
    2
    """
    sizes = shape(a)
    return math.prod(sizes if axis is None else (sizes[d] for d in normal_axes(axis, len(sizes), "size")))


def _new_shape(total: int, old: tuple[int, ...], new: Any) -> tuple[int, ...]:
    """``new`` with -1 replaced by the remaining size."""
    shape = [s if type(s) is int else static_int(s, "reshape", "shape") for s in elements_of(new)]
    unknown = [i for i, s in enumerate(shape) if s == -1]
    if len(unknown) > 1 or any(s < -1 for s in shape):
        raise ShapeError(f"reshape: shape {tuple(shape)} may have one -1 and otherwise sizes of 0 or more")
    if unknown:
        rest = math.prod(s for s in shape if s != -1)
        if rest == 0 or total % rest:
            raise ShapeError(
                f"reshape: array of shape {old} has {counted(total, 'element')}, which shape {tuple(shape)} cannot "
                f"take: they are not a multiple of {rest}"
            )
        shape[unknown[0]] = total // rest
    if math.prod(shape) != total:
        raise ShapeError(
            f"reshape: array of shape {old} has {counted(total, 'element')}, shape {tuple(shape)} has "
            f"{math.prod(shape)}"
        )
    return tuple(shape)


def reshape(a: Any, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """Reshape ``a``, in row-major order. One size may be -1: it is inferred.

    Args:
      a: array of any shape.
      shape: an integer or a sequence of them.
      order: "C", or "F" for column-major order.

    Raises:
      ShapeError: another number of elements, or several -1.

    >>> reshape(np.arange(6), (2, -1)).shape
    (2, 3)
    """
    x = as_operand(a, "reshape")
    aval = typeof(x)
    sizes = _new_shape(aval.size, aval.shape, shape)
    if order == "F":
        flipped = shp.transpose(x, range(aval.ndim)[::-1])
        result = shp.transpose(shp.reshape(flipped, sizes[::-1]), range(len(sizes))[::-1])
    elif order in ("C", "A"):
        result = shp.reshape(x, sizes)
    else:
        raise ArgumentError(f"reshape: order must be 'C' or 'F', got {order!r}")
    result = asarray(result) if isinstance(result, (np.ndarray, np.generic)) else result
    return copy_op(result) if copy and result is a else result


def ravel(a: Any, order: str = "C") -> Any:
    """Flatten ``a`` to one dimension.

    >>> ravel(np.ones((2, 3))).shape
    (6,)
    """
    return reshape(a, (-1,) if size(a) else (0,), order)


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """Permute the dimensions of ``a`` to the order ``axes``; by default, reverse them.

    Raises:
      ArgumentError: ``axes`` is not a permutation of the dimensions.

    >>> transpose(np.ones((2, 3))).shape
    (3, 2)
    """
    x = asarray(a)
    n = typeof(x).ndim
    if axes is None:
        return shp.transpose(x, range(n)[::-1])
    order = normal_axes(tuple(axes), n, "transpose")
    if len(order) != n:
        raise ArgumentError(f"transpose: axes {tuple(axes)} is not a permutation of {counted(n, 'dimension')}")
    return shp.transpose(x, order)


permute_dims = transpose


def matrix_transpose(x: Any, /) -> Any:
    """Swap the last two dimensions.

    >>> matrix_transpose(np.ones((4, 2, 3))).shape
    (4, 3, 2)
    """
    if ndim(x) < 2:
        raise ShapeError(f"matrix_transpose: expected two dimensions or more, got shape {shape(x)}")
    return swapaxes(x, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Swap two dimensions.

    >>> swapaxes(np.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = asarray(a)
    order = list(range(typeof(x).ndim))
    i, j = (normal_axis(d, len(order), "swapaxes") for d in (axis1, axis2))
    order[i], order[j] = order[j], order[i]
    return shp.transpose(x, order)


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Move dimensions ``source`` of ``a`` to positions ``destination``, keeping the order of the others.

    >>> moveaxis(np.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = asarray(a)
    n = typeof(x).ndim
    src, dst = normal_axes(source, n, "moveaxis"), normal_axes(destination, n, "moveaxis")
    if len(src) != len(dst):
        raise ArgumentError(f"moveaxis: source {source} and destination {destination} have different lengths")
    order = [d for d in range(n) if d not in src]
    for to, from_ in sorted(zip(dst, src)):
        order.insert(to, from_)
    return shp.transpose(x, order)


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """Move one dimension of ``a`` before ``start``.

    >>> rollaxis(np.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    n = ndim(a)
    axis = normal_axis(axis, n, "rollaxis")
    start = start + n if start < 0 else start
    return moveaxis(a, axis, start - 1 if start > axis else start)


def expand_dims(a: Any, axis: Any) -> Any:
    """Insert dimensions of size 1 at ``axis`` (one or several positions in the result).

    >>> expand_dims(np.ones(3), 0).shape
    (1, 3)
    """
    x = asarray(a)
    count = len(axis) if isinstance(axis, (tuple, list)) or np.ndim(axis) else 1
    return shp.expand_dims(x, normal_axes(axis, typeof(x).ndim + count, "expand_dims"))


def squeeze(a: Any, axis: Any = None) -> Any:
    """Remove dimensions of size 1: all of them, or those at ``axis``.

    Raises:
      ShapeError: a dimension at ``axis`` has another size.

    >>> squeeze(np.ones((1, 3, 1))).shape
    (3,)
    """
    x = asarray(a)
    sizes = typeof(x).shape
    if axis is None:
        return shp.squeeze(x, [d for d, s in enumerate(sizes) if s == 1])
    return shp.squeeze(x, normal_axes(axis, len(sizes), "squeeze"))


def broadcast_to(array: Any, shape: Any) -> Any:
    """Broadcast ``array`` to ``shape``.

    Raises:
      ShapeError: ``array`` does not broadcast to ``shape``.

    >>> broadcast_to(np.ones(3), (2, 3)).shape
    (2, 3)
    """
    x, sizes = asarray(array), normal_shape(shape, "broadcast_to")
    old = typeof(x).shape
    if len(old) > len(sizes) or join_shapes(old, sizes, name="broadcast_to") != sizes:
        raise ShapeError(f"broadcast_to: shape {old} cannot be broadcast to {sizes}")
    return broadcast_in_dim(x, sizes, range(len(sizes) - len(old), len(sizes)))


def broadcast_arrays(*args: Any) -> list[Any]:
    """Broadcast the arrays to their common shape.

    >>> [a.shape for a in broadcast_arrays(np.ones(3), np.ones((2, 1)))]
    [(2, 3), (2, 3)]
    """
    arrays = [asarray(a) for a in args]
    sizes = join_shapes(*(typeof(a).shape for a in arrays), name="broadcast_arrays")
    return [broadcast_to(a, sizes) for a in arrays]


def _at_least(n: int) -> Any:
    def f(*arys: Any) -> Any:
        out = []
        for a in arys:
            x = asarray(a)
            while typeof(x).ndim < n:
                last = typeof(x).ndim == 2 and n == 3
                x = shp.expand_dims(x, (typeof(x).ndim,) if last else (0,))
            out.append(x)
        return out[0] if len(out) == 1 else out

    f.__name__ = f.__qualname__ = f"atleast_{n}d"
    f.__doc__ = (
        f"Arrays with {n} dimension{'s' * (n > 1)} at least, new ones as in NumPy; a list of them for several.\n\n"
        f">>> atleast_{n}d(1.0).ndim\n{n}\n"
    )
    return f


atleast_1d, atleast_2d, atleast_3d = (_at_least(n) for n in (1, 2, 3))


# --- repeating and turning ----------------------------------------------------------------------------------
def tile(A: Any, reps: Any) -> Any:
    """Repeat the whole of ``A`` ``reps`` times along each dimension.

    >>> tile(np.array([1, 2]), 2).tolist()
    [1, 2, 1, 2]
    """
    x, counts = asarray(A), normal_shape(reps, "tile")
    n = max(typeof(x).ndim, len(counts))
    sizes = (1,) * (n - typeof(x).ndim) + typeof(x).shape
    counts = (1,) * (n - len(counts)) + counts
    pairs = [v for pair in zip(counts, sizes) for v in pair]
    spread = broadcast_in_dim(shp.reshape(x, sizes), pairs, range(1, 2 * n, 2))
    return shp.reshape(spread, [c * s for c, s in zip(counts, sizes)])


def flip(m: Any, axis: Any = None) -> Any:
    """Reverse the order of elements along ``axis`` (default: all dimensions).

    >>> flip(np.array([1, 2, 3])).tolist()
    [3, 2, 1]
    """
    x = asarray(m)
    return shp.rev(x, normal_axes(axis, typeof(x).ndim, "flip"))


def flipud(m: Any) -> Any:
    """Reverse along axis 0.

    >>> flipud(np.array([[1], [2]])).tolist()
    [[2], [1]]
    """
    return flip(m, 0)


def fliplr(m: Any) -> Any:
    """Reverse along axis 1.

    >>> fliplr(np.array([[1, 2]])).tolist()
    [[2, 1]]
    """
    return flip(m, 1)


def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """Rotate ``k`` times by 90 degrees, from the first of ``axes`` towards the second.

    >>> rot90(np.array([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    first, second = normal_axes(tuple(axes), ndim(m), "rot90")
    turns = static_int(k, "rot90", "k") % 4
    if turns == 0:
        return asarray(m)
    if turns == 2:
        return flip(flip(m, first), second)
    return flip(swapaxes(m, first, second), first) if turns == 1 else swapaxes(flip(m, first), first, second)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Shift elements by ``shift`` places along ``axis``; those moved past the end come in at the start.

    Without an axis the flattened array is rolled. ``shift`` and ``axis`` may be sequences; shifts may be traced.

    >>> roll(np.arange(4), 1).tolist()
    [3, 0, 1, 2]
    """
    x = asarray(a)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), typeof(x).shape)
    if not isinstance(shift, (tuple, list)) and typeof(asarray(shift)).ndim:
        vector = asarray(shift) if isinstance(shift, Tracer) else np.asarray(shift)  # known shifts stay so in traces
        shift = [vector[i] for i in range(typeof(vector).shape[0])]
    several = isinstance(axis, (tuple, list)) or np.ndim(axis) > 0
    axes = [normal_axis(d, typeof(x).ndim, "roll") for d in (axis if several else (axis,))]
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,)
    if len({len(axes), len(shifts)} - {1}) > 1:
        raise ArgumentError(
            f"roll: {counted(len(shifts), 'shift')} for {counted(len(axes), 'axis', 'axes')}; give as many, or one for "
            "all"
        )
    count = 0 if not axes or not shifts else max(len(axes), len(shifts))
    for d, s in zip(axes * count if len(axes) == 1 else axes, list(shifts) * count if len(shifts) == 1 else shifts):
        n = typeof(x).shape[d]
        if n and isinstance(s, Tracer):
            starts = [np.int32(0)] * typeof(x).ndim
            starts[d] = convert(n - as_positions(asarray(s)) % n, np.dtype(np.int32))
            x = dynamic_slice(join([x, x], d), starts, typeof(x).shape)
            continue
        by = static_int(s, "roll", "shift") % n if n else 0
        if by:
            x = join([slice_in_dim(x, n - by, n, 1, d), slice_in_dim(x, 0, n - by, 1, d)], d)
    return x


def take_static(x: Any, positions: np.ndarray, d: int) -> Any:
    """Rows at static positions, assembled from runs of rows in a row, backwards, or repeated."""
    if not len(positions):
        return slice_in_dim(x, 0, 0, 1, d)
    return join([_run(x, *run, d) for run in _runs(positions)], d)


def _runs(positions: np.ndarray) -> list[tuple[int, int, int]]:
    """Positions as runs of rows in their order, backwards, or repeated: first row, number, and step (1, -1 or 0)."""
    runs: list[tuple[int, int, int]] = []
    for rows in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
        row = int(rows[0])
        if runs and len(rows) == 1:  # only single rows are joined to those before, so that whole arrays stay whole
            first, count, step = runs[-1]
            new = row - (first + step * (count - 1))
            if new in (0, -1) and (count == 1 or new == step):
                runs[-1] = first, count + 1, new
                continue
        runs.append((row, len(rows), 1))
    return runs


def _run(x: Any, first: int, count: int, step: int, d: int) -> Any:
    last = first + step * (count - 1)
    rows = slice_in_dim(x, min(first, last), max(first, last) + 1, 1, d)
    if step == 0:
        shape = typeof(x).shape
        return broadcast_in_dim(rows, (*shape[:d], count, *shape[d + 1 :]), range(len(shape)))
    return rows if step == 1 else shp.rev(rows, (d,))


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """Remove zeros at the front ("f") and back ("b") of a concrete array, along all or some axes.

    >>> trim_zeros(np.array([0, 1, 0])).tolist()
    [1]
    """
    value = np.asarray(filt)
    axes = normal_axes(axis, value.ndim, "trim_zeros")
    x = asarray(filt)
    for d in axes:
        positions = np.flatnonzero(value.any(tuple(e for e in range(value.ndim) if e != d)))
        n = value.shape[d]
        start = (positions[0] if len(positions) else n) if "f" in trim.lower() else 0
        stop = (positions[-1] + 1 if len(positions) else start) if "b" in trim.lower() else n
        x = slice_in_dim(x, int(start), int(max(stop, start)), 1, d)
    return x
