"""Inputs and outputs whose tiles are assigned to devices in another order than the mesh's.

If the shardings of a program order the devices differently, the program still has one mesh with one order. A collective
permute brings every input or output with another order into or out of it. On a virtual mesh arrays are whole, so
nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.names import NUMBERS, Names
from meshwright.ops.collective.exchange import Ppermute
from meshwright.sharding import AbstractMesh
from meshwright.spmd.reason import Reason

#: by number of the input or output: for each position of the mesh, the position whose tile its device holds
Orders = Mapping[int, tuple[int, ...]]


def in_orders(jaxpr: ClosedJaxpr, mesh: AbstractMesh, ins: Orders, outs: Orders, names: Names = NUMBERS) -> ClosedJaxpr:
    """The per-device program with permutes for the inputs and outputs whose device order differs from the mesh's."""
    if not ins and not outs:
        return jaxpr
    inner = jaxpr.jaxpr
    invars, outvars = list(inner.invars), list(inner.outvars)
    before, after = [], []
    for i, places in ins.items():
        entering = Var(invars[i].aval)
        pairs = [(position, place) for position, place in enumerate(places)]
        before.append(
            _permute(mesh, pairs, f"{names.of('input', i)} lies in another order of devices", entering, invars[i])
        )
        invars[i] = entering
    for i, places in outs.items():
        leaving = Var(outvars[i].aval)
        pairs = [(place, position) for position, place in enumerate(places)]
        after.append(
            _permute(mesh, pairs, f"{names.of('output', i)} has to be in another order of devices", outvars[i], leaving)
        )
        outvars[i] = leaving
    return jaxpr.replace(jaxpr=inner.replace(invars=invars, outvars=outvars, eqns=[*before, *inner.eqns, *after]))


def _permute(mesh: AbstractMesh, pairs: list[tuple[int, int]], why: str, x: Atom, y: Var) -> JaxprEqn:
    op = Ppermute(mesh.axis_names, mesh.axis_sizes, tuple(sorted(pairs)))
    return JaxprEqn(op, [x], [y], note=Reason(why))
