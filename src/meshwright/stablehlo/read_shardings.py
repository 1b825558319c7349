"""Sharding attributes of StableHLO programs: GSPMD's ``mhlo.sharding`` and Shardy's ``sdy.sharding``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jaxlib import xla_client as xc
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from meshwright.ir.reading import reads
from meshwright.ops.sharding_annotation import Annotation, ShardingAnnotation
from meshwright.sharding import AbstractMesh, HloSharding, parse_hlo_sharding
from meshwright.sharding.sdy import SdyDimension, SdySharding


@dataclass(frozen=True)
class MeshDeclaration:
    """A mesh of the program and, where they are not 0, 1, 2, ..., the devices at its positions."""

    mesh: AbstractMesh
    device_ids: tuple[int, ...] = ()


Meshes = dict[str, MeshDeclaration]


# --- GSPMD --------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def hlo_annotation(text: str | bytes) -> HloSharding:
    """A GSPMD sharding from its text, or from the serialized proto that older programs hold."""
    if isinstance(text, bytes):
        proto = xc.OpSharding()
        proto.ParseFromString(text)
        text = str(xc.HloSharding.from_proto(proto))
    return parse_hlo_sharding(text)


def _hlo_text(attribute: ir.Attribute) -> str | bytes:
    try:
        text = attribute.value
    except UnicodeDecodeError:
        return attribute.value_bytes
    return text if text.startswith("{") else attribute.value_bytes


def _elements(sharding: HloSharding, count: int) -> list[HloSharding | None]:
    """One for each leaf of the value; ``unknown`` says nothing."""
    leaves = list(sharding.elements) if sharding.kind == "tuple" else [sharding] * count
    leaves += [HloSharding("unknown")] * (count - len(leaves))
    return [None if s.kind == "unknown" else s for s in leaves[:count]]


# --- Shardy -------------------------------------------------------------------------------------------------
def read_meshes(module: ir.Module) -> Meshes:
    """The meshes that a module declares, by name."""
    found: Meshes = {}
    for view in module.body.operations:
        operation = view.operation
        if operation.name == "sdy.mesh":
            found[operation.attributes["sym_name"].value] = _mesh(operation.attributes["mesh"])
    return found


def _mesh(attribute: ir.Attribute) -> MeshDeclaration:
    mesh = sdy.MeshAttr(attribute)
    axes = [sdy.MeshAxisAttr(a) for a in mesh.axes]
    abstract = AbstractMesh([a.size for a in axes], [a.name for a in axes])
    return MeshDeclaration(abstract, tuple(mesh.device_ids))


def _tensor_sharding(attribute: ir.Attribute, meshes: Meshes) -> SdySharding | None:
    value = sdy.TensorShardingAttr(attribute)
    ref = value.mesh_or_ref
    declared = meshes[ref.value] if isinstance(ref, ir.FlatSymbolRefAttr) else _mesh(ref)
    sharding = SdySharding(
        declared.mesh,
        tuple(_dimension(d) for d in value.dimension_shardings),
        tuple(map(_axis, value.replicated_axes)),
        tuple(map(_axis, value.unreduced_axes)),
    )
    return None if sharding.is_open else sharding


def _dimension(attribute: ir.Attribute) -> SdyDimension:
    value = sdy.DimensionShardingAttr(attribute)
    return SdyDimension(tuple(map(_axis, value.axes)), value.is_closed, value.priority or 0)


def _axis(attribute: ir.Attribute) -> str:
    value = sdy.AxisRefAttr(attribute)
    part = value.sub_axis_info
    if part is None:
        return value.name
    part = sdy.SubAxisInfoAttr(part)
    return f"{value.name}:({part.pre_size}){part.size}"


# --- where they stand ---------------------------------------------------------------------------------------
def read_sharding(attributes: Any, count: int, meshes: Meshes) -> list[Annotation | None]:
    """What the attributes of a parameter or result say of each of its ``count`` leaves."""
    if attributes is None:
        return [None] * count
    if "sdy.sharding" in attributes:
        return [_tensor_sharding(attributes["sdy.sharding"], meshes)] * count
    if "mhlo.sharding" in attributes:
        return list(_elements(hlo_annotation(_hlo_text(attributes["mhlo.sharding"])), count))
    return [None] * count


def read_per_value(attributes: Any, count: int, meshes: Meshes) -> list[Annotation | None]:
    """What the attributes of an operation say of each of its ``count`` results."""
    if "sdy.sharding" in attributes:
        per_value = sdy.TensorShardingPerValueAttr(attributes["sdy.sharding"])
        return [_tensor_sharding(s, meshes) for s in per_value.shardings]
    return read_sharding(attributes, count, meshes)


@reads("custom_call:Sharding")
def _sharding_call(r: Any) -> Any:
    (x,) = r.operands
    (sharding,) = read_sharding(r.operation.attributes, 1, r.module.meshes)
    if sharding is None:
        return x
    config = str(r.attr("backend_config", ""))
    inside = config.partition("unspecified_dims=[")[2].partition("]")[0]
    return ShardingAnnotation(sharding, tuple(int(d) for d in inside.split(",") if d.strip())).bind(x)


@reads("sdy.sharding_constraint", "sdy.reshard")
def _sdy_constraint(r: Any) -> Any:
    sharding = _tensor_sharding(r.operation.attributes["sharding"], r.module.meshes)
    return r.operands[0] if sharding is None else ShardingAnnotation(sharding).bind(*r.operands)


@reads("sdy.propagation_barrier", "sdy.data_flow_edge")
def _passing(r: Any) -> Any:
    return list(r.operands)


@reads("sdy.sharding_group")
def _group(r: Any) -> Any:
    r.note("sharding groups are not kept together: an sdy.sharding_group was read as no constraint")
    return []


@reads("sdy.manual_computation")
def _manual(r: Any) -> Any:
    r.fail("manual computations are not supported yet; export the program with automatic sharding only")


@reads("custom_call:SPMDFullToShardShape", "custom_call:SPMDShardToFullShape")
def _manual_call(r: Any) -> Any:
    r.fail("manual regions (shard_map) are not supported yet; export the program with automatic sharding only")
