"""Calls of kernels become those of the platform, or calls of the programs that say what they compute."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import replaced_in_all


def kernels_of(platform: str) -> Pass:
    """The pass for a platform: ``cpu``, ``cuda`` or ``tpu``."""

    def own(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        op = eqn.op.on_platform(platform)
        return () if op is eqn.op else [eqn.replace(op=op)]

    def apply(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        return replaced_in_all(jaxpr, lambda _: own)

    return Pass("kernels", apply, "Kernels are those of the platform; where it has none, what they compute is called.")
