"""Guards for checks in batched control flow.

Under ``vmap`` a body also runs for batch entries that do not take it: every branch of a ``cond``, and the further steps
of a loop for entries that are done. Their results are discarded, and their checks must not fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import dtypes, source
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.errors import RuleError
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


def checked_for(eqn: JaxprEqn) -> frozenset[str]:
    """What ``checkify`` can find wrong with an equation: ``index``, ``div``, ``nan``."""
    op, kinds = eqn.op, set()
    if op.index_operands(len(eqn.invars)):
        kinds.add("index")
    if op.name in ("div", "rem"):
        kinds.add("div")
    # What only moves elements makes no NaN, but that which stands for an index out of bounds.
    runs_bodies = isinstance(op, RegionOp) and op.threads and op.regions()
    if not op.takes_keys and not runs_bodies and any(dtypes.is_inexact(v.aval.dtype) for v in eqn.outvars):
        kinds.add("nan")
    return frozenset(kinds)


def refuse_automatic_checks(body: ClosedJaxpr) -> None:
    """Refuse a loop whose batch entries end apart if ``checkify`` will look into its body.

    Raises:
      RuleError: it would find what entries that are done compute, which is not selected.
    """
    found = next((e for e in all_eqns(body.jaxpr) if checked_for(e) & config.automatic_checks), None)
    if found is not None:
        kinds = ", ".join(f"{kind}_checks" for kind in sorted(checked_for(found) & config.automatic_checks))
        raise RuleError(
            f"checkify: a loop under vmap whose batch entries end after different numbers of steps cannot be checked "
            f"for {kinds} ({found.op.name} at {found.source}): entries that are done compute on; apply vmap to the "
            "checked function, vmap(checkify(f, errors)), or check what matters with checkify.check and user_checks"
        )


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
