"""``jax.interpreters.ad``: derivative rules of primitives (:class:`meshwright.extend.core.Primitive`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from meshwright.core.absent import absent as _absent
from meshwright.core.avals import ShapedArray
from meshwright.ir.op import Linear as UndefinedPrimal
from meshwright.ir.op import Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import add as _add
from meshwright.ops.elementwise.table import materialize as instantiate_zeros
from meshwright.ops.primitive import JVPS as primitive_jvps
from meshwright.ops.primitive import TRANSPOSES as primitive_transposes
from meshwright.ops.primitive import Primitive
from meshwright.transforms.jvp import JVPTrace, JVPTracer

__all__ = [
    "JVPTrace", "JVPTracer", "UndefinedPrimal", "Zero", "add_jaxvals", "add_tangents", "defbilinear", "defjvp",
    "defjvp2", "deflinear", "deflinear2", "get_primitive_transpose", "instantiate_zeros", "is_undefined_primal",
    "primitive_jvps", "primitive_transposes", "zeros_like_aval",
]  # fmt: skip

__getattr__ = _absent("interpreters.ad")


def is_undefined_primal(x: Any) -> bool:
    """Whether a transpose rule must return the cotangent of this operand."""
    return isinstance(x, UndefinedPrimal)


def zeros_like_aval(aval: ShapedArray) -> Any:
    """An array of zeros of a type."""
    return instantiate_zeros(Zero(aval))


def add_jaxvals(x: Any, y: Any) -> Any:
    """The sum of two arrays of the same type."""
    return _add.bind(x, y)


def add_tangents(x: Any, y: Any) -> Any:
    """The sum of two tangents, either of which may be a :class:`Zero`."""
    return y if isinstance(x, Zero) else x if isinstance(y, Zero) else add_jaxvals(x, y)


def get_primitive_transpose(p: Primitive) -> Callable[..., Any]:
    """The transpose rule of a primitive.

    Raises:
      KeyError: none is registered.
    """
    return primitive_transposes[p]


def defjvp(primitive: Primitive, *jvprules: Callable[..., Any] | None) -> None:
    """Register a rule for each operand: ``rule(tangent, *operands, **params)``, or None if the derivative is zero."""
    without_result = (
        rule and (lambda t, _, *args, _rule=rule, **params: _rule(t, *args, **params)) for rule in jvprules
    )
    defjvp2(primitive, *without_result)


def defjvp2(primitive: Primitive, *jvprules: Callable[..., Any] | None) -> None:
    """:func:`defjvp` with rules that also get the result: ``rule(tangent, result, *operands, **params)``."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        moved = [r(t, out, *primals, **params) for r, t in zip(jvprules, tangents) if r and not isinstance(t, Zero)]
        return out, reduce(add_tangents, moved, Zero(typeof(out)))

    primitive_jvps[primitive] = jvp


def deflinear(primitive: Primitive, transpose_rule: Callable[..., Sequence[Any]]) -> None:
    """Register that the primitive is linear in its operands.

    ``transpose_rule(cotangent, **params)`` returns the cotangents of the operands.
    """
    deflinear2(primitive, lambda ct, *_, **params: transpose_rule(ct, **params))


def deflinear2(primitive: Primitive, transpose_rule: Callable[..., Sequence[Any]]) -> None:
    """:func:`deflinear` with ``transpose_rule(cotangent, *operands, **params)``.

    Operands whose cotangents are needed are :class:`UndefinedPrimal`.
    """

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return primitive.bind(*primals, **params), primitive.bind(*map(instantiate_zeros, tangents), **params)

    primitive_jvps[primitive] = jvp
    primitive_transposes[primitive] = transpose_rule


def defbilinear(prim: Primitive, lhs_rule: Callable[..., Any], rhs_rule: Callable[..., Any]) -> None:
    """Register that the primitive is linear in each of two operands.

    ``lhs_rule(cotangent, x, y, **params)`` returns the cotangent of the first operand, ``rhs_rule`` that of the second.
    """

    def transpose(ct: Any, x: Any, y: Any, **params: Any) -> list[Any]:
        rules = [rule if is_undefined_primal(operand) else None for rule, operand in ((lhs_rule, x), (rhs_rule, y))]
        return [rule and rule(ct, x, y, **params) for rule in rules]

    defjvp(
        prim,
        lambda t, x, y, **params: prim.bind(t, y, **params),
        lambda t, x, y, **params: prim.bind(x, t, **params),
    )
    primitive_transposes[prim] = transpose
