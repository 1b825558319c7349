"""In which order annotations spread, and what else is open in it: what the search for a plan varies."""

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
    """Axes that split nothing of products with this rule are to share them, along a dimension of their results."""

    rule: ShardingRule
    dim: int
    axes: Axes


@dataclass(frozen=True)
class Order:
    """In which order annotations spread, besides their priorities: those of the sorts ``later`` after all others.

    ``across``: where a loop takes slices along a split dimension, its axes go to another one of each slice, the
    ``LARGEST`` or the ``FIRST`` that nothing splits. ``exchanges``: products may be shared along other dimensions than
    those that their operands and results are split along. ``whole``: interiors are computed in rows of the arrays that
    they are of. ``blocks``: blocks of rows that loops take are slices of a rearranged array. ``shares``: axes that
    nothing brings to products share them, after all else has spread. ``tiles``: sums over devices stay in tiles until
    something needs them whole.
    """

    later: frozenset[Sort] = frozenset()
    across: str = ""
    exchanges: bool = False
    whole: bool = False
    blocks: bool = False
    shares: tuple[Share, ...] = ()
    tiles: bool = False

    def describe(self, mesh: AbstractMesh) -> list[str]:
        """What differs from the order in which annotations come, in words."""
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


#: the order of an ordinary propagation
AS_WRITTEN = Order()
