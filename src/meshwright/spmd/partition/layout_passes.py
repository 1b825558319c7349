"""Rewrites that depend on layouts. They run after propagation and before the equations are partitioned."""

from __future__ import annotations

from meshwright.ir.passes import Pass
from meshwright.sharding import AbstractMesh
from meshwright.spmd.partition.before_merging import before_merging
from meshwright.spmd.partition.in_parts import in_parts
from meshwright.spmd.partition.merged_order import merged_order
from meshwright.spmd.partition.moves import merge_moves
from meshwright.spmd.partition.separate_ffts import separate_ffts
from meshwright.spmd.partition.taken_apart import taken_apart
from meshwright.spmd.propagate import Propagation


def layout_passes(propagation: Propagation, mesh: AbstractMesh) -> tuple[Pass, ...]:
    """The passes for a program, or a region of it, for which ``propagation`` found the layouts."""
    return (
        Pass(
            "merge in the order of tiles", lambda jaxpr: merged_order(jaxpr, propagation, mesh),
            "Dimensions whose tiles would not be blocks of a merged dimension are merged in the order of these.",
        ),
        Pass(
            "take apart", lambda jaxpr: taken_apart(jaxpr, propagation, mesh),
            "Products along a dimension that is reshaped into parts with other tiles are done in parts.",
        ),
        Pass(
            "separate Fourier transforms", lambda jaxpr: separate_ffts(jaxpr, propagation),
            "Multi-dimensional FFTs with a sharded dimension are done one dimension at a time.",
        ),
        Pass(
            "reduce before merging", lambda jaxpr: before_merging(jaxpr, propagation),
            "Reductions over a merged dimension of which a part is sharded run before the merge.",
        ),
        Pass(
            "products in parts", lambda jaxpr: in_parts(jaxpr, propagation, mesh),
            "Matrix products that are split or concatenated along a sharded dimension are done in parts.",
        ),
        Pass(
            "merge moves", lambda jaxpr: merge_moves(jaxpr, propagation.layout, mesh),
            "Slices, pads, concatenations and rotations along sharded dimensions become one redistribution.",
        ),
    )  # fmt: skip
