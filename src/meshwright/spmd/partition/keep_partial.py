"""A request for an output of a region: any layout is accepted, including partial sums."""

from __future__ import annotations

from meshwright.core.records import dataclass
from meshwright.sharding import Layout


@dataclass(frozen=True)
class KeepPartial:
    """Leave partial sums as they are; ``repeats`` of them are added up or stacked before they are reduced.

    ``reductions`` are the reductions for which a result may stay partial; empty: any.
    """

    repeats: int = 1
    reductions: tuple[str, ...] = ()

    def keeps(self, layout: Layout) -> bool:
        """Whether ``layout`` is partial with one of the accepted reductions."""
        return bool(layout.partial) and (not self.reductions or layout.reduction in self.reductions)
