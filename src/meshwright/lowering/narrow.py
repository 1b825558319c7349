"""Widens arithmetic in types that XLA's CPU compiler does not support: floats up to 8 bits, integers below 8 bits.

The compiler handles these types inconsistently: concatenations and sorts of ``uint2`` crash the process, products of it
are rejected, ``top_k`` of ``int4`` gets 4-bit indices, and ``float4_e2m1fn`` is compared with integer limits that are
rounded to 6. So on CPUs, arithmetic is done in ``float32`` (``float64`` for ``float8_e8m0fnu``), or in ``int8`` and
``uint8``, whose low bits conversions keep. Stored values, data movement and values between ops keep their types.

====================================  ==========================================================
ops                                   are lowered
====================================  ==========================================================
bitwise                               unchanged, or with all bits of a byte defined
conversions                           via the wide type, except from floats to wider floats
that only place elements              unchanged; for 2-bit types with conversions around them
control flow, calls                   unchanged, their bodies like programs
with scalar functions                 with conversions around them and in the function
sums, products of floats              as with the scalar function that adds or multiplies: each step is rounded
others                                with conversions around them
====================================  ==========================================================

The compiler does not clamp indices correctly if their type cannot hold the dimension: indices below 32 bits become
``int32``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.key_types import is_key
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.errors import MeshwrightError
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ir.tracing import infer_cached
from meshwright.lowering.narrow_bits import called, special_conversion, written
from meshwright.ops.composite import traced
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import ConvertElementType, add, mul
from meshwright.ops.reduce.body import ReduceBody
from meshwright.ops.reduce.cumulative import Cumulative
from meshwright.ops.window.body import ReduceWindowBody
from meshwright.ops.window.geometry import WindowDim
from meshwright.ops.window.op import window_params
from meshwright.ops.window.reductions import ReduceWindow

#: ops on bits, and ops that only pass values on
AS_THEY_ARE = frozenset(
    {"bitcast_convert_type", "bitcast_width", "nextafter", "optimization_barrier", "pure_callback", "io_callback",
     "debug_callback", "opaque"}
)  # fmt: skip
#: ops whose jaxprs are scalar functions
_OF_SCALARS = frozenset(
    {"map", "reduce", "reduce_window", "associative_scan", "select_and_scatter", "scatter_body", "sort_by"}
)

#: sums and products, and what they start from
BY_STEPS: dict[str, tuple[Elementwise, int]] = {
    **dict.fromkeys(("reduce_sum", "cumsum", "reduce_window_sum"), (add, 0)),
    **dict.fromkeys(("reduce_prod", "cumprod", "reduce_window_prod"), (mul, 1)),
}

#: maps a dtype to the dtype that replaces it
Widen = Callable[[np.dtype], np.dtype]


def computed_in(dtype: np.dtype) -> np.dtype:
    """The dtype in which arithmetic on ``dtype`` is done on CPUs: ``dtype`` itself unless it is narrow."""
    if is_key(dtype) or dtypes.bit_width(dtype) > 8 or dtypes.is_bool(dtype):
        return dtype
    if dtypes.is_float(dtype):  # in float32, XLA flushes the smallest float8_e8m0fnu number to 0
        return dtypes.float32 if dtypes.has_zero(dtype) else dtypes.float64
    return dtypes.int8 if dtypes.is_signed(dtype) else dtypes.uint8


def moved_in(dtype: np.dtype) -> np.dtype:
    """The dtype in which elements of ``dtype`` are moved on CPUs: XLA supports whole and half bytes."""
    return dtype if is_key(dtype) or dtypes.bit_width(dtype) > 2 else computed_in(dtype)


def _indexed_by(dtype: np.dtype) -> np.dtype:
    return dtype if dtypes.bit_width(dtype) >= 32 else dtypes.int32


def without_narrow_types(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with arithmetic in types that XLA's CPU compiler supports; the same object if nothing changes."""
    with dtypes.wide_types():  # float64 is among those that are computed in
        return replaced_in_all(jaxpr, lambda inner: _instead)


