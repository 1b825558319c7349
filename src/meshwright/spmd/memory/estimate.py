"""A rough estimate of a program's peak memory, two hundred times faster than a prediction, for coarse comparisons."""

from __future__ import annotations

from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var, sub_jaxprs
from meshwright.ops.collective.base import Collective


def estimate(jaxpr: Jaxpr) -> int:
    """Peak bytes of live values if equations run in program order and every result has its own buffer.

    Only what devices take their tiles of along one dimension after the other has none in between: that is one slice.
    """
    last: dict[Var, int] = {}
    for step, eqn in enumerate(jaxpr.eqns):
        for atom in (*eqn.invars, *eqn.outvars):
            if isinstance(atom, Var):
                last[atom] = step
    kept = {a for a in (*jaxpr.invars, *jaxpr.outvars) if isinstance(a, Var)}
    kept |= _cut_again(jaxpr)
    alive = peak = sum(a.aval.nbytes for a in {*jaxpr.invars, *jaxpr.outvars} if isinstance(a, Var))
    for step, eqn in enumerate(jaxpr.eqns):
        alive += sum(v.aval.nbytes for v in eqn.outvars if v not in kept)
        inner = max(map(_inside, sub_jaxprs(eqn.op)), default=0) if eqn.op.holds_jaxprs else 0
        peak = max(peak, alive + inner)
        ended = {a for a in (*eqn.invars, *eqn.outvars) if isinstance(a, Var) and last[a] == step}
        alive -= sum(v.aval.nbytes for v in ended if v not in kept)
    return peak


def _cut_again(jaxpr: Jaxpr) -> set[Var]:
    """The tiles of which devices only take smaller ones."""
    tiles = {v for eqn in jaxpr.eqns if _takes_tile(eqn) for v in eqn.outvars}
    for eqn in jaxpr.eqns if tiles else ():
        if not _takes_tile(eqn):
            tiles.difference_update(eqn.invars)
    return tiles


def _takes_tile(eqn: JaxprEqn) -> bool:
    """Whether devices take parts of what they have, without sending any."""
    return isinstance(eqn.op, Collective) and eqn.op.moves_only and not eqn.op.kind


def _inside(jaxpr: Jaxpr) -> int:
    """The peak bytes of a region besides its parameters and results."""
    return estimate(jaxpr) - sum(a.aval.nbytes for a in {*jaxpr.invars, *jaxpr.outvars})
