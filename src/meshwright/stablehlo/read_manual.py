"""Reading rules of manual regions, and of the collectives and device numbers inside of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.words import counted
from meshwright.ir.reading import reads
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.all_reduce import ALL_REDUCE
from meshwright.ops.collective.ragged import RaggedAllToAll, with_tables
from meshwright.ops.elementwise.monoid import MONOIDS
from meshwright.ops.elementwise.table import convert, div, rem, zeros_like
from meshwright.ops.imported.device_collective import DeviceNumber
from meshwright.ops.imported.grouped import (
    all_gather,
    all_reduce,
    all_to_all,
    collective_broadcast,
    collective_permute,
    ragged_all_to_all,
    reduce_scatter,
)
from meshwright.ops.imported.manual_computation import FullToShard, ManualComputation, ShardToFull
from meshwright.ops.imported.sharding_annotation import Annotation
from meshwright.ops.shape.rearrange import expand_dims, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.sharding import HloSharding
from meshwright.sharding.device_groups import Groups
from meshwright.sharding.hlo_convert import sdy_to_hlo
from meshwright.sharding.sdy import SdySharding
from meshwright.stablehlo.read_bodies import AlreadyPartitioned
from meshwright.stablehlo.read_groups import groups_of
from meshwright.stablehlo.read_shardings import (
    annotate,
    manual_axes_of,
    per_value,
    read_sharding,
    shardy_attributes,
    unspecified_dims,
)
from meshwright.stablehlo.respelled import Respelled


# --- regions ------------------------------------------------------------------------------------------------
@reads("sdy.manual_computation")
def _manual_computation(r: Any) -> Any:
    attributes, meshes = r.operation.attributes, r.module.meshes
    operands, results = r.operands, r.out_avals
    ins = per_value(attributes, "in_shardings", len(operands), meshes, of_region=True)
    outs = per_value(attributes, "out_shardings", len(results), meshes, of_region=True)
    region = r.region()
    op = ManualComputation(
        (*[None] * len(region.captured), *ins),
        region.jaxpr,
        tuple(outs),
        manual_axes_of(attributes["manual_axes"]),
        tuple(results),
    )
    values = op.bind(*region.captured, *(annotate(x, s) for x, s in zip(operands, ins)))
    return [annotate(y, s) for y, s in zip(values, outs)]


@reads("custom_call:SPMDFullToShardShape", "custom_call:SPMDShardToFullShape")
def _border(r: Any) -> Any:
    """A value enters or leaves a region. The operations between become a region once the function has been read."""
    (x,), (aval,) = r.operands, r.out_avals
    (sharding,) = read_sharding(r.operation.attributes, 1, r.module.meshes)
    if isinstance(sharding, SdySharding):
        sharding = sdy_to_hlo(sharding)
    if not isinstance(sharding, HloSharding):
        return r.fail("has no mhlo.sharding; expected one, which says how the value lies on the devices after it")
    border = FullToShard if r.attr("call_target_name") == "SPMDFullToShardShape" else ShardToFull
    return border(sharding, aval, unspecified_dims(r)).bind(x)


@reads("custom_call:xla.sdy.GlobalToLocalShape")
def _enter(r: Any) -> Any:
    """The start of a Shardy region in HLO."""

    def cross(x: Any, sharding: Annotation | None, aval: ShapedArray, axes: tuple[str, ...]) -> Any:
        return FullToShard(sharding, aval, (), axes).bind(annotate(x, sharding))

    return _crossed(r, "sdy.in_shardings", cross)


@reads("custom_call:xla.sdy.LocalToGlobalShape")
def _leave(r: Any) -> Any:
    """The end of a Shardy region in HLO."""

    def cross(x: Any, sharding: Annotation | None, aval: ShapedArray, axes: tuple[str, ...]) -> Any:
        return annotate(ShardToFull(sharding, aval, (), axes).bind(x), sharding)

    return _crossed(r, "sdy.out_shardings", cross)


def _crossed(r: Any, attribute: str, cross: Callable[..., Any]) -> Any:
    frontend = shardy_attributes(r.operation.attributes)
    if "sdy.manual_axes" not in frontend:
        r.fail("has no xla.sdy.manual_axes among its frontend attributes; expected the axes that the region is for")
    axes = manual_axes_of(frontend["sdy.manual_axes"])
    shardings = per_value(frontend, attribute, len(r.out_avals), r.module.meshes, of_region=True)
    return [cross(x, s, aval, axes) for x, s, aval in zip(r.operands, shardings, r.out_avals, strict=True)]


# --- groups of devices --------------------------------------------------------------------------------------
def _size(r: Any, groups: Groups) -> int:
    """The number of devices in a group."""
    size = len(groups[0]) if groups else r.module.num_devices
    if size is None:
        r.fail("has no replica_groups, and the module does not say its num_partitions; give one of them")
    return size


def _in_groups(r: Any, collective: Callable[..., Any], replicas_with_channel: bool = False) -> list[Any]:
    """Apply a collective to each operand; if each device is a group of its own, operands are unchanged."""
    groups = groups_of(r, "replica_groups", replicas_with_channel)
    if groups is None:
        return list(r.operands)
    n, origin = _size(r, groups), r.module.remember(r.operation)
    return [collective(x, groups, n, origin=origin) for x in r.operands]


# --- collectives --------------------------------------------------------------------------------------------
@reads("stablehlo.all_reduce", "stablehlo.cross-replica-sum")
def _all_reduce(r: Any) -> Any:
    return _in_groups(r, partial(all_reduce, computation=_reduction(r)), True)


def _reduction(r: Any) -> str:
    name = r.reducer() if r.num_regions() else "add"
    if name not in MONOIDS or (kind := MONOIDS[name].kind) not in ALL_REDUCE:
        r.fail("reduces by something else than add, multiply, maximum, minimum, and, or; expected one of these")
    return kind


@reads("stablehlo.all_gather")
def _all_gather(r: Any) -> Any:
    return _joined(r, partial(all_gather, dimension=r.attr("all_gather_dim")))


@reads("stablehlo.reduce_scatter")
def _reduce_scatter(r: Any) -> Any:
    return _joined(r, partial(reduce_scatter, dimension=r.attr("scatter_dimension"), computation=_reduction(r)))


def _joined(r: Any, collective: Callable[..., Any]) -> Any:
    results = _in_groups(r, collective, True)
    for got, want in zip(map(typeof, results), r.out_avals):
        if got.shape != want.shape:
            r.fail(f"groups of this size give {got}, the result is declared {want}; make the groups fit the shapes")
    return results


@reads("stablehlo.all_to_all")
def _all_to_all(r: Any) -> Any:
    if r.attr("split_dimension", None) is None:
        return _one_for_each(r)

    def exchanged(x: Any, groups: Groups, n: int, origin: int) -> Any:
        if r.attr("split_count", n) != n:
            r.fail(f"split_count is {r.attr('split_count')}, its groups have {counted(n, 'device')}; expected the same")
        return all_to_all(x, groups, n, r.attr("split_dimension"), r.attr("concat_dimension"), origin)

    return _in_groups(r, exchanged)


def _one_for_each(r: Any) -> Any:
    """An all-to-all in HLO's form without dimensions: operand i goes to device i of a group, result i comes from it."""
    groups = groups_of(r, "replica_groups")
    if groups is None:
        return list(r.operands)
    n = _size(r, groups)
    if len(r.operands) != n:
        r.fail(
            f"has {counted(len(r.operands), 'operand')} and no split_dimension, its groups have "
            f"{counted(n, 'device')}; expected the same"
        )
    rows = concatenate([expand_dims(x, [0]) for x in r.operands], 0)
    exchanged = all_to_all(rows, groups, n, 0, 0, r.module.remember(r.operation))
    return [squeeze(slice_in_dim(exchanged, i, i + 1), [0]) for i in range(n)]


