"""Collectives as functions over axis names in scope: ``psum(x, "data")`` and the others, as in ``jax.lax``.

Each takes an array, or a tree of arrays which it treats one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from meshwright.core import dtypes, pytree
from meshwright.errors import ShapeError
from meshwright.ir.state import axis_size
from meshwright.ir.tracing import typeof
from meshwright.ops.collective import AllGather, AllToAll, Pmax, Pmin, Ppermute, Psum, ReduceScatter, axis_index_of
from meshwright.ops.elementwise import convert, div, scalar_like
from meshwright.ops.shape import expand_dims, move_dim, reshape, squeeze


def _names(axis_name: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    return names, tuple(axis_size(n) for n in names)


def _each_leaf(collective: Callable[..., Any]) -> Callable[..., Any]:
    """``collective`` for a tree of arrays: of each leaf by itself."""

    @wraps(collective)
    def wrapped(x: Any, *args: Any, **options: Any) -> Any:
        leaves, tree = pytree.flatten(x)
        return pytree.unflatten(tree, [collective(leaf, *args, **options) for leaf in leaves])

    return wrapped


@_each_leaf
def psum(x: Any, axis_name: Any) -> Any:
    """Sum of ``x`` over the named axes.

    Raises:
      UnboundAxisError: an axis is not in scope.
    """
    names, sizes = _names(axis_name)
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return x * math.prod(sizes)
    return Psum(names, sizes).bind(x)


@_each_leaf
def pmean(x: Any, axis_name: Any) -> Any:
    """Mean of ``x`` over the named axes."""
    _, sizes = _names(axis_name)
    total = psum(x, axis_name)
    if not dtypes.is_inexact(typeof(total).dtype):
        total = convert(total, dtypes.default_float())
    return div(total, scalar_like(math.prod(sizes), total))


@_each_leaf
def pmax(x: Any, axis_name: Any) -> Any:
    """Maximum of ``x`` over the named axes."""
    return Pmax(*_names(axis_name)).bind(x)


@_each_leaf
def pmin(x: Any, axis_name: Any) -> Any:
    """Minimum of ``x`` over the named axes."""
    return Pmin(*_names(axis_name)).bind(x)


def axis_index(axis_name: Any) -> Any:
    """Position along the named axes: an int32 scalar."""
    return axis_index_of(*_names(axis_name))


@_each_leaf
def all_gather(x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Any:
    """``x`` of all devices along the named axes: stacked at a new dimension, or joined along ``axis`` if ``tiled``."""
    names, sizes = _names(axis_name)
    if not tiled:
        axis %= typeof(x).ndim + 1
        x = expand_dims(x, [axis])
    return AllGather(names, sizes, axis % typeof(x).ndim).bind(x)


@_each_leaf
def psum_scatter(x: Any, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    """This device's part of the sum over the named axes: a tile of ``scatter_dimension``, or one index of it."""
    names, sizes = _names(axis_name)
    d = scatter_dimension % typeof(x).ndim
    if not tiled and typeof(x).shape[d] != math.prod(sizes):
        raise ShapeError(
            f"psum_scatter: dimension {d} of shape {typeof(x).shape} must have size {math.prod(sizes)}, the number of "
            "devices; for tiles pass tiled=True"
        )
    y = ReduceScatter(names, sizes, d).bind(x)
    return y if tiled else squeeze(y, [d])


@_each_leaf
def all_to_all(x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, tiled: bool = False) -> Any:
    """Part ``j`` of ``split_axis`` goes to device ``j``; what arrives is joined (or stacked) at ``concat_axis``."""
    names, sizes = _names(axis_name)
    ndim = typeof(x).ndim
    s, c = split_axis % ndim, concat_axis % ndim
    if tiled:
        if s == c:
            x = expand_dims(x, [s])  # [1, D]: received parts are joined in the new dimension, then merged
            y = AllToAll(names, sizes, s + 1, s).bind(x)
            shape = typeof(y).shape
            return reshape(y, (*shape[:s], shape[s] * shape[s + 1], *shape[s + 2 :]))
        return AllToAll(names, sizes, s, c).bind(x)
    if typeof(x).shape[s] != math.prod(sizes):
        raise ShapeError(
            f"all_to_all: dimension {s} of {typeof(x).shape} must have {math.prod(sizes)} rows; or pass tiled=True"
        )
    x = expand_dims(move_dim(x, s, 0), [c + 1])
    return squeeze(AllToAll(names, sizes, 0, c + 1).bind(x), [0])


@_each_leaf
def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """``x`` of device ``source`` arrives at device ``target`` for each pair; zeros where nothing arrives."""
    names, sizes = _names(axis_name)
    return Ppermute(names, sizes, tuple((int(s), int(t)) for s, t in perm)).bind(x)
