"""Applies functions of scalars that are more than formulas to whole arrays.

XLA's compiler for CPUs ends the process on many a ``reduce``, ``reduce_window`` or ``map`` whose function is no formula
of scalars: if it holds a ``while``, such as that of the greatest common divisor, arrays, or calls that stay calls. Ops
may be emitted as any of these, such as the incomplete gamma function, decompositions, and random bits. Here pairs of
elements are combined in a tree by the function's batched form.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.op import BatchAxis
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ir.tracing import typeof
from meshwright.ops.control.call import Jit
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.scalar_body import BodyOp
from meshwright.ops.shape.rearrange import reshape
from meshwright.stablehlo.emit import LoweringOptions, lower_with_callbacks
from meshwright.transforms.jaxprs import TRANSFORMS


def without_loops_in_bodies(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with bodies that are no formulas applied to arrays; the same object if there are none."""

    def rule(eqn: JaxprEqn) -> list[JaxprEqn]:
        op = eqn.op
        if not isinstance(op, BodyOp) or _is_formula(op.computation):
            return []
        return written_out(eqn, lambda *operands: op.on_arrays(_on_elements, *operands))

    return replaced_in_all(jaxpr, lambda inner: rule)


#: what is no formula of scalars, in the text of a module
_NO_FORMULA = re.compile(r"tensor<\d|stablehlo\.(while|case|if|custom_call)\b|inlineable")


def _is_formula(body: ClosedJaxpr) -> bool:
    """Whether all that XLA gets for a body are elementwise operations of scalars."""
    if any(isinstance(e.op, ControlOp) for e in body.eqns):
        return False
    return not _NO_FORMULA.search(str(lower_with_callbacks(body, LoweringOptions(platform="cpu"))[0]))


def _on_elements(body: ClosedJaxpr, *arrays: Any) -> list[Any]:
    """The body for each element of arrays of one shape."""
    aval = typeof(arrays[0])
    axis, results = BatchAxis(aval.size), (0,) * len(body.out_avals)
    batched, _ = TRANSFORMS.batch(body, axis, (0,) * len(arrays), results)
    call = Jit("on_elements", without_loops_in_bodies(batched))  # which may have constants
    outs = call.bind(*(reshape(x, (aval.size,)) for x in arrays))
    return [reshape(y, aval.shape) for y in outs]
