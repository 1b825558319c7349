"""The question that is asked for each equation, in which layouts to compute it, and the answer to it."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import Part, ShardingRule
from meshwright.spmd.factors import Axes
from meshwright.spmd.strategy import Strategy


class Operand(NamedTuple):
    """An operand: its type, the layouts it is available in, its number of uses, and its target layout.

    ``remade``: every device can compute any tile of it; ``of_arrays``: from arrays, so that this takes memory traffic.
    ``zero``: all elements are 0.
    ``runs``: how many runs of the equation it stays the same for, so that it may be resharded once for all of them.
    ``alike``: how many equations of the same form read it, which will probably ask for the same layout of it.
    ``own``: the axes over which its sums need not be completed, as its readers read what each device has itself.
    """

    aval: ShapedArray
    versions: tuple[Layout, ...]
    uses: int = 1
    target: Layout | None = None
    remade: bool = False
    zero: bool = False
    runs: int = 1
    alike: int = 1
    own: Axes = ()
    of_arrays: bool = False


@dataclass(frozen=True)
class Choice:
    """Layouts to reshard the operands to (with the version to start from), and the resulting layouts of the results."""

    in_layouts: tuple[Layout, ...]
    versions: tuple[int, ...]
    out_layouts: tuple[Layout, ...]
    cost: float
    #: points of the loop nest per device
    work: float


class Question(NamedTuple):
    """Everything a choice depends on: the cache key of :func:`~meshwright.spmd.partition.choose.choose`."""

    rule: ShardingRule
    operands: tuple[Operand, ...]
    results: tuple[ShapedArray, ...]
    targets: tuple[Layout | None, ...]
    #: for each result, the number of partial sums that share the collective which reduces it
    summands: tuple[float, ...]
    #: for each result, the axes over which partial sums that are added to it are reduced
    reduced_with: tuple[Axes, ...]
    linear_in: tuple[tuple[int, ...], ...]
    #: the groups of ``linear_in`` through which masked sums pass
    masked_in: tuple[tuple[int, ...], ...]
    #: the op is an elementwise addition or subtraction
    adds: bool
    moves_only: bool
    mesh: AbstractMesh
    exchanges: bool = False
    #: operands that stay the same for several runs are resharded once for all of them
    once: bool = False
    #: the price of a reshard is divided among the equations of the same form that read the operand
    together: bool = False
    #: the axes of a dimension that is expensive to split do not move to others
    unmoved: bool = False
    #: the factor over which sums need not be completed, as readers of the results read what each device has itself
    own: int | None = None

    def under(self, strategy: Strategy) -> Question:
        """The question with the freedom that a strategy gives, where that can change the answer."""
        return self._replace(
            exchanges=strategy.exchanges and self.rule.is_product,
            once=strategy.once and any(o.runs > 1 for o in self.operands),
            together=strategy.together and self.is_shared,
            unmoved=strategy.whole_results and not self.rule.is_product and not any(self.targets),
        )

    @property
    def is_shared(self) -> bool:
        """Whether other equations of the same form read an operand."""
        return any(o.alike > 1 for o in self.operands)

    def may_change(self, choice: Choice) -> bool:
        """Whether a strategy may lead to another choice: for products, where other equations of the same form read an
        operand, and where something is moved that meets an operand that stays the same for several runs, or an operand
        is, to split a result that no annotation reaches."""
        chosen = zip(self.operands, choice.in_layouts, choice.versions)
        moved = any(layout != o.versions[n] for o, layout, n in chosen if not o.remade)
        splits = not any(self.targets) and any(layout.axes_used for layout in choice.out_layouts)
        summed = any(layout.partial for layout in choice.out_layouts)
        often = any(o.runs > 1 for o in self.operands)
        return self.rule.is_product or self.is_shared or (moved and splits) or (often and (moved or summed))

    def restricted(self, part: Part) -> Question:
        """The question restricted to one part of a rule."""
        number = {o: i for i, o in enumerate(part.operands)}

        def about(groups: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(number[o] for o in group) for group in groups if all(o in number for o in group))

        return self._replace(
            rule=part.rule,
            operands=tuple(self.operands[o] for o in part.operands),
            results=tuple(self.results[r] for r in part.results),
            targets=tuple(self.targets[r] for r in part.results),
            summands=tuple(self.summands[r] for r in part.results),
            reduced_with=tuple(self.reduced_with[r] for r in part.results),
            linear_in=about(self.linear_in),
            masked_in=about(self.masked_in),
            moves_only=self.moves_only and 0 in number,
        )
