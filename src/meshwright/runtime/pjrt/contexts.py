"""Reuse of MLIR contexts for parsing programs for XLA.

Creating a context with all dialects takes a sixth of the compile time of a small program. A context is used by one
program and one thread at a time: a call that was abandoned after an interrupt may still be using its own. A context
keeps every constant that it has parsed alive, so it is replaced before these become many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from jaxlib.mlir import ir

from meshwright.stablehlo.dialects import new_context

#: the total bytes of programs that a context parses; XLA parses larger programs in a context of their own
BYTES = 1 << 22
LARGE = 1 << 16

T = TypeVar("T")

_free: list[tuple[ir.Context, int]] = []


def with_module(source: Any, use: Callable[[Any], T]) -> T:
    """Call ``use`` with bytecode parsed in a reused context; large programs and other sources are passed as is."""
    if not isinstance(source, bytes) or len(source) > LARGE:
        return use(source)
    try:
        context, seen = _free.pop()
    except IndexError:
        context, seen = new_context(), 0
    result = use(_read(source, context))  # on errors the context is dropped, as the traceback keeps the module alive
    if (seen := seen + len(source)) < BYTES:
        _free.append((context, seen))
    return result


def _read(source: bytes, context: ir.Context) -> Any:
    try:
        return ir.Module.parse(source, context)
    except ir.MLIRError:  # XLA raises the same error, which is reported there
        return source
