"""Operations of imported programs for which there is no op here, kept as they are.

They run on whole operands on every device: nothing is known about them, so nothing may be split. Important operations
should get an op of their own; this one makes it possible to read, partition and run every program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.ops.control.ffi_call import in_turn
from meshwright.ops.shape.rearrange import move_dim


@dataclass(frozen=True)
class Opaque(Op):
    """A StableHLO operation by name, with its attributes as MLIR text and its regions as jaxprs."""

    target: str
    attributes: tuple[tuple[str, str], ...]
    computations: tuple[ClosedJaxpr, ...]
    results: tuple[ShapedArray, ...]
    side_effect: bool = False
    name: ClassVar[str] = "opaque"
    multiple_results: ClassVar[bool] = True
    holds_jaxprs: ClassVar[bool] = True
    of_operands: ClassVar[bool] = False
    hidden_params: ClassVar[tuple[str, ...]] = ("attributes", "results", "side_effect")

    @property
    def has_effects(self) -> bool:
        return self.side_effect

    @property
    def unknown_call(self) -> str:
        name = dict(self.attributes).get("call_target_name", "") if self.target == "stablehlo.custom_call" else ""
        return "" if name.startswith('"__onednn$') else name  # calls that compilers generate, and we for them

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return self.results

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        moved = [x if d is None else move_dim(x, d, 0) for x, d in zip(args, dims)]
        outs = in_turn(self, self.target, axis.size, moved, [d is not None for d in dims])
        return outs, [0] * len(outs)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        regions = [b.jaxpr_region(j) for j in self.computations]
        return b.op(self.target, operands, b.out_avals, regions=regions, **dict(self.attributes))
