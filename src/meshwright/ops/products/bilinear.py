"""Ops that are linear in each of two operands."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike
from meshwright.ir.op import Dual, Op, Tangent, Zero
from meshwright.ops.elementwise.table import add


@dataclass(frozen=True)
class Bilinear(Op):
    """Base class. The tangent is the sum of the op applied to the tangent of either operand and to the other
    operand."""

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        x, y, *rest = primals
        tx, ty, *_ = tangents
        parts = []
        if not isinstance(tx, Zero):
            parts.append(self.bind(tx, y, *rest))
        if not isinstance(ty, Zero):
            parts.append(self.bind(x, ty, *rest))
        return self.bind(*primals), parts[0] if len(parts) == 1 else add(*parts)
