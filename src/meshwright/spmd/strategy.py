"""Partitioning strategies: the decisions that the user's annotations leave open and that the search varies."""

from __future__ import annotations

from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.factors import Axes
from meshwright.spmd.origin import Sort

#: values of :attr:`Strategy.across`
LARGEST, FIRST = "largest", "first"


@dataclass(frozen=True)
class Share:
    """Equations with this rule are split along dimension ``dim`` of the first result.

    They are split by ``axes``, which do not split them yet.
    """

    rule: ShardingRule
    dim: int
    axes: Axes

    @property
    def what(self) -> str:
        """What is split, in words."""
        return "products" if self.rule.is_product else "work"


@dataclass(frozen=True)
class Turn:
    """Equations with this rule that ``axes`` reach along several dimensions, from annotations of one sort, have result
    number ``result`` split by them along ``dim``.

    Pairwise differences ``x[None] - x[:, None]`` are an example: both dimensions are that along which ``x`` is split.
    With ``moves``, the axes reach other dimensions alone, or only the operands, but these are moved to compute the
    result so: this starts where they come from.
    """

    rule: ShardingRule
    axes: Axes
    result: int
    dim: int
    moves: bool = False

    def of(self, dims: tuple[Axes, ...]) -> tuple[Axes, ...] | None:
        """A layout with the axes on the turn's dimension; None if they are not the last ones of another dimension, but
        some of them are elsewhere."""
        moved, count = [*dims], len(self.axes)
        if any(axis in axes for axes in dims for axis in self.axes):
            at = next((d for d, axes in enumerate(dims) if axes[-count:] == self.axes and d != self.dim), None)
            if at is None:
                return None
            moved[at] = dims[at][:-count]
        moved[self.dim] += self.axes
        return tuple(moved)


@dataclass(frozen=True)
class Strategy:
    """How a program is partitioned where its annotations leave that open. No strategy overrules an annotation."""

    #: annotations that spread after all others
    later: frozenset[Sort] = frozenset()
    #: if a loop slices a value along a split dimension, the unsplit dimension of the slice that gets the axes:
    #: ``LARGEST``, ``FIRST``, or none if empty
    across: str = ""
    #: for products, the choice also considers candidates with the axes on any parallel or reduction factors, not only
    #: on those that the layouts of operands and result split; one is taken if it is cheaper, reshards included, and no
    #: device gets more work (:func:`meshwright.spmd.partition.choose.choose`)
    exchanges: bool = False
    #: the price of a reshard is divided among the equations of the same form that read the value
    together: bool = False
    #: where no annotation reaches a result, operands are not moved to split it along a dimension of its own
    whole_results: bool = False
    #: the price of resharding what a loop does not change is divided among its iterations: this happens once, before it
    once: bool = False
    #: stencils are computed in the tiles of the whole array, not in those of its interior
    whole: bool = False
    #: blocks of rows that loops read or write become slices of a rearranged array
    blocks: bool = False
    #: dimensions are in parts where this strategy takes them apart for the products along them (see
    #: :mod:`meshwright.spmd.partition.taken_apart`), and annotations spread anew
    apart: Strategy | None = None
    #: axes do not spread along the dimensions that are made whole for equations with these rules: their results stay as
    #: they were computed, spectra where their transforms leave them
    stays: frozenset[ShardingRule] = frozenset()
    #: dimensions to split where one annotation reaches several dimensions of a value; spread before all annotations
    turns: tuple[Turn, ...] = ()
    #: what to split over axes that do not split it yet, after all annotations have spread
    shares: tuple[Share, ...] = ()
    #: sums over devices that a loop stacks are completed in each step, if that leaves each device a part of them
    in_steps: bool = False
    #: sums over devices stay scattered until an equation needs them whole
    tiles: bool = False

    @property
    def of_spreading(self) -> Strategy:
        """What of it decides how annotations spread, without what is chosen for the layouts found."""
        return Strategy(self.later, self.across, stays=self.stays, turns=self.turns, shares=self.shares)

    def describe(self, mesh: AbstractMesh) -> list[str]:
        """The differences from :data:`AS_WRITTEN`, in words."""
        lines = [
            f"the sharding of each {sort.kind} {sort.aval} that is {Layout(sort.dims).format(mesh)} spreads after all "
            "others: the step is shorter so"
            for sort in sorted(self.later, key=str)
        ]
        if self.across:
            lines.append("slices that loops take along a split dimension are split along another one")
        if self.exchanges:
            lines.append("products may be split along dimensions that nothing else is split along: less is sent so")
        if self.together:
            lines.append("what several equations of the same form read is laid out as is best for all of them together")
        if self.whole_results:
            lines.append(
                "what no annotation splits stays whole where operands had to be moved to split it: less is sent so"
            )
        if self.once:
            lines.append("what loops do not change may be gathered before them, and held so: less is sent so")
        if self.whole:
            lines.append("interiors of arrays are computed in the rows of the arrays, and their borders left out")
        if self.blocks:
            lines.append("what loops take in blocks of rows is laid out before them, and what they write so after them")
        if self.apart is not None:
            lines.append("what is multiplied in parts is laid out as the parts are: less is sent so")
        if self.in_steps:
            lines.append("sums over devices that loops stack are completed in each step: less is held so")
        if self.tiles:
            lines.append(
                "sums over devices stay in tiles until something needs them whole: less is repeated and held so"
            )
        if self.stays:
            lines.append("results stay as they were computed where a dimension had to be whole: less is sent so")
        lines += [
            f"{', '.join(mesh.coalesce(turn.axes))} splits dimension {turn.dim} of results that it reaches along "
            f"{'other dimensions or none' if turn.moves else 'several dimensions'}: less is sent so"
            for turn in self.turns
        ]
        lines += [
            f"{', '.join(mesh.coalesce(share.axes))} shares {share.what} along dimension {share.dim} of their results, "
            "where no annotation brings it: devices would repeat them"
            for share in self.shares
        ]
        return lines


#: annotations spread together, with no other variation
AS_WRITTEN = Strategy()
