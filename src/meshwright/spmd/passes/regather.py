"""Frees gathered values between distant uses and gathers them again: more communication for less memory.

A fully sharded program gathers its weights for the forward pass and uses them again in the backward pass. If they were
kept in between, the weights of all layers would be in memory at once. The second gather depends, through an
optimization barrier, on a value that is computed late, so that compilers neither merge it with the first gather nor
start it early.

Source: resharding after forward, in ZeRO stage 3 (Rajbhandari et al. 2020) and PyTorch's FSDP (Zhao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import renamed
from meshwright.ops.collective.tiles import AllGather
from meshwright.ops.control.markers import OptimizationBarrier

#: the number of equations between two uses from which on a gathered value is freed
FAR = 16


def gather_again(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Repeat all-gathers before uses that are far behind the previous use."""
    jaxpr = closed.jaxpr
    produced_at = {v: n for n, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
    read_at = _read_at(jaxpr)
    outs = set(jaxpr.outvars)
    before: dict[int, list[JaxprEqn]] = {}
    names: dict[int, dict[Var, Atom]] = {}
    for eqn in jaxpr.eqns:
        if isinstance(eqn.op, AllGather) and eqn.outvars[0] not in outs:
            for first, users in _far_uses(read_at.get(eqn.outvars[0], ())):
                late = _late(jaxpr, first, produced_at, eqn.outvars[0])
                if late is not None:
                    again = _again(eqn, late)
                    before.setdefault(first, []).extend(again)
                    for user in users:
                        names.setdefault(user, {})[eqn.outvars[0]] = again[-1].outvars[0]
    if not before:
        return closed
    eqns: list[JaxprEqn] = []
    for number, eqn in enumerate(jaxpr.eqns):
        eqns += [*before.get(number, []), renamed(eqn, names.get(number, {}))]
    return closed.replace(jaxpr=jaxpr.replace(eqns=eqns))


def _read_at(jaxpr: Jaxpr) -> dict[Var, list[int]]:
    """The indices of the equations that read each value."""
    places: dict[Var, list[int]] = {}
    for number, eqn in enumerate(jaxpr.eqns):
        for atom in dict.fromkeys(eqn.invars):
            if isinstance(atom, Var):
                places.setdefault(atom, []).append(number)
    return places


def _far_uses(uses: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The uses of a value after each long gap: the index of the first equation, and of all up to the next gap."""
    groups: list[list[int]] = []
    for number in uses:
        if groups and number - groups[-1][-1] < FAR:
            groups[-1].append(number)
        else:
            groups.append([number])
    for group in groups[1:]:
        yield group[0], group


def _late(jaxpr: Jaxpr, first: int, produced_at: dict[Var, int], gathered: Var) -> Var | None:
    """The operand of an equation that is computed last, apart from the gathered value."""
    others = [a for a in jaxpr.eqns[first].invars if isinstance(a, Var) and a is not gathered and a in produced_at]
    return max(others, key=produced_at.__getitem__, default=None)


def _again(eqn: JaxprEqn, late: Var) -> list[JaxprEqn]:
    """The barrier and the repeated gather, which cannot start before ``late`` is computed."""
    (shard,) = eqn.invars
    held = [Var(shard.aval), Var(late.aval)]
    barrier = eqn.replace(op=OptimizationBarrier(), invars=[shard, late], outvars=held)
    return [barrier, eqn.replace(invars=[held[0]], outvars=[Var(eqn.outvars[0].aval)])]
