"""Reductions for binary ops that have one, by the op's name; also used to read ``stablehlo.reduce``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.probing import grid, run
from meshwright.ir.reading import Reader, binary_op_name, reads, scalar_of
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.monoid import MONOIDS
from meshwright.ops.elementwise.total_order import total_order_direction
from meshwright.ops.reduce.body import ReduceBody
from meshwright.ops.reduce.reductions import (
    ArgMax,
    ArgMin,
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceXor,
)
from meshwright.ops.scalar_body import in_parts
from meshwright.ops.shape.broadcast_reduce import Iota, ReduceSum

_REDUCTIONS: dict[str, Any] = {
    "add": ReduceSum, "mul": ReduceProd, "max": ReduceMax, "min": ReduceMin, "and": ReduceAnd, "or": ReduceOr,
    "xor": ReduceXor,
}  # fmt: skip


def reduces_by(name: str) -> bool:
    """Whether there is a reduction for the binary op of this name."""
    return name in _REDUCTIONS


def reduce_by(name: str, x: Any, init: Any, axes: tuple[int, ...]) -> Any:
    """Reduce ``x`` over ``axes`` with the binary op ``name``, starting from ``init``."""
    if dtypes.is_bool(typeof(x).dtype):
        name = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(name, name)
    out = _REDUCTIONS[name](axes).bind(x) if axes else x
    return MONOIDS[name].started(init, out)


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.reduce")
def _read_reduce(r: Reader) -> Any:
    axes = tuple(r.attr("dimensions"))

    def part(body: ClosedJaxpr, numbers: tuple[int, ...], arrays: list[Any], starts: list[Any]) -> Sequence[Any]:
        name = binary_op_name(body)
        if name:
            return [reduce_by(name, arrays[0], starts[0], axes)]
        found = _read_arg_extremum(r, body, numbers, arrays, starts, axes)
        outs: list[Any] = found or ReduceBody(axes, body).bind(*arrays, *starts)
        return outs

    return in_parts(r, part)


def _read_arg_extremum(
    r: Reader, body: ClosedJaxpr, numbers: Sequence[int], arrays: Sequence[Any], starts: Sequence[Any],
    axes: tuple[int, ...],
) -> list[Any]:  # fmt: skip
    """Read a reduction of (value, position) pairs that finds an extremum and its position. Returns an empty list for
    other reductions."""
    if len(arrays) != 2 or len(axes) != 1:
        return []
    x, positions = arrays
    kind = _pair_reduction(body)
    if not kind or not _counts(r, numbers[1], axes[0]):
        return []
    arg, extremum = (ArgMax, ReduceMax) if kind == "max" else (ArgMin, ReduceMin)
    value = scalar_of(starts[0])
    if value is None or not bool(value == extremum.monoid.identity(typeof(x).dtype)) or not typeof(x).shape[axes[0]]:
        return []
    return [extremum(axes).bind(x), arg(axes, typeof(positions).dtype).bind(x)]


def _pair_reduction(jaxpr: ClosedJaxpr) -> str:
    """``max`` or ``min`` if a jaxpr of two (value, position) pairs selects that, and the first of equal ones; else
    ""."""
    args = grid([a.dtype for a in jaxpr.in_avals])
    outs = run(jaxpr, args, total_order_direction)
    if outs is None or len(outs) != 2:
        return ""
    a, i, b, j = args
    decided = ~((a != a) & (b != b))  # for two NaN either result is acceptable
    for kind, better in (("max", a > b), ("min", a < b)):
        first = better | (a != a)
        place = np.where(first | ((a == b) & (i < j)), i, j)
        expected = np.where(first, a, b), place
        if all(_same(x[decided], y[decided]) for x, y in zip(outs, expected)):
            return kind
    return ""


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.all((x == y) | ((x != x) & (y != y))))


def _counts(r: Reader, operand: int, axis: int) -> bool:
    """Whether an operand counts along ``axis``."""
    eqn = r.producer_of(operand)
    return eqn is not None and isinstance(eqn.op, Iota) and eqn.op.dimension == axis
