"""Programs that are already partitioned: from the program of one device to the program of all.

Compilers and per-replica interfaces produce the program that each device runs, with collectives over groups of devices.
The program of all devices is a manual region along all of them. Its arguments and results are those of the devices,
stacked along a new dimension 0, as in ``pmap``. So the output of another partitioner can be run, explained, priced and
checked like any other program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.control.call import Jit
from meshwright.ops.imported.manual_computation import Border, ManualComputation
from meshwright.ops.imported.sharding_annotation import Annotation, ShardingAnnotation
from meshwright.ops.shape.rearrange import expand_dims, squeeze
from meshwright.sharding import HloSharding
from meshwright.sharding.axes import MOST_DEVICES
from meshwright.sharding.sdy import SdySharding
from meshwright.sharding.tile_assignment import IotaOrder, TileAssignment
from meshwright.stablehlo.manual_regions import ALL_MANUAL
from meshwright.stablehlo.parsed import ParsedProgram

#: the remedy for a program whose number of devices is not known
UNCOUNTED = (
    "belongs in a program that is already partitioned, which does not say for how many devices; write mhlo.num_replicas"
    " or mhlo.num_partitions into the module's attributes (in HLO, replica_count or num_partitions into its first line)"
)

#: marks a module that a compiler has scheduled, which it does after partitioning
SCHEDULED = "mhlo.is_scheduled"
#: attributes that XLA's partitioner adds: the shardings of the parameters and of the result
_SPLIT_BY = "mhlo.spmd_parameters_shardings", "mhlo.spmd_output_sharding"
_TILES = re.compile(r"devices=\[([\d,]{1,99})\]")


def says_it_is_partitioned(module: ir.Module, partitions: int) -> bool:
    """Whether a module for ``partitions`` partitions is marked as the program of one of them.

    Compilers mark their results. Without collectives there is no other sign.
    """
    return (partitions > 1 and SCHEDULED in module.operation.attributes) or _split_by(module) > 1


def _split_by(module: ir.Module) -> int:
    """The number of partitions by the shardings that XLA's partitioner has noted; 1 if there are none."""
    attributes = module.operation.attributes
    noted = " ".join(str(attributes[name]) for name in _SPLIT_BY if name in attributes)
    counts = [math.prod(int(n or 0) for n in tiles.split(",")) for tiles in _TILES.findall(noted)]
    return max((n for n in counts if n <= MOST_DEVICES), default=1)


def counted_devices(module: ir.Module) -> tuple[int, int] | None:
    """The numbers of replicas and partitions that follow from the device groups of a module's collectives.

    Every device is in a group. The devices are partitions if a collective has a channel or there is a ``partition_id``,
    else replicas. Without groups, the result is the number of partitions that the partitioner noted, or None.
    """
    numbers, among_partitions = [], []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        attributes = operation.attributes
        if "replica_groups" in attributes and isinstance(attributes["replica_groups"], ir.DenseElementsAttr):
            numbers.append(int(np.asarray(attributes["replica_groups"]).max(initial=0)))
        if "channel_handle" in attributes or operation.name == "stablehlo.partition_id":
            among_partitions.append(operation.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    count = max(numbers, default=0) + 1
    if count == 1:
        split_by = _split_by(module)
        return (1, split_by) if split_by > 1 else None
    return (1, count) if among_partitions else (count, 1)


def is_for_all_devices(program: ParsedProgram, replicas: int) -> bool:
    """Whether a program that was read as that of one device is for all devices: it has manual regions or constraints.

    Shardings on parameters and other values do not count, since compilers leave them in place. If there are several
    replicas, those of parameters and results count, as each replica may still have to be partitioned.
    """
    shardings: list[Annotation | None] = []
    for eqn in all_eqns(program.jaxpr.jaxpr):
        if isinstance(eqn.op, (ManualComputation, Border)):
            return True
        if isinstance(eqn.op, ShardingAnnotation):
            shardings.append(eqn.op.sharding)
    if replicas > 1:
        shardings += [*(a.sharding for a in program.arguments), *program.result_shardings]
    return any(map(_splits, shardings))


def _splits(sharding: Annotation | None) -> bool:
    if isinstance(sharding, SdySharding):
        return any(d.axes for d in sharding.dimensions)
    return sharding is not None and any(n > 1 for n in sharding.tile_counts)


def of_all_devices(program: ParsedProgram, devices: int) -> ParsedProgram:
    """The program for all ``devices``, each of which runs ``program``, with stacked arguments and results."""
    local = program.jaxpr

    def part(*rows: Any) -> list[Any]:
        outs = Jit(program.name, local, inline=True).bind(*(squeeze(x, [0]) for x in rows))
        return [expand_dims(y, [0]) for y in outs]

    body = trace_to_jaxpr(part, list(_rows(local.in_avals, 1)), program.name)
    ins, outs = (tuple(_by_device(a, devices) for a in avals) for avals in (local.in_avals, local.out_avals))
    results = tuple(_rows(local.out_avals, devices))
    region = ManualComputation(ins, body, outs, ALL_MANUAL, results)
    whole = trace_to_jaxpr(lambda *xs: region.bind(*xs), list(_rows(local.in_avals, devices)), program.name)
    arguments = tuple(
        replace(a, aval=aval, sharding=s) for a, aval, s in zip(program.arguments, whole.in_avals, ins, strict=True)
    )
    note = f"partitioned already, for {devices} devices: dimension 0 of arguments and results is the device"
    return replace(
        program, jaxpr=whole, arguments=arguments, result_shardings=outs, num_partitions=devices, is_stacked=True,
        notes=[*program.notes, note],
    )  # fmt: skip


def _rows(avals: Sequence[ShapedArray], count: int) -> Iterator[ShapedArray]:
    return (a.update(shape=(count, *a.shape)) for a in avals)


def _by_device(aval: ShapedArray, devices: int) -> HloSharding:
    return HloSharding.tiled(TileAssignment((devices, *(1,) * aval.ndim), IotaOrder((devices,), (0,))))
