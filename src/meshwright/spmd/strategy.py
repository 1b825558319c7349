"""A partitioning strategy: all that is left open once the user's annotations are given, and that the search varies."""

from __future__ import annotations

from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.factors import Axes
from meshwright.spmd.origin import Sort

#: the dimensions of slices that axes may go to which split what the slices are of
LARGEST, FIRST = "largest", "first"


@dataclass(frozen=True)
class Share:
    """Products that have this rule are split along a dimension of their results, by axes that split nothing else."""

    rule: ShardingRule
    dim: int
    axes: Axes


@dataclass(frozen=True)
class Strategy:
    """How a program is partitioned, as far as its annotations leave that open. No strategy overrules an annotation."""

    #: annotations that spread after all others, their priorities aside
    later: frozenset[Sort] = frozenset()
    #: where a loop takes slices along a split dimension, which other dimension of the slice (``LARGEST`` or ``FIRST``
    #: of those that nothing splits) gets the axes; none if empty
    across: str = ""
    #: products may be split along dimensions along which neither their operands nor their results are split
    exchanges: bool = False
    #: stencils are computed in the rows of the whole array, not in those of its interior
    whole: bool = False
    #: blocks of rows that loops take are slices of a rearranged array
    blocks: bool = False
    #: axes that split nothing of a product are made to split it, after all annotations have spread
    shares: tuple[Share, ...] = ()
    #: sums over devices stay in tiles until something needs them whole
    tiles: bool = False

    def describe(self, mesh: AbstractMesh) -> list[str]:
        """What differs from :data:`AS_WRITTEN`, in words."""
        lines = [
            f"the sharding of each {sort.kind} {sort.aval} that is {Layout(sort.dims).format(mesh)} spreads after all "
            "others: the step is shorter so"
            for sort in sorted(self.later, key=str)
        ]
        if self.across:
            lines.append("slices that loops take along a split dimension are split along another one")
        if self.exchanges:
            lines.append("products may be split along dimensions that nothing else is split along: less is sent so")
        if self.whole:
            lines.append("interiors of arrays are computed in the rows of the arrays, and their borders left out")
        if self.blocks:
            lines.append("what loops take in blocks of rows is laid out before them, and what they write so after them")
        if self.tiles:
            lines.append(
                "sums over devices stay in tiles until something needs them whole: less is repeated and held so"
            )
        lines += [
            f"{', '.join(mesh.coalesce(share.axes))} shares products along dimension {share.dim} of their results, "
            "where no annotation brings it: devices would repeat them"
            for share in self.shares
        ]
        return lines


#: annotations spread together, and nothing else is tried
AS_WRITTEN = Strategy()
