"""Conversion between HLO shardings and layouts over a mesh.

To HLO: the atomic axes in the order in which they split dimensions, followed by the other axes, are the transpose of an
iota.

From HLO: for every tile dimension, find the atoms that it counts. The weight of an atom is the tile index of the device
at coordinate 1 on this atom and 0 on all others. If the weights explain all other devices too, the dimension is split
by the atoms in order of decreasing weight. This does not need an iota, so it also works for listed devices.

A program without a named mesh gets one: every tile dimension is a number made of digits of the device number, and the
boundaries of all such digits together factor the device count into axes ``x0``, ``x1``, ... If device numbers do not
work, devices are first sorted by the tiles that they hold, which restores the order of the mesh that the program was
written for.

Source: GSPMD for tile assignments; the common refinement is that of Shardy's importer from GSPMD, in another form.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from meshwright.errors import ShardingError
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.layout import Layout
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.sdy import SdySharding
from meshwright.sharding.tile_assignment import IotaOrder, TileAssignment
from meshwright.sharding.tiles import atom_coordinates


# --- to HLO -------------------------------------------------------------------------------------------------
def named_to_hlo(sharding: NamedSharding, ndim: int) -> HloSharding:
    """The HLO sharding for ``sharding`` on ``ndim`` dimensions; device numbers are positions of the mesh."""
    return layout_to_hlo(sharding.layout(ndim), sharding.abstract_mesh)


def layout_to_hlo(layout: Layout, mesh: AbstractMesh, manual: Sequence[str] = ()) -> HloSharding:
    """The tile assignment of ``layout``, with subgroups for its partial axes and for the atoms ``manual``."""
    held_alike = [atom for atom in mesh.atoms if atom not in layout.axes_used and atom not in manual]
    groups = [("manual", tuple(manual)), ("unreduced", layout.partial), ("replicated", tuple(held_alike))]
    subgroups = [(kind, atoms) for kind, atoms in groups if atoms]
    if not any(layout.dims) and [kind for kind, _ in subgroups] in ([], ["replicated"]):
        return HloSharding.replicated()
    atoms = [*layout.split_axes, *(atom for _, group in subgroups for atom in group)]
    order = IotaOrder(mesh.atom_sizes or (1,), tuple(mesh.atoms.index(atom) for atom in atoms) or (0,))
    counts = [mesh.sizes(split) for split in layout.dims]
    dims = (*counts, *(mesh.sizes(group) for _, group in subgroups))
    return HloSharding.tiled(TileAssignment(dims, order), tuple(kind for kind, _ in subgroups))


def sdy_to_hlo(sharding: SdySharding, manual: Sequence[str] = ()) -> HloSharding:
    """The tile assignment of a sharding over a mesh. Open dimensions become closed."""
    mesh = sharding.mesh
    layout = Layout(tuple(mesh.expand(d.axes) for d in sharding.dimensions))
    hlo = layout_to_hlo(layout.with_partial(mesh.expand(sharding.unreduced), "sum", mesh), mesh, mesh.expand(manual))
    if hlo.tiles is None or not sharding.device_ids:
        return hlo
    numbers = tuple(sharding.device_ids[i] for i in hlo.tiles.devices.reshape(-1).tolist())
    return HloSharding.tiled(TileAssignment(hlo.tiles.dims, numbers), hlo.subgroups)


# --- from HLO -----------------------------------------------------------------------------------------------
def hlo_to_layout(sharding: HloSharding, ndim: int, mesh: AbstractMesh, order: Sequence[int] | None = None) -> Layout:
    """The layout that ``sharding`` gives to an array of ``ndim`` dimensions.

    ``order`` lists the device at each position of the mesh, unless that is 0, 1, 2, ... (see ``device_order_of``). Axes
    of a manual subgroup are not in the layout; see ``manual_axes``.
    """
    if sharding.kind in ("replicated", "manual"):
        return Layout.replicated(ndim)
    if sharding.kind == "unreduced":
        return Layout(((),) * ndim, mesh.atoms, "sum")
    if sharding.kind != "tiled":
        raise ShardingError(
            f"sharding {sharding} has no layout on a mesh: expected a tile assignment, replicated, manual or "
            "unreduced; handle 'unknown' as no sharding, 'maximal' as replicated, and a tuple by its elements"
        )
    sharding.check(ndim, mesh.size)
    tiles = _tile_numbers(sharding, order)
    dims = tuple(_expect_atoms(sharding, tiles[dim], mesh) for dim in range(ndim))
    partial: tuple[str, ...] = ()
    if "unreduced" in sharding.subgroups:
        partial = _expect_atoms(sharding, tiles[ndim + sharding.subgroups.index("unreduced")], mesh)
    return Layout(dims).with_partial(partial, "sum", mesh)


def manual_axes(sharding: HloSharding, mesh: AbstractMesh, order: Sequence[int] | None = None) -> tuple[str, ...]:
    """The atoms, in mesh order, of the manual subgroup."""
    if sharding.kind == "manual":
        return mesh.atoms
    if "manual" not in sharding.subgroups or sharding.rank is None:
        return ()
    numbers = _tile_numbers(sharding, order)[sharding.rank + sharding.subgroups.index("manual")]
    return mesh.in_mesh_order(_expect_atoms(sharding, numbers, mesh))


def _tile_numbers(sharding: HloSharding, order: Sequence[int] | None) -> np.ndarray:
    """``numbers[dim, position]``: the index along tile dimension ``dim`` of the device at ``position``."""
    assert sharding.tiles is not None
    devices = sharding.tiles.devices.reshape(-1)
    numbers = np.empty((len(sharding.tiles.dims), devices.size), dtype=np.int64)
    numbers[:, devices] = np.stack(np.unravel_index(np.arange(devices.size), sharding.tiles.dims))
    return numbers if order is None else numbers[:, np.asarray(order)]


def _expect_atoms(sharding: HloSharding, numbers: np.ndarray, mesh: AbstractMesh) -> tuple[str, ...]:
    atoms = atoms_counted(numbers, mesh)
    if atoms is None:
        raise ShardingError(
            f"sharding {sharding} does not follow the axes of {mesh}; make a mesh with mesh_of(shardings, "
            f"{mesh.size}) and give hlo_to_layout the order of device_order_of"
        )
    return atoms


def atoms_counted(numbers: np.ndarray, mesh: AbstractMesh) -> tuple[str, ...] | None:
    """The atoms, major to minor, whose mixed-radix number at each position is ``numbers``; None if there are none."""
    weights: dict[str, int] = {}
    stride = mesh.size
    for atom, size in zip(mesh.atoms, mesh.atom_sizes):
        stride //= size
        weights[atom] = int(numbers[stride])
    counted = sorted((atom for atom in mesh.atoms if weights[atom] > 0), key=lambda atom: -weights[atom])
    expected = 1
    for atom in reversed(counted):
        if weights[atom] != expected:
            return None
        expected *= mesh.axis_size(atom)
    where = atom_coordinates(mesh)
    total = sum((weights[atom] * where[atom] for atom in counted), np.zeros(mesh.size, dtype=np.int64))
    return tuple(counted) if np.array_equal(total, numbers) else None


# --- meshes for shardings without one -----------------------------------------------------------------------
def mesh_of(shardings: Sequence[HloSharding], num_devices: int) -> AbstractMesh:
    """The mesh with the fewest axes ``x0``, ``x1``, ... over which all ``shardings`` can be expressed.

    If two of them have no common refinement (2 x 3 and 3 x 2), the first one counts.
    """
    order = device_order_of(shardings, num_devices)
    boundaries = {1, num_devices}
    for sharding in _tilings(shardings, num_devices):
        own = order if _follows(sharding, order) else own_order(sharding)
        for numbers in _counted(sharding, own):
            for boundary in _boundaries(numbers) or ():
                if all(boundary % other == 0 or other % boundary == 0 for other in boundaries):
                    boundaries.add(boundary)
    cuts = sorted(boundaries)
    sizes = [after // before for before, after in itertools.pairwise(cuts)][::-1]
    return AbstractMesh(sizes, [f"x{i}" for i in range(len(sizes))])


def device_order_of(shardings: Sequence[HloSharding], num_devices: int) -> tuple[int, ...]:
    """The device at every position of the mesh of ``mesh_of``: 0, 1, 2, ... if the shardings allow it.

    If no order fits all shardings, it is the one that fits most; the others use an order of their own (``own_order``).
    """
    tiled = _tilings(shardings, num_devices)
    candidates = [tuple(range(num_devices)), _sorted_by(tiled, num_devices), *map(own_order, tiled)]
    return max(dict.fromkeys(candidates), key=lambda order: sum(_follows(s, order) for s in tiled))


def own_order(sharding: HloSharding) -> tuple[int, ...]:
    """The device order in which a tile assignment follows the axes of a mesh: sorted by the tiles that they hold."""
    assert sharding.tiles is not None
    return _sorted_by([sharding], sharding.tiles.num_devices)


def order_on(sharding: HloSharding, mesh: AbstractMesh) -> tuple[int, ...]:
    """The device at every position of ``mesh`` with which a tile assignment for as many devices follows its axes.

    Each tile dimension gets the first atoms that divide it, which exist as atoms are prime.
    """
    assert sharding.tiles is not None
    free, taken = list(mesh.atoms), []
    for count in sharding.tiles.dims:
        for atom in list(free):
            if count % mesh.axis_size(atom) == 0:
                count //= mesh.axis_size(atom)
                free.remove(atom)
                taken.append(atom)
    by_tile = np.reshape(own_order(sharding), [mesh.axis_size(atom) for atom in taken])
    return tuple(by_tile.transpose([taken.index(atom) for atom in mesh.atoms]).reshape(-1).tolist())


def _sorted_by(shardings: Sequence[HloSharding], num_devices: int) -> tuple[int, ...]:
    rows = [row for sharding in shardings for row in _counted(sharding, None)]
    return tuple(np.lexsort([np.arange(num_devices), *rows[::-1]]).tolist())


def _follows(sharding: HloSharding, order: Sequence[int]) -> bool:
    """Whether tile indices are digits of the position, with the devices in ``order``."""
    return all(_boundaries(row) is not None for row in _counted(sharding, order))


def _counted(sharding: HloSharding, order: Sequence[int] | None) -> np.ndarray:
    """The rows of ``_tile_numbers`` whose order has a meaning."""
    return _tile_numbers(sharding, order)[: _counted_dims(sharding)]


def _tilings(shardings: Sequence[HloSharding], num_devices: int) -> list[HloSharding]:
    tilings: list[HloSharding] = []
    for sharding in shardings:
        if sharding.kind == "tuple":
            tilings += _tilings(sharding.elements, num_devices)
        elif sharding.kind == "tiled" and sharding.rank is not None:
            sharding.check(sharding.rank, num_devices)
            tilings.append(sharding)
    return list(dict.fromkeys(tilings))


def _counted_dims(sharding: HloSharding) -> int:
    """The number of tile dimensions whose order has a meaning; that of replicas, the last subgroup, has none."""
    assert sharding.tiles is not None
    return len(sharding.tiles.dims) - ("replicated" in sharding.subgroups)


def _boundaries(numbers: np.ndarray) -> list[int] | None:
    """The boundaries of the digits of the position that ``numbers`` consists of; None if it does not consist of digits.

    Works from the least significant end: runs of equal numbers are a digit that does not count; after it comes one that
    does.
    """
    boundaries: list[int] = []
    stride = 1
    while numbers.size > 1:
        changes = np.flatnonzero(np.diff(numbers))
        if not changes.size:
            return boundaries if numbers[0] == 0 else None
        run = int(changes[0]) + 1
        if numbers.size % run or (numbers.reshape(-1, run) != numbers[::run, None]).any():
            return None
        stride *= run
        numbers = numbers[::run]
        size = _digit_size(numbers)
        if size is None:
            return None
        boundaries += [stride, stride * size]
        stride *= size
        numbers = numbers[::size]
    return boundaries if numbers[0] == 0 else None


def _digit_size(numbers: np.ndarray) -> int | None:
    """The size of the least significant digit, if each of its steps adds the same number everywhere; or None."""
    step = numbers[1] - numbers[0]
    even = np.flatnonzero(numbers - numbers[0] != step * np.arange(numbers.size))
    size = int(even[0]) if even.size else numbers.size
    if numbers.size % size or step < 0:
        return None
    rows = numbers.reshape(-1, size)
    return size if (rows == rows[:, :1] + step * np.arange(size)).all() else None
