"""Copies collectives whose values have several uses, so that one moves behind each use, if that sends less in total.

A sum of which two halves are further summed on their own (the backward pass of a concatenation) need not be completed
first: each use gets its own collective, which sinks like any other. A single collective is kept if its copies together
would send as much.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.spmd.passes.sink import Node, Sinking, is_simple


def sunk(jaxpr: Jaxpr, sinking: Callable[[Jaxpr], Sinking]) -> Jaxpr:
    """Sink collectives to where they send least, also behind several uses."""
    plain = sinking(jaxpr)
    moved = plain.run()
    shared = [node for node in plain.nodes.values() if _may_be_copied(node, plain)]
    if not shared:
        return moved
    copied = _Copied.of(jaxpr, shared)
    tried = sinking(copied.jaxpr)
    result = tried.run()
    fewer = [node for node in shared if copied.sends_less(node, tried)]
    if not fewer:
        return moved
    if len(fewer) < len(shared):
        tried = sinking(_Copied.of(jaxpr, fewer).jaxpr)
        result = tried.run()
    return result if tried.price_of_all < plain.price_of_all else moved


def _may_be_copied(node: Node, sinking: Sinking) -> bool:
    """Whether the value of a collective has several uses, each of which could use the local value instead."""
    var = node.eqn.outvars[0]
    users = sinking.uses.get(var, [])
    if node.children or len(users) < 2 or len({id(e) for e in users}) < len(users):
        return False
    return all(e is not None and _pending_in(e, var, node, sinking) for e in users)


def _pending_in(eqn: JaxprEqn, var: Var, node: Node, sinking: Sinking) -> bool:
    if not is_simple(eqn) or eqn.invars.count(var) > 1:
        return False
    others = {i: sinking.nodes[a].moved for i, a in enumerate(eqn.invars) if isinstance(a, Var) and a in sinking.nodes}
    alone = {eqn.invars.index(var): node.moved}
    return any(sinking.rule(eqn, pending, sinking.variance) is not None for pending in (alone, {**others, **alone}))


@dataclass(frozen=True)
class _Copied:
    """A jaxpr with one copy of each collective per use; ``origins`` maps copies' values to the originals'."""

    jaxpr: Jaxpr
    origins: dict[Var, Var]

    @classmethod
    def of(cls, jaxpr: Jaxpr, nodes: Collection[Node]) -> _Copied:
        makers = {node.eqn.outvars[0]: node.eqn for node in nodes}
        origins: dict[Var, Var] = {}

        def written(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
            if eqn.outvars and eqn.outvars[0] in makers:
                return
            names = {a: Var(a.aval) for a in eqn.invars if isinstance(a, Var) and a in makers}
            for var, copy in names.items():
                origins[copy] = var
                yield makers[var].replace(outvars=[copy])
            read = [names.get(a, a) if isinstance(a, Var) else a for a in eqn.invars]
            yield eqn.replace(invars=read) if names else eqn

        return cls(jaxpr.replace(eqns=[new for eqn in jaxpr.eqns for new in written(eqn)]), origins)

    def sends_less(self, node: Node, sinking: Sinking) -> bool:
        """Whether all copies of a collective have moved and together send less than the original did."""
        var, sent = node.eqn.outvars[0], 0
        left = {copy for copy, origin in self.origins.items() if origin is var}
        for move in sinking.moves.values():
            leaves = {leaf.eqn.outvars[0]: leaf.here[0] for leaf in move.leaves}
            if mine := left & leaves.keys():
                left -= mine
                sent += move.here[0] - sum(price for v, price in leaves.items() if v not in mine)
        return not left and sent < node.here[0]
