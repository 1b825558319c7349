"""Guards for checks in batched control flow.

Under ``vmap`` a body also runs for batch entries that do not take it: every branch of a ``cond``, and the further steps
of a loop for entries that are done. Their results are discarded, and their checks must not fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns, has_effects
from meshwright.ir.passes import inline_calls
from meshwright.ir.rewrite import Interpreter
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.control.check import Check
from meshwright.ops.control.regions import RegionOp
from meshwright.ops.elementwise.table import not_, or_


def has_checks(jaxpr: ClosedJaxpr) -> bool:
    """Whether a jaxpr or one of its inner jaxprs has a check."""
    return has_effects(jaxpr.jaxpr) and any(isinstance(e.op, Check) for e in all_eqns(jaxpr.jaxpr))


def guarded(
    jaxpr: ClosedJaxpr, more: Sequence[ShapedArray], runs: Callable[..., tuple[Any, Sequence[Any]]]
) -> ClosedJaxpr:
    """The jaxpr with additional parameters, of the types ``more``, in front, and with its checks guarded.

    ``runs`` is called with all parameters. It returns the guard, a bool that tells whether the jaxpr is to run, and the
    jaxpr's own parameters. Checks hold where the guard is False.
    """

    def fun(*args: Any) -> list[Any]:
        guard, given = runs(*args)
        return _run(inline_calls(jaxpr), given, [guard])[0]

    return trace_to_jaxpr(fun, [*more, *jaxpr.in_avals], jaxpr.jaxpr.debug_name)


def _run(jaxpr: ClosedJaxpr, args: Sequence[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
    return _Guarding(state[0]).run(jaxpr, args), state


class _Guarding(Interpreter[Any]):
    """Evaluates a jaxpr with checks that hold wherever ``guard`` is False."""

    def __init__(self, guard: Any) -> None:
        self.guard = guard

    def equation(self, eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
        op = eqn.op
        with source.at(eqn.source):
            if isinstance(op, Check):
                return op.bind(or_(args[0], not_(self.guard)), *args[1:])
            if isinstance(op, RegionOp) and op.threads and any(map(has_checks, op.regions())):
                return op.threaded(args, [self.guard], _run, list)[0]
        return super().equation(eqn, args)
