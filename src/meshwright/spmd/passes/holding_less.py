"""What holds less of a program that does not fit: sending again, or computing again, what would be kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.passes.pipeline import communication_passes
from meshwright.spmd.passes.recompute import recompute
from meshwright.spmd.passes.regather import gather_again


def holding_less(jaxpr: ClosedJaxpr, mesh: AbstractMesh, in_layouts: Sequence[Layout]) -> Iterator[ClosedJaxpr]:
    """Programs that hold less, the cheapest first: what was gathered is gathered again, and what loops keep for their
    backward loops is computed again there, elementwise values only or all."""
    gathered = gather_again(jaxpr)
    if gathered is not jaxpr:
        yield gathered
    passes = communication_passes(mesh, in_layouts)
    for products in (False, True):
        for before in (jaxpr, gathered) if gathered is not jaxpr else (jaxpr,):
            again = recompute(before, products)
            if again is not before:
                yield passes.run(again)[0]
