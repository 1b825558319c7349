"""Integers that constants alone make become constants, so that numbers of iterations and positions are known; of
several branches, the one that such a number chooses remains.

JAX's tracing leaves such arithmetic in programs: the interpreter of Pallas' kernels multiplies the sizes of the grid,
and positions are taken modulo the sizes of dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.passes import inline_calls, is_inlined
from meshwright.ir.rewrite import in_regions, rebuilt, renamed
from meshwright.ops.control.call import Jit
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.indexing.known_integers import KnownIntegers


def known_scalars(jaxpr: ClosedJaxpr, given: Mapping[Var, np.ndarray] = MappingProxyType({})) -> ClosedJaxpr:
    """The jaxpr with literals for integers and bools that constants alone make, also in its regions, and without
    branches that are never taken.

    ``given`` are the known values of arguments.
    """
    values, chosen = KnownIntegers(jaxpr, given), False
    names: dict[Var, Literal] = {}
    eqns: list[JaxprEqn] = []
    for old in jaxpr.jaxpr.eqns:
        out = old.outvars[0] if len(old.outvars) == 1 else None
        value = values.known(out) if out is not None and not out.aval.shape else None
        if out is not None and value is not None:
            names[out] = Literal(value[()], out.aval)
            continue
        eqn = renamed(old, names)
        branch = _taken(eqn, values)
        chosen |= branch is not None
        eqns.append(_in_bodies(eqn, values) if branch is None else branch)
    found = jaxpr.replace(jaxpr=rebuilt(jaxpr.jaxpr, eqns, names))
    # What a branch returns may be known, too.
    return known_scalars(inline_calls(found, is_inlined), given) if chosen else found


def _taken(eqn: JaxprEqn, values: KnownIntegers) -> JaxprEqn | None:
    """A call of the branch that is taken; None if that is not known, or the equation does not choose."""
    op = eqn.op
    if not isinstance(op, ControlOp) or not op.chooses or (index := values.known(eqn.invars[0])) is None:
        return None
    branches = op.bodies()
    return eqn.replace(op=Jit("branch", branches[int(index)].jaxpr), invars=eqn.invars[1:])


def _in_bodies(eqn: JaxprEqn, values: KnownIntegers) -> JaxprEqn:
    """The equation with its regions rewritten. A constant of a body is known if its operand is."""
    op = eqn.op
    if not isinstance(op, ControlOp):
        return in_regions(eqn, known_scalars)
    bodies = []
    for body, places in zip(op.bodies(), op.numbers().consts):
        pairs = zip(body.jaxpr.jaxpr.invars, (eqn.invars[n] for n in places))
        given = {v: value for v, a in pairs if (value := values.known(a)) is not None}
        bodies.append(replace(body, jaxpr=known_scalars(body.jaxpr, given)))
    same = all(new.jaxpr is old.jaxpr for new, old in zip(bodies, op.bodies()))
    return eqn if same else eqn.replace(op=op.with_bodies(bodies))
