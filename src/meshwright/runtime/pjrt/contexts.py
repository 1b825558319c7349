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

#: of programs that a context reads; a larger one gets, from XLA, a context of its own
BYTES = 1 << 22
LARGE = 1 << 16

T = TypeVar("T")

_free: list[tuple[ir.Context, int]] = []


def with_module(source: Any, use: Callable[[Any], T]) -> T:
    """``use`` of a program's bytecode as a module of a context; of anything else, and of what is large or cannot be
    read, as it is."""
    if not isinstance(source, bytes) or len(source) > LARGE:
        return use(source)
    try:
        context, seen = _free.pop()
    except IndexError:
        context, seen = new_context(), 0
    result = use(_read(source, context))  # an error would hold the module, and so its context
    if (seen := seen + len(source)) < BYTES:
        _free.append((context, seen))
    return result


def _read(source: bytes, context: ir.Context) -> Any:
    try:
        return ir.Module.parse(source, context)
    except ir.MLIRError:  # XLA says the same, where its errors are explained
        return source