@reads("custom_call:ragged_all_to_all")
def _ragged_all_to_all(r: Any) -> Any:
    config = r.attr("backend_config", {})
    if len(r.operands) != 6 or not isinstance(config, dict) or "replica_groups" not in config:
        r.fail("is of an operand, an output and four tables, with replica_groups in its backend_config; it has others")
    groups = groups_of(Respelled(r, attributes=config), "replica_groups")
    if groups is None:
        alone, (operand, output, *tables) = RaggedAllToAll((), ()), r.operands
        return alone.expand(*with_tables(alone, operand, output, tables))
    return ragged_all_to_all(*r.operands, groups=groups, count=_size(r, groups), origin=r.module.remember(r.operation))


@reads("stablehlo.collective_permute")
def _collective_permute(r: Any) -> Any:
    pairs = groups_of(r, "source_target_pairs")
    if pairs is None:
        table = np.asarray(r.attr("source_target_pairs"))
        return list(r.operands) if table.size else [zeros_like(x) for x in r.operands]
    n = max([r.module.num_devices or 0, *(d + 1 for pair in pairs for d in pair)])
    origin = r.module.remember(r.operation)
    return [collective_permute(x, pairs, n, origin) for x in r.operands]


@reads("stablehlo.collective_broadcast")
def _collective_broadcast(r: Any) -> Any:
    return _in_groups(r, collective_broadcast)


@reads("stablehlo.partition_id", "stablehlo.replica_id")
def _number(r: Any) -> Any:
    """Read a partition or replica number. Devices are numbered replica by replica."""
    (aval,) = r.out_avals
    of_replica, module = r.name.endswith("replica_id"), r.module
    if not module.per_device and (module.num_replicas or 1) > 1:
        raise AlreadyPartitioned(r.operation)
    if (module.replicas if of_replica else module.partitions) == 1:
        return convert(np.uint32(0), aval.dtype)
    number: Any = DeviceNumber(origin=module.remember(r.operation)).bind()
    if module.replicas > 1 and module.partitions > 1:
        number = (div if of_replica else rem)(number, np.uint32(module.partitions))
    return convert(number, aval.dtype)
