"""Dot algorithms on CPUs.

XLA's CPU compiler accepts six dot algorithms, but rejects them for small products and ignores them for all others. So
on CPUs an algorithm only determines types: operands are converted to its operand types, and the product accumulates in
its accumulation type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.core import dtypes
from meshwright.core.dot_algorithms import PRESETS, Algorithm
from meshwright.errors import ArgumentError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.rewrite import replaced_in_all
from meshwright.lowering.narrow_bits import called
from meshwright.ops.elementwise.table import convert

#: the algorithms that XLA's CPU compiler accepts
_ON_CPU = ("F16_F16_F16", "BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F32_F32_F32", "F64_F64_F64")
_SUMS = {"f16": dtypes.float16, "f32": dtypes.float32, "f64": dtypes.float64}


def without_algorithms(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with dot algorithms replaced by conversions and accumulation types; the same object if it has none.

    Raises:
      ArgumentError: an algorithm is not supported on CPUs.
    """
    if not any(map(_has_algorithm, all_eqns(jaxpr.jaxpr))):
        return jaxpr
    return replaced_in_all(jaxpr, lambda _: _typed)


def _has_algorithm(eqn: JaxprEqn) -> bool:
    return isinstance(getattr(eqn.op, "precision", None), Algorithm)


def _typed(eqn: JaxprEqn) -> list[JaxprEqn]:
    if not _has_algorithm(eqn):
        return []
    op: Any = eqn.op
    algorithm: Algorithm = op.precision
    if algorithm.key not in [PRESETS[name].key for name in _ON_CPU]:
        raise ArgumentError(
            f"dot_general at {eqn.source}: XLA has no code for CPUs for the algorithm {algorithm}; give precision= one "
            f"of {', '.join(_ON_CPU)}, or leave it out"
        )

    def dot_general(x: Any, y: Any, *groups: Any) -> list[Any]:
        x, y = (convert(v, algorithm.in_memory(a.aval.dtype, i)) for i, (v, a) in enumerate(zip((x, y), eqn.invars)))
        plain = replace(op, precision=None, preferred_element_type=_SUMS[algorithm.accumulation])
        return [convert(plain.bind(x, y, *groups), eqn.outvars[0].aval.dtype)]

    return [called(dot_general, eqn.invars, eqn.outvars, eqn.source)]
