"""Reads the device groups of collectives.

The numbers in a table of groups are those of replicas, partitions or devices, depending on the collective's kind, its
channel and ``use_global_device_ids`` (StableHLO's specification calls these communication strategies). All are
converted to numbers of devices, which count the partitions of one replica after the other. A program for all devices
has one replica; that of one device, which is already partitioned, may have several (``ModuleFacts.replicas``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from meshwright.errors import ShardingError
from meshwright.sharding.device_groups import Groups, axis_groups, check_groups
from meshwright.stablehlo.read_bodies import AlreadyPartitioned


class Strategy(Enum):
    """The meaning of the numbers in a table of groups, and which devices form a group."""

    REPLICAS = "replicas, for each partition"
    PARTITIONS = "partitions, for each replica"
    WHOLE_REPLICAS = "replicas, with all their partitions"
    DEVICES = "devices"


def strategy_of(r: Any, replicas_with_channel: bool = False) -> Strategy:
    """The strategy of an operation. With ``replicas_with_channel``, its numbers are of replicas even with a channel."""
    channel = r.attr("channel_handle", {}) or r.attr("channel_id", 0)
    number = channel.get("handle", 0) if isinstance(channel, dict) else channel
    if replicas_with_channel and r.attr("use_global_device_ids", False):
        return Strategy.DEVICES
    if number <= 0:
        return Strategy.REPLICAS
    return Strategy.WHOLE_REPLICAS if replicas_with_channel else Strategy.PARTITIONS


def groups_of(r: Any, attribute: str, replicas_with_channel: bool = False) -> Groups | None:
    """The groups of device numbers; empty for one group of all devices, None if each device is a group of its own."""
    table, strategy = _axis_groups(r, attribute), strategy_of(r, replicas_with_channel)
    if table is None:
        table = np.asarray(r.attr(attribute, np.zeros((0, 0), np.int64)))
    rows = tuple(tuple(int(d) for d in row if d >= 0) for row in table.tolist())
    module = r.module
    _check_whole(r, strategy, rows)
    _check_rows(r, attribute, strategy, rows)
    if module.replicas > 1:
        return tuple(_of_devices(rows, strategy, module.replicas, module.partitions))
    if strategy is Strategy.REPLICAS or module.num_devices == 1:
        return None
    return () if strategy is Strategy.WHOLE_REPLICAS else rows


_UNCOUNTED = (
    "; if it is for several, write mhlo.num_replicas into the module's attributes (in HLO, replica_count into its "
    "first line)"
)


def _check_whole(r: Any, strategy: Strategy, rows: Groups) -> None:
    """Raise :class:`AlreadyPartitioned` for several replicas, which a program for all devices does not have."""
    several = strategy is Strategy.REPLICAS and any(d for row in rows for d in row)
    if not r.module.per_device and ((r.module.num_replicas or 1) > 1 or several):
        raise AlreadyPartitioned(r.operation)


def _check_rows(r: Any, attribute: str, strategy: Strategy, rows: Groups) -> None:
    module = r.module
    of_replicas = strategy in (Strategy.REPLICAS, Strategy.WHOLE_REPLICAS)
    of_devices = module.num_devices if strategy is Strategy.DEVICES else module.partitions
    try:
        check_groups(rows, *((module.replicas, attribute, "replica") if of_replicas else (of_devices, attribute)))
    except ShardingError as error:
        uncounted = of_replicas and r.module.num_replicas is None
        r.fail(f"{error}{_UNCOUNTED if uncounted else ''}")


def _of_devices(rows: Groups, strategy: Strategy, replicas: int, partitions: int) -> Iterator[tuple[int, ...]]:
    """The groups of device numbers for the groups of a table; an empty table means one group of all."""
    match strategy:
        case Strategy.DEVICES:
            yield from rows
        case Strategy.PARTITIONS:
            for first in range(0, replicas * partitions, partitions):
                yield from (tuple(first + p for p in row) for row in rows or (range(partitions),))
        case Strategy.REPLICAS:
            for p in range(partitions):
                yield from (tuple(i * partitions + p for i in row) for row in rows or (range(replicas),))
        case Strategy.WHOLE_REPLICAS:
            for row in rows or (range(replicas),):
                yield tuple(i * partitions + p for i in row for p in range(partitions))


_MESH_AXES = re.compile(r"#stablehlo.replica_group_mesh_axes<mesh = @(\w+), axes = \[(.*)\]>")
_AXIS = re.compile(r'name = "([^"]*)"(?:, sub_axis_info = (\(\d+\)\d+))?')


def _axis_groups(r: Any, attribute: str) -> np.ndarray | None:
    """The table of groups that are given as axes of a mesh; None for others."""
    attributes = r.operation.attributes
    match = _MESH_AXES.fullmatch(str(attributes[attribute])) if attribute == "replica_groups" in attributes else None
    if match is None:
        return None
    declared = r.module.meshes.declared.get(match[1])
    if declared is None:
        return r.fail(f"{attribute} are over the mesh {match[1]!r}, which the program does not declare")
    axes = [f"{name}:{part}" if part else name for name, part in _AXIS.findall(match[2])]
    return axis_groups(declared.mesh, axes, declared.device_ids)
