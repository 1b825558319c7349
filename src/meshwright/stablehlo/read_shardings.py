"""Reads the shardings of StableHLO programs: GSPMD's ``mhlo.sharding`` and Shardy's ``sdy.sharding``.

An attribute gives the sharding of a value, or makes it a member of a sharding group. Both become equations on the
value.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import field
from functools import lru_cache
from typing import Any, TypeVar

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _sdy as sdy

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.ir.reading import reads
from meshwright.ir.tracing import typeof
from meshwright.ops.imported.sharding_annotation import Annotation, ShardingAnnotation, annotated_rank
from meshwright.ops.sharding.propagation_marks import DIRECTIONS, PropagationBarrier, ShardingGroup
from meshwright.sharding import AbstractMesh, HloSharding
from meshwright.sharding.axes import prime_factors
from meshwright.sharding.hlo_parse import parse_annotation
from meshwright.sharding.sdy import SdyDimension, SdySharding
from meshwright.stablehlo.reader import sharding_text

AnySharding = TypeVar("AnySharding", bound=HloSharding | SdySharding)


@dataclass(frozen=True)
class MeshDeclaration:
    """A mesh of the program, and the devices at its positions if these are not 0, 1, 2, ..."""

    mesh: AbstractMesh
    device_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Meshes:
    """The meshes that a module declares, by name, and its number of partitions."""

    declared: dict[str, MeshDeclaration] = field(default_factory=dict)
    num_partitions: int | None = None
    #: whether it is a Shardy program in HLO, in which GSPMD's shardings are only an approximation
    approximated: bool = False

    def checked(self, sharding: AnySharding) -> AnySharding:
        """``sharding``, after a check that it fits the number of devices.

        Raises:
          ShardingError: it is for another number of devices, or names devices that do not exist.
        """
        n = self.num_partitions
        if n is None or n == 1:
            return sharding
        if isinstance(sharding, HloSharding):
            sharding.check(sharding.rank or 0, n, "num_partitions")
        elif sharding.mesh.size != n:
            raise ShardingError(
                f"sharding {sharding} is over {sharding.mesh}, the program has num_partitions = {n}; use a mesh of "
                f"{counted(n, 'device')}"
            )
        return sharding


def check_rank(sharding: Annotation | None, aval: Any) -> None:
    """Raise ``ShardingError`` unless a sharding has as many dimensions as the value."""
    rank = None if sharding is None else annotated_rank(sharding)
    if rank is not None and rank != aval.ndim:
        raise ShardingError(
            f"sharding {sharding} is for {counted(rank, 'dimension')}, the value is {aval}; give one for each"
        )


# --- GSPMD --------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def hlo_annotation(text: str | bytes) -> Any:
    """A GSPMD sharding from its text, or from the serialized proto in older programs."""
    return parse_annotation(sharding_text(text) if isinstance(text, bytes) else text)


def _hlo_text(attribute: ir.Attribute) -> str | bytes:
    try:
        text = attribute.value
    except (UnicodeDecodeError, RuntimeError):  # depending on the release of the bindings
        return attribute.value_bytes
    return text if text.startswith("{") else attribute.value_bytes


def _elements(sharding: Annotation, count: int) -> list[Annotation | None]:
    """The sharding of each leaf of a value; None for ``unknown`` ones."""
    if isinstance(sharding, SdySharding):
        return [None if sharding.is_open or not sharding.mesh.axis_names else sharding] * count
    leaves = list(sharding.elements) if sharding.kind == "tuple" else [sharding] * count
    if sharding.kind == "tuple" and len(leaves) != count:
        raise ShardingError(
            f"sharding {sharding} has {counted(len(leaves), 'element')}, the value has {count}; give one for each"
        )
    return [None if s == HloSharding("unknown") else s for s in leaves]


# --- Shardy -------------------------------------------------------------------------------------------------
def mesh_declaration(attribute: ir.Attribute) -> MeshDeclaration:
    """The mesh of a mesh attribute."""
    mesh = sdy.MeshAttr(attribute)
    axes = [sdy.MeshAxisAttr(a) for a in mesh.axes]
    abstract = AbstractMesh([a.size for a in axes], [a.name for a in axes])
    return MeshDeclaration(abstract, tuple(mesh.device_ids))


#: a part of an axis, as in the text of a module and in the texts of its frontend attributes
_SUB_AXIS = re.compile(r'\\?"([^"\\]+)\\?":\((\d{1,9})\)(\d{1,9})')


def cut_as_written(declared: MeshDeclaration, module: ir.Module) -> MeshDeclaration:
    """The mesh with the prime factors of its axes in the order in which the module's sub-axes have them.

    ``"x":(1)3`` of an axis of 6 needs the factor 3 before 2. Sub-axes that no order has in common stay to be refused.
    """
    mesh, orders = declared.mesh, {}
    mixed = {axis: n for axis, n in mesh.shape.items() if len(set(prime_factors(n))) > 1}
    found = _SUB_AXIS.findall(module.operation.get_asm(large_elements_limit=1)) if mixed else ()
    for axis, size in mixed.items():
        cuts = {1, size}
        for pre, n in sorted({(int(pre), int(n)) for name, pre, n in found if name == axis}):
            cuts |= {cut for cut in (pre, pre * n) if all(max(cut, c) % min(cut, c) == 0 for c in cuts) and cut}
        ordered = sorted(cuts)
        order = tuple(p for a, b in itertools.pairwise(ordered) for p in prime_factors(b // a))
        if order != prime_factors(size):
            orders[axis] = order
    return MeshDeclaration(mesh.cut_in(orders), declared.device_ids) if orders else declared


def manual_axes_of(attribute: ir.Attribute) -> tuple[str, ...]:
    """The names in an ``sdy`` list of manual axes."""
    axes = sdy.ManualAxesAttr(attribute)
    return tuple(axes[i] for i in range(len(axes)))


def _tensor_sharding(attribute: ir.Attribute, meshes: Meshes, of_region: bool = False) -> SdySharding | None:
    """A sharding; None if it says nothing. That of an end of a manual region says at least what its mesh is."""
    value = sdy.TensorShardingAttr(attribute)
    ref = value.mesh_or_ref
    if not isinstance(ref, ir.FlatSymbolRefAttr):
        declared = mesh_declaration(ref)
    elif ref.value in meshes.declared:
        declared = meshes.declared[ref.value]
    else:
        raise ShardingError(f"sharding {attribute} is over a mesh that the program does not declare")
    sharding = SdySharding(
        declared.mesh,
        tuple(_dimension(d) for d in value.dimension_shardings),
        tuple(map(_axis, value.replicated_axes)),
        tuple(map(_axis, value.unreduced_axes)),
        declared.device_ids,
    )
    if (sharding.is_open and not of_region) or not sharding.mesh.axis_names:  # a mesh without axes is one device
        return None
    return meshes.checked(sharding)


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


#: the attributes of Shardy that programs in HLO have, and that are read here
_SHARDY = {
    "sdy.meshes", "sdy.sharding", "sdy.in_shardings", "sdy.out_shardings", "sdy.manual_axes", "sdy.sharding_group_id",
    "sdy.allowed_direction",
}  # fmt: skip


def shardy_attributes(attributes: Any) -> dict[str, ir.Attribute]:
    """Shardy's attributes in the frontend attributes of HLO, by their names without the prefix ``xla.``.

    Raises:
      ShardingError: a text is not an attribute.
    """
    parsed = {}
    if "mhlo.frontend_attributes" in attributes:
        texts = ir.DictAttr(attributes["mhlo.frontend_attributes"])
        for entry in texts:
            name = entry.name.removeprefix("xla.")
            if name in _SHARDY:
                text = ir.StringAttr(entry.attr).value
                try:
                    if not text:  # MLIR (jaxlib 0.10.2) does not survive it
                        raise ShardingError(f"frontend attribute {entry.name} is empty")
                    parsed[name] = ir.Attribute.parse(text, texts.context)
                except ir.MLIRError:
                    raise ShardingError(f"frontend attribute {entry.name} = {text!r} cannot be read") from None
    return parsed


# --- shardings of values ------------------------------------------------------------------------------------
def read_sharding(attributes: Any, count: int, meshes: Meshes) -> list[Annotation | None]:
    """The shardings of the ``count`` leaves of a parameter or result, from its attributes."""
    if attributes is None:
        return [None] * count
    shardy = shardy_attributes(attributes) or attributes
    if "sdy.sharding" in shardy:
        sharding = shardy["sdy.sharding"]
        if sdy.TensorShardingPerValueAttr.isinstance(sharding):
            return per_value(shardy, "sdy.sharding", count, meshes)
        return [_tensor_sharding(sharding, meshes)] * count
    if "mhlo.sharding" in attributes and not meshes.approximated:
        annotations = _elements(hlo_annotation(_hlo_text(attributes["mhlo.sharding"])), count)
        return [None if s is None else meshes.checked(s) for s in annotations]
    return [None] * count


def annotate(x: Any, sharding: Annotation | None, unspecified: tuple[int, ...] = ()) -> Any:
    """``x`` annotated with a sharding, and made a member of the sharding's group if it names one."""
    if (
        sharding is None
        or isinstance(x, tuple)
        or x is None
        or (isinstance(sharding, SdySharding) and sharding.is_open)
    ):
        return x
    group = sharding.group if isinstance(sharding, HloSharding) else ""
    if group:
        sharding = sharding.with_group("")  # type: ignore[union-attr]
    # Scalars cannot be split, and an annotation would keep the bodies of reductions from being recognized.
    if sharding != HloSharding("unknown") and (typeof(x).ndim or annotated_rank(sharding)):
        x = ShardingAnnotation(sharding, unspecified).bind(x)
    if group:
        kind, _, number = group.partition(" ")
        x = ShardingGroup(number, kind == "shard_as").bind(x)
    return x


