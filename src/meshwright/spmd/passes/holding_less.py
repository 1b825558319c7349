"""Programs that hold less than one that does not fit, by sending or computing again what it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.passes import Pass, run_passes
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.passes.pipeline import communication_passes
from meshwright.spmd.passes.recompute import recompute
from meshwright.spmd.passes.regather import gather_again

GATHER_AGAIN = Pass(
    "gather again", gather_again, "Gathered values are freed between uses that are far apart, and gathered again."
)
#: the second also where that means products and collectives
RECOMPUTE = (
    Pass("recompute cheap values", recompute, "Backward loops recompute elementwise values that loops would keep."),
    Pass("recompute all", lambda jaxpr: recompute(jaxpr, products=True), "Backward loops recompute all such values."),
)


def holding_less(jaxpr: ClosedJaxpr, mesh: AbstractMesh, in_layouts: Sequence[Layout]) -> Iterator[ClosedJaxpr]:
    """Programs that hold less, the cheapest first."""
    gathered = run_passes(jaxpr, [GATHER_AGAIN])
    if gathered is not jaxpr:
        yield gathered
    passes = communication_passes(mesh, in_layouts)
    for step in RECOMPUTE:
        for before in (jaxpr, gathered) if gathered is not jaxpr else (jaxpr,):
            again = run_passes(before, [step])
            if again is not before:
                yield passes.run(again)[0]
