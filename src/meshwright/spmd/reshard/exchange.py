"""Exchanges: a change of layout in several dimensions at once, decomposed into chains.

Write the tile index of a dimension as digits, one per mesh axis that shards it. A *position* is such a digit: a
dimension and the number of tiles in front of the digit. A layout assigns axes to the leading positions of every
dimension; a device's rows run over the positions behind them. When the layout changes, an axis leaves its position and
takes another one, whose axis moves on in turn, and so on: the moves form chains. A chain that

* is a cycle, or begins with an axis that was unused and ends with one that becomes unused, only renames devices;
* begins with an axis that was unused and ends at a position that was not sharded is a slice;
* begins at a position that will not be sharded and ends at one that was not sharded is an all-to-all;
* begins at a position that will not be sharded and ends with an axis that becomes unused is a gather, which is not an
  exchange.

A chain of more than one axis also renames devices. An exchange that renames no devices is a single all-to-all. Any
other is done in rounds, one per chunk of the all-to-all: in each round, every device sends one chunk to the device
given by the chains. In total, it sends its buffer once. (An all-to-all followed by a permute would send it almost
twice.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout

Axis = TypeVar("Axis", bound=Hashable)  # atoms, or numbers of blocks
Position = tuple[int, int]  # dimension, number of tiles in front of the digit


class Chain(NamedTuple, Generic[Axis]):
    """The axes of a chain, each of which takes the position that the next one leaves.

    ``start`` is the position that the first axis leaves and no axis takes; ``end`` is the one that the last axis takes
    and no axis held. Each is None if there is no such position.
    """

    axes: tuple[Axis, ...]
    start: Position | None
    end: Position | None

    @property
    def is_slice(self) -> bool:
        return self.start is None and self.end is not None

    @property
    def is_all_to_all(self) -> bool:
        return self.start is not None and self.end is not None

    @property
    def is_gather(self) -> bool:
        return self.start is not None and self.end is None

    @property
    def renames(self) -> bool:
        """Whether the chain renames devices."""
        return len(self.axes) > 1


def chains(
    before: Sequence[tuple[Axis, ...]], after: Sequence[tuple[Axis, ...]], sizes: Mapping[Axis, int]
) -> list[Chain[Axis]] | None:
    """The chains between two layouts; None if their boundaries in a dimension do not match."""
    for mine, theirs in zip(before, after):
        if any(sizes[a] != sizes[b] for a, b in zip(mine, theirs)):
            return None
    old, new = _positions(before, sizes), _positions(after, sizes)
    held_by = {position: axis for axis, position in old.items()}
    taken = set(new.values())
    moving = [axis for axis in {**old, **new} if old.get(axis) != new.get(axis)]
    first = [axis for axis in moving if axis not in old or old[axis] not in taken]
    all_chains: list[Chain[Axis]] = []
    seen: set[Axis] = set()
    for axis in (*first, *moving):  # axes that are in no chain with a beginning form cycles
        if axis not in seen:
            axes = tuple(_follow(axis, new, held_by))
            seen.update(axes)
            open_ended = axis in first
            start, end = (old.get(axis), new.get(axes[-1])) if open_ended else (None, None)
            all_chains.append(Chain(axes, start, end))
    return all_chains


def wired(all_chains: Sequence[Chain[Axis]]) -> set[Axis]:
    """The axes along which devices send in an exchange: those of all-to-alls and of chains that rename devices."""
    return {axis for chain in all_chains if chain.renames or chain.is_all_to_all for axis in chain.axes}


def _positions(dims: Sequence[tuple[Axis, ...]], sizes: Mapping[Axis, int]) -> dict[Axis, Position]:
    positions: dict[Axis, Position] = {}
    for dim, axes in enumerate(dims):
        tiles = 1
        for axis in axes:
            positions[axis] = (dim, tiles)
            tiles *= sizes[axis]
    return positions


def _follow(axis: Axis, new: dict[Axis, Position], held_by: dict[Position, Axis]) -> Iterator[Axis]:
    first, current = axis, axis
    while True:
        yield current
        if current not in new or new[current] not in held_by:
            return
        current = held_by[new[current]]
        if current == first:
            return


# --- recipes ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recipe:
    """The operations of every device on its local array.

    1. Reshape to ``view``; index digit ``d`` of it by the coordinate on ``axis`` for every (d, axis) of ``slices``.
    2. Transpose by ``forward``: the leading ``len(groups)`` digits number the chunks.
    3. If there are no ``rounds``: an all-to-all of the chunks over the axes ``senders``, the first the most
       significant. Else, in round r, with a shift per chunk digit (row-major over ``groups``): send the chunk whose
       digits are (own coordinate on ``senders`` + shift) mod group, as ``rounds[r]`` says: pairs (source, target)
       of row-major indices over ``axes``. Put what comes at the digits (own coordinate on ``receivers`` - shift)
       mod group.
    4. Transpose by ``backward``; reshape to ``result``.
    """

    view: tuple[int, ...]
    slices: tuple[tuple[int, str], ...]
    forward: tuple[int, ...]
    groups: tuple[int, ...]
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    axes: tuple[str, ...]
    rounds: tuple[tuple[tuple[int, int], ...], ...]
    backward: tuple[int, ...]
    result: tuple[int, ...]


def exchange_recipe(
    shape: Sequence[int],
    before: Sequence[tuple[str, ...]],
    after: Sequence[tuple[str, ...]],
    mesh: AbstractMesh,
) -> Recipe:
    """The steps of an exchange for a global array of ``shape``, which both layouts divide where they differ."""
    return _recipe(tuple(shape), tuple(before), tuple(after), mesh)


@lru_cache(maxsize=64)  # equal layers have the same exchanges, and rounds list every device
def _recipe(
    shape: tuple[int, ...], before: tuple[tuple[str, ...], ...], after: tuple[tuple[str, ...], ...], mesh: AbstractMesh
) -> Recipe:
    sizes = dict(zip(mesh.atoms, mesh.atom_sizes))
    all_chains = chains(before, after, sizes) or []
    moved = [chain for chain in all_chains if chain.is_all_to_all]
    rows = [-(-size // max(mesh.sizes(mine), mesh.sizes(theirs))) for size, mine, theirs in zip(shape, before, after)]
    view, view_digits = _digits(rows, {chain.end: sizes[chain.axes[-1]] for chain in all_chains if chain.end})
    slices = tuple((view_digits[c.end], c.axes[0]) for c in all_chains if c.is_slice and c.end)
    left = [digit for digit in range(len(view)) if digit not in dict(slices)]
    chunks = [left.index(view_digits[chain.end]) for chain in moved if chain.end]
    back, back_digits = _digits(rows, {chain.start: sizes[chain.axes[0]] for chain in moved if chain.start})
    order = [back_digits[chain.start] for chain in moved if chain.start]
    order += [digit for digit in range(len(back)) if digit not in order]
    result = Layout(after).local_shape(shape, mesh)
    axes = mesh.in_mesh_order(wired(all_chains))
    groups = tuple(sizes[chain.axes[0]] for chain in moved)
    renamed = any(chain.renames for chain in all_chains)
    return Recipe(
        view=view,
        slices=slices,
        forward=(*chunks, *(digit for digit in range(len(left)) if digit not in chunks)),
        groups=groups,
        senders=tuple(chain.axes[0] for chain in moved),
        receivers=tuple(chain.axes[-1] for chain in moved),
        axes=axes,
        rounds=tuple(_rounds(all_chains, moved, axes, sizes)) if renamed else (),
        backward=tuple(order.index(digit) for digit in range(len(back))),
        result=result,
    )


def _digits(rows: Sequence[int], sizes: Mapping[Position, int]) -> tuple[tuple[int, ...], dict[Position, int]]:
    """The shape with every dimension's additional positions, in order, before its rows; and the place of each."""
    shape: list[int] = []
    where: dict[Position, int] = {}
    for dim, count in enumerate(rows):
        for position in sorted(position for position in sizes if position[0] == dim):
            where[position] = len(shape)
            shape.append(sizes[position])
        shape.append(count)
    return tuple(shape), where


def _rounds(
    all_chains: Sequence[Chain[str]], moved: Sequence[Chain[str]], axes: tuple[str, ...], sizes: Mapping[str, int]
) -> Iterator[tuple[tuple[int, int], ...]]:
    """For each round, the target of every device: along a chain, each axis takes the coordinate of the next one."""
    shape = [sizes[axis] for axis in axes]
    coordinates = dict(zip(axes, np.indices(shape).reshape(len(shape), math.prod(shape))))
    for shifts in itertools.product(*(range(sizes[chain.axes[0]]) for chain in moved)):
        target = dict(coordinates)
        for chain in all_chains:
            if chain.axes[0] in coordinates:
                turned = (*chain.axes[1:], chain.axes[0])
                target.update({axis: coordinates[other] for axis, other in zip(chain.axes, turned)})
        for chain, shift in zip(moved, shifts):
            last = chain.axes[-1]
            target[last] = (target[last] + shift) % sizes[last]
        numbers = np.ravel_multi_index([target[axis] for axis in axes], shape)
        yield tuple(enumerate(numbers.tolist()))
