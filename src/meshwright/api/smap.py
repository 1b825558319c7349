"""``smap``: ``shard_map`` along one mesh axis, with dimension numbers instead of specs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshwright.api.shard_map import INFERRED, shard_map
from meshwright.core import pytree
from meshwright.core.expected import refused
from meshwright.errors import ArgumentError
from meshwright.sharding import PartitionSpec
from meshwright.transforms.wrapped import require_callable


def smap(
    f: Callable[..., Any] | None = None, /, *, in_axes: Any = INFERRED, out_axes: Any, axis_name: str
) -> Callable[..., Any]:
    """Run ``f`` on the devices along one axis of the current mesh: :func:`shard_map` with ``axis_names={axis_name}``.

    Args:
      in_axes: the dimension of each argument that the axis splits, or None: a tuple with an entry (a tree prefix) per
        positional argument, or one entry for all. Defaults to how explicit axes split them.
      out_axes: the dimension along which results are concatenated, or None for results equal on all devices; a tree
        prefix.
      axis_name: the name of the axis.

    Raises:
      ArgumentTypeError: an entry is neither a dimension nor None, or the name is invalid. ArgumentError: a negative
        dimension.

    Example:
      >>> double = mw.smap(lambda x: 2 * lax.axis_index("x") + x, in_axes=0, out_axes=0, axis_name="x")
      >>> with mw.set_mesh(mw.make_mesh((2,), ("x",))):
      ...     double(mnp.zeros(4)).tolist()
      [0.0, 0.0, 2.0, 2.0]
    """
    if f is None:
        return functools.partial(smap, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name)
    require_callable(f, "smap")
    if not isinstance(axis_name, str):
        raise refused("smap: axis_name", "the name of an axis", axis_name)
    if in_axes is not None and in_axes is not INFERRED and not isinstance(in_axes, (int, tuple)):
        raise refused("smap: in_axes", "a dimension, None, or a tuple with an entry for each argument", in_axes)
    in_specs = INFERRED if in_axes is INFERRED else _specs("in_axes", in_axes, axis_name)
    return shard_map(f, in_specs=in_specs, out_specs=_specs("out_axes", out_axes, axis_name), axis_names={axis_name})


def _specs(what: str, axes: Any, name: str) -> Any:
    return pytree.map(lambda axis: _spec(what, axis, name), axes, is_leaf=lambda x: x is None)


def _spec(what: str, axis: Any, name: str) -> PartitionSpec:
    if axis is None:
        return PartitionSpec()
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise refused(f"smap: {what}", "dimensions and None", axis)
    if axis < 0:
        raise ArgumentError(f"smap: {what} has dimension {axis}; count from the front")
    return PartitionSpec(*[None] * axis, name)