def unspecified_dims(r: Any) -> tuple[int, ...]:
    """The dimensions that a custom call leaves to the partitioner."""
    config = str(r.attr("backend_config", ""))
    inside = config.partition("unspecified_dims=[")[2].partition("]")[0]
    dims = tuple(int(d) for d in inside.split(",") if d.strip())
    rank = r.in_avals[0].ndim
    if not all(0 <= d < rank for d in dims):
        r.fail(f"has unspecified_dims {list(dims)}, the value has {counted(rank, 'dimension')}")
    return dims


@reads("custom_call:Sharding", "custom_call:xla.sdy.FuncResultSharding")
def _sharding_call(r: Any) -> Any:
    (x,) = r.operands
    (sharding,) = read_sharding(r.operation.attributes, 1, r.module.meshes)
    return annotate(x, sharding, unspecified_dims(r))


@reads("sdy.sharding_constraint", "sdy.reshard")
def _sdy_constraint(r: Any) -> Any:
    (x,) = r.operands
    return annotate(x, _tensor_sharding(r.operation.attributes["sharding"], r.module.meshes))


@reads(
    "sdy.all_gather", "sdy.all_slice", "sdy.all_to_all", "sdy.collective_permute", "sdy.all_reduce",
    "sdy.reduce_scatter", "sdy.sharded_to_unreduced", "sdy.replicated_to_unreduced",
)  # fmt: skip
def _sdy_collective(r: Any) -> Any:
    """A reshard by collectives that the program prescribes. Here the partitioner chooses the collectives."""
    (x,) = r.operands
    return annotate(x, _tensor_sharding(r.operation.attributes["out_sharding"], r.module.meshes))