def _instead(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    """The equations that replace one; none if only its inner jaxprs may change."""
    op = eqn.op
    if op.holds_jaxprs and op.name not in _OF_SCALARS:
        return ()
    new = _written(eqn)
    return () if new is eqn else (new,) if isinstance(new, JaxprEqn) else new


def _written(eqn: JaxprEqn) -> JaxprEqn | Sequence[JaxprEqn]:
    op = eqn.op
    special = written(op, eqn.invars[0].aval.dtype) if eqn.invars else None
    if special is not None:
        return called(special, eqn.invars, eqn.outvars, eqn.source)
    if op.name in AS_THEY_ARE:
        return eqn
    if isinstance(op, ConvertElementType):
        return _by_way_of_wide(eqn)
    if op.name in BY_STEPS:
        eqn = _by_steps(eqn)
    places = eqn.op.moves_only or eqn.op.moved is not None or not eqn.op.computes
    return _widened(eqn, moved_in if places else computed_in)


def _by_steps(eqn: JaxprEqn) -> JaxprEqn:
    """A sum or product of narrow floats with its scalar function, so that each step is rounded, as StableHLO says. The
    same object where there is nothing to round, or no number to start from."""
    (x,), op = eqn.invars, eqn.op
    dtype = x.aval.dtype
    if computed_in(dtype) == dtype or not dtypes.is_float(dtype) or not dtypes.has_zero(dtype) or not x.aval.size:
        return eqn
    combine, start = BY_STEPS[op.name]
    scalar = ShapedArray((), dtype)
    by = traced(partial(_step, combine), combine.name, (scalar, scalar))
    if isinstance(op, Cumulative):
        n = x.aval.shape[op.axis]
        along = WindowDim(n, low=0 if op.reverse else n - 1, high=n - 1 if op.reverse else 0)
        windows = [along if d == op.axis else WindowDim(1) for d in range(x.aval.ndim)]
        op = ReduceWindowBody(computation=by, **window_params(windows))
    elif isinstance(op, ReduceWindow):
        op = ReduceWindowBody(computation=by, **window_params(op.windows))
    else:
        op = ReduceBody(eqn.op.params["axes"], by)
    return eqn.replace(op=op, invars=[x, Literal(np.asarray(start, dtype)[()], scalar)])


def _step(combine: Elementwise, a: Any, b: Any) -> list[Any]:
    return [combine(a, b)]


def _by_way_of_wide(eqn: JaxprEqn) -> JaxprEqn | Sequence[JaxprEqn]:
    (source,), (result,) = eqn.invars, eqn.outvars
    before, after = source.aval.dtype, result.aval.dtype
    to_wide_float = dtypes.is_inexact(after) and computed_in(after) == after and after != dtypes.complex128
    if computed_in(before) in (before, after) or (dtypes.is_float(before) and to_wide_float):
        return eqn if special_conversion(before, after) is None else _conversion(source, result, eqn.source)
    steps: list[JaxprEqn] = []
    wide = _as(source, computed_in(before), steps, eqn.source)
    return [*steps, *_conversion(wide, result, eqn.source)]


def _widened(eqn: JaxprEqn, widen: Widen) -> JaxprEqn | Sequence[JaxprEqn]:
    """The equation on widened operands, with conversions before and after it.

    The same object if nothing is narrow, or if the op does not accept wide operands.
    """
    indices = eqn.op.index_operands(len(eqn.invars))
    wanted = [(_indexed_by if i in indices else widen)(a.aval.dtype) for i, a in enumerate(eqn.invars)]
    given = [v.aval.dtype for v in eqn.outvars]
    if wanted == [a.aval.dtype for a in eqn.invars] and given == [widen(d) for d in given]:
        return eqn
    before: list[JaxprEqn] = []
    operands = [_as(a, dtype, before, eqn.source) for a, dtype in zip(eqn.invars, wanted)]
    results = [_wide_var(v, widen) for v in eqn.outvars]
    op = _retyped(eqn.op, widen)
    if not _fits(op, operands, results):
        return eqn
    after = [e for w, v in zip(results, eqn.outvars) if w is not v for e in _conversion(w, v, eqn.source)]
    return [*before, eqn.replace(op=op, invars=operands, outvars=results), *after]


def _wide_var(var: Var, widen: Widen) -> Var:
    wide = widen(var.aval.dtype)
    return var if wide == var.aval.dtype else Var(var.aval.update(dtype=wide))


def _as(atom: Atom, dtype: np.dtype, before: list[JaxprEqn], source: SourceLocation) -> Atom:
    """``atom`` converted to ``dtype``; a conversion, if needed, is appended to ``before``."""
    if atom.aval.dtype == dtype:
        return atom
    wide = Var(atom.aval.update(dtype=dtype))
    before += _conversion(atom, wide, source)
    return wide


def _conversion(operand: Atom, result: Var, source: SourceLocation) -> list[JaxprEqn]:
    special = special_conversion(operand.aval.dtype, result.aval.dtype)
    if special is not None:
        return [called(special, [operand], [result], source)]
    op = ConvertElementType(result.aval.dtype, result.aval.weak_type)
    return [JaxprEqn(op, [operand], [result], source)]


def _retyped(op: Op, widen: Widen) -> Op:
    """The op with the dtypes and scalar functions among its parameters widened."""

    def parameter(value: Any) -> Any:
        if isinstance(value, np.dtype):
            return widen(value)
        return _of_wide_scalars(value, widen) if isinstance(value, ClosedJaxpr) else value

    changed = {name: new for name, old in op.params.items() if (new := parameter(old)) is not old}
    return dataclasses.replace(op, **changed) if changed else op


def _of_wide_scalars(body: ClosedJaxpr, widen: Widen) -> ClosedJaxpr:
    """A scalar function that takes wide operands, converts them to its own types, and widens its results."""
    inner = without_narrow_types(body).jaxpr
    invars = [_wide_var(v, widen) for v in inner.invars]
    steps = [e for w, v in zip(invars, inner.invars) if w is not v for e in _conversion(w, v, UNKNOWN)]
    steps += inner.eqns
    outs = [_as(a, widen(a.aval.dtype), steps, UNKNOWN) for a in inner.outvars]
    return ClosedJaxpr(Jaxpr(inner.constvars, invars, outs, steps, inner.debug_name), body.consts)


def _fits(op: Op, operands: Sequence[Atom], results: Sequence[Var]) -> bool:
    """Whether the op infers the types of ``results`` from those of ``operands``."""
    try:
        out = infer_cached(op, tuple(a.aval for a in operands))
    except MeshwrightError:
        return False
    outs = out if op.multiple_results else [out]
    return [(a.shape, a.dtype) for a in outs] == [(v.aval.shape, v.aval.dtype) for v in results]
