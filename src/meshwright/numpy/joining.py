"""Joining and splitting arrays: concatenate, stack, split and related functions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import no_out, normal_axis, static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.manipulation import atleast_1d, atleast_2d, atleast_3d, ndim, ravel, reshape
from meshwright.numpy.promotion import converted
from meshwright.ops.shape import rearrange as shp
from meshwright.ops.shape.slice_pad import concatenate as join
from meshwright.ops.shape.slice_pad import slice_in_dim


# --- joining ------------------------------------------------------------------------------------------------
def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """Concatenate arrays along ``axis``; they are flattened first if it is None.

    Args:
      arrays: sequence of arrays with equal shapes except along ``axis``; dtypes are promoted.

    Raises:
      ArgumentError: no arrays. ShapeError: the shapes differ in other dimensions.

    >>> concatenate([np.array([1, 2]), np.array([3])]).tolist()
    [1, 2, 3]
    """
    parts = _parts(arrays, "concatenate")
    if axis is None:
        parts, axis = [ravel(p) for p in parts], 0
    target, weak = dtypes.promote((typeof(p).dtype, typeof(p).weak_type) for p in parts)
    if dtype is not None:
        target, weak = dtypes.requested(dtype, "concatenate"), False
    dims = {typeof(p).ndim for p in parts}
    if dims == {0} or len(dims) > 1:
        shapes = ", ".join(str(typeof(p).shape) for p in parts)
        raise ShapeError(f"concatenate: arrays need equally many dimensions, one at least; got shapes {shapes}")
    d = normal_axis(axis, typeof(parts[0]).ndim, "concatenate")
    return join([converted(p, target, weak) for p in parts], d)


concat = concatenate


def _parts(arrays: Any, name: str) -> list[Any]:
    if typeof_is_array(arrays):
        if typeof(arrays).ndim == 0:
            raise ArgumentError(f"{name}: expected a sequence of arrays, got a 0-d array")
        return list(arrays)
    parts = [asarray(a) for a in arrays]
    if not parts:
        raise ArgumentError(f"{name}: expected one array at least, got none")
    return parts


def typeof_is_array(x: Any) -> bool:
    """Whether ``x`` is one array rather than a sequence of arrays."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Any:
    """Stack arrays of equal shape along a new dimension at ``axis``.

    Raises:
      ArgumentError: no arrays. ShapeError: the shapes differ.

    >>> stack([np.array([1, 2]), np.array([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    no_out(out, "stack")
    parts = _parts(arrays, "stack")
    shapes = {typeof(p).shape for p in parts}
    if len(shapes) > 1:
        raise ShapeError(f"stack: arrays have different shapes {', '.join(map(str, sorted(shapes)))}")
    d = normal_axis(axis, typeof(parts[0]).ndim + 1, "stack")
    return concatenate([shp.expand_dims(p, (d,)) for p in parts], d, dtype)


def vstack(tup: Any, dtype: Any = None) -> Any:
    """Concatenate arrays along axis 0, after making them at least 2-D.

    >>> vstack([np.array([1, 2]), np.array([3, 4])]).shape
    (2, 2)
    """
    return concatenate([atleast_2d(a) for a in _parts(tup, "vstack")], 0, dtype)


row_stack = vstack


def hstack(tup: Any, dtype: Any = None) -> Any:
    """Concatenate arrays along axis 1 (vectors along axis 0).

    >>> hstack([np.array([1, 2]), np.array([3, 4])]).tolist()
    [1, 2, 3, 4]
    """
    parts = [atleast_1d(a) for a in _parts(tup, "hstack")]
    return concatenate(parts, 0 if typeof(parts[0]).ndim == 1 else 1, dtype)


def dstack(tup: Any, dtype: Any = None) -> Any:
    """Concatenate arrays along axis 2, after making them 3-D.

    >>> dstack([np.array([1, 2]), np.array([3, 4])]).shape
    (1, 2, 2)
    """
    return concatenate([atleast_3d(a) for a in _parts(tup, "dstack")], 2, dtype)


def column_stack(tup: Any) -> Any:
    """Concatenate along axis 1, with vectors as columns.

    >>> column_stack([np.array([1, 2]), np.array([3, 4])]).tolist()
    [[1, 3], [2, 4]]
    """
    parts = [asarray(a) for a in _parts(tup, "column_stack")]
    return concatenate([p if typeof(p).ndim > 1 else reshape(p, (-1, 1)) for p in parts], 1)


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """Append ``values`` to ``arr`` along ``axis``; without it, both are flattened.

    >>> append(np.array([1, 2]), 3).tolist()
    [1, 2, 3]
    """
    if axis is None:
        return concatenate([ravel(arr), ravel(values)])
    return concatenate([arr, values], axis)


# --- splitting ----------------------------------------------------------------------------------------------
def _cuts(n: int, sections: Any, name: str, even: bool) -> list[int]:
    """The bounds of the parts."""
    if not isinstance(sections, (tuple, list)) and not (typeof_is_array(sections) and typeof(sections).ndim):
        count = static_int(sections, name, "indices_or_sections")
        if count <= 0 or (even and n % count):
            raise ArgumentError(f"{name}: a dimension of size {n} cannot be split into {count} equal parts")
        small, extra = divmod(n, count)
        return [i * small + min(i, extra) for i in range(count + 1)]
    # As for Python slices, out-of-range positions are clipped, and descending ones give empty parts.
    inner = [slice(static_int(i, name, "indices_or_sections")).indices(n)[1] for i in sections]
    return [0, *inner, n]


def _split(name: str, ary: Any, sections: Any, axis: int, even: bool) -> list[Any]:
    x = asarray(ary)
    d = normal_axis(axis, typeof(x).ndim, name)
    cuts = _cuts(typeof(x).shape[d], sections, name, even)
    return [slice_in_dim(x, a, max(a, b), 1, d) for a, b in pairwise(cuts)]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split ``ary`` along ``axis`` into a number of equal parts, or at the given positions.

    Raises:
      ArgumentError: the size is not a multiple of the number of parts.

    >>> [p.tolist() for p in split(np.arange(4), 2)]
    [[0, 1], [2, 3]]
    """
    return _split("split", ary, indices_or_sections, axis, True)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """As :func:`split`, but the first parts may be larger by one.

    >>> [p.tolist() for p in array_split(np.arange(3), 2)]
    [[0, 1], [2]]
    """
    return _split("array_split", ary, indices_or_sections, axis, False)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """:func:`split` along axis 0.

    >>> len(vsplit(np.ones((4, 2)), 2))
    2
    """
    return _split("vsplit", ary, indices_or_sections, 0, True)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """:func:`split` along axis 1 (axis 0 of a vector).

    >>> hsplit(np.ones((4, 2)), 2)[0].shape
    (4, 1)
    """
    return _split("hsplit", ary, indices_or_sections, 0 if ndim(ary) == 1 else 1, True)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """:func:`split` along axis 2.

    >>> dsplit(np.ones((1, 1, 4)), 2)[0].shape
    (1, 1, 2)
    """
    return _split("dsplit", ary, indices_or_sections, 2, True)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """Split an array into its slices along ``axis``, which is removed.

    >>> [p.item() for p in unstack(np.array([1, 2]))]
    [1, 2]
    """
    x = asarray(x)
    d = normal_axis(axis, typeof(x).ndim, "unstack")
    return tuple([shp.squeeze(slice_in_dim(x, i, i + 1, 1, d), (d,)) for i in range(typeof(x).shape[d])])
