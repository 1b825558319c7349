"""Variants of a program that use less memory, by gathering or computing values again instead of keeping them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.passes import Pass, run_passes
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.passes.pipeline import communication_passes
from meshwright.spmd.passes.recompute import recompute
from meshwright.spmd.passes.regather import gather_again

GATHER_AGAIN = Pass("gather again", gather_again, "Gathered values are freed between distant uses, and gathered again.")
#: the second recomputes matrix products and collectives too
RECOMPUTE = (
    Pass("recompute cheap values", recompute, "Backward loops recompute elementwise residuals of forward loops."),
    Pass(
        "recompute all",
        lambda jaxpr: recompute(jaxpr, products=True),
        "Backward loops recompute all residuals of forward loops.",
    ),
)


def holding_less(jaxpr: ClosedJaxpr, mesh: AbstractMesh, in_layouts: Sequence[Layout]) -> Iterator[ClosedJaxpr]:
    """Programs that use less memory, the cheapest first."""
    gathered = run_passes(jaxpr, [GATHER_AGAIN])
    if gathered is not jaxpr:
        yield gathered
    passes = communication_passes(mesh, in_layouts)
    for step in RECOMPUTE:
        for before in (jaxpr, gathered) if gathered is not jaxpr else (jaxpr,):
            again = run_passes(before, [step])
            if again is not before:
                yield passes.run(again)[0]
