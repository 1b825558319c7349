"""Removes varying and explicit axes from types: partitioning comes after the checks that need them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from meshwright.core.avals import NOWHERE
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.all_reduce import PVary
from meshwright.ops.collective.tiles import AllGather, AllGatherInvariant
from meshwright.ops.sharding.constraint import Reshard
from meshwright.ops.sharding.manual import ShardMap
from meshwright.ops.sharding.mesh_cast import MeshCast
from meshwright.sharding import AxisType


def without_types(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``jaxpr`` with unchecked regions: casts are removed, and collectives that differ only by types are unified.
    Explicit shardings become constraints."""
    inner = jaxpr.jaxpr
    values = (*inner.invars, *inner.constvars, *(v for e in inner.eqns for v in e.outvars))
    if any(v.aval.explicit is not None for v in values):
        return without_axes(jaxpr)

    def bare(eqn: JaxprEqn) -> JaxprEqn:
        op = eqn.op
        if not isinstance(op, ShardMap):
            return in_regions(eqn, without_types)
        region = without_axes(op.jaxpr) if op.check_vma else without_types(op.jaxpr)
        return eqn.replace(op=dataclasses.replace(op, jaxpr=region, check_vma=False))

    return replaced(jaxpr, bare)


def without_axes(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``jaxpr`` with types that do not mention varying axes."""
    inner = jaxpr.jaxpr
    env: dict[Atom, Atom] = {}

    def fresh(variables: Sequence[Var]) -> list[Var]:
        untyped = [Var(v.aval.update(vma=NOWHERE, explicit=None)) for v in variables]
        env.update(zip(variables, untyped))
        return untyped

    def read(atom: Atom) -> Atom:
        return env.get(atom, atom) if isinstance(atom, Var) else atom

    constvars, invars = fresh(inner.constvars), fresh(inner.invars)
    eqns = []
    for eqn in inner.eqns:
        operands = [read(a) for a in eqn.invars]
        if isinstance(eqn.op, PVary):
            env[eqn.outvars[0]] = operands[0]
        else:
            eqns.append(eqn.replace(op=_bare_op(eqn.op, eqn), invars=operands, outvars=fresh(eqn.outvars)))
    outvars = [read(a) for a in inner.outvars]
    inner = inner.replace(constvars=constvars, invars=invars, outvars=outvars, eqns=eqns)
    return jaxpr.replace(jaxpr=inner, consts=[_automatic(c) for c in jaxpr.consts])


def _automatic(value: Any) -> Any:
    """A constant over a mesh with only automatic axes, so that its type does not mention them."""
    explicit = typeof(value).explicit
    if explicit is None:
        return value
    mesh = explicit.mesh
    return MeshCast(mesh.update_axis_types(dict.fromkeys(mesh.axis_names, AxisType.Auto))).perform(value)


def _bare_op(op: Op, eqn: JaxprEqn) -> Op:
    if isinstance(op, Reshard):
        return op.as_constraint(eqn.outvars[0].aval.ndim)
    if isinstance(op, AllGatherInvariant):
        return AllGather(op.axes, op.sizes, op.dimension)
    if isinstance(op, ShardMap):
        op = dataclasses.replace(op, check_vma=False)
    regions = op.regions() if op.holds_jaxprs else ()
    return op.with_regions([without_axes(r) for r in regions]) if regions else op


UNTYPED = Pass("no types of what varies", without_types, "Casts that only change varying axes are removed.")
