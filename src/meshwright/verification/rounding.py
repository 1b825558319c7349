"""Estimates how far rounding changes a program's results, by rounding its sums differently.

Partitioning changes the order of sums, and so their last bits. How much the program amplifies these is found by
changing last bits at random, as in Vignes, "Discrete stochastic arithmetic for validating results of numerical
software" (2004). Integral values are not changed, since sums of integers do not depend on the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import (
    abs_,
    add,
    complex_,
    convert,
    cos,
    eq,
    imag,
    is_finite,
    mul,
    real,
    round_half_even,
    select,
)
from meshwright.ops.linalg.batched import Batched
from meshwright.ops.reduce.cumulative import Cumulative
from meshwright.ops.reduce.reductions import ReduceMax
from meshwright.ops.shape.broadcast_reduce import iota, match_shape
from meshwright.ops.shape.rearrange import reshape
from meshwright.sharding.rule import REDUCTION
from meshwright.spmd.rules import eqn_rule

#: the largest change of an element, relative to the largest element: a unit in the last place of float64
_CHANGE = 2.0**-52


def rounded_otherwise(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program, in float64, with other last bits in the results of products, sums, transforms and decompositions."""
    return replaced_in_all(jaxpr, lambda _: _rule)


def _rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    if not _sums(eqn):
        return ()

    def changed(*operands: Any) -> list[Any]:
        results = eqn.op.bind(*operands)
        return [_changed(x) for x in (results if isinstance(results, (list, tuple)) else [results])]

    return written_out(eqn, changed)


def _sums(eqn: JaxprEqn) -> bool:
    """Whether an equation sums floats or complex numbers, which devices may do in another order."""
    if eqn.op.holds_jaxprs or not all(dtypes.is_inexact(v.aval.dtype) for v in eqn.outvars):
        return False
    if isinstance(eqn.op, Batched):  # libraries choose the order by the size of the batch
        return True
    rule = eqn_rule(eqn)
    sums = rule.reduction in ("sum", "masked") and any(f.kind == REDUCTION for f in rule.factors)
    return sums or (isinstance(eqn.op, Cumulative) and bool(eqn.op.linear_groups(eqn.invars[0].aval)))


def _changed(x: Any) -> Any:
    """Change each element by its own share of the largest change."""
    aval = typeof(x)
    if not aval.size:
        return x
    if dtypes.is_complex(aval.dtype):
        return complex_(_changed(real(x)), _changed(imag(x)))
    zero = match_shape(np.zeros((), aval.dtype), aval)
    sizes = select(is_finite(x), abs_(x), zero)
    largest = match_shape(ReduceMax(tuple(range(aval.ndim))).bind(sizes), aval)
    number = reshape(iota(np.int32, (math.prod(aval.shape),), 0), aval.shape)
    share = cos(convert(number, aval.dtype))
    change = mul(mul(largest, share), match_shape(np.asarray(_CHANGE, aval.dtype), aval))
    return add(x, select(eq(x, round_half_even(x)), zero, change))
