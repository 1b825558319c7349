"""Ops defined by a small program of other ops.

``expand`` is that program. It is emitted as a private function, once per op and operand types in a module: a jaxpr
shows one equation where the module has dozens of ops. XLA inlines the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from meshwright.core import dtypes, source
from meshwright.core.avals import ShapedArray
from meshwright.core.caches import on_clear
from meshwright.core.config import Setting, config
from meshwright.core.records import dataclass
from meshwright.ir.contract import Emitted, Value
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Builder, Op
from meshwright.ir.tracing import trace_to_jaxpr


def traced(fun: Callable[..., list[Any]], name: str, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    """The jaxpr of a function of flat arrays; equal functions (including bound methods of equal ops) are traced
    once. Constants are as wide as operands: what is lowered may be computed in 64 bits without ``enable_x64``."""
    if dtypes.keeps_wide() or not any(dtypes.is_wide(a.dtype) for a in avals):
        return _traced(fun, name, avals, config.tracing)
    with dtypes.wide_types():
        return _traced(fun, name, avals, config.tracing)


@lru_cache(maxsize=1024)
def _traced(fun: Callable[..., list[Any]], name: str, avals: tuple[ShapedArray, ...], setting: Setting) -> ClosedJaxpr:
    with source.at(source.UNKNOWN):  # its equations get the lines of its callers
        return trace_to_jaxpr(fun, avals, name)


on_clear(_traced.cache_clear)


def emit_traced(b: Builder, fun: Callable[..., list[Any]], name: str, *operands: Emitted) -> list[Emitted]:
    """Emit a call of ``fun`` on ``operands``; it may close over nothing except parameters of an op."""
    return b.call(name, traced(fun, name, tuple(b.in_avals)), operands)


@dataclass(frozen=True)
class Composite(Op):
    """Base class of ops that are defined by other ops."""

    #: XLA's compiler for CPUs knows no such operation, or the expansion has faster forms there
    written_out_on_cpus: ClassVar[bool] = False

    def expand(self, *operands: Value) -> list[Value]:
        """The results, computed with other ops."""
        raise NotImplementedError

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        outs = emit_traced(b, self.expand, self.name, *operands)
        return outs if self.multiple_results else outs[0]
