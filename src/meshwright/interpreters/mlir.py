"""``jax.interpreters.mlir``: what primitives (:class:`meshwright.extend.core.Primitive`) mean, as functions of arrays
or rules that write operations of MLIR. Both become ops, which are then partitioned as any."""

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
        ("LoweringRuleContext", "aval_to_ir_type", "dtype_to_ir_type", "ir", "ir_constant"),
        "meshwright.stablehlo.from_rule",
    ),
    missing=_absent("interpreters.mlir"),
)


@dataclass(frozen=True)
class _Function:
    """A function of arrays as a lowering, and as a rule that others may call."""

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
    """A rule that writes operations of MLIR, as a lowering: they are read as ops."""

    rule: Callable[..., Any]

    def expand(self, call: PrimitiveCall, operands: Sequence[Any], outs: Sequence[ShapedArray]) -> Sequence[Any]:
        jaxpr = _from_rule.jaxpr_of_rule(self.rule, call.primitive, call.params, list(map(typeof, operands)), outs)
        return Interpreter[Any]().run(jaxpr, operands)


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Any:
    """The lowering of a primitive that means ``fun(*args, **params)``, a function written with ``meshwright.numpy`` and
    ``lax``. With ``multiple_results``, it gives a list."""
    return _Function(fun, multiple_results)


def register_lowering(
    prim: Primitive, rule: Any, platform: str | None = None, inline: bool = True, cacheable: bool = True
) -> None:
    """Register what a primitive means: what :func:`lower_fun` makes, or a rule ``rule(ctx, *values, **params)`` that
    writes operations of StableHLO and returns their values.

    Args:
      platform: the ``config.platform`` with which it means that; None: with all for which nothing else is registered.
      inline, cacheable: change nothing.

    Raises:
      ArgumentTypeError: not a primitive, or a rule that is no function.
    """
    if not isinstance(prim, Primitive) or not callable(rule):
        raise ArgumentTypeError(
            f"register_lowering: expected a primitive and a rule, got {prim!r} and {rule!r}; a function of arrays "
            "becomes a rule by mlir.lower_fun(f, multiple_results=...)"
        )
    expansion = rule if isinstance(rule, _Function) else _Rule(rule)
    LOWERINGS.setdefault(prim, {})[platform and platform_named(platform)] = expansion
