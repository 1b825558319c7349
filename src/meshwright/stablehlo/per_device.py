"""Programs that are partitioned already: of what one device runs, the program of all.

Compilers and per-replica interfaces write what each device runs, with collectives over groups of devices. The program
of all devices is a manual region along all of them: its arguments and results are the devices' own ones, stacked along
a new dimension 0, as ``pmap`` has them. So what another partitioner made can be run, explained, priced and checked like
any other program.
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

#: what to do about a program whose number of devices is not known
UNCOUNTED = (
    "belongs in a program that is already partitioned, which does not say for how many devices; write mhlo.num_replicas"
    " or mhlo.num_partitions into the module's attributes (in HLO, replica_count or num_partitions into its first line)"
)

#: marks a module that a compiler has scheduled, which it does when it has partitioned it
SCHEDULED = "mhlo.is_scheduled"
#: what XLA's partitioner notes when it is done: by what the parameters, and the results, were split
_SPLIT_BY = "mhlo.spmd_parameters_shardings", "mhlo.spmd_output_sharding"
_TILES = re.compile(r"devices=\[([\d,]{1,99})\]")


def says_it_is_partitioned(module: ir.Module, partitions: int) -> bool:
    """Whether a module for so many partitions says of itself that it is what one of them runs, as a compiler's result
    does: one without collectives shows it by nothing else."""
    return (partitions > 1 and SCHEDULED in module.operation.attributes) or _split_by(module) > 1


def _split_by(module: ir.Module) -> int:
    """Into how many partitions a module says that it was split; 1 where it does not say it."""
    attributes = module.operation.attributes
    noted = " ".join(str(attributes[name]) for name in _SPLIT_BY if name in attributes)
    counts = [math.prod(int(n or 0) for n in tiles.split(",")) for tiles in _TILES.findall(noted)]
    return max((n for n in counts if n <= MOST_DEVICES), default=1)


def counted_devices(module: ir.Module) -> tuple[int, int] | None:
    """The numbers of replicas and partitions that the groups of a module's collectives are of, each of which is in one:
    if any has a channel, or anything asks for its partition, they are partitions. Without groups, those that the module
    was split into; None if it does not say it."""
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
    """Whether any part of a program is for all devices all the same: it has regions, or constraints.

    What parameters and other values are said to be split by does not count: compilers leave it where it was. In one of
    several replicas, that of parameters may be what is still to be done."""
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
    """The program of all of ``devices``, each of which runs ``program``, on stacked arguments."""
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
