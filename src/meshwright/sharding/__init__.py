"""Meshes, partition specs, layouts and shardings: plain values, without IR or devices of their own."""

from meshwright.core.absent import absent as _absent
from meshwright.core.avals import ManualAxisType
from meshwright.core.late import late_attributes as _late_attributes
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.auto import AUTO, AutoSharding
from meshwright.sharding.axis_type import AxisType
from meshwright.sharding.base import Sharding
from meshwright.sharding.current_mesh import get_abstract_mesh, get_mesh, set_mesh
from meshwright.sharding.gspmd import GSPMDSharding
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import (
    device_order_of,
    hlo_to_layout,
    layout_to_hlo,
    manual_axes,
    mesh_of,
    named_to_hlo,
)
from meshwright.sharding.hlo_parse import parse_hlo_sharding
from meshwright.sharding.kinds import MeshOf, common_mesh, in_users_kind, over
from meshwright.sharding.layout import REDUCTIONS, Layout, joined_reduction
from meshwright.sharding.mesh import AnyMesh, DeviceLike, Mesh
from meshwright.sharding.named import NamedSharding, SingleDeviceSharding
from meshwright.sharding.pmapped import PmapSharding, pmapped
from meshwright.sharding.positional import PositionalSharding
from meshwright.sharding.sharding_spec import ShardingSpec
from meshwright.sharding.spec import UNCONSTRAINED, PartitionSpec
from meshwright.sharding.tile_assignment import IotaOrder, TileAssignment
from meshwright.sharding.tiles import atom_coordinates, tile_numbers, tile_slice, tile_slices, tile_table
from meshwright.sharding.typed import TypeSharding, explicit_of, mesh_of_type, said_by, typed_by

#: their names in the JAX of 2022 and 2023
MeshPspecSharding, OpShardingSharding, XLACompatibleSharding = NamedSharding, GSPMDSharding, Sharding

__all__ = [
    "AUTO",
    "REDUCTIONS",
    "UNCONSTRAINED",
    "AbstractMesh",
    "AnyMesh",
    "AutoSharding",
    "AxisType",
    "DeviceLike",
    "GSPMDSharding",
    "HloSharding",
    "IotaOrder",
    "Layout",
    "ManualAxisType",
    "Mesh",
    "MeshOf",
    "MeshPspecSharding",
    "NamedSharding",
    "OpShardingSharding",
    "PartitionSpec",
    "PmapSharding",
    "PositionalSharding",
    "Sharding",
    "ShardingSpec",
    "SingleDeviceSharding",
    "TileAssignment",
    "TypeSharding",
    "XLACompatibleSharding",
    "atom_coordinates",
    "common_mesh",
    "device_order_of",
    "explicit_of",
    "get_abstract_mesh",
    "get_mesh",
    "hlo_to_layout",
    "in_users_kind",
    "joined_reduction",
    "layout_to_hlo",
    "make_single_device_sharding",
    "manual_axes",
    "mesh_of",
    "mesh_of_type",
    "named_to_hlo",
    "over",
    "parse_hlo_sharding",
    "pmapped",
    "said_by",
    "set_mesh",
    "tile_numbers",
    "tile_slice",
    "tile_slices",
    "tile_table",
    "typed_by",
]

use_mesh = use_abstract_mesh = set_mesh
make_single_device_sharding = SingleDeviceSharding

__getattr__, __dir__ = _late_attributes(  # JAX's names for things of higher layers
    __name__,
    {
        "reshard": "meshwright.api.placement",
        **dict.fromkeys(("auto_axes", "explicit_axes"), "meshwright.api.explicit"),
        "typeof": "meshwright.ir.tracing",
    },
    missing=_absent("sharding"),
)
