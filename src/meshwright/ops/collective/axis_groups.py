"""Collectives among groups of positions along named axes: ``axis_index_groups`` of ``jax.lax``.

The members of a group send their values around it, one permutation per step, which all transformations and the
partitioner support. Each position puts the received values into the order of its group; all collectives are then local
functions of these values. Each position sends (members - 1) values, whatever the number of groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.base import axis_index_of
from meshwright.ops.collective.exchange import Ppermute
from meshwright.ops.collective.tiles import AllGather
from meshwright.ops.elementwise.table import convert, select, sub
from meshwright.ops.indexing.dynamic_slice import dynamic_index_in_dim, dynamic_slice_in_dim
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, reduce_sum
from meshwright.ops.shape.rearrange import expand_dims
from meshwright.ops.shape.slice_pad import concatenate


@dataclass(frozen=True)
class AxisGroups:
    """Groups of the positions along named axes, row-major; of equal size except for reductions."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of members of each group."""
        return len(self.groups[0])

    def place(self) -> Any:
        """This position's place in its group, an int32 scalar."""
        places = np.zeros(math.prod(self.sizes), np.int32)
        for group in self.groups:
            places[list(group)] = np.arange(self.size)
        return dynamic_index_in_dim(places, axis_index_of(self.names, self.sizes), keepdims=False)

    def gathered(self, x: Any) -> Any:
        """``x`` of all members of this position's group, stacked along a leading dimension in the group's order."""
        n = self.size
        arrived = [expand_dims(x, [0])]
        for distance in range(1, n):
            perm = [(group[(p + distance) % n], group[p]) for group in self.groups for p in range(n)]
            arrived.append(expand_dims(Ppermute(self.names, self.sizes, tuple(perm)).bind(x), [0]))
        # Row r is from the member r places further; the member in place 0 is in row n - place.
        twice = concatenate([*arrived, *arrived], 0)
        return dynamic_slice_in_dim(twice, sub(np.int32(n), self.place()), n, allow_negative_indices=False)

    @property
    def even(self) -> bool:
        """Whether all groups have the same size."""
        return len({len(group) for group in self.groups}) == 1

    def _mine(self, table: np.ndarray) -> Any:
        """This position's row of a table that has a row per position."""
        return dynamic_index_in_dim(table, axis_index_of(self.names, self.sizes), keepdims=False)

    def count(self) -> Any:
        """The number of members of this position's group; an integer if it is the same for all."""
        if self.even:
            return self.size
        counts = np.zeros(math.prod(self.sizes), np.int32)
        for group in self.groups:
            counts[list(group)] = len(group)
        return self._mine(counts)

    def reduced(self, x: Any, reduction: Callable[[Any, Sequence[int]], Any], identity: Any) -> Any:
        """``reduction`` of the values of this position's group; the values of others are replaced by ``identity``.

        If groups differ in size, all values are gathered and those of other groups masked.
        """
        aval = typeof(x)
        if self.even:
            return convert(reduction(self.gathered(x), (0,)), aval.dtype)
        members = np.zeros((math.prod(self.sizes),) * 2, np.bool_)
        for group in self.groups:
            members[np.ix_(group, group)] = True
        everyone = AllGather(self.names, self.sizes, 0).bind(expand_dims(x, [0]))
        mask = broadcast_in_dim(self._mine(members), typeof(everyone).shape, (0,))
        kept = select(mask, everyone, np.asarray(identity, aval.dtype))
        return convert(reduction(kept, (0,)), aval.dtype)

    def summed(self, x: Any) -> Any:
        """The sum of ``x`` over this position's group."""
        return self.reduced(x, reduce_sum, 0)


def axis_groups(
    name: str,
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    groups: Sequence[Sequence[int]] | None,
    uneven: bool = False,
) -> AxisGroups | None:
    """The groups that a user gave; None for one group of all positions. With ``uneven`` their sizes may differ.

    Raises:
      ArgumentError: a position is not in exactly one group, or groups differ in size.
    """
    if groups is None:
        return None
    members = tuple(tuple(int(i) for i in group) for group in groups)
    positions = math.prod(sizes)
    grouping = AxisGroups(names, sizes, members)
    if sorted(i for group in members for i in group) != list(range(positions)) or not (uneven or grouping.even):
        raise ArgumentError(
            f"{name}: axis_index_groups {[list(g) for g in members]} must be groups{'' if uneven else ' of one size'} "
            f"that have each of the positions 0 to {positions - 1} along {names} once"
        )
    return grouping
