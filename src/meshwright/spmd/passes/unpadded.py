"""Reduces over devices without padding that is cut off afterwards.

A sum that is scattered in uneven tiles is padded for that. Where the tiles are gathered again and the two collectives
have become one, nothing needs the padding: ``slice(all_reduce(pad(x)))`` is ``all_reduce(x)``.
"""

from __future__ import annotations

from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import producers_of, rebuilt, renamed, uses_of
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.shape.slice_pad import Pad, Slice
from meshwright.spmd.varying import Variance


def reduce_unpadded(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """Reduce what is padded, if all that is used of the result is what was there before."""
    makers, uses = producers_of(jaxpr), uses_of(jaxpr)
    names: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    for old in jaxpr.eqns:
        eqn = renamed(old, names)
        pad = makers.get(old.invars[0]) if isinstance(old.op, AllReduce) and isinstance(old.invars[0], Var) else None
        if pad is not None and isinstance(pad.op, Pad):
            kept = _undoing(pad.op, pad.invars[0])
            users = uses.get(old.outvars[0], [])
            if users and all(user is not None and user.op == kept for user in users):
                x = renamed(pad, names).invars[0]
                eqn = eqn.replace(invars=[x], outvars=[Var(pad.invars[0].aval)])
                names.update((user.outvars[0], eqn.outvars[0]) for user in users if user is not None)
        eqns.append(eqn)
    gone = names.keys()
    return rebuilt(jaxpr, [e for e in eqns if gone.isdisjoint(e.outvars)], names)


def _undoing(pad: Pad, x: Atom) -> Slice | None:
    """The slice that cuts off what was added to ``x``; None where elements of ``x`` are cut off or moved apart."""
    if any(low < 0 or high < 0 or inner for low, high, inner in pad.padding_config):
        return None
    starts = tuple(low for low, _, _ in pad.padding_config)
    limits = tuple(low + n for low, n in zip(starts, x.aval.shape))
    return Slice(starts, limits, (1,) * len(starts))