@reads("sdy.propagation_barrier")
def _propagation_barrier(r: Any) -> Any:
    return PropagationBarrier(DIRECTIONS[r.attr("allowed_direction")]).bind(*r.operands)


@reads("custom_call:xla.sdy.PropagationBarrier")
def _propagation_barrier_call(r: Any) -> Any:
    return PropagationBarrier(DIRECTIONS[_frontend_number(r, "sdy.allowed_direction")]).bind(*r.operands)


@reads("sdy.data_flow_edge", "sdy.func_data_flow_edge")
def _data_flow_edge(r: Any) -> Any:
    (x,) = r.operands
    attributes = r.operation.attributes
    if "sharding" not in attributes:
        return x
    return annotate(x, _tensor_sharding(attributes["sharding"], r.module.meshes))


@reads("sdy.sharding_group")
def _group(r: Any) -> Any:
    """Read an operation without a result: later users of the value get the member of the group."""
    _join_group(r, r.attr("group_id"))
    return []


@reads("custom_call:xla.sdy.ShardingGroup")
def _group_call(r: Any) -> Any:
    _join_group(r, _frontend_number(r, "sdy.sharding_group_id"))
    return []


def _frontend_number(r: Any, name: str) -> int:
    frontend = shardy_attributes(r.operation.attributes)
    if name not in frontend:
        r.fail(f"has no xla.{name} among its frontend attributes")
    return ir.IntegerAttr(frontend[name]).value


def _join_group(r: Any, number: int) -> None:
    (value,) = r.operation.operands
    r.body.env[value] = ShardingGroup(str(number)).bind(*r.operands)


@reads("sdy.named_computation")
def _named_computation(r: Any) -> Any:
    """Inline a function, with the shardings of its parameters and results."""
    operation, meshes = r.operation, r.module.meshes
    ins = per_value(operation.attributes, "in_shardings", len(r.operands), meshes)
    args = [annotate(x, s) for x, s in zip(r.operands, ins)]
    outs = r.body.block(operation.regions[0].blocks[0], args)
    return [annotate(y, s) for y, s in zip(outs, per_value(operation.attributes, "out_shardings", len(outs), meshes))]


def per_value(
    attributes: Any, name: str, count: int, meshes: Meshes, of_region: bool = False
) -> list[Annotation | None]:
    """The shardings of ``count`` values from one attribute."""
    if name not in attributes:
        return [None] * count
    return [_tensor_sharding(s, meshes, of_region) for s in sdy.TensorShardingPerValueAttr(attributes[name]).shardings]
