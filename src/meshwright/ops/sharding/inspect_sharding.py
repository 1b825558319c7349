"""inspect_sharding: an effect without results that reports the sharding chosen for a value.

The partitioner records the chosen layout in the per-device program, where the caller finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.sharding import Layout
from meshwright.sharding.rule import ShardingRule, pointwise_rule


@dataclass(frozen=True)
class InspectSharding(Op):
    """Calls ``callback`` with the sharding of the operand when a program is compiled; ``layout`` is the chosen one."""

    callback: Callable[[Any], None]
    layout: Layout | None = None
    name: ClassVar[str] = "inspect_sharding"
    takes_keys: ClassVar[bool] = True
    multiple_results: ClassVar[bool] = True
    has_effects: ClassVar[bool] = True
    in_python: ClassVar[bool] = True
    hidden_params: ClassVar[tuple[str, ...]] = ("callback",)

    def perform(self, x: Any) -> list[Any]:
        """Call the callback for a concrete array."""
        self.callback(x.sharding)
        return []

    def infer(self, x: ShapedArray) -> tuple[ShapedArray, ...]:
        return ()

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), []

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return pointwise_rule([x.ndim], x.shape, num_results=0)

    def emit(self, b: Builder, x: Emitted) -> list[Emitted]:
        return []

    def localize(self, ctx: Localizer, x: ArrayLike) -> list[ArrayLike]:
        outs: list[Any] = InspectSharding(self.callback, ctx.in_layouts[0]).bind(x)
        return outs
