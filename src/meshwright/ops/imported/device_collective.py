"""Collectives and device numbers of imported programs, before a mesh has been chosen.

Groups are lists of device numbers. When the program is partitioned, they become axes of the mesh. In groups that are
not rows of a sub-grid, each member sends to the others, or, if there are many, every device selects its group from all
(:func:`in_groups`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import Emitted
from meshwright.ir.op import Builder, Op
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.collective.base import AxisIndex, Collective, axis_index_of
from meshwright.ops.collective.exchange import AllToAll, Ppermute
from meshwright.ops.collective.ragged import RaggedAllToAll
from meshwright.ops.collective.tiles import AllGather, ReduceScatter
from meshwright.ops.elementwise.table import add, lt, mul, rem, select, zeros_like
from meshwright.ops.indexing.dynamic_slice import dynamic_index_in_dim, dynamic_slice_in_dim
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import expand_dims, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.sharding.device_groups import Groups

#: the axis that represents the devices of one group
GROUP = "devices"
#: the members of a group that send to each other in one permutation after the other; each takes time to start
_MOST_PERMUTED = 8


@dataclass(frozen=True)
class DeviceOp(Op):
    """Base class of per-device operations. ``origin`` is a number by which the reader identifies the operation."""

    origin: int = field(default=-1, compare=False, repr=False, kw_only=True)
    hidden_params: ClassVar[tuple[str, ...]] = ("origin",)
    of_operands: ClassVar[bool] = False


@dataclass(frozen=True)
class DeviceCollective(DeviceOp):
    """``collective`` (over an axis that represents the group) in each of ``groups``, or among all devices if there are
    none.

    A permutation has one group; its pairs are device numbers.
    """

    collective: Collective
    groups: Groups = ()
    name: ClassVar[str] = "device_collective"

    def infer(self, *avals: ShapedArray) -> ShapedArray:
        aval: ShapedArray = self.collective.infer(*avals)
        return aval

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        everyone = (tuple(range(self.collective.group_size)),)
        return self.collective.emit(_InGroups(b, self.groups or everyone), *operands)


@dataclass(frozen=True)
class DeviceNumber(DeviceOp):
    """This device's number (``partition_id``)."""

    name: ClassVar[str] = "partition_id"

    def infer(self) -> ShapedArray:
        return ShapedArray((), dtypes.uint32)

    def emit(self, b: Builder) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.partition_id", [], b.out_avals)[0]


class _InGroups:
    """A builder that emits device groups instead of mesh axes."""

    def __init__(self, builder: Any, groups: Groups) -> None:
        self._builder = builder
        self._groups = groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def op(self, name: str, *args: Any, **attributes: Any) -> Any:
        channel = {"channel_handle": "#stablehlo.channel_handle<handle = 1, type = 1>"}
        if name in ("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.reduce_scatter"):
            channel["use_global_device_ids"] = "unit"
        return self._builder.op(name, *args, **attributes, **channel)

    def replica_groups(self, axes: Sequence[str]) -> Any:
        return np.array(self._groups, np.int64).reshape(len(self._groups), -1)

    def source_target_pairs(self, axes: Sequence[str], perm: Sequence[tuple[int, int]]) -> Any:
        return np.array(perm, np.int64).reshape(-1, 2)

    def axis_index(self, axes: Sequence[str]) -> Any:
        """The position of this device's number in its group, from a table."""
        table = np.zeros(max(max(g) for g in self._groups) + 1, np.int32)
        for group in self._groups:
            table[list(group)] = np.arange(len(group))
        b, scalar, one = self._builder, ShapedArray((), dtypes.int32), ShapedArray((1,), dtypes.int32)
        number = b.op("stablehlo.partition_id", [], [ShapedArray((), dtypes.uint32)])
        place = b.op("stablehlo.convert", number, [scalar])
        values = b.constant(table, ShapedArray(table.shape, dtypes.int32))
        entry = b.op("stablehlo.dynamic_slice", [values, *place], [one], slice_sizes=(1,))
        return b.op("stablehlo.reshape", entry, [scalar])[0]


# --- any groups ---------------------------------------------------------------------------------------------
def entry_at_position(axes: Sequence[str], sizes: Sequence[int], table: np.ndarray) -> Any:
    """The entry (int32) of ``table`` for this device's position along ``axes``, by arithmetic where possible."""
    steps = [int(table[math.prod(sizes[i + 1 :])] - table[0]) if n > 1 else 0 for i, n in enumerate(sizes)]
    grid = np.indices(tuple(sizes)).reshape(len(sizes), -1)
    if (table[0] + np.array(steps, np.int64) @ grid != table).any():
        return dynamic_index_in_dim(table.astype(np.int32), axis_index_of(axes, sizes), 0, keepdims=False)
    total: Any = np.int32(table[0])
    for axis, size, step in zip(axes, sizes, steps):
        if step:
            index = AxisIndex((axis,), (size,)).bind()
            index = index if step == 1 else mul(index, np.int32(step))
            total = add(total, index) if isinstance(total, Tracer) or total else index
    return total


