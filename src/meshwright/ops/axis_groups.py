"""Collectives among groups of positions along named axes: the ``axis_index_groups`` of ``jax.lax``.

A group's members send their values around it (one permutation a step, each a collective that every transformation and
the partitioner know), and each position puts what came into the order of its group. All collectives are then local
functions of these values. Sending costs (members - 1) values a position, whatever the number of groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.ops.broadcast_reduce import reduce_sum
from meshwright.ops.collective import Ppermute, axis_index_of
from meshwright.ops.dynamic_slice import dynamic_index_in_dim, dynamic_slice_in_dim
from meshwright.ops.elementwise import convert, sub
from meshwright.ops.shape import expand_dims
from meshwright.ops.slice_pad import concatenate


@dataclass(frozen=True)
class AxisGroups:
    """The positions along named axes, row-major, in groups of one size."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of members of each group."""
        return len(self.groups[0])

    def place(self) -> Any:
        """This position's place in its group: an int32 scalar."""
        places = np.zeros(math.prod(self.sizes), np.int32)
        for group in self.groups:
            places[list(group)] = np.arange(self.size)
        return dynamic_index_in_dim(places, axis_index_of(self.names, self.sizes), keepdims=False)

    def gathered(self, x: Any) -> Any:
        """``x`` of all members of this position's group, stacked in front in the group's order."""
        n = self.size
        arrived = [expand_dims(x, [0])]
        for distance in range(1, n):
            perm = [(group[(p + distance) % n], group[p]) for group in self.groups for p in range(n)]
            arrived.append(expand_dims(Ppermute(self.names, self.sizes, tuple(perm)).bind(x), [0]))
        # Row r came from the member r places on; the member in place 0 is in row n - place.
        twice = concatenate([*arrived, *arrived], 0)
        return dynamic_slice_in_dim(twice, sub(np.int32(n), self.place()), n, allow_negative_indices=False)

    def summed(self, x: Any) -> Any:
        """The sum of ``x`` over this position's group."""
        dtype = typeof(x).dtype
        return convert(reduce_sum(self.gathered(x), (0,)), dtype)


def axis_groups(
    name: str, names: tuple[str, ...], sizes: tuple[int, ...], groups: Sequence[Sequence[int]] | None
) -> AxisGroups | None:
    """The groups that a user gave; None for one group of all.

    Raises:
      ArgumentError: not every position is in exactly one group, or groups differ in size.
    """
    if groups is None:
        return None
    found = tuple(tuple(int(i) for i in group) for group in groups)
    positions = math.prod(sizes)
    if sorted(i for group in found for i in group) != list(range(positions)) or len({len(g) for g in found}) != 1:
        raise ArgumentError(
            f"{name}: axis_index_groups {[list(g) for g in found]} must be groups of one size that have each of the "
            f"positions 0 to {positions - 1} along {names} once"
        )
    return AxisGroups(names, sizes, found)
