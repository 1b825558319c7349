"""Forward-mode differentiation with tracers that pair a primal with its tangent (Autodidax; Wengert 1964)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.errors import DifferentiationError
from meshwright.ir.derivatives import jvp_of
from meshwright.ir.op import Op, Zero
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import Trace, Tracer, check_alive, typeof
from meshwright.ir.varying import axes_of, cast, in_order
from meshwright.ops.control.call import CallOp
from meshwright.transforms.jaxprs import TRANSFORMS


class JVPTracer(Tracer):
    """A primal and its tangent; the tangent is not a symbolic zero."""

    __slots__ = ("primal", "tangent")

    def __init__(self, trace: JVPTrace, primal: Any, tangent: Any) -> None:
        self.owner = trace
        self.aval = typeof(primal)
        self.primal = primal
        self.tangent = tangent

    @property
    def _trace(self) -> Trace:
        """``owner``, by the name that libraries around JAX read."""
        return self.owner

    def concrete(self) -> Any:
        primal = self.primal
        return primal.concrete() if isinstance(primal, Tracer) else primal

    def origin(self) -> str:
        return self.primal.origin() if isinstance(self.primal, Tracer) else ""


def fitting(tangent: Any, aval: ShapedArray, what: str, whose: str) -> Any:
    """``tangent`` (a tangent or cotangent) cast to vary over the same manual axes as its value, of type ``aval``.

    Raises:
      DifferentiationError: ``tangent`` varies over an axis that the value does not vary over.
    """
    if not STATE.checked or isinstance(tangent, Zero):
        return tangent
    more = axes_of(tangent) - aval.vma
    if more:
        names = ", ".join(in_order(more))
        raise DifferentiationError(
            f"{what} has type {typeof(tangent)}, {whose} {aval}: along {names} it differs between devices, which "
            f"hold the same value; sum what each contributes (lax.psum over {names})"
        )
    return cast(tangent, aval.vma)


class JVPTrace(Trace):
    """Runs each op's ``jvp`` under the parent trace.

    Values with symbolic zero tangents are not wrapped. Neither are empty arrays: anything computed from one (such as
    its mean, NaN) is a constant.
    """

    __slots__ = ("parent",)

    def __init__(self, parent: Trace) -> None:
        super().__init__()
        self.parent = parent

    @property
    def main(self) -> JVPTrace:
        """What tells its tracers from those of other traces: itself."""
        return self

    def wrap(self, primal: Any, tangent: Any) -> Any:
        """A tracer for ``primal`` and ``tangent``, or ``primal`` itself if it is constant."""
        if isinstance(tangent, Zero) or 0 in typeof(primal).shape:
            return primal
        return JVPTracer(self, primal, fitting(tangent, typeof(primal), "a tangent", "its value"))

    def unwrap(self, x: Any) -> tuple[Any, Any]:
        """The primal and tangent of ``x``; a symbolic zero if it is no tracer of this trace."""
        if type(x) is JVPTracer and x.owner is self:
            return x.primal, x.tangent
        check_alive(x)
        return x, Zero(typeof(x))

    def process(self, op: Op, args: Sequence[Any]) -> Any:
        for x in args:
            if type(x) is JVPTracer and x.owner is self:
                break
        else:
            return self.parent.process(op, args)
        primals, tangents = zip(*map(self.unwrap, args))
        outs: Any
        touts: Any  # one of each, or lists, as ``multiple_results`` says
        with set_trace(self.parent):
            if isinstance(op, CallOp):
                outs, touts = op.jvp_call(TRANSFORMS, primals, tangents)
            else:
                outs, touts = jvp_of(op, primals, tangents)
            if op.multiple_results:
                return [self.wrap(x, t) for x, t in zip(outs, touts)]
            return self.wrap(outs, touts)
