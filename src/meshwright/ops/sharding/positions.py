"""Positions of devices in regions that are manual along some axes only, as texts state them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ops.collective.base import AxisIndex
from meshwright.ops.collective.tiles import AllSlice
from meshwright.ops.elementwise.table import mul
from meshwright.ops.indexing.dynamic_slice import dynamic_slice_in_dim
from meshwright.ops.sharding.manual import ShardMap
from meshwright.sharding import PartitionSpec


def with_positions(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program, in which devices take their position in regions along all axes, as in JAX.

    XLA's partitioner refuses the number of a device where some axes are automatic.
    """

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        op = eqn.op
        return [eqn.replace(op=op.with_regions([_numbered(op.jaxpr, op)]))] if isinstance(op, ShardMap) else []

    return replaced_in_all(jaxpr, lambda _: rule)


def _numbered(jaxpr: ClosedJaxpr, around: ShardMap) -> ClosedJaxpr:
    """The body of a region, where what takes a position is in a region along the axes that are automatic there."""
    if not around.automatic:
        return jaxpr

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        op = eqn.op
        if isinstance(op, ShardMap):
            manual = dataclasses.replace(around, axis_names=(*around.manual, *op.manual))
            return [eqn.replace(op=op.with_regions([_numbered(op.jaxpr, manual)]))]
        if isinstance(op, AxisIndex):
            out = Var(eqn.outvars[0].aval)
            body = ClosedJaxpr(Jaxpr([], [], [out], [JaxprEqn(op, [], [out], eqn.source)], op.name))
            return [eqn.replace(op=ShardMap((), body, around.mesh, (PartitionSpec(),), around.automatic))]
        if isinstance(op, AllSlice):
            parts = written_out(eqn, partial(_own_part, op, eqn.outvars[0].aval.shape[op.dimension]))
            return [new for part in parts for new in rule(part) or [part]]
        return []

    return replaced_in_all(jaxpr, lambda _: rule)


def _own_part(op: AllSlice, size: int, x: Any) -> list[Any]:
    start = mul(AxisIndex(op.axes, op.sizes).bind(), np.int32(size))
    return [dynamic_slice_in_dim(x, start, size, op.dimension)]
