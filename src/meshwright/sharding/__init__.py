"""Meshes, partition specs, layouts and shardings: values only, no IR and no devices of their own."""

from meshwright.sharding.base import Sharding
from meshwright.sharding.layout import REDUCTIONS, Layout
from meshwright.sharding.mesh import AbstractMesh, AnyMesh, DeviceLike, Mesh, get_mesh, set_mesh
from meshwright.sharding.named import NamedSharding, SingleDeviceSharding
from meshwright.sharding.positional import PositionalSharding
from meshwright.sharding.spec import UNCONSTRAINED, PartitionSpec
from meshwright.sharding.tiles import atom_coordinates, tile_numbers, tile_slice, tile_slices, tile_table

__all__ = [
    "REDUCTIONS",
    "UNCONSTRAINED",
    "AbstractMesh",
    "AnyMesh",
    "DeviceLike",
    "Layout",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "PositionalSharding",
    "Sharding",
    "SingleDeviceSharding",
    "atom_coordinates",
    "get_mesh",
    "set_mesh",
    "tile_numbers",
    "tile_slice",
    "tile_slices",
    "tile_table",
]
