"""A wish for an output of a region: whatever layout it has, partial sums included."""

from __future__ import annotations

from meshwright.core.records import dataclass
from meshwright.sharding import Layout


@dataclass(frozen=True)
class KeepPartial:
    """Leave partial sums as they are; ``repeats`` of them are added up or stacked before they are completed.

    ``reductions`` are the kinds of partial results that may stay so; none: any.
    """

    repeats: int = 1
    reductions: tuple[str, ...] = ()

    def keeps(self, layout: Layout) -> bool:
        """Whether a value may stay in this layout."""
        return bool(layout.partial) and (not self.reductions or layout.reduction in self.reductions)
