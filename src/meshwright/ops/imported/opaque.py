"""Operations of imported programs for which there is no op here, kept as they are.

They run on whole operands on every device: nothing is known about them, so nothing may be split. Important operations
should get an op of their own; this one makes it possible to read, partition and run every program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted, StatedCost
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.ops.control.ffi_call import in_turn
from meshwright.ops.shape.rearrange import move_dim

CUSTOM_CALL = "stablehlo.custom_call"


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
        name = dict(self.attributes).get("call_target_name", "") if self.target == CUSTOM_CALL else ""
        return "" if name.startswith('"__onednn$') else name  # calls that compilers generate, and we for them

    @property
    def stated_cost(self) -> StatedCost | None:
        return _stated(dict(self.attributes).get("backend_config", "")) if self.target == CUSTOM_CALL else None

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return self.results

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        moved = [x if d is None else move_dim(x, d, 0) for x, d in zip(args, dims)]
        outs = in_turn(self, self.target, axis.size, moved, [d is not None for d in dims])
        return outs, [0] * len(outs)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        regions = [b.jaxpr_region(j) for j in self.computations]
        return b.op(self.target, operands, b.out_avals, regions=regions, **dict(self.attributes))


@lru_cache(maxsize=256)
def _stated(config: str) -> StatedCost | None:
    """The cost in the configuration (MLIR text) of a kernel that JAX's Pallas wrote for TPUs.

    Its fields are those of ``pallas.CostEstimate``.
    """
    try:
        text = re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), config.strip('"'))
        cost = json.loads(text)["custom_call_config"]["cost_estimate"]
        operations, nbytes = int(cost["flops"]) + int(cost["transcendentals"]), int(cost["bytes_accessed"])
    except (ValueError, KeyError, TypeError):
        return None
    return StatedCost(operations, nbytes) if operations >= 0 and nbytes >= 0 else None
