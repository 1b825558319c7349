"""Which device holds which tile: layouts as index arithmetic.

A mesh is row-major over its atomic axes, so unravelling a device's position by the atom sizes gives its coordinate on
every atom. Its tile of a dimension is the mixed-radix number of the coordinates on the atoms that split the dimension.
The flat convention for uneven dimensions is stated in ``layout``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.layout import Layout


@lru_cache(maxsize=256)
def atom_coordinates(mesh: AbstractMesh) -> dict[str, np.ndarray]:
    """For every atom, the coordinate of each device position (row-major over the mesh)."""
    positions = np.arange(mesh.size)
    grids = np.unravel_index(positions, mesh.atom_sizes) if mesh.atoms else ()
    for grid in grids:
        grid.flags.writeable = False
    return dict(zip(mesh.atoms, grids))


@lru_cache(maxsize=4096)
def tile_numbers(mesh: AbstractMesh, atoms: tuple[str, ...]) -> np.ndarray:
    """The index of each device position along ``atoms``, the first of them the most significant."""
    coordinates = atom_coordinates(mesh)
    numbers = np.zeros(mesh.size, dtype=np.int64)
    for atom in atoms:
        numbers = numbers * mesh.axis_size(atom) + coordinates[atom]
    numbers.flags.writeable = False
    return numbers


def tile_table(layout: Layout, mesh: AbstractMesh) -> np.ndarray:
    """``table[position, dim]`` is the index of the tile of dimension ``dim`` on the device at ``position``."""
    columns = [tile_numbers(mesh, atoms) for atoms in layout.dims]
    return np.stack(columns, axis=1) if columns else np.zeros((mesh.size, 0), dtype=np.int64)


def tile_slice(size: int, num_tiles: int, tile: int) -> slice:
    """The rows of tile ``tile`` of a dimension in ``num_tiles``, clipped to its end and possibly empty."""
    if num_tiles == 1:
        return slice(None)
    rows = -(-size // num_tiles)
    return slice(min(tile * rows, size), min((tile + 1) * rows, size))


def tile_slices(shape: Sequence[int], num_tiles: Sequence[int], tiles: Sequence[int]) -> tuple[slice, ...]:
    """The index of one tile in the global array."""
    return tuple(tile_slice(*args) for args in zip(shape, num_tiles, map(int, tiles), strict=True))
