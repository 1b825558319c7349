"""Applies functions of scalars that hold loops or branches to whole arrays.

XLA's compiler for CPUs ends the process on a ``reduce``, ``reduce_window`` or ``map`` whose function holds a ``while``,
such as that of the greatest common divisor, or of an op that is a loop for XLA, such as the incomplete gamma function;
and on functions with calls that are compiled apart, as those of the words of new keys are. Here pairs of elements are
combined in a tree by the function's batched form.
"""

from __future__ import annotations

from typing import Any

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.op import BatchAxis
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ir.tracing import eval_jaxpr, typeof
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.scalar_body import BodyOp
from meshwright.ops.shape.rearrange import reshape
from meshwright.stablehlo.emit import LoweringOptions, lower_with_callbacks
from meshwright.transforms.jaxprs import TRANSFORMS


def without_loops_in_bodies(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with bodies that hold control flow applied to arrays; the same object if there are none."""

    def rule(eqn: JaxprEqn) -> list[JaxprEqn]:
        op = eqn.op
        if not isinstance(op, BodyOp) or not _holds_loops(op.computation):
            return []
        return written_out(eqn, lambda *operands: op.on_arrays(_on_elements, *operands))

    return replaced_in_all(jaxpr, lambda inner: rule)


def _holds_loops(body: ClosedJaxpr) -> bool:
    """Whether XLA gets control flow or calls for a body: those of the program, or what an op's own form consists of."""
    if any(isinstance(e.op, ControlOp) for e in body.eqns):
        return True
    text = str(lower_with_callbacks(body, LoweringOptions(platform="cpu"))[0])
    return any(name in text for name in ("stablehlo.while", "stablehlo.case", "stablehlo.if", "inlineable"))


def _on_elements(body: ClosedJaxpr, *arrays: Any) -> list[Any]:
    """The body for each element of arrays of one shape."""
    aval = typeof(arrays[0])
    axis, results = BatchAxis(aval.size), (0,) * len(body.out_avals)
    batched, _ = TRANSFORMS.batch(body, axis, (0,) * len(arrays), results)
    outs = eval_jaxpr(batched, batched.consts, *(reshape(x, (aval.size,)) for x in arrays))
    return [reshape(y, aval.shape) for y in outs]
