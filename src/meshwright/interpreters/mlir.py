"""``jax.interpreters.mlir``: lowerings of primitives (:class:`meshwright.extend.core.Primitive`).

They are functions of arrays, or rules that write MLIR operations. Both become ops, which are partitioned like
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.absent import absent as _absent
from meshwright.core.avals import ShapedArray
from meshwright.core.config import platform_named
from meshwright.core.late import LateModule as _LateModule
from meshwright.core.late import late_attributes as _late_attributes
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentTypeError
from meshwright.ir.rewrite import Interpreter
from meshwright.ir.tracing import typeof
from meshwright.ops.primitive import LOWERINGS, Primitive, PrimitiveCall

__all__ = ["lower_fun", "register_lowering"]

_from_rule: Any = _LateModule("meshwright.stablehlo.from_rule")

__getattr__, __dir__ = _late_attributes(
    __name__,
    dict.fromkeys(
        ("LoweringRuleContext", "aval_to_ir_type", "dtype_to_ir_type", "emit_python_callback", "ir", "ir_constant"),
        "meshwright.stablehlo.from_rule",
    ),
    missing=_absent("interpreters.mlir"),
)


@dataclass(frozen=True)
class _Function:
    """A lowering by a function of arrays, which rules may also call."""

    fun: Callable[..., Any]
    multiple_results: bool

    def listed(self, *args: Any, **params: Any) -> list[Any]:
        outs = self.fun(*args, **params)
        return list(outs) if self.multiple_results else [outs]

    def expand(self, call: PrimitiveCall, operands: Sequence[Any], outs: Sequence[ShapedArray]) -> Sequence[Any]:
        return self.listed(*operands, **call.params)

    def __call__(self, ctx: Any, *values: Any, **params: Any) -> Sequence[Any]:
        return ctx.call(self.listed, values, params)


@dataclass(frozen=True)
class _Rule:
    """A lowering by a rule that writes MLIR operations, which are read as ops."""

    rule: Callable[..., Any]

    def expand(self, call: PrimitiveCall, operands: Sequence[Any], outs: Sequence[ShapedArray]) -> Sequence[Any]:
        jaxpr = _from_rule.jaxpr_of_rule(self.rule, call.primitive, call.params, list(map(typeof, operands)), outs)
        return Interpreter[Any]().run(jaxpr, operands)


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Any:
    """The lowering of a primitive to ``fun(*args, **params)``, a function of ``meshwright.numpy`` and ``lax``.

    With ``multiple_results``, ``fun`` returns a list.
    """
    return _Function(fun, multiple_results)


def register_lowering(
    prim: Primitive, rule: Any, platform: str | None = None, inline: bool = True, cacheable: bool = True
) -> None:
    """Register the lowering of a primitive.

    Args:
      prim: the primitive.
      rule: the result of :func:`lower_fun`, or a rule ``rule(ctx, *values, **params)`` that writes StableHLO operations
        and returns their values.
      platform: the ``config.platform`` for which it is; None for all others.
      inline, cacheable: have no effect.

    Raises:
      ArgumentTypeError: ``prim`` is not a primitive, or ``rule`` is not callable.
    """
    if not isinstance(prim, Primitive) or not callable(rule):
        raise ArgumentTypeError(
            f"register_lowering: expected a primitive and a rule, got {prim!r} and {rule!r}; a function of arrays "
            "becomes a rule by mlir.lower_fun(f, multiple_results=...)"
        )
    expansion = rule if isinstance(rule, _Function) else _Rule(rule)
    LOWERINGS.setdefault(prim, {})[platform and platform_named(platform)] = expansion