def in_groups(op: Collective, groups: Groups, axes: Sequence[str], sizes: Sequence[int], *operands: Any) -> Any:
    """``op`` in groups of positions along ``axes`` that are not rows of a sub-grid.

    Devices in no group get zeros.
    """
    n = math.prod(sizes)
    where = np.full(n, -1, np.int32)
    for group in groups:
        where[list(group)] = np.arange(len(group))
    place = entry_at_position(axes, sizes, where)
    if isinstance(op, AxisIndex):
        return place
    if isinstance(op, RaggedAllToAll):
        result = op.by_gather(lambda part, x: in_groups(part, groups, axes, sizes, x), *operands)
    else:
        permuted = op.group_size <= min(_MOST_PERMUTED, n // 2)
        result = (_permuted if permuted else _selected)(op, groups, axes, sizes, place, *operands)
    if (where >= 0).all():
        return result
    outside = broadcast_in_dim(lt(place, np.int32(0)), typeof(result).shape, ())
    return select(outside, zeros_like(result), result)


def _permuted(op: Any, groups: Groups, axes: Sequence[str], sizes: Sequence[int], place: Any, x: Any) -> Any:
    """The result from what the members of a group send each other: all that they have, or the receiver's part."""
    count = op.group_size
    part: Callable[[Any], Any] = lambda receiver: x  # noqa: E731
    if isinstance(op, ReduceScatter):
        part = lambda receiver: _tile(x, op.dimension, count, receiver)  # noqa: E731
    elif isinstance(op, AllToAll):
        part = lambda receiver: _tile(x, op.split_dimension, count, receiver)  # noqa: E731
    by_distance = [part(place)]
    for step in range(1, count):
        pairs = tuple(sorted((g[i], g[(i + step) % count]) for g in groups for i in range(count)))
        sent = part(rem(add(place, np.int32(step)), np.int32(count)))
        by_distance.append(Ppermute(tuple(axes), tuple(sizes), pairs).bind(sent))
    near = concatenate([expand_dims(y, [0]) for y in by_distance], 0)
    # From member j comes what has gone place - j steps. All members combine in the same order.
    steps = [rem(add(place, np.int32(count - j)), np.int32(count)) for j in range(count)]
    rows = [dynamic_index_in_dim(near, step, 0, keepdims=False) for step in steps]
    if isinstance(op, (AllReduce, ReduceScatter)):
        return _reduced(op, rows)
    return concatenate(rows, op.concat_dimension if isinstance(op, AllToAll) else op.dimension)


def _selected(op: Any, groups: Groups, axes: Sequence[str], sizes: Sequence[int], place: Any, x: Any) -> Any:
    """The result from a gather along all axes, from which each device selects its group."""
    members = np.zeros((math.prod(sizes), op.group_size), np.int32)
    for group in groups:
        members[list(group)] = group
    everyone = AllGather(tuple(axes), tuple(sizes), 0).bind(expand_dims(x, [0]))
    mine = dynamic_index_in_dim(members, axis_index_of(axes, sizes), 0, keepdims=False)
    rows = []
    for j in range(op.group_size):
        number = squeeze(slice_in_dim(mine, j, j + 1), [0])
        rows.append(dynamic_index_in_dim(everyone, number, 0, keepdims=False))
    return _combined(op, rows, place)


def _combined(op: Any, rows: Sequence[Any], place: Any) -> Any:
    """The result for the device at ``place`` in its group, from the members' values."""
    if isinstance(op, (AllReduce, ReduceScatter)):
        total = _reduced(op, rows)
        return total if isinstance(op, AllReduce) else _tile(total, op.dimension, len(rows), place)
    if isinstance(op, AllToAll):
        parts = [_tile(row, op.split_dimension, len(rows), place) for row in rows]
        return concatenate(parts, op.concat_dimension)
    return concatenate(list(rows), op.dimension)


def _reduced(op: AllReduce | ReduceScatter, rows: Sequence[Any]) -> Any:
    return reduce(op.monoid.combine, rows)


def _tile(x: Any, dim: int, count: int, place: Any) -> Any:
    size = typeof(x).shape[dim] // count
    return dynamic_slice_in_dim(x, mul(place, np.int32(size)), size, dim)
