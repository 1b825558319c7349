"""Runs ordered callbacks in program order, by threading a token through them as an ordinary value.

XLA may run independent operations in any order. Each ordered callback takes a token and returns the next one. A token
is an integer whose value is always zero, which the compiler does not know. An op whose bodies contain ordered callbacks
is ordered by making its smallest operand depend on the token, and the next token on its smallest result; where it has
none, its bodies return their tokens. Each execution of a body threads its own token, since XLA runs bodies to
completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core import dtypes, source
from meshwright.errors import RuleError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.op import Op
from meshwright.ir.passes import inline_calls
from meshwright.ir.rewrite import Interpreter
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.control.callback import Callback, IoCallback
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.elementwise.table import convert, sub, xor
from meshwright.ops.shape.rearrange import reshape
from meshwright.ops.shape.slice_pad import slice_


def order_callbacks(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with a token threaded through its ordered callbacks; the same object if there are none."""
    return _threaded(inline_calls(jaxpr)) if _ordered(jaxpr) else jaxpr


def _ordered(jaxpr: ClosedJaxpr) -> bool:
    return any(isinstance(e.op, Callback) and e.op.ordered for e in all_eqns(jaxpr.jaxpr))


def _threaded(jaxpr: ClosedJaxpr, returned: bool = False) -> ClosedJaxpr:
    """The jaxpr with a token of its own, which is the last result if it is ``returned``."""

    def run(*args: Any) -> list[Any]:
        threading = _Threading()
        outs = threading.run(jaxpr, args)
        return [*outs, threading.token] if returned else outs

    return trace_to_jaxpr(run, jaxpr.in_avals, jaxpr.jaxpr.debug_name)


def _needs_result(op: Op, args: Sequence[Any]) -> bool:
    """Whether ``op`` has no result to wait for, and its bodies may return one more."""
    may = isinstance(op, ControlOp) and len(op.working()) == len(op.bodies())
    return may and not any(a.size for a in op.infer(*map(typeof, args)))


class _Threading(Interpreter[Any]):
    """Applies the equations and holds the token of the latest ordered callback."""

    def __init__(self) -> None:
        self.token: Any = np.int32(0)

    def equation(self, eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
        with source.at(eqn.source):
            return self.applied(eqn.op, args)

    def applied(self, op: Op, args: list[Any]) -> Sequence[Any]:
        if isinstance(op, Callback) and op.ordered:
            self.token, *outs = replace(op, token=True).bind(self.token, *args)
            return list(outs)
        regions = op.regions() if op.holds_jaxprs else ()
        inside = any(map(_ordered, regions))
        returned = inside and _needs_result(op, args)
        if regions:
            op = op.with_regions([_threaded(r, returned) if returned or _ordered(r) else r for r in regions])
        if inside:
            if not args:
                raise RuleError(
                    f"an ordered callback in a {op.name} without operands; give it one, or use ordered=False"
                )
            i = min(range(len(args)), key=lambda i: typeof(args[i]).nbytes or 2**62)
            args[i] = _after(self.token, args[i])
        result = op.bind(*args)
        outs = result if op.multiple_results else [result]
        if inside:
            self.token = _joined(op, self.token, outs)
        return outs[:-1] if returned else outs


def _after(token: Any, x: Any) -> Any:
    """``x`` with a data dependence on ``token``. (The zero is subtracted, since ``-0.0 + 0.0`` is not ``-0.0``.)"""
    dtype = typeof(x).dtype
    return xor(x, convert(token, dtype)) if dtypes.is_bool(dtype) else sub(x, convert(token, dtype))


def _no_effect(*_: np.ndarray) -> list[Any]:
    return []


def _joined(op: Op, token: Any, outs: list[Any]) -> Any:
    """A token that depends on a result of ``op``.

    Raises:
      RuleError: ``op`` has no nonempty result to depend on.
    """
    nonempty = [x for x in outs if typeof(x).size]
    if not nonempty:
        raise RuleError(
            f"an ordered callback in the body of a {op.name} that has no results cannot be ordered; return something "
            "from the body, or use ordered=False"
        )
    smallest = min(nonempty, key=lambda x: typeof(x).nbytes)
    ndim = typeof(smallest).ndim
    element = reshape(slice_(smallest, (0,) * ndim, (1,) * ndim), ())
    return IoCallback(_no_effect, "order", ordered=True, token=True).bind(token, element)[0]
