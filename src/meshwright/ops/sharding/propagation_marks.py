"""Identities with an effect on propagation only: groups of values with equal shardings, and barriers for axes.

They follow GSPMD's ``shard_as`` and ``shard_like``, and Shardy's ``sdy.sharding_group`` and
``sdy.propagation_barrier``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents
from meshwright.ops.shape.rearrange import Unchanged

#: in the order of Shardy's enumeration
DIRECTIONS = ("NONE", "FORWARD", "BACKWARD")


@dataclass(frozen=True)
class PropagationMark(Unchanged):
    """Base class: returns the operand unchanged."""

    @property
    def exact_group(self) -> str | None:
        """The group whose values must have equal shardings."""
        return None

    def crosses(self, backward: bool) -> bool:
        """Whether axes propagate to the operand (``backward``), or to the result."""
        return True

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [self.bind(ct)]


@dataclass(frozen=True)
class ShardingGroup(PropagationMark):
    """Values of one ``group`` get equal shardings: strictly if ``exact``, else as a hint."""

    group: str
    exact: bool = True
    name: ClassVar[str] = "sharding_group"
    #: a member counts even if its result is unused
    has_effects: ClassVar[bool] = True

    @property
    def exact_group(self) -> str | None:
        return self.group if self.exact else None

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        # The values of a group may be batched differently, or not at all.
        return args[0], dims[0]

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        if not self.group.isdecimal():
            return x
        return b.annotations.group(x, int(self.group), self.exact)


@dataclass(frozen=True)
class PropagationBarrier(PropagationMark):
    """Axes propagate across it only in the ``direction``, one of :data:`DIRECTIONS`."""

    direction: str = "NONE"
    name: ClassVar[str] = "propagation_barrier"

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]

    def crosses(self, backward: bool) -> bool:
        return self.direction == ("BACKWARD" if backward else "FORWARD")

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.annotations.barrier(x, DIRECTIONS.index(self.direction))
