"""Rewrites that depend on the layouts found: done after propagation, before equations are partitioned one by one."""

from __future__ import annotations

from meshwright.ir.passes import Pass
from meshwright.sharding import AbstractMesh
from meshwright.spmd.partition.before_merging import before_merging
from meshwright.spmd.partition.in_parts import in_parts
from meshwright.spmd.partition.moves import merge_moves
from meshwright.spmd.partition.separate_ffts import separate_ffts
from meshwright.spmd.propagate import Propagation


def layout_passes(propagation: Propagation, mesh: AbstractMesh) -> tuple[Pass, ...]:
    """The passes for a program, or a region of it, with the layouts that ``propagation`` found in it."""
    return (
        Pass(
            "separate Fourier transforms", lambda jaxpr: separate_ffts(jaxpr, propagation),
            "Transforms of several dimensions, one of them split, are done one dimension at a time.",
        ),
        Pass(
            "reduce before merging", lambda jaxpr: before_merging(jaxpr, propagation),
            "Reductions along merged dimensions, one of them split, are done before these are merged.",
        ),
        Pass(
            "products in parts", lambda jaxpr: in_parts(jaxpr, propagation, mesh),
            "Products of what is cut or joined along a split dimension are done in parts.",
        ),
        Pass(
            "merge moves", lambda jaxpr: merge_moves(jaxpr, propagation.layout, mesh),
            "Slices, paddings, concatenations and rotations of split dimensions become one redistribution.",
        ),
    )  # fmt: skip
