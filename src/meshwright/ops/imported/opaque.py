"""Operations of imported programs that this library has no op for, kept as they are.

They are run whole on every device: nothing is known of what they do, so nothing of them may be split. What matters
gets an op of its own; this one makes sure that every program can be read, partitioned and run at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import Emitted
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Builder, Op


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
        return "" if name.startswith('"__onednn$') else name  # what the compiler makes, and we for it

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return self.results

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        regions = [b.jaxpr_region(j) for j in self.computations]
        return b.op(self.target, operands, b.out_avals, regions=regions, **dict(self.attributes))
