"""Ops that XLA's compiler for CPUs does not know, or has no good form of, are written out before other passes."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ops.composite import Composite


def write_out(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Replace ops that are :attr:`~.Composite.written_out_on_cpus` by their expansions."""
    out = replaced_in_all(jaxpr, lambda _: _expansion)
    return out if out is jaxpr else write_out(out)  # expansions may consist of such ops


def _expansion(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    op = eqn.op
    return written_out(eqn, op.expand) if isinstance(op, Composite) and op.written_out_on_cpus else ()


WRITTEN_OUT = Pass(
    "write out",
    write_out,
    "On CPUs, products with groups of rows become loops over tiles, and exchanges of rows gathers.",
)
