"""Collectives in device groups as functions of per-device values, for readers and builders.

``groups`` have ``count`` devices each; empty means one group of all. ``origin`` is a reader's number of an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.all_reduce import ALL_REDUCE
from meshwright.ops.collective.base import AxisIndex
from meshwright.ops.collective.exchange import AllToAll, Ppermute
from meshwright.ops.collective.ragged import RaggedAllToAll, with_tables
from meshwright.ops.collective.tiles import AllGather, ReduceScatter
from meshwright.ops.elementwise.monoid import monoid_of
from meshwright.ops.elementwise.table import eq, select, zeros_like
from meshwright.ops.imported.device_collective import GROUP, DeviceCollective
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import expand_dims, reshape
from meshwright.sharding.device_groups import Groups

#: reductions of bools; XLA's sum of bools is a logical or
_OF_BOOLEANS = {"sum": "or", "prod": "and", "max": "or", "min": "and"}


def reduction_of(kind: str, x: Any) -> str:
    """The kind of reduction that ``kind`` is for values like ``x``.

    Raises:
      DTypeError: there is none for its dtype.
    """
    aval = typeof(x)
    kind = _OF_BOOLEANS.get(kind, kind) if dtypes.is_bool(aval.dtype) else kind
    monoid_of(kind).combine.infer(aval, aval)
    return kind


def all_reduce(x: Any, groups: Groups, count: int, computation: str, origin: int = -1) -> Any:
    """Reduce ``x`` over the devices of the group: ``computation`` is ``"sum"``, ``"max"``, ..."""
    op = ALL_REDUCE[reduction_of(computation, x)]((GROUP,), (count,))
    return DeviceCollective(op, groups, origin=origin).bind(x)


def all_gather(x: Any, groups: Groups, count: int, dimension: int, origin: int = -1) -> Any:
    """Concatenate ``x`` of all devices of the group along ``dimension``."""
    return DeviceCollective(AllGather((GROUP,), (count,), dimension), groups, origin=origin).bind(x)


def reduce_scatter(x: Any, groups: Groups, count: int, dimension: int, computation: str, origin: int = -1) -> Any:
    """Reduce ``x`` over the devices of the group; each gets the tile along ``dimension`` for its place in the group."""
    op = ReduceScatter((GROUP,), (count,), dimension, reduction_of(computation, x))
    return DeviceCollective(op, groups, origin=origin).bind(x)


def all_to_all(
    x: Any, groups: Groups, count: int, split_dimension: int, concat_dimension: int, origin: int = -1
) -> Any:
    """Send tile ``i`` of ``x`` to device ``i`` of the group; received tiles are joined along ``concat_dimension``."""
    split, concat = split_dimension, concat_dimension
    if split != concat:
        return DeviceCollective(AllToAll((GROUP,), (count,), split, concat), groups, origin=origin).bind(x)
    # Received tiles are joined along a new dimension, which is then merged.
    AllToAll((GROUP,), (count,), split, concat).infer(typeof(x))
    op = AllToAll((GROUP,), (count,), split + 1, split)
    y = DeviceCollective(op, groups, origin=origin).bind(expand_dims(x, [split]))
    return reshape(y, typeof(x).shape)


def ragged_all_to_all(operand: Any, output: Any, *tables: Any, groups: Groups, count: int, origin: int = -1) -> Any:
    """Exchange rows between the devices of the group (see :func:`.lax.ragged_all_to_all`)."""
    op = RaggedAllToAll((GROUP,), (count,))
    return DeviceCollective(op, groups, origin=origin).bind(*with_tables(op, operand, output, tables))


def collective_permute(x: Any, pairs: Groups, devices: int, origin: int = -1) -> Any:
    """Send ``x`` from source to target for each pair, among ``devices`` devices; other devices get zeros."""
    return DeviceCollective(Ppermute((GROUP,), (devices,), pairs), origin=origin).bind(x)  # type: ignore[arg-type]


def collective_broadcast(x: Any, groups: Groups, count: int, origin: int = -1) -> Any:
    """``x`` of the first device of the group: a sum to which the others contribute zeros."""
    place = DeviceCollective(AxisIndex((GROUP,), (count,)), groups, origin=origin).bind()
    first = broadcast_in_dim(eq(place, np.int32(0)), typeof(x).shape, ())
    return all_reduce(select(first, x, zeros_like(x)), groups, count, "sum", origin)


#: for each name: the function that binds it, the name of its groups, and its other attributes with defaults
COLLECTIVES: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "all_gather": (all_gather, "replica_groups", {"dimension": None}),
    "all_reduce": (all_reduce, "replica_groups", {"computation": "add"}),
    "all_to_all": (all_to_all, "replica_groups", {"split_dimension": None, "concat_dimension": None}),
    "collective_broadcast": (collective_broadcast, "replica_groups", {}),
    "collective_permute": (collective_permute, "source_target_pairs", {}),
    "reduce_scatter": (reduce_scatter, "replica_groups", {"dimension": None, "computation": "add"}),
}
