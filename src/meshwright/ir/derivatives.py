"""Calls the derivative rules of ops and checks that no derivative is missing.

For each operand, an op has a rule, declares its results piecewise constant in it (``constant_in``), or declares the
derivative unknown (``unknown_in``). If a rule leaves out a tangent or cotangent, that is an error; it is not taken to
be zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.errors import DifferentiationError, RuleError
from meshwright.ir.op import Linear, Op, Zero
from meshwright.ir.tracing import infer_cached, typeof


def jvp_of(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The results of ``op`` and their tangents; calls ``op.jvp`` unless all tangents are known to be zero.

    Raises:
      DifferentiationError: an operand has a tangent, but the derivative with respect to it is unknown.
      RuleError: the op's rule returned no tangent.
    """
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, Zero)]
    for i in moving:
        if i in op.unknown_in:
            _refuse(op, i)
    in_avals = tuple(typeof(x) for x in primals)
    avals = infer_cached(op, in_avals)
    if not op.multiple_results:
        avals = (avals,)
    constant = op.constant_operands(*in_avals)
    if constant.issuperset(moving) or not any(dtypes.is_inexact(a.dtype) for a in avals):
        outs = op.bind(*primals)
        return outs, [Zero(typeof(y)) for y in outs] if op.multiple_results else Zero(typeof(outs))
    if constant:
        tangents = [Zero(a) if i in constant else t for i, (a, t) in enumerate(zip(in_avals, tangents))]
    touts: Any  # one, or a list, as ``multiple_results`` says
    outs, touts = op.jvp(primals, tangents)
    if any(a.size for a in avals):
        _require_some(op, touts if op.multiple_results else (touts,), moving)
    return outs, touts


def _refuse(op: Op, place: int) -> None:
    unknown = op.unknown_in[place]
    raise DifferentiationError(
        f"{op.name}: the derivative by operand {place} ({unknown.operand}) is not known: {unknown.why}; take the "
        "operand out of the derivative with stop_gradient, or give the function a derivative with custom_jvp"
    )


def _require_some(op: Op, tangents: Sequence[Any], moving: Sequence[int]) -> None:
    if all(isinstance(t, Zero) for t in tangents):
        raise RuleError(
            f"{op.name}: its jvp rule gives no tangent though operand {moving[0]} has one; an op that is constant in "
            "an operand lists it in constant_in"
        )


def require_cotangents(op: Op, args: Sequence[Any], results: Sequence[Any]) -> None:
    """Raise unless ``results`` has a cotangent, or a :class:`Zero`, for every operand that is :class:`Linear`."""
    missing = [i for i, (x, ct) in enumerate(zip(args, results, strict=True)) if isinstance(x, Linear) and ct is None]
    if missing:
        raise RuleError(f"{op.name}: its transpose rule gives no cotangent for operand {missing[0]}")
