"""Elementwise functions that StableHLO lacks: one equation in a jaxpr, a small program of other ops in the module.

They have the properties of elementwise ops: a pointwise sharding rule, batching, derivatives by ``partials``. 16-bit
floats are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.ir.contract import Emitted, Value
from meshwright.ir.op import Builder
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.composite import emit_traced
from meshwright.ops.control.while_loop import While
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import add, and_, convert, lt, mul, scalar_like, select, sub
from meshwright.ops.reduce.reductions import reduce_or
from meshwright.ops.shape.broadcast_reduce import match_shape


@dataclass(frozen=True)
class Expanded(Elementwise):
    """Base class of elementwise ops defined by other ops."""

    def expand(self, *operands: Value) -> Value:
        """The result for float32 or float64 operands of equal shape."""
        raise NotImplementedError

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return emit_traced(b, self._expand, self.name, *operands)[0]

    def _expand(self, *operands: Any) -> list[Any]:
        avals = [typeof(x) for x in operands]
        dtype, shape = avals[0].dtype, max((a.shape for a in avals), key=len)
        wide = np.dtype(np.float32) if dtypes.bit_width(dtype) < 32 else dtype
        full = [match_shape(convert(x, wide), a.update(shape=shape, dtype=wide)) for x, a in zip(operands, avals)]
        return [convert(self.expand(*full), dtype)]


def constant(value: float, x: Any) -> Any:
    """An array like ``x`` with the value ``value`` everywhere."""
    return match_shape(scalar_like(value, x), typeof(x).strong())


#: the maximum number of steps of a loop: more than any loop needs for operands in its domain
MOST_STEPS = 2000


def loop(cond: Callable[..., Any], body: Callable[..., Any], consts: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
    """``while cond(*consts, *carry): carry = body(*consts, *carry)``, for each element separately: elements keep their
    value once the condition is false, or after :data:`MOST_STEPS`."""
    n = len(consts)

    def step(*args: Any) -> list[Any]:
        *args_, count = args
        active = cond(*args_)
        return [*(select(active, new, old) for new, old in zip(body(*args_), args_[n:])), add(count, np.int32(1))]

    def again(*args: Any) -> list[Any]:
        *args_, count = args
        active = cond(*args_)
        return [and_(reduce_or(active, range(typeof(active).ndim)), lt(count, np.int32(MOST_STEPS)))]

    avals = [typeof(x).strong() for x in (*consts, *carry, np.int32(0))]
    op = While(trace_to_jaxpr(step, avals), n, trace_to_jaxpr(again, avals), n)
    outs: list[Any] = op.bind(*consts, *consts, *carry, np.int32(0))[:-1]
    return outs


def chebyshev(coefficients: np.ndarray, t: Any) -> Any:
    """The sum of ``coefficients[n] T_n(t)`` by Clenshaw's recurrence."""
    one = two = scalar_like(0, t)
    for c in coefficients[:0:-1]:
        one, two = add(sub(mul(add(t, t), one), two), scalar_like(c, t)), one
    return add(sub(mul(t, one), two), scalar_like(coefficients[0], t))


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """The sum of ``coefficients[n] x^n`` by Horner's rule."""
    total = scalar_like(coefficients[-1], x)
    for c in coefficients[-2::-1]:
        total = add(mul(total, x), scalar_like(c, x))
    return total
