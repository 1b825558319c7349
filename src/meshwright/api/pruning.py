"""Removes arguments that no result depends on from the program that is compiled."""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.passes import dead_code
from meshwright.ir.program import Program
from meshwright.ir.rewrite import rebuilt
from meshwright.ops.control.call import Jit
from meshwright.ops.control.regions import arranged


def pruned(program: Program) -> Program:
    """The program without arguments that neither results nor effects depend on, unless ``keep_unused`` is set."""
    if program.keep_unused or program.given is not None:
        return program
    jaxpr, kept = _Pruner().needed(program.jaxpr)
    if len(kept) == len(program.arguments):
        return program
    return replace(
        program,
        jaxpr=jaxpr,
        arguments=tuple(program.arguments[i] for i in kept),
        given=program.arguments,
        kept=kept,
    )


class _Pruner:
    """Prunes each jaxpr once, so that equations that call the same function still do."""

    def __init__(self) -> None:
        self.done: dict[ClosedJaxpr, tuple[ClosedJaxpr, tuple[int, ...]]] = {}

    def needed(self, jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[int, ...]]:
        """The jaxpr without unused equations, parameters, and operands of jitted functions, and the numbers of the
        remaining parameters."""
        if jaxpr not in self.done:
            self.done[jaxpr] = self._needed(jaxpr)
        return self.done[jaxpr]

    def _needed(self, jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[int, ...]]:
        inner = jaxpr.jaxpr
        eqns = [self._without_unused(e, e.op) if isinstance(e.op, Jit) else e for e in inner.eqns]
        pruned = dead_code(jaxpr.replace(jaxpr=rebuilt(inner, eqns)))
        used = set(pruned.jaxpr.outvars).union(*(e.invars for e in pruned.jaxpr.eqns))
        kept = tuple(i for i, v in enumerate(inner.invars) if v in used)
        return arranged(pruned, [inner.invars[i] for i in kept]), kept

    def _without_unused(self, eqn: JaxprEqn, op: Jit) -> JaxprEqn:
        body, kept = self.needed(op.jaxpr)
        if len(kept) == len(eqn.invars):
            return eqn
        return eqn.replace(op=Jit(op.fun_name, body, op.inline), invars=[eqn.invars[i] for i in kept])
