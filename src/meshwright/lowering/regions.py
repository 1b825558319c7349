"""``shard_map`` in programs that are not partitioned: each region becomes a program on global arrays.

The partitioner inlines the regions of the programs that it partitions. In other programs (for a single device, or a
single op evaluated eagerly), each region is partitioned on its own and batched over its whole mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.core.avals import NOWHERE, ShapedArray
from meshwright.core.late import LateModule
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.passes import Pass, inline_calls
from meshwright.ir.rewrite import in_jaxprs, replaced
from meshwright.ops.control.call import Jit
from meshwright.ops.sharding.constraint import without_constraints
from meshwright.ops.sharding.manual import ShardMap
from meshwright.ops.sharding.positions import with_positions
from meshwright.ops.sharding.untyped import without_axes
from meshwright.sharding import PartitionSpec

if TYPE_CHECKING:
    from meshwright.lowering import batched
    from meshwright.spmd import driver
else:  # the partitioner, which programs without regions do without
    batched, driver = LateModule("meshwright.lowering.batched"), LateModule("meshwright.spmd.driver")


def without_regions(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with every ``shard_map``, nested ones included, replaced by a call of a program on global arrays."""
    return _Replacer(keeps=False).jaxpr(jaxpr)


def with_manual_regions(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with every ``shard_map``, nested ones included, without varying-axes types, which StableHLO lacks."""
    return with_positions(_Replacer(keeps=True).jaxpr(jaxpr))


def _has_regions(jaxpr: ClosedJaxpr) -> bool:
    return any(isinstance(e.op, ShardMap) for e in all_eqns(jaxpr.jaxpr))


class _Replacer:
    """Rewrites each jaxpr once, so that shared inner jaxprs stay shared."""

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.done: dict[ClosedJaxpr, ClosedJaxpr] = {}

    def jaxpr(self, jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        if not _has_regions(jaxpr):
            return jaxpr
        if jaxpr not in self.done:
            self.done[jaxpr] = replaced(jaxpr, self.equation)
        return self.done[jaxpr]

    def equation(self, eqn: JaxprEqn) -> JaxprEqn:
        op = eqn.op
        if isinstance(op, ShardMap):
            if not self.keeps:
                return eqn.replace(op=Jit(op.name, global_program(op)))
            body = without_axes(inline_calls(self.jaxpr(op.jaxpr)))
            return eqn.replace(op=replace(op, jaxpr=body, check_vma=False))
        return in_jaxprs(eqn, self.jaxpr)


def global_program(op: ShardMap) -> ClosedJaxpr:
    """A ``shard_map`` as a program on global arrays, which vary over no axis.

    Sharding constraints over automatic axes in its region are dropped: they do not affect the values.
    """
    op = op.with_regions([without_constraints(op.jaxpr)])
    ins = [Var(a) for a in _global_avals(op, op.jaxpr.in_avals, op.in_specs)]
    outs = [Var(a.update(vma=NOWHERE)) for a in op.infer(*(v.aval for v in ins))]
    jaxpr = ClosedJaxpr(Jaxpr([], ins, outs, [JaxprEqn(op, ins, outs)], op.name))
    mesh = op.mesh.abstract_mesh
    in_layouts = op.layouts(op.in_specs, [v.aval for v in ins])
    return batched.virtual_program(
        driver.partition(jaxpr, mesh, in_layouts, op.layouts(op.out_specs, [v.aval for v in outs]))
    )


def _global_avals(op: ShardMap, avals: Sequence[ShapedArray], specs: Sequence[PartitionSpec]) -> list[ShapedArray]:
    layouts = op.layouts(tuple(specs), avals)
    mesh = op.mesh.abstract_mesh
    return [
        a.update(vma=NOWHERE, shape=tuple(size * mesh.sizes(axes) for size, axes in zip(a.shape, lo.dims)))
        for a, lo in zip(avals, layouts)
    ]


WHOLE_REGIONS = Pass(
    "whole regions", without_regions, "On a single device, each shard_map becomes a program on global arrays."
)
