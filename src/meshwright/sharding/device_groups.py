"""Device groups of HLO and StableHLO collectives, translated to mesh axes.

In a region that is manual along some mesh axes, the groups of a collective lie along manual axes: they are the same
groups of manual positions for every position along the other axes. Most are the rows of a sub-grid, that is, all
devices that differ only along certain axes, and can be named by these axes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ShardingError
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.axes import AxisPart, parse_part
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import atoms_counted
from meshwright.sharding.mesh import AnyMesh, Mesh
from meshwright.sharding.tile_assignment import TileAssignment
from meshwright.sharding.tiles import atom_coordinates, tile_numbers

#: device numbers (or positions), one tuple per group
Groups = tuple[tuple[int, ...], ...]


def device_order(mesh: AnyMesh) -> np.ndarray:
    """The device number at each position of a mesh, numbered from 0 even if the mesh is part of a machine."""
    if not isinstance(mesh, Mesh):
        return np.arange(mesh.size)
    return np.argsort(np.argsort(np.array(mesh.flat_ids)))


def check_groups(groups: Groups, count: int | None, attribute: str, what: str = "device") -> None:
    """Check that groups name some of the ``count`` devices (None: any), each at most once, and have one size.

    ``attribute`` is the attribute's name. Tables named ``... source_target_pairs`` are not groups; their rows may share
    devices.

    Raises:
      ShardingError: the check fails.
    """
    shown, are_groups = list(map(list, groups)), attribute.endswith("replica_groups")
    numbers = [d for group in groups for d in group]
    if are_groups and len(set(numbers)) < len(numbers):
        raise ShardingError(f"{attribute} {shown} name a {what} twice; each {what} is in one group")
    if numbers and (min(numbers) < 0 or (count is not None and max(numbers) >= count)):
        wrong = min(numbers) if min(numbers) < 0 else max(numbers)
        known = f"0 to {count - 1}" if count is not None else "0, 1, ..."
        raise ShardingError(f"{attribute} name {what} {wrong}; the program has {what}s {known}")
    if are_groups and len({len(group) for group in groups}) > 1:
        raise ShardingError(f"{attribute} {shown} differ in size; expected groups of one size")


def as_groups(attribute: str, table: Any, count: int | None) -> Groups:
    """Parse groups or pairs given by a user: rows of device numbers below ``count`` (None: any). Drops empty rows.

    Raises:
      ArgumentError: not rows of numbers, or pairs that are not pairs.
      ShardingError: as :func:`check_groups`.
    """
    pairs = attribute.endswith("pairs")
    try:
        groups: Groups | None = tuple(row for row in (tuple(map(operator.index, row)) for row in table) if row)
    except TypeError:
        groups = None
    if groups is None or (pairs and any(len(row) != 2 for row in groups)):
        example = "[(0, 1), (1, 0)]" if pairs else "[[0, 1], [2, 3]]"
        raise ArgumentError(f"{attribute} is {table!r}; expected rows of device numbers, such as {example}")
    check_groups(groups, count, attribute)
    return groups


def groups_sharding(groups: Groups) -> HloSharding | None:
    """The sharding whose tiles are the positions within groups, from which a fitting mesh can be derived.

    None if groups differ in size or do not cover the devices.
    """
    if not groups or len({len(g) for g in groups}) > 1 or sorted(d for g in groups for d in g) != list(
        range(sum(map(len, groups)))
    ):  # fmt: skip
        return None
    devices = tuple(np.array(groups).T.reshape(-1).tolist())
    return HloSharding.tiled(TileAssignment((len(groups[0]), len(groups)), devices), ("replicated",))


def axis_groups(mesh: AbstractMesh, axes: Sequence[str], device_ids: Sequence[int] = ()) -> np.ndarray:
    """The groups of devices that differ only along ``axes`` (or parts of axes, major first), one per row.

    Raises:
      ShardingError: the mesh does not have such an axis, or the axis no such part.
    """
    places = list(np.unravel_index(np.arange(mesh.size), mesh.axis_sizes))
    inside = np.zeros(mesh.size, np.int64)
    for name in axes:
        part = parse_part(name) or AxisPart(name, 1, mesh.shape.get(name, 0))
        whole = mesh.shape.get(part.axis, 0)
        if not whole or not part.pre * part.size or whole % (part.pre * part.size):
            raise ShardingError(f"groups of devices along {name!r}: {mesh} has no such axis, or no such part of one")
        after = whole // (part.pre * part.size)
        axis = mesh.axis_names.index(part.axis)
        digit = places[axis] // after % part.size
        places[axis] = places[axis] - digit * after
        inside = inside * part.size + digit
    order = np.lexsort((inside, *places[::-1]))
    ids = np.array(device_ids) if device_ids else np.arange(mesh.size)
    return ids[order].reshape(-1, int(inside.max()) + 1)


@dataclass(frozen=True)
class ManualGrid:
    """The devices of ``mesh`` as a grid over its ``manual`` axes, for each position along the other axes.

    ``numbers`` are those of the devices at the positions of the mesh, unless they are the mesh's own.
    """

    mesh: AnyMesh
    manual: tuple[str, ...]
    numbers: tuple[int, ...] = ()

    @cached_property
    def grid(self) -> AbstractMesh:
        """The manual axes as a mesh."""
        return self.mesh.abstract_mesh.restricted(self.manual)

    @cached_property
    def devices(self) -> np.ndarray:
        """``devices[automatic position, manual position]``: the device number."""
        names = self.mesh.axis_names
        rest = [a for a in names if a not in self.manual]
        order = [names.index(a) for a in (*rest, *self.manual)]
        numbers = np.array(self.numbers) if self.numbers else device_order(self.mesh)
        numbers = numbers.reshape(self.mesh.axis_sizes).transpose(order)
        return numbers.reshape(-1, self.grid.size)

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """The automatic and the manual position of each device number."""
        return {int(d): (i, j) for (i, j), d in np.ndenumerate(self.devices)}

    def _by_automatic(self, groups: Groups, what: str) -> Groups:
        """Groups as manual positions, after checking that they are the same for every automatic position."""
        by_position: list[set[tuple[int, ...]]] = [set() for _ in self.devices]
        for group in groups:
            unknown = [d for d in group if d not in self._places]
            if unknown:
                raise ShardingError(
                    f"{what} {group} names device {unknown[0]}; the mesh has {counted(self.mesh.size, 'device')}"
                )
            rows = {self._places[d][0] for d in group}
            if len(rows) > 1:
                raise ShardingError(
                    f"{what} {group} goes along axes that are not manual here ({self._axes()}); make all axes that it "
                    "goes along manual"
                )
            by_position[rows.pop() if rows else 0].add(tuple(self._places[d][1] for d in group))
        if any(f != by_position[0] for f in by_position):
            raise ShardingError(
                f"each {what} must be there for all positions along the axes that are not manual here ({self._axes()})"
            )
        return tuple(sorted(by_position[0]))

    def _axes(self) -> str:
        return f"manual: {', '.join(self.manual) or 'none'} of {self.mesh}"

    def groups(self, groups: Groups) -> Groups:
        """Convert groups of device numbers to groups of manual positions. No groups mean one with all devices.

        Raises:
          ShardingError: groups extend along other axes or differ along them, or numbers are not those of devices.
        """
        if not groups:
            groups = (tuple(range(self.mesh.size)),)
        return self._by_automatic(groups, "group")

    def axes_of(self, groups: Groups) -> tuple[str, ...] | None:
        """The axes, major to minor, along which groups of manual positions lie; None if they are not a sub-grid."""
        numbers = np.full(self.grid.size, -1)
        for group in groups:
            numbers[list(group)] = np.arange(len(group))
        if (numbers < 0).any():
            return None
        atoms = atoms_counted(numbers, self.grid)
        if atoms is None:
            return None
        where = atom_coordinates(self.grid)
        others = [where[a] for a in self.grid.atoms if a not in atoms]
        if any(len(set(other[list(group)].tolist())) > 1 for other in others for group in groups):
            return None
        return self.grid.coalesce(atoms)

    def permutation(self, pairs: Groups) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
        """Convert pairs of device numbers to the fewest axes and pairs of positions along these.

        Raises:
          ShardingError: pairs extend along other axes or differ along them, or numbers are not those of devices.
        """
        position_pairs = self._by_automatic(pairs, "source_target_pair")
        kept = self.grid.atoms
        for atom in self.grid.atoms:
            fewer = tuple(a for a in kept if a != atom)
            along = tile_numbers(self.grid, (atom,))
            size = self.grid.axis_size(atom)
            parts = [self._along(fewer, [p for p in position_pairs if along[p[0]] == i]) for i in range(size)]
            if all(along[s] == along[t] for s, t in position_pairs) and all(part == parts[0] for part in parts):
                kept = fewer
        return self.grid.coalesce(kept), tuple(sorted(self._along(kept, position_pairs)))

    def _along(self, atoms: tuple[str, ...], pairs: Sequence[tuple[int, ...]]) -> set[tuple[int, int]]:
        """Pairs of manual positions as pairs of positions along some atoms."""
        numbers = tile_numbers(self.grid, atoms)
        return {(int(numbers[s]), int(numbers[t])) for s, t in pairs}
