"""Programs without the axes over which values vary: what is partitioned is past the checks that these are for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from meshwright.core.avals import NOWHERE
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ops.collective.collectives import AllGather, AllGatherInvariant, PVary
from meshwright.ops.sharding.manual import ShardMap


def without_types(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``jaxpr`` with regions in which nothing is checked: no casts, and collectives that are told apart by types alone
    are one."""

    def bare(eqn: JaxprEqn) -> JaxprEqn:
        op = eqn.op
        if not isinstance(op, ShardMap):
            return in_regions(eqn, without_types)
        region = without_axes(op.jaxpr) if op.check_vma else without_types(op.jaxpr)
        return eqn.replace(op=dataclasses.replace(op, jaxpr=region, check_vma=False))

    return replaced(jaxpr, bare)


def without_axes(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``jaxpr``, of values with types that say over which axes they vary, with types that do not."""
    inner = jaxpr.jaxpr
    env: dict[Atom, Atom] = {}

    def fresh(variables: Sequence[Var]) -> list[Var]:
        made = [Var(v.aval.update(vma=NOWHERE)) for v in variables]
        env.update(zip(variables, made))
        return made

    def read(atom: Atom) -> Atom:
        return env.get(atom, atom) if isinstance(atom, Var) else atom

    constvars, invars = fresh(inner.constvars), fresh(inner.invars)
    eqns = []
    for eqn in inner.eqns:
        operands = [read(a) for a in eqn.invars]
        if isinstance(eqn.op, PVary):
            env[eqn.outvars[0]] = operands[0]
        else:
            eqns.append(eqn.replace(op=_bare_op(eqn.op), invars=operands, outvars=fresh(eqn.outvars)))
    outvars = [read(a) for a in inner.outvars]
    return jaxpr.replace(jaxpr=inner.replace(constvars=constvars, invars=invars, outvars=outvars, eqns=eqns))


def _bare_op(op: Op) -> Op:
    if isinstance(op, AllGatherInvariant):
        return AllGather(op.axes, op.sizes, op.dimension)
    if isinstance(op, ShardMap):
        op = dataclasses.replace(op, check_vma=False)
    regions = op.regions() if op.holds_jaxprs else ()
    return op.with_regions([without_axes(r) for r in regions]) if regions else op


UNTYPED = Pass("no types of what varies", without_types, "Casts that only say over which axes a value varies go.")
