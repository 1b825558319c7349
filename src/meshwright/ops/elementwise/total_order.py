"""Comparison by the total order of floats (IEEE 754-2019, 5.10): -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import JaxprEqn
from meshwright.ir.op import CONSTANT, Builder
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.base import Elementwise, Partial
from meshwright.ops.elementwise.table import eq, ge, gt, le, lt, ne

_DIRECTIONS = {"EQ": eq, "NE": ne, "LT": lt, "LE": le, "GT": gt, "GE": ge}


@dataclass(frozen=True)
class CompareTotal(Elementwise):
    """Compares floats by their total order; ``direction`` is ``LT``, ``EQ``, ..."""

    direction: str
    name: ClassVar[str] = "compare_total"
    hlo: ClassVar[str] = "stablehlo.compare"
    accepts: ClassVar[tuple[str, ...]] = ("f", "f")
    partials: ClassVar[tuple[Partial, ...]] = (CONSTANT, CONSTANT)

    def result_dtype(self, *operand_dtypes: np.dtype) -> np.dtype:
        return dtypes.bool_

    def attributes(self, b: Builder) -> dict[str, Any]:
        return {
            "comparison_direction": f"#stablehlo<comparison_direction {self.direction}>",
            "compare_type": "#stablehlo<comparison_type TOTALORDER>",
        }


def total_order_direction(eqn: JaxprEqn) -> str:
    """The direction (``lt``, ...) of an equation that compares by total order; "" for any other."""
    return eqn.op.direction.lower() if isinstance(eqn.op, CompareTotal) else ""


@reads("stablehlo.compare")
def _read_compare(r: Reader) -> Any:
    x, y = r.operands
    direction = r.attr("comparison_direction")
    if r.attr("compare_type", "") == "TOTALORDER" and dtypes.is_float(typeof(x).dtype):
        return CompareTotal(direction).bind(x, y)
    return _DIRECTIONS[direction].bind(x, y)
