"""Calls of kernels become calls of the programs that say what they compute, where the platform has no kernel."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ops.control.kernel_call import KernelCall


def without_foreign_kernels(platform: str) -> Pass:
    """The pass for a platform: ``cpu``, ``cuda`` or ``tpu``."""

    def own(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        op = eqn.op
        is_foreign = isinstance(op, KernelCall) and op.kernel_for(platform) is None
        return [eqn.replace(op=op.as_call)] if is_foreign else []  # type: ignore[attr-defined]

    def apply(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        return replaced_in_all(jaxpr, lambda _: own)

    return Pass("kernels", apply, "Where the platform has no kernel, what it computes is called instead.")
